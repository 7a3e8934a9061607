"""Asking for gate runs: when a family needs one, under which key, and when one that was asked for is given up.

Decides all of that for one family; leaves what is due to storage (`Family.due_attempt`) and the request itself to a
`GateRuns`. Rules:

- Nothing here must survive: whoever forgets it asks again, is given the same run by its key, or at worst starts one
  that finds nothing to do.
- One gate run of a family at a time, and it drains: it judges whatever is unjudged when it lists storage. So a
  generation belongs to a run only if the server said, after the generation was seen, that the run had not begun; or if
  the run stands under this generation's own key. Others wait for its end and are then asked for anew.
- A key names generation, manifest, tier and attempt, so that whoever sees a save twice asks for one run. A run that
  ended without conclusive evidence keeps its key for ever (measured); the next request is then one further `again`.
- What stays due after its run ended rests for a growing while, so that a run that always dies is no endless loop; new
  saves do not wait for it.

Callers list storage first and ask then; the order is what makes the second rule hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, Protocol

from lastgood.errors import LastgoodError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.records import RecordName
from lastgood.verdict import Tier

__all__ = ["FamilyRequests", "GateRun", "GateRuns", "Patience", "RunState", "Unanswered", "gate_key"]

MAXIMUM_AGAIN: Final = 100
"""Runs under one attempt, hours of them; what none of them judged is left to `reconcile`."""
_A_DAY_SECONDS: Final = 86_400.0


class RunState(StrEnum):
    """How far a gate run is; the first two have not looked at storage yet."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"

    @property
    def has_begun(self) -> bool:
        return self in (RunState.RUNNING, RunState.ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """A run as the server described it when asked.

    Args:
        id: Of the run.
        state: How far it was.
    """

    id: str
    state: RunState


class GateRuns(Protocol):
    """What asking needs of an orchestrator. Every call may be repeated."""

    def ask(self, key: str, family: str) -> GateRun:
        """The run under this key; one that drains the family is created if there is none.

        Raises:
            Unanswered: Nobody knows whether a run was created; the same key finds it.
        """

    def read(self, run: str) -> GateRun | None:
        """A run as it is now, or None when it is no more.

        Raises:
            Unanswered: Nobody could tell.
        """

    def bury(self, run: str, message: str) -> None:
        """Call a run crashed that a worker took and that never began, so that it holds no slot of any limit.

        Raises:
            Unanswered: It may or may not have been done.
        """


class Unanswered(LastgoodError):
    """The orchestrator gave no usable answer. Nothing is lost: what is due is found on storage again."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait before asking again.

    Args:
        pending: For a run that a worker took and that does not begin: the worker died. A cluster may well need minutes
            to bring up a machine and an image.
        running: For a run that goes on and judges nothing more: its machine died.
        rest: After a run that ended and left a generation due; doubled each time.
        longest_rest: Where the doubling ends.
    """

    pending: timedelta = timedelta(minutes=15)
    running: timedelta = timedelta(minutes=15)
    rest: timedelta = timedelta(seconds=2)
    longest_rest: timedelta = timedelta(minutes=10)

    def rest_seconds(self, asked: int) -> float:
        """How long a generation rests that was due after this many runs, at least one."""
        return min(self.rest * 2.0 ** min(asked - 1, 30), self.longest_rest).total_seconds()


def gate_key(family: str, name: RecordName, again: int = 0) -> str:
    """The idempotency key of a gate run: one text for one piece of work.

    Args:
        family: The family.
        name: Of the record that the run would leave: generation, manifest, tier, attempt.
        again: How many runs under this very attempt ended without evidence before.
    """
    key = f"lastgood/{family}/{name.generation}/{name.manifest}/tier{int(name.tier)}/{name.attempt}"
    return f"{key}/again-{again}" if again else key


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """A generation that a run left due."""

    asked: int
    until: float


class FamilyRequests:
    """The gate runs of one family, as far as we asked for them. Not shared between threads.

    Args:
        family: Whose.
        runs: Who starts them.
        patience: How long to wait for what.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        family: Family,
        runs: GateRuns,
        *,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._family = family
        self._name = family.location.keys.family
        self._runs = runs
        self._patience = patience or Patience()
        self._clock = clock
        self._run: GateRun | None = None
        self._since = 0.0
        self._due: frozenset[GenerationId] = frozenset()
        self._taken: frozenset[GenerationId] = frozenset()
        self._given_up: set[str] = set()
        self._resting: dict[GenerationId, _Rest] = {}

    @property
    def run(self) -> GateRun | None:
        """The run that we wait for, if any."""
        return self._run

    @property
    def asked(self) -> Set[GenerationId]:
        """What belongs to a run that the orchestrator acknowledged, be it under way or ended. While the server is
        silent, this is as of its last answer.
        """
        return self._resting.keys() | (self._taken if self._run is not None else frozenset())

    def follow(self, due: Set[GenerationId]) -> GateRun | None:
        """Look after the run that is under way, or ask for one.

        Args:
            due: Every unjudged generation, listed just now.

        Returns:
            The run that was asked for by this call, or None.

        Raises:
            Unanswered: The orchestrator gave no answer; call again, later.
            StoreError, FormatError: As `Family.due_attempt`.
        """
        progressed, self._due = bool(self._due - due), frozenset(due)
        self._resting = {one: rest for one, rest in self._resting.items() if one in due}
        if self._run is not None and self._waits_for(self._run, progressed):
            return None
        now = self._clock()
        for generation in sorted(due):
            if generation in self._resting and now < self._resting[generation].until:
                continue
            run = self._ask(generation)
            if run is not None:
                # One that had begun when its key was asked for may have listed storage before the others came.
                self._taken = frozenset((generation,)) if run.state.has_begun else self._due
                self._run, self._since = run, now
                return run
        return None

    def _waits_for(self, run: GateRun, progressed: bool) -> bool:
        """Whether to leave the family to this run for now."""
        if run.state.has_begun and not self._due:
            self._run = None  # all is judged: what that run still does is its own affair
            return False
        seen, now = self._runs.read(run.id), self._clock()
        if seen is not None and not seen.state.has_begun:
            self._taken |= self._due
        if progressed or seen != run:
            self._since = now
        self._run = seen
        if seen is not None and seen.state is not RunState.ENDED:
            if not self._has_lost_patience(seen.state, now - self._since):
                return True
            if not seen.state.has_begun:
                self._runs.bury(seen.id, "a worker took it and never began")
            self._given_up.add(seen.id)
        self._let_rest(self._taken & self._due, now)
        self._run = None
        return False

    def _has_lost_patience(self, state: RunState, waited_seconds: float) -> bool:
        # A scheduled run only lacks a worker; a second one would lack it too.
        limit = {RunState.PENDING: self._patience.pending, RunState.RUNNING: self._patience.running}.get(state)
        return limit is not None and waited_seconds > limit.total_seconds()

    def _let_rest(self, generations: Set[GenerationId], now: float) -> None:
        for one in generations:
            asked = self._resting[one].asked + 1 if one in self._resting else 1
            self._resting[one] = _Rest(asked=asked, until=now + self._patience.rest_seconds(asked))

    def _ask(self, generation: GenerationId) -> GateRun | None:
        """The run of this generation that is still to do its work; None if there is nothing (more) to ask for."""
        attempt, again = None, 0
        for _ in range(MAXIMUM_AGAIN):
            # Asked each time anew: the run that ended a moment ago may have left its evidence meanwhile.
            next_attempt = self._family.due_attempt(generation, Tier.MANIFEST)
            if next_attempt is None:
                return None
            attempt, again = next_attempt, again + 1 if next_attempt == attempt else 0
            name = RecordName.of(generation, self._family.digest_of(generation), Tier.MANIFEST, attempt)
            run = self._runs.ask(gate_key(self._name, name, again), self._name)
            if run.state is not RunState.ENDED and run.id not in self._given_up:
                return run
        self._resting[generation] = _Rest(asked=MAXIMUM_AGAIN, until=self._clock() + _A_DAY_SECONDS)
        return None
