"""`reconcile` in a flow run: what it judges, tidies, names and frees, and that one family's trouble is its own."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.states import Pending, Running

from lastgood.records import list_records
from lastgood.testing.build import BuiltFamily, build_life
from lastgood.verdict import Outcome
from lastgood_prefect.stuck import Patience, find_elder, free_stuck_runs, why_dead
from tests.flows.conftest import artifacts_of, events_about, load_flow

NOW = datetime.now(UTC)
PATIENCE = Patience(pending=timedelta(minutes=30), silent=timedelta(hours=1))


@pytest.fixture
def reconcile(prefect_server: str) -> Any:
    return load_flow("reconcile")


def test_a_save_that_no_event_announced_is_judged(reconcile: Any, configured: BuiltFamily) -> None:
    """Events are lost; what storage holds is judged all the same, in the run that finds it."""
    state = reconcile(return_state=True)
    assert state.is_completed(), state
    records = list_records(configured.store, configured.keys)
    assert [record.verdict.outcome for record in records] == [Outcome.PASS] * 3
    shown = artifacts_of(state.state_details.flow_run_id)
    (row,) = json.loads(shown["reconcile"])
    assert (row["family"], row["judged"]) == ("llm-7b", "3 pass")
    again = reconcile(return_state=True)
    assert (again.is_completed(), again.message) == (True, "nothing to reconcile")


def test_a_fail_that_nobody_saw_ends_the_round_failed(reconcile: Any, configured: BuiltFamily) -> None:
    """Whoever finds a broken save says so, however late."""
    (configured.root / configured.family / str(configured.newest) / "data.json").unlink()
    state = reconcile(["llm-7b"], return_state=True)
    assert state.name == "Failed"
    assert "data.json" in state.message


def test_pointers_and_leftovers_are_put_right_and_told(
    reconcile: Any, configured: BuiltFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a crash left lying is mended without a person, and the page says what was done."""
    built = build_life(configured, steps=[48])
    (built.root / built.keys.active(2)).unlink()
    shutil.copytree(
        built.root / built.family / str(built.newest),
        built.root / built.keys.staging / f"{built.generations[0]}~0123abcd",
    )
    dead = built.root / built.keys.staging / "00000001-0000000000000099~0123abcd"
    dead.mkdir()
    monkeypatch.setattr("lastgood.stores.local._last_change", lambda path: os.lstat(path).st_ctime - 90_000)
    state = reconcile(return_state=True)
    assert state.is_completed(), state
    assert "1 pointers mended" in state.message
    assert "1 dead publishes given up" in state.message
    assert not dead.exists()
    assert (built.root / built.keys.active(2)).exists()


def test_stale_evidence_is_an_event_and_not_a_red_run(reconcile: Any, configured: BuiltFamily, tmp_path: Path) -> None:
    """The gate that stopped running is an alarm; the run that found it did its work. Once a day is enough."""
    name = f"stale-{os.getpid()}"
    shutil.move(configured.root / "llm-7b", configured.root / name)
    (tmp_path / "lastgood.toml").write_text(
        f'[families.{name}]\nroot = "{configured.root}"\n'
        f"[families.{name}.objectives]\nrestore_age_seconds = 1e-6\ndrill_age_seconds = 1e6\n"
    )
    state = reconcile(return_state=True)
    assert "restore evidence stale" in state.message
    assert "drill evidence" not in state.message
    for _ in range(100):
        if said := events_about(name, "restore evidence stale"):
            break
        time.sleep(0.1)
    assert said == ["lastgood.evidence.stale"]
    reconcile(return_state=True)
    assert events_about(name, "restore evidence stale") == said


def test_one_family_s_trouble_is_its_own(reconcile: Any, configured: BuiltFamily, tmp_path: Path) -> None:
    """An unmounted disk of one family must not keep the saves of another unjudged."""
    with (tmp_path / "lastgood.toml").open("a") as file:
        file.write(
            '[families.away]\nroot = "/nowhere/at/all"\n[families.unborn]\nroot = "' + str(configured.root) + '"\n'
        )
    state = reconcile(return_state=True)
    assert state.name == "Inconclusive"
    assert "root is not a directory: /nowhere/at/all" in state.message
    assert len(list_records(configured.store, configured.keys)) == 3


# ---- runs that nobody will ever end


@pytest.mark.parametrize(
    ("state", "since", "heard", "dead"),
    [
        (StateType.PENDING, timedelta(minutes=29), None, False),
        (StateType.PENDING, timedelta(minutes=31), None, True),
        (StateType.RUNNING, timedelta(hours=9), timedelta(minutes=3), False),
        (StateType.RUNNING, timedelta(hours=9), timedelta(minutes=61), True),
        (StateType.RUNNING, timedelta(hours=9), None, False),
        (StateType.RUNNING, timedelta(hours=25), None, True),
        (StateType.CANCELLING, timedelta(minutes=5), timedelta(hours=3), False),
        (StateType.CANCELLING, timedelta(hours=2), timedelta(hours=3), True),
        (StateType.SCHEDULED, timedelta(days=9), None, False),
        (StateType.PAUSED, timedelta(days=9), None, False),
        (StateType.COMPLETED, timedelta(days=9), None, False),
    ],
)
def test_only_what_nobody_will_end_is_dead(
    state: StateType, since: timedelta, heard: timedelta | None, dead: bool
) -> None:
    """A wrong word would cost a living run its state, and a missing one a deployment its slots."""
    why = why_dead(state, NOW - since, NOW - heard if heard is not None else None, patience=PATIENCE, now=NOW)
    assert (why is not None) == dead


@pytest.fixture
def client(prefect_server: str) -> Any:
    with get_client(sync_client=True) as client:
        yield client


Deploy = Callable[[str], UUID]


@pytest.fixture
def deploy(client: SyncPrefectClient, prefect_server: str) -> Deploy:
    """Make a deployment of a flow of that name, with room for one run."""

    def made(name: str) -> UUID:
        @flow(name=name)
        def work(number: int = 0) -> None:
            return None

        flow_id = client.create_flow(work)
        pool = f"pool-{name}"
        client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template={}), overwrite=True)
        return client.create_deployment(
            flow_id,
            f"{name}-{time.monotonic_ns()}",
            entrypoint="nowhere.py:work",
            work_pool_name=pool,
            concurrency_limit=1,
        )

    return made


def test_a_run_that_a_dead_worker_took_lets_the_next_one_in(client: SyncPrefectClient, deploy: Deploy) -> None:
    """A deployment with room for one run would be wedged for ever."""
    deployment = deploy("save-gate")
    stuck = client.create_flow_run_from_deployment(deployment)
    client.set_flow_run_state(stuck.id, Pending())
    after = client.create_flow_run_from_deployment(deployment)
    client.set_flow_run_state(after.id, Pending())
    assert client.read_flow_run(after.id).state_type is StateType.SCHEDULED
    assert stuck.name not in [run.name for run in free_stuck_runs(PATIENCE)]
    impatient = Patience(pending=timedelta(0), silent=timedelta(hours=1))
    assert stuck.name not in [run.name for run in free_stuck_runs(impatient, but=stuck.id)]
    assert stuck.name in [run.name for run in free_stuck_runs(impatient)]
    crashed = client.read_flow_run(stuck.id)
    assert crashed.state_type is StateType.CRASHED
    assert "pending for" in str(crashed.state and crashed.state.message)
    client.set_flow_run_state(after.id, Pending())
    assert client.read_flow_run(after.id).state_type is StateType.PENDING


def test_runs_of_other_people_are_never_touched(client: SyncPrefectClient, deploy: Deploy) -> None:
    """A server is shared; what is not ours may be pending for as long as it likes."""
    theirs = client.create_flow_run_from_deployment(deploy("somebody-elses-flow"))
    client.set_flow_run_state(theirs.id, Pending())
    free_stuck_runs(Patience(pending=timedelta(0), silent=timedelta(0)))
    assert client.read_flow_run(theirs.id).state_type is StateType.PENDING


def test_a_round_is_left_to_an_elder_that_lives(client: SyncPrefectClient, deploy: Deploy) -> None:
    """Two rounds at once do no harm, but each would read the same backlog."""
    with_limit = deploy("reconcile")
    client.update_deployment(with_limit, _no_limit())
    elder, other, younger = (
        client.create_flow_run_from_deployment(with_limit, parameters={"number": number}) for number in (1, 2, 1)
    )
    for run in (elder, other, younger):
        client.set_flow_run_state(run.id, Pending())
        client.set_flow_run_state(run.id, Running())
    assert find_elder(younger.id) == elder.name
    assert find_elder(elder.id) is None
    assert find_elder(other.id) is None


def _no_limit() -> Any:
    from prefect.client.schemas.actions import DeploymentUpdate

    return DeploymentUpdate(concurrency_limit=None)
