"""`reconcile`: what no event announced, what lags, what was left lying, what is stale, which runs are dead."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from prefect import State, flow
from pydantic import Field

from lastgood_prefect.parameters import FamilyName
from lastgood_prefect.reconciling import conclude, elder_at_work, free_runs, reconcile_family, show
from lastgood_prefect.settings import configured_families
from lastgood_prefect.sharding import task_runner
from lastgood_prefect.states import final_state, told_plainly
from lastgood_prefect.stuck import Patience

Hours = Annotated[float, Field(ge=1.0, le=10_000.0)]
Minutes = Annotated[float, Field(ge=5.0, le=100_000.0)]


@flow(name="reconcile", task_runner=task_runner(), persist_result=False)
@told_plainly
def reconcile(
    families: list[FamilyName] = [],  # noqa: B006 - never written to, and the form shows a list
    sweep_after_hours: Hours = 24.0,
    pending_minutes: Minutes = 30.0,
    silent_minutes: Minutes = 60.0,
) -> State:
    """Judge saves that no event announced, mend pointers, sweep what dead publishes left, and name stale evidence.

    Runs that nobody will ever end are called crashed first, so that no deployment waits for them.

    Args:
        families: Names of families in lastgood.toml; none: every one of them.
        sweep_after_hours: How long nothing must have changed before a leftover of a superseded start is removed.
        pending_minutes: How long a run may be pending before it is called crashed.
        silent_minutes: How long a run may send no heartbeat before it is called crashed.
    """
    gates = configured_families(families)
    patience = Patience(pending=timedelta(minutes=pending_minutes), silent=timedelta(minutes=silent_minutes))
    freed = free_runs(patience)
    if elder := elder_at_work():
        return final_state((), remarks=[f"left to the run {elder}, which is at it already"])
    rounds = [reconcile_family(gate, older_than=timedelta(hours=sweep_after_hours)) for gate in gates]
    show(rounds, freed)
    return conclude(rounds, freed)
