"""Restores of the reference trainer: real tensors, real ranks, every component left out, stale or swapped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lastgood.config import ReplicaSettings
from lastgood.identity import GenerationId
from lastgood.location import Location, locate
from lastgood.manifest import Component, Counter, parse_manifest
from lastgood.restore import RestoreResult, restore
from lastgood.verdict import Check, CheckState, Finding, NoteReason, Outcome, Reason, Rung, Verdict
from lastgood.verify import verify_generation
from tests.replica.fleet import train

LAUNCHER = Path(__file__).parent / "fork_ranks.py"
TORCHRUN = Path(sys.executable).parent / "torchrun"
COURSE = (
    *("--steps", "100", "--global-batch", "16", "--samples", "256", "--workers", "0"),
    *("--width", "32", "--layers", "1"),
)
TIMEOUT_SECONDS = 280.0


def trained(root: Path, *extra: str, stop: int, fault: str = "", world_size: int = 2, save_every: int = 0) -> Path:
    """A family whose live run was trained to a step, every save spoilt by the fault if there is one."""
    family = root / "fam"
    spoilt = {"LASTGOOD_REPLICA": "1", "LASTGOOD_FAMILY": str(family), "LASTGOOD_FAULT": fault}
    arguments = [*COURSE, *extra, "--allow-fresh", "--stop-step", str(stop), "--save-every", str(save_every)]
    train(family, world_size, arguments, environ=spoilt if fault else {})
    return family


def at(family: Path, step: int) -> Location:
    return locate(str(family / str(GenerationId(1, step))))


def forked(*extra: str, course: Sequence[str] = COURSE) -> ReplicaSettings:
    """The trainer under the tests' own launcher."""
    command = (sys.executable, str(LAUNCHER), "{world_size}", *course, *extra)
    return ReplicaSettings(command=command, restore_timeout_seconds=TIMEOUT_SECONDS)


def under_torchrun(*extra: str, course: Sequence[str] = COURSE) -> ReplicaSettings:
    """The trainer as people start it."""
    torchrun = (str(TORCHRUN), "--standalone", "--nproc-per-node={world_size}", "-m", "lastgood.replica.trainer")
    return ReplicaSettings(command=(*torchrun, *course, *extra), restore_timeout_seconds=TIMEOUT_SECONDS)


def named(result: RestoreResult, name: str) -> Check:
    return next(check for check in result.verdict.checks if check.name == name)


def explained(result: RestoreResult) -> str:
    """For assertions: what the verdict found, or could not do."""
    lines = [finding.message for finding in result.verdict.findings]
    return "\n".join(lines or [f"{check.name}: {check.detail}" for check in result.verdict.checks])


def blames(verdict: Verdict, component: Component) -> list[Finding]:
    """The findings whose offender is of this component."""
    return [one for one in verdict.findings if one.offender.replace(".", "/").split("/")[0] == component]


def test_a_generation_of_the_reference_trainer_passes_and_equals_the_live_run(tmp_path: Path) -> None:
    """Weights, losses, draws and samples after the load are those of the run that was never interrupted."""
    family = trained(tmp_path, "--digest-every", "1", stop=8, save_every=4)
    result = restore(at(family, 4), forked("--digest-every", "1"))
    assert result.verdict.outcome is Outcome.PASS, explained(result)
    not_run = {check.name for check in result.verdict.checks if check.state is not CheckState.RAN}
    assert not_run == {"moving_average_tensors"}
    assert named(result, "control_digests").detail == "steps 5–8 on 2 ranks: equal"


@pytest.mark.slow
def test_another_thread_count_turns_exact_comparisons_into_notes(tmp_path: Path) -> None:
    """What was promised exactly was promised for the threads that the job pinned; on another host's number the weights
    of later steps differ, which is no fault of the checkpoint and must quarantine nothing.
    """
    family = trained(tmp_path, "--digest-every", "1", stop=8, save_every=4)
    result = restore(at(family, 4), forked("--digest-every", "1", "--threads", "2"))
    assert result.verdict.outcome is Outcome.PASS, explained(result)
    assert "the environment changed: threads" in named(result, "control_digests").detail
    noted = {(note.reason, note.offender) for note in result.verdict.notes}
    assert (NoteReason.ENVIRONMENT_CHANGED, "settings.threads") in noted
    parted = [one for one in result.verdict.notes if one.reason is NoteReason.DETERMINISM_NOT_PROMISED]
    assert parted, "equal bits would prove that the exact promise may cover other thread counts"


OMITTED = [one for one in Component if one is not Component.OTHER]


@pytest.mark.parametrize("component", OMITTED)
def test_a_component_left_out_fails_tiers_1_and_2_by_its_name(tmp_path: Path, component: Component) -> None:
    """A scheduler that nobody saved must be missed before the interruption that needs it, and be called by its name."""
    extra = ("--ema",) if component is Component.EMA else ()
    location = at(trained(tmp_path, *extra, stop=2, fault=f"omit:{component}"), 2)
    verified = verify_generation(location.store, location.keys, location.require_generation())
    restored = restore(location, forked(*extra)).verdict
    for verdict in (verified, restored):
        assert verdict.outcome is Outcome.FAIL
        assert {finding.reason for finding in verdict.findings} == {Reason.COMPONENT_MISSING}
        assert blames(verdict, component)


def test_a_model_that_was_saved_stale_passes_tier_1_and_fails_tier_2(tmp_path: Path) -> None:
    """Its bytes are what was written and were never what was trained: only the live objects' own word can tell."""
    check_stale(tmp_path, Component.MODEL, ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("component", "extra"),
    [
        (Component.OPTIMIZER, ()),
        (Component.SCALER, ()),
        (Component.SCHEDULER, ()),
        (Component.RNG, ()),
        (Component.DATA, ()),
        (Component.EMA, ("--ema",)),
        (Component.MODEL, ("--strategy", "fsdp2")),
        (Component.OPTIMIZER, ("--strategy", "fsdp2")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_every_stale_component_fails_tier_2_by_its_name(
    tmp_path: Path, component: Component, extra: tuple[str, ...]
) -> None:
    """Whatever is serialised a step too early brings back a run that never was."""
    check_stale(tmp_path, component, extra)


def check_stale(tmp_path: Path, component: Component, extra: tuple[str, ...]) -> None:
    location = at(trained(tmp_path, *extra, stop=6, fault=f"stale:{component}"), 6)
    verified = verify_generation(location.store, location.keys, location.require_generation())
    assert verified.outcome is Outcome.PASS
    result = restore(location, forked(*extra))
    assert result.verdict.outcome is Outcome.FAIL, explained(result)
    assert blames(result.verdict, component), explained(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("component", "extra"),
    [
        (Component.RNG, ()),
        (Component.MODEL, ("--strategy", "fsdp2")),
        (Component.OPTIMIZER, ("--strategy", "fsdp2")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_component_swapped_between_ranks_fails_tier_2_by_its_name(
    tmp_path: Path, component: Component, extra: tuple[str, ...]
) -> None:
    """Every file is there and whole, and each rank holds its neighbour's state."""
    location = at(trained(tmp_path, *extra, stop=6, fault=f"swap:{component}"), 6)
    verified = verify_generation(location.store, location.keys, location.require_generation())
    assert verified.outcome is Outcome.PASS
    result = restore(location, forked(*extra))
    assert result.verdict.outcome is Outcome.FAIL, explained(result)
    assert blames(result.verdict, component), explained(result)


@pytest.mark.slow
@pytest.mark.parametrize("extra", [(), ("--strategy", "fsdp2"), ("--asynchronous", "--ema")], ids=lambda e: "-".join(e))
def test_a_restore_under_torchrun_passes(tmp_path: Path, extra: tuple[str, ...]) -> None:
    """Under the launcher that people use, its own sessions and restarts included."""
    family = trained(tmp_path, *extra, stop=8, save_every=4)
    result = restore(at(family, 4), under_torchrun(*extra))
    assert result.verdict.outcome is Outcome.PASS, explained(result)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 4])
def test_another_world_size_passes_as_that_change_and_no_more(tmp_path: Path, world_size: int) -> None:
    """Resharded tensors and respread samples are right on one and on four ranks, and prove only the change."""
    family = trained(tmp_path, stop=8, save_every=4)
    result = restore(at(family, 4), forked("--allow-topology-change"), world_size=world_size)
    assert (result.verdict.outcome, result.verdict.rung) == (Outcome.PASS, Rung.TOPOLOGY_CHANGE), explained(result)
    assert named(result, "sample_ids").state is CheckState.RAN


@pytest.mark.slow
def test_another_model_than_the_one_saved_is_refused_by_name(tmp_path: Path) -> None:
    """A replica that was built otherwise must not train on what happens to fit."""
    location = at(trained(tmp_path, stop=2), 2)
    result = restore(location, forked("--width", "64"))
    assert {finding.reason for finding in result.verdict.findings} == {Reason.MODEL_IDENTITY_CHANGED}


WORKED_COURSE = (
    *("--steps", "60000", "--global-batch", "64", "--samples", "4096", "--microbatches", "4", "--workers", "0"),
    *("--width", "32", "--layers", "1", "--digest-every", "1"),
)


@pytest.mark.slow
def test_the_worked_example_step_48001_on_16_ranks(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """The worked example of docs/architecture.md, each check visible in the verdict: 52 artifacts, then step 48,001."""
    family = tmp_path / "fam"
    live = (*WORKED_COURSE, "--allow-fresh", "--fast-forward", "48000", "--save-first", "--save-every", "0")
    train(family, 16, (*live, "--stop-step", "48004"))
    location = at(family, 48_000)
    result = restore(location, under_torchrun(course=WORKED_COURSE))
    assert result.verdict.outcome is Outcome.PASS, explained(result)
    for name, said in {
        "digests": "52 of 52 artifacts",
        "ranks": "world size 16",
        "strict_load": "ranks 0–15",
        "optimizer_steps": "decay=48000",
        "learning_rate_before_step": "next update: decay=",
        "learning_rate_after_step": "steps 48002–48004 on 16 ranks: equal",
        "scheduler_position": "scheduler.last_epoch=48000",
        "rng_draws": "on 16 ranks",
        "sample_ids": "of 16 ranks",
        "data_position": "data.train.epoch=",
        "smoke_steps": "steps 48001–48004 on 16 ranks",
        "accumulation_window": "4 microbatches a step",
        "loss_finite": "48001: ",
        "gradient_norm_finite": "48001: ",
        "optimizer_advanced_once": "by one in each of steps 48001–48004",
        "control_loss": "steps 48001–48004 on 16 ranks: equal",
        "control_digests": "steps 48001–48004 on 16 ranks: equal",
        "save_after_resume": "tier 1 pass",
    }.items():
        check = named(result, name)
        assert check.state is CheckState.RAN, f"{name}: {check.detail}"
        assert said in check.detail, f"{name}: {check.detail}"
    counter = next(one for one in manifest_counters(location) if one.name == "optimizer_step")
    assert (counter.value, counter.names) == (48_000, "completed")
    record_property("worked example: seconds of a 16-rank restore", round(result.measurements.seconds or 0.0, 1))


def manifest_counters(location: Location) -> tuple[Counter, ...]:
    key = location.keys.manifest(location.require_generation())
    return parse_manifest(location.store.get(key, limit_bytes=2**26) or b"", key).job.counters
