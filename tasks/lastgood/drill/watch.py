"""What the traces and the processes of a replica show while it lives: its lives, ranks, steps, saves, and its dead.

Decides nothing about recovery. A pid that a trace names is believed only if a process of that pid is one of ours: a
trace is written by what it describes, and a drill kills nothing else than what it started.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from lastgood.errors import FormatError
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.replica.processes import ProcessIdentity
from lastgood.replica.trace import TraceFollower, TraceReader
from lastgood.restore.evidence import RankTrace, read_on

__all__ = ["Departures", "Life", "Watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One incarnation of the replica, as far as it has reported itself. Steps count completed optimizer steps."""

    incarnation: int
    ranks: Mapping[int, RankTrace]

    @property
    def is_complete(self) -> bool:
        """Whether every rank has begun its trace."""
        sizes = {trace.started.world_size for trace in self.ranks.values() if trace.started is not None}
        return len(sizes) == 1 and len(self.ranks) == sizes.pop()

    @property
    def first_saved_step(self) -> int | None:
        return min((saved.step for trace in self.ranks.values() for saved in trace.saved), default=None)

    @property
    def last_step(self) -> int:
        """The last step that any rank completed, or the one that this life stood at when it began."""
        done = [max(trace.steps) for trace in self.ranks.values() if trace.steps]
        stood = [
            trace.discovered.step
            for trace in self.ranks.values()
            if trace.discovered is not None and trace.discovered.step is not None
        ]
        return max(done or stood, default=0)

    @property
    def last_words(self) -> str | None:
        """Why a rank ended of its own accord, if one said so."""
        for rank, trace in sorted(self.ranks.items()):
            if trace.refused is not None:
                return f"rank {rank} refused: {trace.refused.message}"
            if trace.stopped is not None:
                return f"rank {rank} stopped: {trace.stopped.reason}: {trace.stopped.message}".rstrip(": ")
        return None


class Watch:
    """Follows every trace of one family as it grows; a look reads at most so much of each, and the next one goes on.

    Args:
        location: The family, on this machine's file system.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._reader = TraceReader(location.local_family)
        self._followers: dict[tuple[int, int], TraceFollower] = {}
        self._traces: dict[tuple[int, int], RankTrace] = {}

    def lives(self) -> tuple[Life, ...]:
        """Every life that has begun a trace, rising, with what it has reported so far.

        Raises:
            FormatError: A trace is not lawful.
        """
        return tuple(self.life(incarnation) for incarnation in self._reader.incarnations())

    def life(self, incarnation: int) -> Life:
        """One life, as it stands now."""
        ranks = {rank: self._trace(incarnation, rank) for rank in self._reader.ranks(incarnation)}
        return Life(incarnation=incarnation, ranks=ranks)

    def settled(self, incarnation: int) -> Life:
        """One life whose processes have all ended, with everything that it ever reported."""
        life = self.life(incarnation)
        while any(self._read(incarnation, rank) for rank in life.ranks):
            life = self.life(incarnation)
        return life

    def publishing(self, incarnation: int) -> GenerationId | None:
        """The generation of this life whose publish has begun and whose outcome nobody has been told, if any."""
        store, keys = self._location.store, self._location.keys
        newest: tuple[GenerationId, str] | None = None
        for name in store.names(keys.staging).directories:
            try:
                generation = GenerationId.parse(name.rpartition("~")[0])
            except FormatError:
                continue  # renamed away, to be removed
            if generation.incarnation == incarnation and (newest is None or generation > newest[0]):
                newest = (generation, name)
        if newest is None:
            return None
        # A job of one rank has nobody to tell; its marker is its last word.
        alone = len(self._reader.ranks(incarnation)) == 1
        last_word = keys.commit(newest[0]) if alone else f"{keys.staging}/{newest[1]}/outcome.json"
        if store.stat(last_word) is not None:
            return None
        return newest[0]

    def _trace(self, incarnation: int, rank: int) -> RankTrace:
        self._read(incarnation, rank)
        return self._traces[incarnation, rank]

    def _read(self, incarnation: int, rank: int) -> bool:
        """Read on in one trace; whether there was anything new."""
        key = (incarnation, rank)
        if key not in self._followers:
            self._followers[key] = self._reader.follow(incarnation, rank)
            self._traces[key] = RankTrace(rank=rank)
        fresh = self._followers[key].poll()
        if fresh:
            self._traces[key] = read_on(self._traces[key], fresh)
        return bool(fresh)


class Departures:
    """Waits for processes to end, and notes when each was seen to have ended.

    Args:
        processes: Alive, and known to be ours.
    """

    def __init__(self, processes: Iterable[ProcessIdentity]) -> None:
        self._poll = select.poll()
        self._open: dict[int, ProcessIdentity] = {}
        self._gone_ns: dict[ProcessIdentity, int] = {}
        for process in processes:
            try:
                descriptor = os.pidfd_open(process.pid)
            except ProcessLookupError:
                self._gone_ns[process] = time.monotonic_ns()
                continue
            self._open[descriptor] = process
            self._poll.register(descriptor, select.POLLIN)

    @property
    def left(self) -> tuple[ProcessIdentity, ...]:
        return tuple(self._open.values())

    @property
    def last_ns(self) -> int:
        """When the last one so far was seen to have ended."""
        return max(self._gone_ns.values(), default=0)

    def wait(self, seconds: float) -> None:
        """Sleep that long, or until one of them ends."""
        if not self._open:
            time.sleep(seconds)
            return
        for descriptor, _ in self._poll.poll(seconds * 1000):
            self._gone_ns[self._open.pop(descriptor)] = time.monotonic_ns()
            self._poll.unregister(descriptor)
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()
