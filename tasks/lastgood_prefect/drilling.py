"""Tier 3 as a Prefect task: one task kills and recovers one disposable replica, and keeps what it showed.

Decides what a drill begins with, and what is killed where nobody said it; leaves the drill to `lastgood.drill` and what
every gate with a replica needs to `replaying`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from prefect import State, task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from lastgood.config import ReplicaSettings
from lastgood.drill import FaultKind, Stage, drill, random_fault
from lastgood.errors import ResumeRefused, UsageError
from lastgood.identity import GenerationId
from lastgood.records import Measurements
from lastgood.restore.cancel import Cancel
from lastgood.text import printable
from lastgood.verdict import Outcome, Tier, Verdict
from lastgood_prefect.progress import Told, share_of
from lastgood_prefect.replaying import (
    COPY_ALLOWANCE,
    TASK_TIMEOUT,
    Replayed,
    Turn,
    Turns,
    Work,
    answer_of,
    answer_state,
    choose_turns,
    replay,
    until_judged,
)
from lastgood_prefect.settings import ConfiguredFamily

__all__ = ["Aim", "drill_first", "drill_replica", "drill_turns"]

PARTS: Final = 4
"""Of a drill, each within `drill_timeout_seconds`: to the first save, to the kill, the recovery, the save after it."""
REACHED_PERCENT: Final[Mapping[Stage, float]] = {
    Stage.COPY: 1.0,
    Stage.START: 30.0,
    Stage.TRAIN: 40.0,
    Stage.KILLED: 60.0,
    Stage.RECOVERED: 80.0,
    Stage.SAVED: 95.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What is killed, and when.

    Args:
        kill: What; None draws it.
        inside_publish: Whether inside a publish; None draws it.
        seed: Of the draw; the same seed draws the same fault.
    """

    kill: FaultKind | None = None
    inside_publish: bool | None = None
    seed: int

    @classmethod
    def of(cls, kill: FaultKind | None, inside_publish: bool | None, seed: int | None) -> Aim:
        """As it was asked for; a seed that nobody named is drawn."""
        return cls(kill=kill, inside_publish=inside_publish, seed=secrets.randbelow(2**31) if seed is None else seed)


def drill_turns(family: str | None, generation: str | None, fresh: bool) -> Turns:
    """What was asked for, or whose turn it is: the family drilled longest ago, beginning with its newest generation.

    Args:
        family: Its name, or None.
        generation: What the replica begins with, or None: what may be resumed.
        fresh: It begins at step zero instead.

    Raises:
        UsageError: Nothing can be drilled, or the request contradicts itself.
        ResumeRefused: The family offers nothing to begin with.
    """
    if fresh and (generation is not None or family is None):
        raise UsageError("a fresh drill begins at step zero: name a family, and no generation")
    return choose_turns(Tier.DRILL, family, generation, (lambda named: None) if fresh else _newest)


def _newest(family: ConfiguredFamily) -> GenerationId:
    offer = family.family.latest()
    if offer.generation is None:
        reason = f"nothing to begin with: {offer.findings[0].message}"
        raise ResumeRefused(reason, findings=offer.findings, hint="a fresh drill begins at step zero")
    return offer.generation


def drill_first(turns: Turns, aim: Aim) -> list[Replayed]:
    """Run the task for one turn after the other until one could be judged."""
    return until_judged(turns, lambda turn: answer_of(turn, drill_replica(turn, aim, return_state=True)))


@task(
    name="drill-replica",
    task_run_name="drill {turn.family.name}",
    tags=["tier3"],
    timeout_seconds=TASK_TIMEOUT.total_seconds(),
    cache_policy=NO_CACHE,
    persist_result=False,
)
def drill_replica(turn: Turn, aim: Aim) -> State[Replayed]:
    """Tier 3 of one family, on record; the state of the task is the verdict's."""
    return answer_state(replay(turn, Tier.DRILL, _drilling(turn, aim), limit=_limit))


def _limit(replica: ReplicaSettings) -> timedelta:
    return COPY_ALLOWANCE + PARTS * timedelta(seconds=replica.drill_timeout_seconds)


def _drilling(turn: Turn, aim: Aim) -> Work:
    location = turn.family.location.of(turn.generation) if turn.generation else turn.family.location
    log = get_run_logger()

    def work(replica: ReplicaSettings, cancel: Cancel, told: Told) -> tuple[Verdict, Measurements]:
        fault = random_fault(aim.seed, world_size=replica.world_size, kind=aim.kill, inside_publish=aim.inside_publish)
        log.info("fault: %s (seed %d)", fault, aim.seed)
        result = drill(
            location,
            replica,
            fault=fault,
            objectives=turn.family.settings.objectives,
            stage=lambda stage: told(REACHED_PERCENT[stage]),
            progress=share_of(location, lambda share: told(REACHED_PERCENT[Stage.START] * share)),
            cancel=cancel,
        )
        if result.verdict.outcome is not Outcome.PASS and result.log_tail:
            log.info("last lines of the replica:\n%s", printable(result.log_tail, keep_newlines=True))
        return result.verdict, result.measurements

    return work
