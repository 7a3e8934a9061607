"""What restores and drills share as tasks: whose turn it is, room on the machine, a lifeline, and the record.

Decides in which order that happens, and that every end leaves a record where there is a generation to leave it of: no
room and a cancelled run are inconclusive verdicts. Leaves the work itself to `lastgood.restore` and `lastgood.drill`.
Rules: the record is kept by the task that judged, for by then the server may be gone; nothing is retried but keeping
it, since a restore that could not be judged comes again in its turn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from prefect import State
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from lastgood.config import ReplicaSettings
from lastgood.errors import LastgoodError, StoreError, StoreTransientError, UsageError
from lastgood.identity import GenerationId
from lastgood.records import Kept, Measurements
from lastgood.restore.cancel import Cancel, cancelled_verdict, crowded_verdict
from lastgood.restore.rotation import last_tried, take_turns
from lastgood.verdict import Tier, Verdict, waive
from lastgood_prefect import artifacts, escape, events
from lastgood_prefect.headroom import NoHeadroom, headroom
from lastgood_prefect.lifeline import lifeline
from lastgood_prefect.origin import current_origin
from lastgood_prefect.progress import Told, told_aside
from lastgood_prefect.settings import ConfiguredFamily, configured_families, configured_family, read_settings
from lastgood_prefect.states import final_state

__all__ = [
    "COPY_ALLOWANCE",
    "TASK_TIMEOUT",
    "Replayed",
    "Turn",
    "TurnRecord",
    "Turns",
    "Work",
    "answer_of",
    "answer_state",
    "choose_turns",
    "conclude",
    "replay",
    "replica_of",
    "run_name",
    "show",
    "until_judged",
]

COPY_ALLOWANCE: Final = timedelta(hours=6)
"""A terabyte at 50 MB/s, beside what the family's settings grant its replica."""
TASK_TIMEOUT: Final = timedelta(hours=24)
"""A last resort: what is decided here about a limit leaves a verdict, Prefect's own timeout does not."""
KEEP_DELAYS_SECONDS: Final = (1.0, 5.0, 20.0)
Work = Callable[[ReplicaSettings, Cancel, Told], tuple[Verdict, Measurements]]
"""Restores or drills: by these settings, for as long as it may, telling how much of it is done in percent."""

CANCELLED: Final = "the flow run was cancelled, or its worker was stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A family and the generation that a gate takes of it.

    Args:
        family: Of the configuration.
        generation: None: a replica that begins at step zero.
    """

    family: ConfiguredFamily
    generation: GenerationId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What a run may take, in this order, until one of them could be judged.

    Args:
        turns: At least one.
        remarks: Which families were passed over, and why.
    """

    turns: Sequence[Turn]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Replayed:
    """What became of one turn.

    Args:
        turn: Which.
        verdict: What was found, or None.
        kept: Its record; None where there is none.
        measurements: What it took, if there is a verdict.
        error: Why there is no verdict, or no record of it.
    """

    turn: Turn
    verdict: Verdict | None = None
    kept: Kept | None = None
    measurements: Measurements | None = None
    error: LastgoodError | None = None

    def __repr__(self) -> str:
        # Prefect logs what a failed task returns; the settings behind `turn` hold the replica's environment.
        return f"<{self.turn.family.name}: {self.verdict.outcome.value if self.verdict else 'no verdict'}>"


def run_name(flow: str) -> Callable[[], str]:
    """How a run of a flow is called: after the family that was asked for, if one was."""

    def name() -> str:
        family = flow_run.parameters.get("family") if flow_run.parameters else None
        return f"{flow} {escape.line(family)}" if isinstance(family, str) else flow

    return name


def choose_turns(
    tier: Tier, family: str | None, generation: str | None, choose: Callable[[ConfiguredFamily], GenerationId | None]
) -> Turns:
    """Whose turn it is: what was asked for, or the families with a replica in the order in which they waited.

    Args:
        tier: The gate.
        family: Its name, or None.
        generation: Its name, or None.
        choose: The generation that the gate takes of a family.

    Raises:
        UsageError: A generation without its family, an unknown family, or none that could be taken.
    """
    if generation is not None and family is None:
        raise UsageError(f"generation without its family: {generation}", hint="name the family too")
    if family is not None:
        named = configured_family(family)
        taken = GenerationId.parse(generation) if generation is not None else choose(named)
        return Turns(turns=(Turn(family=named, generation=taken),))
    turns: dict[str, Turn] = {}
    tried: dict[str, datetime | None] = {}
    remarks = []
    for candidate in configured_families():
        if candidate.settings.replica is None:
            continue
        try:
            turns[candidate.name] = Turn(family=candidate, generation=choose(candidate))
            tried[candidate.name] = last_tried(candidate.location, tier)
        except LastgoodError as error:
            turns.pop(candidate.name, None)
            remarks.append(f"{candidate.name} passed over: {error.message}")
    if not turns:
        raise UsageError(
            "; ".join(["no family to take", *remarks]),
            hint="add [families.NAME.replica] with a command to lastgood.toml, and publish a generation",
        )
    return Turns(turns=[turns[name] for name in take_turns(tried)], remarks=tuple(remarks))


def until_judged(turns: Turns, gate: Callable[[Turn], Replayed]) -> list[Replayed]:
    """Take one turn after the other until one of them ends with a verdict.

    A family whose replica cannot even be started is an error of its run, and must not keep all others from their turn.
    """
    answers: list[Replayed] = []
    for turn in turns.turns:
        answers.append(gate(turn))
        if answers[-1].verdict is not None:
            break
    return answers


def answer_of(turn: Turn, state: State[Any]) -> Replayed:
    """What a task answered, whatever it ended as."""
    answer = state.result(raise_on_failure=False)
    if isinstance(answer, Replayed):
        return answer
    # A timeout, or a defect of ours: its traceback is in the log of the task.
    return Replayed(turn=turn, error=StoreError(f"no verdict: {escape.line(state.message or str(state.name))}"))


def answer_state(answer: Replayed) -> State[Replayed]:
    """The state of a task that has this answer, which carries it."""
    return final_state(_verdicts([answer]), errors=_errors([answer]), data=answer)


def conclude(turns: Turns, answers: Sequence[Replayed]) -> State[None]:
    """The final state of a run that has these answers."""
    return final_state(_verdicts(answers), errors=_errors(answers), remarks=turns.remarks)


def show(answers: Iterable[Replayed]) -> None:
    """Put the verdicts on the page of the run."""
    for answer in answers:
        name = answer.turn.family.name
        if answer.kept is not None and answer.verdict is not None:
            artifacts.show_verdicts(
                name,
                answer.turn.family.location.store.uri,
                [answer.kept],
                tier=int(answer.verdict.tier),
                report=read_settings().report,
            )
        elif answer.verdict is not None:
            artifacts.show_unrecorded(name, answer.verdict)
        if answer.measurements is not None:
            artifacts.show_phases(name, answer.measurements)


def _verdicts(answers: Iterable[Replayed]) -> list[Verdict]:
    return [answer.verdict for answer in answers if answer.verdict is not None]


def _errors(answers: Iterable[Replayed]) -> list[LastgoodError]:
    return [answer.error for answer in answers if answer.error is not None]


def replica_of(family: ConfiguredFamily) -> ReplicaSettings:
    """How the replica of a family is started.

    Raises:
        UsageError: The configuration does not say.
    """
    if family.settings.replica is None:
        raise UsageError(
            f"no replica declared for family {family.name}",
            hint=f"add [families.{family.name}.replica] with a command to lastgood.toml",
        )
    return family.settings.replica


def replay(
    turn: Turn,
    tier: Tier,
    work: Work,
    *,
    limit: Callable[[ReplicaSettings], timedelta],
) -> Replayed:
    """Do the work of a gate when there is room for it, for as long as somebody could end it; keep what it found.

    Args:
        turn: What is judged.
        tier: The gate.
        work: Restores or drills it.
        limit: The longest that the work may take.

    Raises:
        TerminationSignal: The run is cancelled; nothing of the replica is left, and the record says so.
    """
    record = None
    try:
        replica = replica_of(turn.family)
        record = TurnRecord(turn, tier)
        key = artifacts.lawful_key(f"tier{int(tier)}-progress", turn.family.name)
        title = f"Tier {int(tier)} of {escape.markdown(record.subject)}"
        # From right to left at the end: the record is kept before anything that would speak to a server.
        with headroom(replica.headroom), lifeline(limit(replica)) as line, told_aside(key, title) as told:
            verdict, measurements = line.run(lambda cancel: work(replica, cancel, told))
            return record.keep(verdict, measurements)
    except NoHeadroom as error:
        assert record is not None, "room is asked for after that"
        return record.keep(crowded_verdict(tier, record.subject, error.message), Measurements())
    except LastgoodError as error:
        return Replayed(turn=turn, error=error)
    except TerminationSignal:
        if record is not None:
            record.salvage(cancelled_verdict(tier, record.subject, CANCELLED))
        raise


class TurnRecord:
    """The record that one turn will leave.

    Args:
        turn: What is judged.
        tier: The gate.
    """

    def __init__(self, turn: Turn, tier: Tier) -> None:
        self.subject = f"{turn.family.location.keys.family}/{turn.generation}" if turn.generation else turn.family.name
        self._turn = turn
        self._reached: tuple[Verdict, Measurements] | None = None
        self._is_kept = False
        self._began = datetime.now(UTC)
        self._attempt = (
            # Whoever asks for a restore wants one, however fresh its evidence is.
            turn.family.family.due_attempt(turn.generation, tier, older_than=timedelta(0))
            if turn.generation is not None
            else None
        )

    def keep(self, verdict: Verdict, measurements: Measurements) -> Replayed:
        """Put a verdict on record and say so; a verdict whose record the store refuses is answered all the same."""
        verdict = waive(verdict, self._turn.family.settings.ignored)
        self._reached = (verdict, measurements)
        if self._turn.generation is None:
            return Replayed(turn=self._turn, verdict=verdict, measurements=measurements)
        try:
            kept = self._stored(verdict, self._turn.generation, measurements)
        except StoreError as error:
            return Replayed(turn=self._turn, verdict=verdict, measurements=measurements, error=error)
        self._is_kept = True
        events.announce(self._turn.family.name, kept)
        return Replayed(turn=self._turn, verdict=verdict, kept=kept, measurements=measurements)

    def salvage(self, otherwise: Verdict) -> None:
        """Put what was reached on record, once, although the run is being ended; what the store refuses is lost.

        Args:
            otherwise: The verdict if none was reached: a fail that was must never give way to a cancellation.
        """
        if self._is_kept or self._turn.generation is None:
            return
        verdict, measurements = self._reached or (otherwise, Measurements())
        with contextlib.suppress(StoreError):
            kept = self._turn.family.family.keep(
                verdict,
                self._turn.generation,
                self._began,
                measurements,
                attempt=self._attempt,
                origin=current_origin(),
            )
            events.announce(self._turn.family.name, kept)

    def _stored(self, verdict: Verdict, generation: GenerationId, measurements: Measurements) -> Kept:
        family, origin = self._turn.family.family, current_origin()
        for delay_seconds in (*KEEP_DELAYS_SECONDS, None):
            try:
                return family.keep(verdict, generation, self._began, measurements, attempt=self._attempt, origin=origin)
            except StoreTransientError as error:
                if delay_seconds is None:
                    raise
                get_run_logger().warning("not on record yet: %s", escape.line(error.message))
                time.sleep(delay_seconds)
        raise AssertionError("the last try returns or raises")
