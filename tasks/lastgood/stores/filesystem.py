"""The file port: every mutating system call that the local store makes, one method a call, and what a failed one means.

Decides of an error of the operating system whether repeating may help, and nothing else. The port exists so that a test
can kill before each call, tear a write, record a history and replay every legal loss and reordering of what was not
synced (tests/crash). Reads go straight to the operating system.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from lastgood.errors import StoreError, StorePermanentError, StoreTransientError

__all__ = ["FileSystem", "classified"]

_PERMANENT = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EEXIST,
        errno.EFBIG,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.EPERM,
        errno.EROFS,
    }
)


class FileSystem:
    """The real thing. Every method is one step of a history; all may raise OSError."""

    def make_directory(self, path: Path) -> bool:
        """Create one directory, mode 0777 less the umask; False if it exists."""
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        return True

    def write_new(self, path: Path, data: bytes) -> None:
        """Create a file that must not exist and write all of it; nothing is durable yet."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)

    def sync_file(self, path: Path) -> None:
        """Flush a file's bytes to the medium. An error is final: the kernel may call a second attempt clean."""
        # O_NONBLOCK so that a pipe in the place of a file is an error instead of a wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Flush a directory's names to the medium."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name that must not exist."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Move a name. A file's target is replaced; a directory's must be absent or empty."""
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        os.rmdir(path)


class classified(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a word in a with statement
    """Turn an OSError into a StoreError that says whether repeating may help."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            place = f" ({error.filename})" if error.filename else ""
            raise _store_error(error.errno)(f"cannot {self._doing}{place}: {reason}") from error


def _store_error(number: int | None) -> type[StoreError]:
    return StorePermanentError if number in _PERMANENT else StoreTransientError
