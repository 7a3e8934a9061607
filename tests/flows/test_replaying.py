"""`sampled-restore` and `recovery-drill` in flow runs: whose turn it is, what is put on record, what the page shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import prefect.runtime
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.exceptions import ParameterTypeError
from prefect.utilities.callables import parameter_schema

from lastgood.config import FamilySettings, ReplicaSettings
from lastgood.drill import Fault, FaultKind, drill
from lastgood.errors import StoreError
from lastgood.location import Location, locate
from lastgood.records import Record, list_records
from lastgood.verdict import Outcome, Tier
from lastgood_prefect import progress
from lastgood_prefect.headroom import NoHeadroom, headroom
from lastgood_prefect.pools import HEADROOM
from lastgood_prefect.replaying import Replayed, Turn
from lastgood_prefect.settings import ConfiguredFamily
from lastgood_prefect.states import final_state
from tests.flows.conftest import load_flow

TESTS = Path(__file__).resolve().parents[1]
REPLICA = TESTS / "restore" / "fake_replica.py"
JOB = TESTS / "drill" / "fake_job.py"

sampled_restore = load_flow("sampled_restore")
recovery_drill = load_flow("recovery_drill")

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def room() -> Iterator[None]:
    """The limit, with two slots."""
    with get_client(sync_client=True) as client:
        made = client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=HEADROOM, limit=2))
        yield
        client.delete_global_concurrency_limit_by_name(HEADROOM)
    assert made is not None


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with `fam`, which a live run of two ranks trained to step 30, and `drill`, which a job published."""
    root = tmp_path_factory.mktemp("production")
    command = [sys.executable, str(REPLICA), "--family", str(root / "fam"), "--world-size", "2", "--stop-step", "30"]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    fault = Fault(kind=FaultKind.RANK, rank=1, steps_after_save=3)
    result = drill(None, ReplicaSettings(command=(sys.executable, str(JOB))), fault=fault, scratch=root, keep=True)
    assert result.scratch is not None
    (result.scratch / "root" / "drill").rename(root / "drill")
    return root


def configure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, families: dict[str, tuple[Path, list[str] | None]]
) -> None:
    """Write the file that LASTGOOD_CONFIG names: family → its root and the command of its replica."""
    lines = []
    for name, (root, command) in families.items():
        lines += [f"[families.{name}]", f"root = {json.dumps(str(root))}"]
        if command is not None:
            lines += [f"[families.{name}.replica]", f"command = {json.dumps(command)}", "drill_timeout_seconds = 90.0"]
    (tmp_path / "lastgood.toml").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setenv("LASTGOOD_CONFIG", str(tmp_path / "lastgood.toml"))


def replica(*arguments: str) -> list[str]:
    return [sys.executable, str(REPLICA), "--world-size", "{world_size}", *arguments]


def family_of(trained: Path, name: str, tmp_path: Path) -> Location:
    """A copy of a family of our own, for records change it."""
    subprocess.run(["cp", "-a", str(trained / name), str(tmp_path)], check=True, timeout=60)
    return locate(str(tmp_path / name))


def newest(location: Location, tier: Tier) -> Record:
    return [record for record in list_records(location.store, location.keys) if record.tier is tier][-1]


def shown_by(state: Any) -> dict[str, Any]:
    return shown_of(state.state_details.flow_run_id)


def shown_of(run: UUID) -> dict[str, Any]:
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run])))
    return {str(artifact.key): artifact for artifact in found}


@pytest.mark.usefixtures("room")
def test_a_run_that_names_no_family_takes_the_one_whose_turn_it_is(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One nightly run serves all families: those with nothing to restore are passed over, and that is said."""
    fam = family_of(trained, "fam", tmp_path)
    configure(
        tmp_path,
        monkeypatch,
        {"fam": (tmp_path, replica()), "nothing-yet": (tmp_path, replica()), "no-replica": (tmp_path, None)},
    )
    state = sampled_restore(return_state=True)
    assert state.is_completed(), state
    assert "nothing-yet passed over: nothing to restore" in state.message
    record = newest(fam, Tier.RESTORE)
    assert (record.verdict.outcome, record.attempt) == (Outcome.PASS, 1)
    assert str(state.state_details.flow_run_id) in str(record.origin)
    shown = shown_by(state)
    assert {"tier2-checks-fam", "tier2-verdict-fam"} <= set(shown)
    assert f"PASS: fam/{record.generation}" in shown["tier2-verdict-fam"].data
    assert record.generation in str(fam.store.names(fam.keys.proven))


@pytest.mark.usefixtures("room")
def test_a_replica_that_cannot_be_started_keeps_no_other_family_from_its_turn(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped command leaves no record, so its family would be the next one for ever; the mistake is said aloud."""
    fam = family_of(trained, "fam", tmp_path)
    (tmp_path / "other").mkdir()
    family_of(trained, "drill", tmp_path / "other")
    configure(
        tmp_path, monkeypatch, {"drill": (tmp_path / "other", ["no-such-torchrun"]), "fam": (tmp_path, replica())}
    )
    state = sampled_restore(return_state=True)
    assert state.name == "Failed"
    assert "program of the replica not found: no-such-torchrun" in state.message
    assert newest(fam, Tier.RESTORE).verdict.outcome is Outcome.PASS


def test_without_the_limit_nothing_is_started_and_that_is_on_record(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left to itself Prefect goes on without a word (measured), and two replicas would share a device."""
    fam = family_of(trained, "fam", tmp_path)
    configure(tmp_path, monkeypatch, {"fam": (tmp_path, replica())})
    state = sampled_restore("fam", return_state=True)
    assert (state.name, state.type.value) == ("Inconclusive", "FAILED")
    (check,) = newest(fam, Tier.RESTORE).verdict.checks
    assert (check.name, check.outcome) == ("headroom", Outcome.INCONCLUSIVE)
    assert f"the global concurrency limit {HEADROOM} does not exist" in check.detail
    assert check.detail in state.message


@pytest.mark.usefixtures("room")
def test_slots_are_held_counted_and_given_back() -> None:
    """A waiting run must not wait for ever, nor a finished one keep what others need."""
    crowded = pytest.raises(NoHeadroom, match="expected 1 free slots within 1 s")
    with headroom(2), crowded, headroom(1, wait=timedelta(seconds=1)):
        pytest.fail("there was no room")
    with pytest.raises(NoHeadroom, match="expected 3 slots, there are 2"), headroom(3):
        pytest.fail("there is not so much room")
    with headroom(2):
        pass


@pytest.mark.usefixtures("room")
def test_a_drill_shows_its_recovery_and_leaves_its_record(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's page must say what was lost and what the recovery spent its time on, in the record's own numbers."""
    job = family_of(trained, "drill", tmp_path)
    configure(tmp_path, monkeypatch, {"drill": (tmp_path, [sys.executable, str(JOB)])})
    state = recovery_drill(kill="rank", inside_publish=False, seed=7, return_state=True)
    assert state.is_completed(), state
    record = newest(job, Tier.DRILL)
    assert record.verdict.outcome is Outcome.PASS
    shown = shown_by(state)
    assert {"tier3-checks-drill", "tier3-verdict-drill", "tier3-phases-drill"} <= set(shown)
    rows = json.loads(shown["tier3-phases-drill"].data)
    assert rows[-1] == {"phase": "recovery", "seconds": f"{record.measurements.rto_seconds:.3f}", "share": "100.0%"}
    assert len(rows) == len(record.measurements.phases) + 1
    assert re.search(rf"\b{record.measurements.rpo_loss_steps} steps? lost", shown["tier3-phases-drill"].description)


@pytest.mark.usefixtures("room")
def test_a_fresh_drill_is_judged_without_a_record(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is about no generation; its verdict still decides the run, and its page still shows it."""
    job = family_of(trained, "drill", tmp_path)
    configure(tmp_path, monkeypatch, {"drill": (tmp_path, [sys.executable, str(JOB), "--once-dead=refuses"])})
    state = recovery_drill("drill", kill="rank", inside_publish=False, seed=7, fresh=True, return_state=True)
    assert state.name == "Failed"
    assert "drill_not_recovered" in state.message
    assert "tier3-checks-drill" in shown_by(state)
    assert list_records(job.store, job.keys) == ()


def test_progress_is_shown_without_keeping_the_work_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drill measures milliseconds, so another thread speaks to the server, and only of the newest state."""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.05)

    @flow
    def working() -> list[float]:
        seen = []
        with progress.told_aside("told-aside", "Working") as told:
            for percent in (10.0, 20.0, 30.0):
                told(percent)
            while not seen:
                time.sleep(0.05)
                seen = [found.data for found in shown_of(UUID(prefect.runtime.flow_run.id)).values()]
        return seen

    state = working(return_state=True)
    assert state.result() == [30.0]
    assert [(found.data, found.description) for found in shown_by(state).values()] == [(100.0, "Working")]


@pytest.mark.parametrize(
    ("flow", "parameters", "says"),
    [
        (sampled_restore, {"generation": "00000001-0000000000000010"}, "generation without its family"),
        (recovery_drill, {"fresh": True}, "name a family, and no generation"),
        (sampled_restore, {"family": "fam"}, "no replica declared for family fam"),
        (recovery_drill, {"family": "other"}, "family not configured: other"),
    ],
    ids=["no family", "fresh of what", "no replica", "unknown"],
)
def test_a_request_that_cannot_be_met_is_one_clear_line(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Any, parameters: dict[str, Any], says: str
) -> None:
    """Whoever filled in the form reads the state of the run, not a traceback."""
    configure(tmp_path, monkeypatch, {"fam": (trained, None)})
    state = flow(**parameters, return_state=True)
    assert state.name == "Failed"
    assert says in state.message


@pytest.mark.parametrize(
    ("flow", "parameters"),
    [
        (sampled_restore, {"steps": 3}),
        (sampled_restore, {"family": "../../etc"}),
        (recovery_drill, {"kill": "everything"}),
        (recovery_drill, {"seed": -1}),
    ],
    ids=["steps", "family", "kill", "seed"],
)
def test_an_unlawful_parameter_is_refused_before_anything_runs(flow: Any, parameters: dict[str, Any]) -> None:
    """A form is filled in by people, and a path must not slip in as a name."""
    with pytest.raises(ParameterTypeError):
        flow(**parameters, return_state=True).result()


@pytest.mark.parametrize("flow", [sampled_restore, recovery_drill], ids=lambda flow: str(flow.name))
def test_every_parameter_explains_itself(flow: Any) -> None:
    """The form in the UI is made of them, and none may be needed: a schedule fills in nothing."""
    schema = parameter_schema(flow)
    assert schema.required == []
    assert all(entry.get("description") for entry in schema.properties.values()), schema.properties


def test_the_log_of_a_failed_gate_holds_nothing_of_the_replica_environment(tmp_path: Path) -> None:
    """Prefect logs what a failed task returns, to a server that others read; a replica's environment may hold keys."""
    replica = ReplicaSettings(command=("true",), directory=str(tmp_path), environment={"TRACKER_KEY": "s3cret"})
    settings = FamilySettings(root=str(tmp_path), replica=replica)
    family = ConfiguredFamily(name="fam", location=locate(f"{tmp_path}/fam"), settings=settings)
    answer = Replayed(turn=Turn(family=family, generation=None), error=StoreError("no answer"))
    said = repr(final_state((), errors=[StoreError("no answer")], data=answer))
    assert "fam: no verdict" in said
    assert "s3cret" not in said
