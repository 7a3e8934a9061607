"""Hints from listing the names of commits: for buckets that notify nobody.

It needs no cursor on disk: what was judged is on storage, and the watcher's `Backlog` is the cursor. The names are one
cheap listing a family; the family is looked at only if they are other ones than before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood_prefect.hints import CommitNames

__all__ = ["ListingHints"]


class ListingHints:
    """Lists commits again and again. A `HintSource`.

    Args:
        locations: Name → family, of any store.
        stop: Set by whoever wants `wait` to return at once.
        poll: How often to list.
        tick: The longest that `wait` takes, besides the listing.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        locations: Mapping[str, Location],
        stop: threading.Event,
        *,
        poll: timedelta,
        tick: timedelta = timedelta(seconds=1),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = CommitNames(locations)
        self._families = tuple(locations)
        self._stop = stop
        self._poll_seconds, self._tick_seconds = poll.total_seconds(), tick.total_seconds()
        self._clock = clock
        self._next_poll = 0.0

    def wait(self) -> tuple[frozenset[str], frozenset[str]]:
        self._stop.wait(min(self._tick_seconds, max(0.0, self._next_poll - self._clock())))
        if self._stop.is_set() or self._clock() < self._next_poll:
            return frozenset(), frozenset()
        self._next_poll = self._clock() + self._poll_seconds
        return frozenset(self._names.changed(self._families)), frozenset()

    def acknowledge(self, unasked: Mapping[str, frozenset[GenerationId]]) -> None:
        """Nothing is kept of a hint that was returned."""

    def close(self) -> None:
        """Nothing is held."""
