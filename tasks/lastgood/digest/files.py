"""One regular file, hashed or copied while whatever may happen to it happens.

Decides how a file is opened and read. Leaves names beneath a root to `beneath`, many files to `engine`, and what a
wrong digest means to `verify`. Rules:

- Only a regular file is read: a link is not followed, and a FIFO, which would hang a plain `open`, is refused.
- A file that shrinks, grows or is rewritten while it is read is an error. Therefore it is read, never mapped: a mapped
  file that is truncated kills its reader with SIGBUS (measured), and the copy that reading costs is hidden by reading
  ahead.
- Memory is bounded by the windows (a few MiB), not by the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from lastgood.digest.values import Algorithm, Digest, StreamHasher

__all__ = ["FileChanged", "FileDigest", "NotRegularFile", "SizeMismatch", "copy_and_hash", "hash_file", "open_regular"]

FilePath: TypeAlias = str | os.PathLike[str]

BUFFER_BYTES = 512 * 1024
"""Read size without reading ahead: it stays in a core's own cache between read and hash; 64 KiB to 1 MiB are alike."""
WINDOW_BYTES = 4 * 2**20
"""Read size with reading ahead: below 2 MiB the hand-over to the helper threads shows, above 8 MiB the cache misses."""
HUGE_PAGE_BYTES = 2 * 2**20
"""A huge page of x86-64 and of most arm64 kernels; also the read size past the cache without reading ahead."""
AHEAD_MINIMUM_BYTES = 32 * 2**20
"""The file size from which helper threads pay for being started."""

_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
# What `open` says of a symbolic link under O_NOFOLLOW, and of a socket or a device without a driver.
_NOT_REGULAR_ERRORS = {errno.ELOOP: "symbolic link", errno.ENXIO: "socket or device"}
_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
)


class NotRegularFile(OSError):
    """The name leads to a link, directory, FIFO, socket or device; nothing of it was read."""


class FileChanged(OSError):
    """The file shrank, grew or was written while it was read, so no digest describes it."""


class SizeMismatch(OSError):
    """The file is not as long as the caller knows it to be; nothing of it was read."""

    def __init__(self, where: str, *, expected_bytes: int, found_bytes: int) -> None:
        super().__init__(f"size mismatch: {where}: expected {expected_bytes} bytes, found {found_bytes}")
        self.expected_bytes = expected_bytes
        self.found_bytes = found_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """What a file held: its length and its digests, in the order in which the algorithms were asked for."""

    size_bytes: int
    digests: tuple[Digest, ...]


def open_regular(path: FilePath, *, dir_fd: int | None = None) -> int:
    """Open a regular file for reading, without following a link in its last component and without ever waiting.

    Args:
        path: The file, relative to `dir_fd` where that is given.
        dir_fd: An open directory.

    Returns:
        A file descriptor that the caller closes.

    Raises:
        NotRegularFile: The name leads to something else.
        OSError: It cannot be opened.
    """
    where = os.fspath(path)
    try:
        fd = os.open(path, _OPEN_FLAGS, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in _NOT_REGULAR_ERRORS:
            raise
        raise not_regular(where, "regular file", _NOT_REGULAR_ERRORS[error.errno]) from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise not_regular(where, "regular file", next((name for is_kind, name in _KINDS if is_kind(mode)), "other"))
    return fd


def hash_file(
    source: FilePath | int,
    algorithms: Sequence[Algorithm] = (Algorithm.BLAKE3,),
    *,
    size_bytes: int | None = None,
    threads: int = 1,
    drop_cache: bool = False,
) -> FileDigest:
    """Hash one file from its first byte to its last.

    Args:
        source: A path, or the descriptor of an open regular file; its position is neither used nor moved.
        algorithms: At least one, each once; all of them in one reading.
        size_bytes: The expected length; a difference is found before anything is read.
        threads: Over how many threads a file of 32 MiB or more may be spread (reading ahead, BLAKE3 subtrees).
        drop_cache: Read what the disk holds: drop the file's clean pages first, and read past the page cache where the
            file system can. Pages that were not fsynced stay, or are written first.

    Raises:
        NotRegularFile: Not a regular file.
        SizeMismatch: Another length than `size_bytes`.
        FileChanged: Written or truncated meanwhile.
        OSError: It cannot be opened or read.
    """
    if not isinstance(source, int):
        fd = open_regular(source)
        try:
            return hash_open_file(fd, os.fspath(source), algorithms, size_bytes, threads=threads, drop_cache=drop_cache)
        finally:
            os.close(fd)
    return hash_open_file(
        source, f"descriptor {source}", algorithms, size_bytes, threads=threads, drop_cache=drop_cache
    )


def copy_and_hash(
    source: int,
    destination: int,
    algorithms: Sequence[Algorithm] = (Algorithm.BLAKE3,),
    *,
    size_bytes: int | None = None,
) -> FileDigest:
    """Copy a file and hash the very bytes that were written, so that what is loaded later is what was verified.

    Args:
        source: Descriptor of an open regular file; its position is neither used nor moved.
        destination: Descriptor open for writing; written from its current position, and not fsynced.
        algorithms: At least one, each once.
        size_bytes: The expected length; a difference is found before anything is copied.

    Raises:
        SizeMismatch: Another length than `size_bytes`.
        FileChanged: The source was written or truncated meanwhile.
        OSError: Reading or writing failed; the destination holds a part.
    """
    reading = _Reading(source, f"descriptor {source}", size_bytes)
    hashers = _hashers(algorithms, threads=1)
    windows = reading.windows(WINDOW_BYTES)
    reading.run((lambda data: _write_all(destination, data), *(hasher.update for hasher in hashers)), windows)
    return FileDigest(size_bytes=reading.size_bytes, digests=tuple(hasher.digests()[0] for hasher in hashers))


def hash_open_file(
    fd: int,
    where: str,
    algorithms: Sequence[Algorithm],
    size_bytes: int | None,
    *,
    threads: int,
    drop_cache: bool,
    buffer: memoryview | None = None,
    window_bytes: int = WINDOW_BYTES,
    on_read: Callable[[int], None] = lambda _: None,
) -> FileDigest:
    """`hash_file` for the engine, which lends a buffer, watches the bytes go by, and stops by raising in `on_read`."""
    if drop_cache:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    reading = _Reading(fd, where, size_bytes, on_read, direct=drop_cache)
    split = threads > 1 and reading.size_bytes >= AHEAD_MINIMUM_BYTES
    hashers = _hashers(algorithms, threads=threads if split else 1)
    if split:
        windows = reading.windows(window_bytes)
    else:
        windows = (reading.windows(BUFFER_BYTES)[0] if buffer is None else buffer,)
    try:
        reading.run(tuple(hasher.update for hasher in hashers), windows)
    finally:
        reading.use_cache()
    return FileDigest(size_bytes=reading.size_bytes, digests=tuple(hasher.digests()[0] for hasher in hashers))


def not_regular(where: str, expected: str, found: str) -> NotRegularFile:
    """The error for a name that leads to the wrong kind of thing."""
    return NotRegularFile(f"not a {expected}: {where}: expected a {expected}, found a {found}")


def new_window(size_bytes: int) -> memoryview:
    """Memory to read into, of its own pages, as reading past the cache demands; a large one of huge pages.

    A read into scattered small pages reaches the device in small pieces: 500 MB took 0.6 s, into huge pages 0.2 s.
    """
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes >= HUGE_PAGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class _Reading:
    """One pass over an open file, from its first byte to the length that it had at the start.

    With `direct` it reads past the page cache where the file system can, and through it elsewhere: filling the cache
    with pages that nobody will read again costs more CPU than hashing them (measured: 0.4 s against 0.08 s for 500 MB).
    """

    def __init__(
        self,
        fd: int,
        where: str,
        size_bytes: int | None,
        on_read: Callable[[int], None] = lambda _: None,
        *,
        direct: bool = False,
    ) -> None:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise not_regular(where, "regular file", "descriptor of another kind")
        if size_bytes is not None and status.st_size != size_bytes:
            raise SizeMismatch(where, expected_bytes=size_bytes, found_bytes=status.st_size)
        self._fd = fd
        self._where = where
        self._on_read = on_read
        self._modified_ns = status.st_mtime_ns
        self._direct = False
        self.size_bytes = status.st_size
        if direct:
            with contextlib.suppress(OSError):  # a file system that cannot says so here, or at the first read
                fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
                self._direct = True

    def use_cache(self) -> None:
        """Read as usual from here on; the descriptor may be the caller's."""
        if self._direct:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT)
            self._direct = False

    def windows(self, window_bytes: int) -> tuple[memoryview, ...]:
        """Two windows for reading ahead, or one where the file is too short for it."""
        if self.size_bytes < AHEAD_MINIMUM_BYTES:
            return (new_window(max(1, min(_whole_pages(self.size_bytes), window_bytes))),)
        return (new_window(window_bytes), new_window(window_bytes))

    def run(self, sinks: Sequence[Callable[[memoryview], None]], windows: Sequence[memoryview]) -> None:
        """Give every byte to every sink, in order; with two windows, read ahead and run the sinks side by side."""
        if len(windows) == 1:
            self._in_turn(sinks, windows[0])
        else:
            self._ahead(sinks, windows[0], windows[1])
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self._modified_ns):
            raise self._changed(status.st_size)

    def _in_turn(self, sinks: Sequence[Callable[[memoryview], None]], window: memoryview) -> None:
        offset = 0
        while count := self._read(window, offset):
            for sink in sinks:
                sink(window[:count])
            offset += count

    def _ahead(self, sinks: Sequence[Callable[[memoryview], None]], window: memoryview, spare: memoryview) -> None:
        # One helper reads ahead, the others take a sink each; this thread takes the first sink.
        with ThreadPoolExecutor(max_workers=len(sinks)) as helpers:
            count = self._read(window, 0)
            offset = count
            while count:
                ahead = helpers.submit(self._read, spare, offset)
                filled = window[:count]
                beside = [helpers.submit(sink, filled) for sink in sinks[1:]]
                sinks[0](filled)
                for sunk in beside:
                    sunk.result()
                window, spare = spare, window
                count = ahead.result()
                offset += count

    def _read(self, window: memoryview, offset: int) -> int:
        """Fill the window from the offset; 0 only at the end, which is where the file ended when it was opened."""
        left = self.size_bytes - offset
        if left == 0:
            return 0
        count = min(left, self._pread(window, offset, left))
        if count == 0:
            raise self._changed(offset)
        self._on_read(count)
        return count

    def _pread(self, window: memoryview, offset: int, left: int) -> int:
        if self._direct:
            try:
                return os.preadv(self._fd, [window], offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # This file system cannot, or the file lost its end within a block: reading as usual tells which.
                self.use_cache()
        return os.preadv(self._fd, [window[:left]], offset)

    def _changed(self, found_bytes: int) -> FileChanged:
        return FileChanged(
            f"file changed while it was read: {self._where}: expected {self.size_bytes} bytes last written at"
            f" {self._modified_ns} ns, found {found_bytes} bytes"
        )


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _hashers(algorithms: Sequence[Algorithm], *, threads: int) -> tuple[StreamHasher, ...]:
    """One hasher an algorithm, so that each may run in a thread of its own."""
    if not algorithms or len(set(algorithms)) != len(algorithms):
        raise ValueError(f"algorithms: expected at least one and each once, found {list(algorithms)}")
    return tuple(StreamHasher((algorithm,), threads=threads) for algorithm in algorithms)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]
