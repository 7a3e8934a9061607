"""What a file system really does, asked before it is trusted: on files of our own under the root, removed at the end.

Decides which questions there are; `grading` decides what follows. The answers belong to this machine's mount as much
as to what is mounted, so they are not kept: another machine may have mounted the same directory in another way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lastgood.errors import StorePermanentError
from lastgood.stores.grading import Needed, Probe

__all__ = ["probe_root"]


def probe_root(root: Path) -> Iterator[Probe]:
    """Ask a file system for everything that publishing relies on.

    Raises:
        StorePermanentError: The root is not a directory.
    """
    if not root.is_dir():
        raise StorePermanentError(f"root is not a directory: {root}", hint="is the file system mounted?")
    readable = os.access(root, os.R_OK | os.X_OK)
    yield Probe(name="readable", held=readable, needed=Needed.READING, detail=str(root))
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".lastgood-doctor-", dir=root))
    except OSError as error:
        yield Probe(name="writable", held=False, needed=Needed.PUBLISHING, detail=_reason(error))
        return
    try:
        yield Probe(name="writable", held=True, needed=Needed.PUBLISHING, detail="a directory can be made")
        for name, needed, probe in _PROBES:
            held, detail = _ask(probe, scratch / name)
            yield Probe(name=name, held=held, needed=needed, detail=detail)
        free = shutil.disk_usage(root).free
        detail = f"{free / 2**30:.1f} GiB free"
        yield Probe(name="free_space", held=free > 2**30, needed=Needed.NOTHING, detail=detail)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()


def _ask(probe: Callable[[Path], tuple[bool, str]], directory: Path) -> tuple[bool, str]:
    try:
        directory.mkdir()
        return probe(directory)
    except OSError as error:
        return False, _reason(error)


def _link(directory: Path) -> tuple[bool, str]:
    (directory / "a").write_bytes(b"a")
    (directory / "b").write_bytes(b"b")
    os.link(directory / "a", directory / "name")
    try:
        os.link(directory / "b", directory / "name")
    except FileExistsError:
        counted = os.stat(directory / "a").st_nlink == 2
        return counted, "a second name is refused" if counted else "link count is not kept"
    return False, "link replaced an existing name: racing claims could both win"


def _exclusive(directory: Path) -> tuple[bool, str]:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(directory / "file", flags))
    try:
        os.close(os.open(directory / "file", flags))
    except FileExistsError:
        return True, "O_EXCL refuses an existing file"
    return False, "O_EXCL opened an existing file"


def _rename_directory(directory: Path) -> tuple[bool, str]:
    for name in ("from", "to"):
        (directory / name).mkdir()
        (directory / name / "file").write_bytes(name.encode())
    try:
        os.rename(directory / "from", directory / "to")
    except OSError:
        return True, "a directory with content is not replaced"
    return False, "rename replaced a directory with content"


def _lock(directory: Path) -> tuple[bool, str]:
    with open(directory / "lock", "wb") as first, open(directory / "lock", "wb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True, "flock excludes"
    return False, "flock does not exclude: racing gates could let LAST_GOOD go back"


def _sync(directory: Path) -> tuple[bool, str]:
    begin = time.monotonic()
    with open(directory / "file", "wb") as file:
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True, f"file and directory flushed in {1000 * (time.monotonic() - begin):.1f} ms"


def _case(directory: Path) -> tuple[bool, str]:
    return _keeps_apart(directory, ("Name", "name"), "upper and lower case")


def _unicode(directory: Path) -> tuple[bool, str]:
    return _keeps_apart(directory, ("caf\u00e9", "cafe\u0301"), "Unicode spellings")


def _keeps_apart(directory: Path, names: tuple[str, str], what: str) -> tuple[bool, str]:
    for name in names:
        with contextlib.suppress(FileExistsError):
            (directory / name).touch(exist_ok=False)
    apart = len(list(directory.iterdir())) == 2
    return apart, f"{what} kept apart" if apart else f"{what} folded: manifests refuse such twins"


_PROBES: tuple[tuple[str, Needed, Callable[[Path], tuple[bool, str]]], ...] = (
    ("hard_link", Needed.PUBLISHING, _link),
    ("exclusive_create", Needed.PUBLISHING, _exclusive),
    ("directory_rename", Needed.PUBLISHING, _rename_directory),
    ("flush", Needed.PUBLISHING, _sync),
    ("lock", Needed.PUBLISHING, _lock),
    ("case", Needed.NOTHING, _case),
    ("unicode", Needed.NOTHING, _unicode),
)
