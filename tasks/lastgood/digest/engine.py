"""Many files hashed over all cores.

Decides what runs where. Leaves reading one file to `files`. Rules:

- Results come in the order of the requests, whatever finished first; one file's failure is a value beside the others'.
- Threads, not processes: reading and hashing release the interpreter lock. A worker takes the largest file first; small
  files go in batches of a few MiB, since a hand-over a file costs as much as hashing it.
- A file is spread over cores only at the end, when no other large file is left to fill them; before that, one file a
  core is the cheapest.
- Memory stays under 100 MiB for any number and size of files; the windows shrink as the cores grow.
- Closing the iterator, or an interrupt, stops the workers within one buffer.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue

from lastgood.digest.beneath import RootDirectory
from lastgood.digest.files import (
    AHEAD_MINIMUM_BYTES,
    BUFFER_BYTES,
    HUGE_PAGE_BYTES,
    WINDOW_BYTES,
    FileDigest,
    hash_open_file,
    new_window,
    open_regular,
)
from lastgood.digest.values import Algorithm

__all__ = ["HashRequest", "default_jobs", "hash_files"]

MAXIMUM_JOBS = 64
BATCH_BYTES = 4 * 2**20
BATCH_FILES = 64
WINDOWS_BUDGET_BYTES = 64 * 2**20
PROGRESS_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRequest:
    """One file to hash.

    Args:
        path: The file; a key relative to the root where `hash_files` is given one.
        algorithms: At least one, each once; all of them in one reading.
        size_bytes: The expected length, also used to plan; None where nobody knows it.
    """

    path: str
    algorithms: tuple[Algorithm, ...] = (Algorithm.BLAKE3,)
    size_bytes: int | None = None


def default_jobs() -> int:
    """How many files are hashed at once: the cores that this process may use, at most 64."""
    return min(MAXIMUM_JOBS, len(os.sched_getaffinity(0)))


def hash_files(
    requests: Sequence[HashRequest],
    *,
    root: RootDirectory | None = None,
    jobs: int | None = None,
    drop_cache: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Generator[FileDigest | OSError, None, None]:
    """Hash files, as many at once as there are cores.

    Args:
        requests: The files; the results come in their order, so `zip(requests, results, strict=True)` pairs them.
        root: Where the paths are keys beneath a root: the root. It must stay open until the iterator ends.
        jobs: How many files at once, 1 to 64; by default the cores that this process may use.
        drop_cache: Read what the disk holds, not what memory holds (see `hash_file`).
        progress: Called in the caller's own thread with the bytes read so far, about ten times a second.

    Returns:
        An iterator that starts the work when it is first asked: for each request a `FileDigest`, or the `OSError`
        that `hash_file` would have raised. Close it to stop early.

    Raises:
        ValueError: `jobs` is out of range, or a request names no algorithm or an unlawful key.
    """
    jobs = default_jobs() if jobs is None else jobs
    if not 1 <= jobs <= MAXIMUM_JOBS:
        raise ValueError(f"jobs: expected 1 to {MAXIMUM_JOBS}, found {jobs}")
    return _Run(requests, root, jobs, drop_cache, progress).results()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    indexes: tuple[int, ...]
    threads: int


class _Cancelled(Exception):  # an end that was asked for, not a failure
    """The caller wants no more results."""


def plan(requests: Sequence[HashRequest], jobs: int) -> tuple[_Batch, ...]:
    """Say which files are hashed together, in which order, and over how many threads each.

    A file of unknown length is planned as a large one.
    """
    by_size = sorted(range(len(requests)), key=lambda index: -_planned_bytes(requests[index]))
    large = [index for index in by_size if _planned_bytes(requests[index]) >= AHEAD_MINIMUM_BYTES]
    # While `jobs` large files are left they fill the cores one each; the last `jobs - 1` could not.
    batches = [
        _Batch(indexes=(index,), threads=jobs if len(large) - position < jobs else 1)
        for position, index in enumerate(large)
    ]
    indexes: list[int] = []
    batch_bytes = 0
    for index in by_size[len(large) :]:
        indexes.append(index)
        batch_bytes += _planned_bytes(requests[index])
        if batch_bytes >= BATCH_BYTES or len(indexes) == BATCH_FILES:
            batches.append(_Batch(indexes=tuple(indexes), threads=1))
            indexes, batch_bytes = [], 0
    if indexes:
        batches.append(_Batch(indexes=tuple(indexes), threads=1))
    return tuple(batches)


def _planned_bytes(request: HashRequest) -> int:
    return AHEAD_MINIMUM_BYTES if request.size_bytes is None else request.size_bytes


class _Run:
    """One call of `hash_files`."""

    def __init__(
        self,
        requests: Sequence[HashRequest],
        root: RootDirectory | None,
        jobs: int,
        drop_cache: bool,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._requests = requests
        self._root = root
        self._jobs = jobs
        self._drop_cache = drop_cache
        self._progress = progress
        # In whole buffers, hence whole pages: reading past the cache asks for that.
        share = WINDOWS_BUDGET_BYTES // (2 * jobs) // BUFFER_BYTES * BUFFER_BYTES
        self._window_bytes = max(BUFFER_BYTES, min(WINDOW_BYTES, share))
        self._stopped = threading.Event()
        self._buffers: SimpleQueue[memoryview] = SimpleQueue()
        self._reads: deque[int] = deque()
        self._read_bytes = 0

    def results(self) -> Generator[FileDigest | OSError, None, None]:
        batches = plan(self._requests, self._jobs)
        workers = ThreadPoolExecutor(max_workers=self._jobs, thread_name_prefix="lastgood-hash")
        for _ in range(min(self._jobs, len(batches))):
            self._buffers.put(new_window(HUGE_PAGE_BYTES if self._drop_cache else BUFFER_BYTES))
        try:
            pending: dict[int, Future[dict[int, FileDigest | OSError]]] = {}
            for batch in batches:
                pending.update(dict.fromkeys(batch.indexes, workers.submit(self._hash_batch, batch)))
            for index in range(len(self._requests)):
                future = pending.pop(index)
                self._wait(future)
                yield future.result()[index]
        finally:
            self._stopped.set()
            workers.shutdown(wait=True, cancel_futures=True)

    def _wait(self, future: Future[dict[int, FileDigest | OSError]]) -> None:
        if self._progress is None:
            return
        while not wait((future,), timeout=PROGRESS_SECONDS).done:
            self._report(self._progress)
        self._report(self._progress)

    def _report(self, progress: Callable[[int], None]) -> None:
        # Workers only append, which needs no lock; the sum is kept by the one thread that takes.
        taken = 0
        while self._reads:
            taken += self._reads.popleft()
        if taken:
            self._read_bytes += taken
            progress(self._read_bytes)

    def _on_read(self, count: int) -> None:
        if self._stopped.is_set():
            raise _Cancelled
        if self._progress is not None:
            self._reads.append(count)

    def _hash_batch(self, batch: _Batch) -> dict[int, FileDigest | OSError]:
        buffer = self._buffers.get()
        try:
            return {index: self._hash_one(self._requests[index], batch.threads, buffer) for index in batch.indexes}
        finally:
            self._buffers.put(buffer)

    def _hash_one(self, request: HashRequest, threads: int, buffer: memoryview) -> FileDigest | OSError:
        try:
            fd = open_regular(request.path) if self._root is None else self._root.open(request.path)
            try:
                return hash_open_file(
                    fd,
                    request.path,
                    request.algorithms,
                    request.size_bytes,
                    threads=threads,
                    drop_cache=self._drop_cache,
                    buffer=buffer,
                    window_bytes=self._window_bytes,
                    on_read=self._on_read,
                )
            finally:
                os.close(fd)
        except OSError as error:
            return error
