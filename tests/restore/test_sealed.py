"""Tier 2 of a checkpoint that was sealed, not published: its replica is given the path and starts as ever."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lastgood.config import ReplicaSettings
from lastgood.family import Family
from lastgood.formats.sealing import Wish, seal
from lastgood.identity import GenerationId
from lastgood.location import Location, locate, locate_place
from lastgood.replica.trace import trace_directory
from lastgood.restore.materialize import make_copy, open_scratch
from lastgood.restore.supervisor import RestoreResult, restore
from lastgood.stores import StoreSettings
from lastgood.verdict import CheckState, Outcome, Reason, Rung
from tests.foreign import toy_known, write_toy
from tests.restore.fake_replica import Training, write
from tests.restore.test_supervisor import FAKE, digest_of_tree
from tests.restore.test_supervisor import settings as fake_settings

STEP = 20


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with toy_known():
        yield


LIFE = "5ea1" * 8
"""The nonce of the job that saved and sealed."""


def trained(run: Path, step: int, evidence: Path | None = None) -> Location:
    """What two ranks that trained to a step would have saved by themselves, sealed by their own job."""
    stores = {str(run.parent): StoreSettings(evidence=str(evidence))} if evidence is not None else None
    directory = write_toy(run, step)
    for rank in range(2):
        training = Training(rank)
        for _ in range(step):
            training.update()
        write(training, directory)
    return seal(locate_place(str(directory), stores), Wish(life=LIFE)).location


def settings(*extra: str) -> ReplicaSettings:
    """A replica that runs the code that is tested, wherever that lies: it inherits no search path."""
    return fake_settings(*extra, environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})


def outcome(result: RestoreResult) -> tuple[Outcome, Rung]:
    return result.verdict.outcome, result.verdict.rung


def test_a_sealed_checkpoint_is_restored_trained_and_saved_again(tmp_path: Path) -> None:
    """The replica finds it as the newest of its family; with nothing to compare with, the rung says so."""
    location = trained(tmp_path / "runs" / "fam", STEP)
    before = digest_of_tree(tmp_path / "runs")
    result = restore(location, settings())
    assert outcome(result) == (Outcome.PASS, Rung.UNWITNESSED), result.verdict.findings
    made = {check.name: check for check in result.verdict.checks}
    assert made["rng_draws"].state is CheckState.NOT_RUN
    assert made["completed_step"].outcome is Outcome.PASS
    assert made["save_after_resume"].outcome is Outcome.PASS
    assert made["generation_discovered"].detail == "00000000-0000000000000020~toy-20"
    assert digest_of_tree(tmp_path / "runs") == before


def test_an_unwitnessed_restore_proves_nothing(tmp_path: Path) -> None:
    """`proven` means that somebody saw it go on where it stopped."""
    location = trained(tmp_path / "runs" / "fam", STEP)
    family, generation = Family(location), location.require_generation()
    result = restore(location, settings())
    family.keep(result.verdict, generation, datetime.now(UTC), result.measurements)
    assert generation not in family.survey().proven
    assert not family.survey().quarantine


def trace_beside(run: Path, live: Path, *, edit: Callable[[dict[str, Any]], None] = lambda record: None) -> None:
    """The trace of a live run that went on from where `trained` stops, its steps edited, beside the seals."""
    live.mkdir()
    told = [sys.executable, str(FAKE), "--family", str(live / "fam"), "--world-size", "2", "--stop-step", "30"]
    subprocess.run(told, check=True, timeout=60, capture_output=True)
    traces = trace_directory(run / "fam", LIFE, 0).parent
    shutil.copytree(trace_directory(live / "fam", 1, 0).parent, traces)
    for path in traces.rglob("*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            if record["kind"] == "step":
                edit(record)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_with_the_live_runs_trace_it_is_a_full_restore(tmp_path: Path) -> None:
    """A helper that traces beside its seals makes the live run the control, as for any other generation."""
    location = trained(tmp_path / "runs" / "fam", STEP)
    trace_beside(tmp_path / "runs", tmp_path / "live")
    result = restore(location, settings())
    assert outcome(result) == (Outcome.PASS, Rung.FULL)
    made = {check.name: check for check in result.verdict.checks}
    assert made["control_loss"].outcome is Outcome.PASS
    assert made["control_loss"].detail == "steps 21–24 on 2 ranks: equal, although nothing was promised"


def test_a_tree_that_is_only_read_is_restored_by_the_evidence_that_lies_elsewhere(tmp_path: Path) -> None:
    """Seal, the live run's trace and the verdict lie under another root, and the restore is as full as beside it."""
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    location = trained(tmp_path / "runs" / "fam", STEP, evidence)
    before = digest_of_tree(tmp_path / "runs")
    trace_beside(evidence, tmp_path / "live")
    result = restore(location, settings())
    assert outcome(result) == (Outcome.PASS, Rung.FULL), result.verdict.findings
    family, generation = Family(location), location.require_generation()
    family.keep(result.verdict, generation, datetime.now(UTC), result.measurements)
    assert generation in family.survey().proven
    assert digest_of_tree(tmp_path / "runs") == before


def test_another_loss_than_the_live_runs_proves_nothing(tmp_path: Path) -> None:
    """Nothing is promised of sums, so another one cannot fail it; but it must not become the last good one."""

    def edit(record: dict[str, Any]) -> None:
        record["loss"] += 1

    location = trained(tmp_path / "runs" / "fam", STEP)
    trace_beside(tmp_path / "runs", tmp_path / "live", edit=edit)
    assert outcome(restore(location, settings())) == (Outcome.PASS, Rung.UNWITNESSED)


@pytest.mark.parametrize(
    ("name", "reason", "offender"),
    [
        ("learning_rates", Reason.LEARNING_RATE_DIVERGED, "scheduler/default of step 22"),
        ("optimizer_steps", Reason.OPTIMIZER_STEP_DIVERGED, "optimizer/default of step 21"),
    ],
)
def test_a_schedule_or_history_that_began_anew_fails_it(
    tmp_path: Path, name: str, reason: Reason, offender: str
) -> None:
    """A framework that restarts them says nothing, and no kernel explains it; the finding names the component."""

    def edit(record: dict[str, Any]) -> None:
        record[name] = {key: one + 1 for key, one in record[name].items()}

    location = trained(tmp_path / "runs" / "fam", STEP)
    trace_beside(tmp_path / "runs", tmp_path / "live", edit=edit)
    result = restore(location, settings())
    assert result.verdict.outcome is Outcome.FAIL
    assert [(finding.reason, finding.offender) for finding in result.verdict.findings] == [(reason, offender)]


def test_a_trace_of_another_life_is_no_witness(tmp_path: Path) -> None:
    """One that resumed from the checkpoint went on as it goes on, also where that is wrong."""
    location = trained(tmp_path / "runs" / "fam", STEP)
    trace_beside(tmp_path / "runs", tmp_path / "live")
    traces = tmp_path / "runs" / "fam" / ".lastgood" / "traces"
    (traces / LIFE).rename(traces / LIFE[::-1])
    assert outcome(restore(location, settings())) == (Outcome.PASS, Rung.UNWITNESSED)


def test_a_replica_that_cannot_load_it_fails_it(tmp_path: Path) -> None:
    """A checkpoint that kills its own trainer is found here, before somebody needs it."""
    location = trained(tmp_path / "runs" / "fam", STEP)
    result = restore(location, settings("--misbehave", "crash"))
    assert result.verdict.outcome is Outcome.FAIL
    assert {finding.reason for finding in result.verdict.findings} == {Reason.RESTORE_CRASHED}


def test_a_flipped_byte_never_reaches_the_replica(tmp_path: Path) -> None:
    """What is loaded is what was hashed."""
    location = trained(tmp_path / "runs" / "fam", STEP)
    path = tmp_path / "runs" / "fam" / "toy-20" / "model.toy"
    path.write_bytes(path.read_bytes().replace(b"m", b"M", 1))
    result = restore(location, settings())
    assert Reason.DIGEST_MISMATCH in {finding.reason for finding in result.verdict.findings}
    assert Family(locate(str(path.parent))).location.generation is not None


def test_after_a_rollback_the_replica_can_seal_what_it_saves(tmp_path: Path) -> None:
    """A start in the place of the rollback would keep no seal, and the save after the resume would fail the restore."""
    trained(tmp_path / "runs" / "fam", STEP)
    family = Family(locate(str(tmp_path / "runs" / "fam")))
    family.rollback(GenerationId.parse("00000000-0000000000000020~toy-20"), reason="the loss diverged")
    location = trained(tmp_path / "runs" / "fam", STEP + 4)
    assert str(location.require_generation()) == "00000001-0000000000000024~toy-24"
    with open_scratch(location, None, keep=False, purpose="restore") as scratch:
        copy = make_copy(location, scratch)
        assert copy.manifest is not None
        assert Family(copy.location).latest().generation == location.require_generation()
        after = trained(copy.location.local_family, STEP + 8)
        assert str(after.require_generation()) == "00000001-0000000000000028~toy-28"
