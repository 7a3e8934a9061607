"""Several things at once, with answers in order and progress in the caller's own thread."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from lastgood.stores.port import Progress

__all__ = ["Several"]

LEAST_THREADS = 4
"""More than a small machine has cores: a thread that waits for a disk or a bucket computes nothing."""
AHEAD_OF_A_THREAD = 16
_TOLD_SECONDS = 0.2

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class Several:
    """Threads, and a count of what they did.

    Args:
        threads: How many; None for as many as there are cores, and at least `LEAST_THREADS`.
        progress: Told the count now and then.
    """

    def __init__(self, threads: int | None, progress: Progress | None) -> None:
        self._threads = threads or max(LEAST_THREADS, len(os.sched_getaffinity(0)))
        self._progress = progress
        self._lock = threading.Lock()
        self._done_bytes = 0

    def count(self, size_bytes: int) -> None:
        """So many more bytes are done; from any thread."""
        with self._lock:
            self._done_bytes += size_bytes

    def each(self, items: Iterable[_Item], do: Callable[[_Item], _Answer]) -> Iterator[_Answer]:
        """Do one thing to all; what it raises comes out here, and what has not begun by then is left."""
        waiting: deque[Future[_Answer]] = deque()
        rest = iter(items)
        with ThreadPoolExecutor(max_workers=self._threads, thread_name_prefix="integrity") as pool:
            try:
                while True:
                    # A few ahead of each thread: a checkpoint may have a million files.
                    ahead = islice(rest, AHEAD_OF_A_THREAD * self._threads - len(waiting))
                    waiting.extend(pool.submit(do, item) for item in ahead)
                    if not waiting:
                        break
                    while not waiting[0].done():
                        wait((waiting[0],), timeout=_TOLD_SECONDS)
                        self._tell()
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done_bytes)
