"""The file port: every mutating system call that the local store makes, one method a call.

Decides nothing. It exists so that a test can kill before each call, tear a write, record a history and replay every
legal loss and reordering of what was not synced (tests/crash). Reads go straight to the operating system.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["FileSystem"]


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
