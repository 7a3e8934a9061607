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
from datetime import timedelta
from pathlib import Path

from lastgood.errors import StorePermanentError, StoreTransientError

__all__ = ["PrivateDirectory", "SharedCopy", "hold_directory", "make_directory", "remove_abandoned"]

PREFIX = "lastgood-"
POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 0.2
LOOK_SECONDS = 1.0
PATIENCE = timedelta(minutes=30)
"""How long a copy may stand still; an artifact whose bytes look wrong is read a second time before it goes on."""
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
        patience: How long the copy of another process may stand still.

    Raises:
        StorePermanentError: It cannot be made.
        StoreTransientError: The process that fetches it stopped doing so and holds it all the same.
    """

    def __init__(self, name: str, fill: Callable[[Path], None], *, patience: timedelta = PATIENCE) -> None:
        base = Path(tempfile.gettempdir()) / f"{PREFIX}{name}"
        patient = _Patience(base, patience)
        try:
            while (held := _hold_shared(base, fill, patient)) is None:
                pass  # the one before removed it under our hands
        except OSError as error:
            raise StorePermanentError(f"copy cannot be made: {base}: {error.strerror}") from error
        self.path = base / "content"
        self.close = weakref.finalize(self, _give_up_shared, base, held, os.getpid())


class _Patience:
    """How long somebody waits for a copy that another process makes: for as long as it grows."""

    def __init__(self, base: Path, patience: timedelta) -> None:
        self._base = base
        self._patience = patience
        self._seen: tuple[int, int] | None = None
        self._look_at = self._moved_at = time.monotonic()
        self._pause_seconds = POLL_SECONDS

    def wait(self) -> None:
        """Sleep a moment, or raise.

        Raises:
            StoreTransientError: Nothing was written for too long.
        """
        time.sleep(self._pause_seconds)
        if (now := time.monotonic()) < self._look_at:
            return
        # Looking costs a call for each artifact, so a copy that takes long is looked at less often.
        self._look_at = now + min(LOOK_SECONDS, self._patience.total_seconds() / 4)
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_POLL_SECONDS)
        if (seen := self._extent()) != self._seen:
            self._seen, self._moved_at = seen, now
        elif now - self._moved_at > self._patience.total_seconds():
            raise StoreTransientError(
                f"copy stands still: {self._base}: expected the process that fetches it to write, "
                f"nothing came for {self._patience.total_seconds():.0f} s",
                hint=f"find it by `fuser {self._base / HELD}` and end it: the next one fetches anew",
            )

    def _extent(self) -> tuple[int, int]:
        """How many files there are, and their bytes."""
        lengths = []
        for directory, _, names in os.walk(self._base):
            for name in names:
                with contextlib.suppress(OSError):
                    lengths.append(os.lstat(os.path.join(directory, name)).st_size)
        return len(lengths), sum(lengths)


def _hold_shared(base: Path, fill: Callable[[Path], None], patient: _Patience) -> int | None:
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
            # Users share the lock for as long as they use the copy; whoever fills has it alone. Nobody waits for it in
            # the kernel, where no patience ends.
            if _locks(descriptor, fcntl.LOCK_SH):
                if not _is_there(base, descriptor):
                    os.close(descriptor)
                    return None
                if (base / "whole").exists():
                    return descriptor
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                if _locks(descriptor, fcntl.LOCK_EX):
                    _fill(base, descriptor, fill)
                    continue
            patient.wait()
    except BaseException:
        os.close(descriptor)
        raise


def _locks(descriptor: int, kind: int) -> bool:
    """Take a lock if nobody is in the way."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fill(base: Path, descriptor: int, fill: Callable[[Path], None]) -> None:
    """Make the copy, under the lock that is ours alone, unless somebody was faster."""
    if not _is_there(base, descriptor) or (base / "whole").exists():
        return
    content = base / "content"
    try:
        shutil.rmtree(content, ignore_errors=True)
        content.mkdir()
        fill(content)
        (base / "whole").touch()
    except BaseException:
        shutil.rmtree(content, ignore_errors=True)  # half of a checkpoint may be half of a disk
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
