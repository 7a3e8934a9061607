"""From COMMIT to gate run: the watcher that asks for a `save-gate` run when a family has something unjudged.

    Watcher(families, PrefectGateRuns(), announce=…).run(stop)

Decides nothing about checkpoints: what is due is what storage says (`Family.unjudged`), whether it needs a request
is `requests`' affair, when to look is `hints`'. The trainer knows nothing of all this; it wrote COMMIT. Rules:

- A hint makes us list; what the list shows is acted on. So doubled, reordered, late and lost hints end in the same
  requests: every family is listed at the start, and on a slow cadence whatever was hinted.
- What was found judged is not asked about again; a listing of thousands of generations then costs its names.
- A server that does not answer is asked again after a growing while; a family that cannot be read does not hold up the
  others. Neither ends the watcher.
- Announcing a generation is best effort and may be repeated: nobody's work hangs on it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lastgood.errors import FormatError, StoreError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.text import printable
from lastgood_prefect.hints import Hints, HintSource
from lastgood_prefect.requests import FamilyRequests, GateRuns, Patience, Unanswered
from lastgood_prefect.settings import ConfiguredFamily

__all__ = ["Backlog", "Cadence", "Watcher"]

LONGEST_SILENCE_SECONDS: Final = 10.0
"""Where the pauses between two requests to a silent server stop growing."""
RECHECK_SHARE: Final = 20
"""Asking again about what is due takes at most one part in this many of the watcher's time."""

Announce = Callable[[ConfiguredFamily, GenerationId], None]

_log = logging.getLogger("lastgood.watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """How often the watcher does what no hint asks for.

    Args:
        tick: Looks after what is due and after the runs under way.
        poll: Lists the families whose file system notifies of nothing.
        listing: Lists every family, whatever was hinted.
    """

    tick: timedelta = timedelta(seconds=1)
    poll: timedelta = timedelta(seconds=2)
    listing: timedelta = timedelta(minutes=1)


class Backlog:
    """What of a family is unjudged, remembered from look to look so that each asks only about what is new.

    Args:
        family: Whose.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self._judged: frozenset[GenerationId] = frozenset()
        self.due: frozenset[GenerationId] = frozenset()

    def look(self, *, recheck: bool) -> frozenset[GenerationId]:
        """List the family; returns the unjudged generations that were not known.

        Args:
            recheck: Ask also whether what was due has been judged.

        Raises:
            FormatError, StoreError: As `Family.unjudged`; what was known before still is.
        """
        # Listed before the question, so that what appears between the two is not taken for judged.
        candidates = frozenset(self._family.survey().candidates)
        known = self._judged if recheck else self._judged | self.due
        found = frozenset(self._family.unjudged(besides=known)) if candidates - known else frozenset()
        new = found - self.due
        self.due = found | (self.due & known)
        # What a newer decision cut is forgotten: a rollback may keep it again.
        self._judged = candidates - self.due
        self.due &= candidates | found
        return new

    def forget(self) -> None:
        """Take nothing as known: the directory is another one."""
        self._judged = self.due = frozenset()


class Watcher:
    """Watches families and asks for their gate runs, from one thread.

    Args:
        families: Which.
        runs: Who starts runs.
        announce: Told of each generation that was found unjudged.
        patience: With runs that were asked for.
        cadence: How often to do what.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        families: Iterable[ConfiguredFamily],
        runs: GateRuns,
        *,
        announce: Announce = lambda family, generation: None,
        patience: Patience | None = None,
        cadence: Cadence | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cadence = cadence or Cadence()
        self._clock = clock
        self._watched = [
            _Watched(one, runs, announce, patience, self._cadence.listing.total_seconds(), clock) for one in families
        ]
        self._ask_again_at, self._silence_seconds = 0.0, 0.0

    def run(self, stop: threading.Event, source: HintSource | None = None) -> None:
        """Watch until `stop` is set, and close the source.

        Args:
            stop: Set by whoever wants an end.
            source: Of the hints; None: the families' own file systems.
        """
        locations = {one.name: one.location for one in self._watched}
        if source is None:
            source = Hints(locations, stop, tick=self._cadence.tick, poll=self._cadence.poll, clock=self._clock)
        try:
            hinted: frozenset[str] = frozenset(locations)
            moved: frozenset[str] = frozenset()
            while not stop.is_set():
                self.look(hinted, moved)
                source.acknowledge(self.unasked())
                hinted, moved = source.wait()
        finally:
            source.close()

    def once(self) -> bool:
        """List every family once and ask for what is due; False if something could not be told or asked."""
        return self.look(frozenset(one.name for one in self._watched))

    def look(self, hinted: frozenset[str], moved: frozenset[str] = frozenset()) -> bool:
        """Look after every family, and list those that are hinted at; False if something could not be told or asked.

        Args:
            hinted: Families that may have changed.
            moved: Families of which nothing that is remembered counts.
        """
        told = True
        for one in self._watched:
            told &= one.list_storage(hinted=one.name in hinted, moved=one.name in moved)
        return self._follow(self._watched) and told

    def unasked(self) -> Mapping[str, frozenset[GenerationId]]:
        """What no run was asked for yet, as `HintSource.acknowledge` takes it."""
        return {one.name: unasked for one in self._watched if (unasked := one.unasked) is not None}

    def _follow(self, watched: Sequence[_Watched]) -> bool:
        if self._clock() < self._ask_again_at:
            return False
        told = True
        try:
            for one in watched:
                told &= one.follow()
        except Unanswered as error:
            self._silence_seconds = min(max(1.0, 2 * self._silence_seconds), LONGEST_SILENCE_SECONDS)
            self._ask_again_at = self._clock() + self._silence_seconds
            hint = f" ({error.hint})" if error.hint else ""
            _log.warning("%s%s; asking again in %.0f s", printable(error.message), hint, self._silence_seconds)
            return False
        if self._silence_seconds:
            _log.info("the server answers again")
        self._silence_seconds = 0.0
        return told


class _Watched:
    """One family: what it has unjudged, and the runs that were asked for it."""

    def __init__(
        self,
        configured: ConfiguredFamily,
        runs: GateRuns,
        announce: Announce,
        patience: Patience | None,
        listing_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.name = configured.name
        self.location = configured.location
        family = configured.family
        self._configured = configured
        self._announce = announce
        self._backlog = Backlog(family)
        self._requests = FamilyRequests(family, runs, patience=patience, clock=clock)
        self._listing_seconds = listing_seconds
        self._clock = clock
        self._next_listing = self._next_recheck = 0.0
        self._trouble: str | None = None
        self._unannounced: set[GenerationId] = set()

    @property
    def unasked(self) -> frozenset[GenerationId] | None:
        """What is due and belongs to no run that was acknowledged; None while storage cannot tell."""
        return None if self._trouble is not None else self._backlog.due - self._requests.asked

    def list_storage(self, *, hinted: bool, moved: bool) -> bool:
        """Bring the backlog up to date if there is a reason to; False if storage could not tell."""
        begin = self._clock()
        recheck = bool(self._backlog.due or self._trouble) and begin >= self._next_recheck
        if moved:
            self._backlog.forget()
        if not (hinted or moved or recheck or begin >= self._next_listing):
            return self._trouble is None
        self._next_listing = begin + self._listing_seconds
        before = len(self._backlog.due)
        try:
            new = self._backlog.look(recheck=recheck)
        except (StoreError, FormatError) as error:
            self._say_trouble(error)
            return False
        finally:
            self._next_recheck = self._clock() + RECHECK_SHARE * (self._clock() - begin)
        self._say_trouble(None)
        self._unannounced |= new
        if before and not self._backlog.due:
            _log.info("%s: all judged", self.name)
        return True

    def follow(self) -> bool:
        """Look after the family's run, or ask for one; False if storage could not tell.

        Raises:
            Unanswered: See `FamilyRequests.follow`.
        """
        followed = self._follow()
        # Said once the server has answered: nobody hears it before.
        for generation in sorted(self._unannounced):
            self._announce(self._configured, generation)
        self._unannounced.clear()
        return followed

    def _follow(self) -> bool:
        due = self._backlog.due
        if not due and self._requests.run is None:
            return True
        try:
            run = self._requests.follow(due)
        except (StoreError, FormatError) as error:
            self._say_trouble(error)
            return False
        if run is not None:
            _log.info("%s: %d unjudged, newest %s: run %s", self.name, len(due), printable(str(max(due))), run.id)
        return True

    def _say_trouble(self, error: StoreError | FormatError | None) -> None:
        message = error.message if error is not None else None
        if message is not None and message != self._trouble:
            _log.warning("%s: cannot tell what is due: %s", self.name, printable(message))
        elif message is None and self._trouble is not None:
            _log.info("%s: storage answers again", self.name)
        self._trouble = message
