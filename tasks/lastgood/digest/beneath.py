"""Files beneath a root, named by keys that no link can lead elsewhere.

Decides which file a key means. Rules: every component is opened by itself, relative to the directory before it and
without following links, so neither a linked directory nor one swapped in meanwhile leads out of the root; `.`, `..`,
empty components and absolute keys are refused. (The one system call that does the same, openat2 with RESOLVE_BENEATH,
needs a raw call number and is denied in some containers.) A mount point beneath the root is followed: an administrator
put it there. The root itself may be reached through links, since the user named it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from lastgood.digest.files import FilePath, not_regular, open_regular

__all__ = ["RootDirectory"]

MAXIMUM_CACHED_DIRECTORIES = 256
"""Open directories kept, a quarter of the usual limit of 1,024 descriptors; further ones are reopened each time."""

# O_PATH, since walking through a directory needs no permission to list it.
_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class RootDirectory:
    """An open root directory; a context manager, safe to share between threads.

    Args:
        path: The root; it is resolved once, here, and stays the same directory if its name is moved.

    Raises:
        OSError: The root cannot be opened or is no directory.
    """

    def __init__(self, path: FilePath) -> None:
        self._path = os.fspath(path)
        self._root = os.open(path, _DIRECTORY_FLAGS)
        self._cached: dict[str, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the root and every directory kept open; the object is of no use afterwards. May be repeated."""
        with self._lock:
            kept, self._cached = [*self._cached.values()], {}
            root, self._root = self._root, -1
        for fd in [*kept, *([root] if root >= 0 else [])]:
            os.close(fd)

    def open(self, key: str) -> int:
        """Open the regular file that the key names, for reading.

        Args:
            key: `/`-separated and relative to the root, e.g. `optimizer/rank-00007.safetensors`.

        Returns:
            A file descriptor that the caller closes.

        Raises:
            NotRegularFile: A link on the way, a file where a directory should be, or not a regular file at the end.
            ValueError: The key is absolute or has an empty, `.` or `..` component.
            OSError: It cannot be opened.
        """
        parent, _, name = key.rpartition("/")
        _check_components(key)
        with self._directory(parent) as fd:
            return open_regular(name, dir_fd=fd)

    @contextmanager
    def _directory(self, key: str) -> Iterator[int]:
        fd = self._cached.get(key) if key else self._root
        if fd is not None:
            yield fd
            return
        fd = self._walk(key)
        with self._lock:
            keep = key not in self._cached and len(self._cached) < MAXIMUM_CACHED_DIRECTORIES
            if keep:
                self._cached[key] = fd
        try:
            yield fd
        finally:
            if not keep:
                os.close(fd)

    def _walk(self, key: str) -> int:
        fd = self._root
        for component in key.split("/"):
            above = fd
            try:
                fd = os.open(component, _DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=above)
            except OSError as error:
                # With O_DIRECTORY, Linux answers ENOTDIR for a link too.
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                raise not_regular(f"{self._path}/{key}", "directory", f"file or link: {component}") from None
            finally:
                if above != self._root:
                    os.close(above)
        return fd


def _check_components(key: str) -> None:
    if any(component in ("", ".", "..") for component in key.split("/")):
        raise ValueError(f"key leads out of its root: {key[:200]!r}: expected relative components without '.' or '..'")
