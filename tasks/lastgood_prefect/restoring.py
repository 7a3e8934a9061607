"""Tier 2 as a Prefect task: one task restores one generation, and keeps what it found.

Decides which generation a sampled restore takes, and how far its progress has come; leaves the restore to
`lastgood.restore` and what every gate with a replica needs to `replaying`.
"""

from __future__ import annotations

from datetime import timedelta

from prefect import State, task
from prefect.cache_policies import NO_CACHE

from lastgood.config import ReplicaSettings
from lastgood.records import Measurements
from lastgood.restore import next_generation, restore
from lastgood.restore.cancel import Cancel
from lastgood.verdict import Tier, Verdict
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

__all__ = ["restore_first", "restore_generation", "restore_turns"]

COPIED_PERCENT = 90.0
"""The share of a restore that copying is taken to be; what the replica does after that reports to its trace."""


def restore_turns(family: str | None, generation: str | None) -> Turns:
    """What was asked for, or whose turn it is: the family tried longest ago, of it what was restored longest ago.

    Raises:
        UsageError: Nothing can be restored.
    """
    return choose_turns(Tier.RESTORE, family, generation, lambda named: next_generation(named.location))


def restore_first(turns: Turns, steps: int | None, load_only: bool) -> list[Replayed]:
    """Run the task for one turn after the other until one could be judged."""
    return until_judged(
        turns, lambda turn: answer_of(turn, restore_generation(turn, steps, load_only, return_state=True))
    )


@task(
    name="restore-generation",
    task_run_name="restore {turn.generation}",
    tags=["tier2"],
    timeout_seconds=TASK_TIMEOUT.total_seconds(),
    cache_policy=NO_CACHE,
    persist_result=False,
)
def restore_generation(turn: Turn, steps: int | None = None, load_only: bool = False) -> State[Replayed]:
    """Tier 2 of one generation, on record; the state of the task is the verdict's."""
    return answer_state(replay(turn, Tier.RESTORE, _restoring(turn, steps, load_only), limit=_limit))


def _limit(replica: ReplicaSettings) -> timedelta:
    return COPY_ALLOWANCE + timedelta(seconds=replica.restore_timeout_seconds)


def _restoring(turn: Turn, steps: int | None, load_only: bool) -> Work:
    assert turn.generation is not None, "a restore takes a generation"
    location = turn.family.location.of(turn.generation)

    def work(replica: ReplicaSettings, cancel: Cancel, told: Told) -> tuple[Verdict, Measurements]:
        copied = share_of(location, lambda share: told(COPIED_PERCENT * share))
        result = restore(location, replica, steps=steps, load_only=load_only, progress=copied, cancel=cancel)
        return result.verdict, result.measurements

    return work
