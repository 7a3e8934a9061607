"""Private directories of this process: removed when it is done with them, or by the next one if it was killed.

Decides who may remove what: a directory holds a locked file for as long as its owner lives, and what is unlocked is
nobody's. The kernel frees the lock of whoever was killed, in another container on the same file system, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from lastgood.errors import StorePermanentError

__all__ = ["PrivateDirectory", "SharedCopy", "hold_directory", "make_directory", "remove_abandoned"]

PREFIX = "lastgood-"
POLL_SECONDS = 0.02
HELD = "held"
"""A file in a directory that is to be removed, locked by whoever works there: unlocked, its owner is dead."""


def make_directory(purpose: str, parent: Path) -> Path:
    """A new directory of mode 0700 under a name of ours.

    Raises:
        OSError: The parent is not a directory that we may write to.
    """
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-", dir=parent))


def hold_directory(directory: Path) -> int:
    """Lock a directory for as long as we live, or until the descriptor is closed."""
    descriptor = os.open(directory / f"{HELD}~", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # Under its name only when it is locked: others remove what they find unlocked.
    os.rename(directory / f"{HELD}~", directory / HELD)
    return descriptor


def remove_abandoned(parent: Path) -> None:
    """Remove what processes that were killed left behind: each may be as large as a checkpoint."""
    for directory in parent.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(directory / HELD, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # to be kept, being made, or not one of ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if directory.lstat().st_uid == os.getuid() and _is_there(directory, descriptor):
                _remove_tree(directory)
        except OSError:
            continue  # somebody works there
        finally:
            os.close(descriptor)


class PrivateDirectory:
    """A directory of this process below the system's temporary one; gone when it is closed, or with the process.

    Args:
        purpose: A word for its name.

    Raises:
        StorePermanentError: It cannot be made.
    """

    def __init__(self, purpose: str) -> None:
        parent = Path(tempfile.gettempdir())
        remove_abandoned(parent)
        try:
            base = make_directory(purpose, parent)
            held = hold_directory(base)
        except OSError as error:
            raise StorePermanentError(f"scratch cannot be made: in {parent}: {error.strerror}") from error
        self.path = base / "content"
        self.close = weakref.finalize(self, _give_up, base, held, os.getpid())

    def clear(self) -> None:
        """Remove what it holds."""
        shutil.rmtree(self.path, ignore_errors=True)


class SharedCopy:
    """One directory for all processes of this user on this machine that want the same bytes; the first one fetches.

    Gone when the last of them has closed it or ended.

    Args:
        name: Tells the bytes apart from all others.
        fill: Fetches them into the directory that it is given; whatever it raises is raised, and the next one fetches.

    Raises:
        StorePermanentError: It cannot be made.
    """

    def __init__(self, name: str, fill: Callable[[Path], None]) -> None:
        base = Path(tempfile.gettempdir()) / f"{PREFIX}{name}"
        try:
            while (held := _hold_shared(base, fill)) is None:
                pass  # the one before removed it under our hands
        except OSError as error:
            raise StorePermanentError(f"copy cannot be made: {base}: {error.strerror}") from error
        self.path = base / "content"
        self.close = weakref.finalize(self, _give_up_shared, base, held, os.getpid())


def _hold_shared(base: Path, fill: Callable[[Path], None]) -> int | None:
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    try:
        if base.lstat().st_uid != os.getuid():
            raise StorePermanentError(f"not ours: {base}: expected a directory of this user")
        descriptor = os.open(base / HELD, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        while True:
            # Users share the lock for as long as they use the copy; whoever fills has it alone.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not _is_there(base, descriptor):
                os.close(descriptor)
                return None
            if (base / "whole").exists():
                return descriptor
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(POLL_SECONDS)
                continue
            if _is_there(base, descriptor) and not (base / "whole").exists():
                shutil.rmtree(base / "content", ignore_errors=True)
                (base / "content").mkdir()
                fill(base / "content")
                (base / "whole").touch()
    except BaseException:
        if not (base / "whole").exists():
            shutil.rmtree(base / "content", ignore_errors=True)  # half of a checkpoint may be half of a disk
        os.close(descriptor)
        raise


def _remove_tree(base: Path) -> None:
    """Remove a directory whose lock we hold alone: away from its name first, so that nobody finds half of it."""
    away = base.with_name(f"{base.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        os.rename(base, away)
        shutil.rmtree(away, ignore_errors=True)


def _is_there(base: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(base / HELD, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _give_up(base: Path, held: int, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        shutil.rmtree(base, ignore_errors=True)
        os.close(held)


def _give_up_shared(base: Path, held: int, owner: int) -> None:
    if os.getpid() != owner:
        return
    # A lock that is exclusive means that nobody else uses it.
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(base, held):
            _remove_tree(base)
    os.close(held)
