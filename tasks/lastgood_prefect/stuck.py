"""Runs that nobody will ever end: taken by a worker that died, or silent since their machine did.

Decides when a run of our flows is dead, and says so to the server, because a dead run holds the slots of its
deployment's limit for ever. Rules: limits are generous, for a wrong word costs a living run its state (never its
verdict: that is on storage); a run whose heartbeats were never heard is given a day; only runs of our own flows, by
their names and with a deployment, are touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events.filters import (
    EventFilter,
    EventNameFilter,
    EventOrder,
    EventResourceFilter,
)
from prefect.states import Crashed

__all__ = ["FLOWS", "Freed", "Patience", "find_elder", "free_stuck_runs", "why_dead"]

FLOWS = ("save-gate", "reconcile", "sampled-restore", "recovery-drill", "readiness-report")
MAXIMUM_RUNS = 200
"""That are looked at in one go; more are met the next time."""
UNHEARD = timedelta(days=1)
"""A run that was never heard may be one whose heartbeats are off."""
HEARD = timedelta(minutes=10)
"""A run that was heard of since then is at work."""

_HEARTBEAT = "prefect.flow-run.heartbeat"
_LIVING = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a run may stay as it is.

    Args:
        pending: Taken by a worker and not begun. A cluster may need long to find a machine.
        silent: Without a heartbeat; Prefect sends one every three minutes.
    """

    pending: timedelta = timedelta(minutes=30)
    silent: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """A run that was called crashed, and why."""

    name: str
    why: str


def free_stuck_runs(patience: Patience, *, but: UUID | None = None) -> tuple[Freed, ...]:
    """Call dead runs of our flows crashed.

    Args:
        patience: How long each may stay as it is.
        but: A run that lives: the one that asks.
    """
    now = datetime.now(UTC)
    freed = []
    with get_client(sync_client=True) as client:
        for run in _living(client):
            if run.id == but or run.state is None:
                continue
            heard = None if run.state.type is StateType.PENDING else _last_heartbeat(client, run.id)
            why = why_dead(run.state.type, run.state.timestamp, heard, patience=patience, now=now)
            if why is not None:
                client.set_flow_run_state(run.id, Crashed(message=f"called crashed by reconcile: {why}"), force=True)
                freed.append(Freed(name=run.name, why=why))
    return tuple(freed)


def find_elder(own: UUID) -> str | None:
    """The name of another run that is at the same work already: same deployment, same parameters, begun earlier.

    A limit on the deployment would do the same, but for a run that was taken and never begun: it would hold the slot
    until a run came that nobody lets in.

    Args:
        own: The run that asks.
    """
    now = datetime.now(UTC)
    with get_client(sync_client=True) as client:
        mine = client.read_flow_run(own)
        if mine.deployment_id is None:
            return None
        for run in _living(client):
            same = (run.deployment_id, run.parameters) == (mine.deployment_id, mine.parameters)
            if not same or run.id == own or run.start_time is None or mine.start_time is None:
                continue
            if run.state_type is StateType.RUNNING and (run.start_time, run.id) < (mine.start_time, own):
                heard = _last_heartbeat(client, run.id) or run.start_time
                if now - heard < HEARD:
                    return run.name
    return None


def why_dead(
    state: StateType, since: datetime, heard: datetime | None, *, patience: Patience, now: datetime
) -> str | None:
    """Why a run in this state will not go on by itself, or None while it may.

    Args:
        state: Its type.
        since: When it came into it, aware.
        heard: Its last heartbeat, aware; None: there was none.
        patience: See there.
        now: Aware.
    """
    waited = now - since
    if state is StateType.PENDING:
        return f"pending for {_minutes(waited)}: did its worker die?" if waited > patience.pending else None
    if state not in _LIVING:
        return None
    if heard is None:
        return f"never heard of for {_minutes(waited)}" if waited > UNHEARD else None
    silence = now - max(heard, since)
    return f"silent for {_minutes(silence)}: did its machine die?" if silence > patience.silent else None


def _minutes(passed: timedelta) -> str:
    return f"{int(passed.total_seconds() // 60)} min"


def _living(client: SyncPrefectClient) -> Sequence[FlowRun]:
    return client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=list(FLOWS))),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(_LIVING))),
            deployment_id=FlowRunFilterDeploymentId(is_null_=False),
        ),
        limit=MAXIMUM_RUNS,
    )


def _last_heartbeat(client: SyncPrefectClient, run: UUID) -> datetime | None:
    heard = client.read_events(
        EventFilter(
            event=EventNameFilter(name=[_HEARTBEAT]),
            resource=EventResourceFilter(id=[f"prefect.flow-run.{run}"]),
            order=EventOrder.DESC,
        ),
        limit=1,
    )
    return heard.events[0].occurred if heard.events else None
