"""File ports that kill, tear and record: the instruments of the crash proof."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from lastgood.stores.filesystem import FileSystem

MUTATING = (
    "make_directory",
    "write_new",
    "sync_file",
    "sync_directory",
    "link",
    "rename",
    "unlink",
    "remove_directory",
)


class Killed(BaseException):
    """The process died here; nothing in the code under test may catch it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One mutating call.

    Args:
        name: Of the file port's method.
        paths: Its paths.
        data: What it wrote, if it writes.
        site: Function of the store that made it, and which of its calls.
    """

    name: str
    paths: tuple[Path, ...]
    data: bytes
    site: str


def _site() -> str:
    """The store's own function, and the line's text would move: the function and the ordinal within it do not."""
    frame = sys._getframe(1)
    while frame is not None and "stores/local.py" not in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_name}:{frame.f_lineno - frame.f_code.co_firstlineno}" if frame else "test"


class WatchedFileSystem(FileSystem):
    """Performs every call after `before` has seen it."""

    def before(self, operation: Operation) -> bool:
        """Return False to leave the call out."""
        raise NotImplementedError

    def _watched(self, name: str, paths: tuple[Path, ...], data: bytes = b"") -> bool:
        return self.before(Operation(name, paths, data, _site()))

    def make_directory(self, path: Path) -> bool:
        return super().make_directory(path) if self._watched("make_directory", (path,)) else True

    def write_new(self, path: Path, data: bytes) -> None:
        if self._watched("write_new", (path,), data):
            super().write_new(path, data)

    def sync_file(self, path: Path) -> None:
        if self._watched("sync_file", (path,)):
            super().sync_file(path)

    def sync_directory(self, path: Path) -> None:
        if self._watched("sync_directory", (path,)):
            super().sync_directory(path)

    def link(self, source: Path, target: Path) -> None:
        if self._watched("link", (source, target)):
            super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        if self._watched("rename", (source, target)):
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        if self._watched("unlink", (path,)):
            super().unlink(path)

    def remove_directory(self, path: Path) -> None:
        if self._watched("remove_directory", (path,)):
            super().remove_directory(path)


class KillingFileSystem(WatchedFileSystem):
    """Dies before the `kill_at`-th call (1 and up); with `torn`, in the middle of it if it writes."""

    def __init__(self, kill_at: int, *, torn: float | None = None) -> None:
        self.calls = 0
        self.killed_in: Operation | None = None
        self._kill_at = kill_at
        self._torn = torn

    def before(self, operation: Operation) -> bool:
        self.calls += 1
        if self.killed_in is not None:
            raise Killed
        if self.calls == self._kill_at:
            self.killed_in = operation
            if self._torn is not None and operation.name == "write_new":
                part = operation.data[: int(len(operation.data) * self._torn)]
                FileSystem.write_new(self, operation.paths[0], part)
            raise Killed
        return True


class RecordingFileSystem(WatchedFileSystem):
    """Performs and records; calls whose site is in `without` are neither performed nor recorded."""

    def __init__(self, *, without: frozenset[str] = frozenset()) -> None:
        self.history: list[Operation] = []
        self._without = without

    def before(self, operation: Operation) -> bool:
        if f"{operation.name}@{operation.site}" in self._without:
            return False
        # A call that changes nothing has no place in a history.
        if operation.name == "make_directory" and operation.paths[0].exists():
            return True
        if operation.name in ("link", "rename") and not operation.paths[0].exists():
            return True
        if operation.name == "link" and operation.paths[1].exists():
            return True
        if operation.name in ("unlink", "remove_directory") and not operation.paths[0].exists():
            return True
        self.history.append(operation)
        return True
