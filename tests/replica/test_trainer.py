"""How the reference trainer begins, saves, refuses and ends, with real processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil
import pytest

from lastgood.identity import GenerationId
from lastgood.manifest import Component, Determinism, Manifest, parse_manifest
from lastgood.replica.trace import (
    Discovered,
    Loaded,
    Phase,
    Refused,
    Saved,
    Span,
    Started,
    Step,
    Stopped,
    StopReason,
    TraceReader,
    TraceRecord,
)
from tests.replica.fleet import Fleet, at_save, at_step, train

SOLO = ("--strategy", "single", "--allow-fresh", "--steps", "20", "--samples", "192", "--workers", "0")


def records(family: Path, incarnation: int, rank: int = 0) -> tuple[TraceRecord, ...]:
    return tuple(TraceReader(family).records(incarnation, rank))


def manifest(family: Path, incarnation: int, step: int) -> Manifest:
    key = family / ".lastgood" / "manifests" / f"{GenerationId(incarnation, step)}.json"
    return parse_manifest(key.read_bytes(), str(key))


def last_words(fleet: Fleet) -> str:
    """The last line that a rank said; there must be no traceback before it."""
    text = fleet.log.read_text()
    assert "Traceback" not in text, text
    return text.strip().splitlines()[-1]


def test_trace_tells_a_life_from_its_process_to_its_end(tmp_path: Path) -> None:
    """A supervisor subtracts phases from a recovery time, so they must lie end to end and leave little between."""
    train(tmp_path / "f", 1, [*SOLO, "--stop-step", "3", "--save-every", "2"])
    told = records(tmp_path / "f", 1)
    kinds = [type(record) for record in told]
    assert kinds == [Started, Discovered, Step, Step, Saved, Step, Saved, Stopped]
    spans: list[Span] = [span for record in told for span in record.spans]
    before_training = [Phase.LAUNCH, Phase.IMPORT, Phase.JOIN, Phase.BUILD, Phase.DISCOVER]
    assert [span.phase for span in spans[:6]] == [*before_training, Phase.STEP]
    for one, following in itertools.pairwise(spans):
        assert one.begin_ns <= one.end_ns <= following.begin_ns
    covered = sum(span.seconds for span in spans)
    whole = (spans[-1].end_ns - spans[0].begin_ns) / 1e9
    assert covered >= 0.9 * whole
    stopped = told[-1]
    assert isinstance(stopped, Stopped)
    assert (stopped.reason, stopped.step) == (StopReason.FINISHED, 3)


def test_loaded_record_repeats_what_the_manifest_expects(tmp_path: Path) -> None:
    """Both are made by one function from live objects, so a supervisor compares them by plain equality."""
    train(tmp_path / "f", 2, [*SOLO, "--strategy", "fsdp2", "--stop-step", "4", "--save-every", "0"])
    train(tmp_path / "f", 2, [*SOLO, "--strategy", "fsdp2", "--stop-step", "5"])
    expected = manifest(tmp_path / "f", 1, 4).expectations
    assert expected is not None
    for rank in (0, 1):
        loaded = next(record for record in records(tmp_path / "f", 2, rank) if isinstance(record, Loaded))
        assert loaded.expectations == expected.ranks[rank]
        assert loaded.expectations is not None
        assert len(loaded.expectations.tensor_digests) > 0
        assert {"python", "numpy", "torch.cpu", "generator.noise"} <= loaded.expectations.rng_draws.keys()
        assert loaded.learning_rates == expected.learning_rates
        assert loaded.optimizer_steps == expected.optimizer_steps == {"decay": 4, "no_decay": 4}
        assert loaded.scalars == expected.scalars
        assert loaded.findings == ()
        step = TraceReader(tmp_path / "f").steps(2, rank)[5]
        flat = tuple(one for batch in step.sample_ids for one in batch)
        assert flat == loaded.expectations.sample_ids.ids[: len(flat)]
        assert step.learning_rates == expected.learning_rates
        assert step.microbatches == 4


def test_manifest_names_everything_and_promises_exactness(tmp_path: Path) -> None:
    """What is not said cannot be checked, and a promise below exact would excuse a divergence."""
    train(tmp_path / "f", 2, [*SOLO, "--strategy", "ddp", "--ema", "--stop-step", "2"])
    job = manifest(tmp_path / "f", 1, 2).job
    assert {promise.component for promise in job.promises} == set(Component) - {Component.OTHER}
    assert {promise.determinism for promise in job.promises} == {Determinism.EXACT}
    assert {counter.name: (counter.value, counter.names) for counter in job.counters} == {
        "optimizer_step": (2, "completed"),
        "scheduler_step": (2, "completed"),
        "epoch": (0, "next"),
        "epoch_samples": (64, "completed"),
    }
    assert (job.topology.strategy, job.topology.world_size) == ("ddp", 2)


def test_no_trace_is_written_where_the_contract_says_so(tmp_path: Path) -> None:
    """A job may be told to leave the trace out; nothing else may change by it."""
    train(tmp_path / "f", 1, [*SOLO, "--stop-step", "1"], environ={"LASTGOOD_TRACE": "0"})
    assert not (tmp_path / "f" / ".lastgood" / "traces").exists()
    assert manifest(tmp_path / "f", 1, 1).step == 1


def test_fast_forward_stands_where_the_steps_would_have_led(tmp_path: Path) -> None:
    """The worked example resumes at step 48,000 without having trained 48,000 steps."""
    arguments = [*SOLO, "--steps", "100000", "--fast-forward", "48000", "--stop-step", "48001", "--save-first"]
    train(tmp_path / "f", 1, arguments)
    expected = manifest(tmp_path / "f", 1, 48000).expectations
    step = TraceReader(tmp_path / "f").steps(1, 0)[48001]
    assert expected is not None
    assert expected.optimizer_steps == {"decay": 48000, "no_decay": 48000}
    assert step.optimizer_steps == {"decay": 48001, "no_decay": 48001}
    assert step.learning_rates == expected.learning_rates
    assert 0.0003 < step.learning_rates["decay"] < 0.003
    assert manifest(tmp_path / "f", 1, 48001).job.counters[1].value == 48001


@pytest.mark.parametrize(
    ("change", "reason", "offender"),
    [
        (["--width", "32"], "model_identity_changed", "model"),
        (["--samples", "224"], "dataset_identity_changed", "dataset"),
        (["--global-batch", "64"], "state_invalid", "data.train"),
        (["--strategy", "ddp"], None, None),
    ],
    ids=["model", "dataset", "batch", "strategy"],
)
def test_resume_of_another_job_is_refused_by_name(
    tmp_path: Path, change: list[str], reason: str | None, offender: str | None
) -> None:
    """A checkpoint of another model or dataset loads without error more often than it should; wrapping may change."""
    family = tmp_path / "f"
    train(family, 1, [*SOLO, "--stop-step", "2"])
    with Fleet(family, 1, [*SOLO, "--stop-step", "3", *change]) as fleet:
        codes = fleet.wait()
    told = records(family, 2)
    if reason is None:
        assert codes == [0]
        return
    assert codes == [1]
    assert "checkpoint not loaded: 00000001-0000000000000002" in last_words(fleet)
    refused = told[-1]
    assert isinstance(refused, Refused)
    assert (reason, offender) in [(finding.reason, finding.offender) for finding in refused.findings]
    assert not TraceReader(family).steps(2, 0), "no step may come after a refusal"


def test_damaged_shard_is_refused_on_every_rank_and_nothing_is_trained(tmp_path: Path) -> None:
    """One rank that saw nothing wrong must not wait in a collective for the one that refused."""
    family = tmp_path / "f"
    train(family, 2, [*SOLO, "--strategy", "fsdp2", "--stop-step", "2"])
    shard = family / str(GenerationId(1, 2)) / "rng" / "rank-00001.json"
    shard.write_bytes(shard.read_bytes().replace(b'"rank":1', b'"rank":0'))
    with Fleet(family, 2, [*SOLO, "--strategy", "fsdp2", "--stop-step", "3"]) as fleet:
        assert fleet.wait() == [1, 1]
    for rank in (0, 1):
        refused = records(family, 2, rank)[-1]
        assert isinstance(refused, Refused)
        assert any("rng/rank-00001.json" in finding.message for finding in refused.findings)
        assert not TraceReader(family).steps(2, rank)


def test_family_without_a_commit_needs_allow_fresh(tmp_path: Path) -> None:
    """A run that silently starts at step zero has lost everything before anybody notices; supervisors read in the
    trace why it did not.
    """
    arguments = [argument for argument in SOLO if argument != "--allow-fresh"]
    with Fleet(tmp_path / "f", 1, arguments) as fleet:
        assert fleet.wait() == [1]
    assert "allow-fresh" in last_words(fleet)
    started, refused = records(tmp_path / "f", 1)
    assert isinstance(started, Started)
    assert isinstance(refused, Refused)
    assert [finding.reason for finding in refused.findings] == ["nothing_to_resume"]


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["--stepps", "3"], {}, "--stepps"),
        (["--steps", "three"], {}, "three"),
        (["--global-batch", "30"], {}, "does not divide"),
        (["--resume", "/elsewhere/g/00000001-0000000000000001"], {}, "another family"),
        ([], {"LASTGOOD_FAULT": "omit:rng"}, "not a replica"),
        ([], {"LASTGOOD_FAULT": "lose:rng", "LASTGOOD_REPLICA": "1"}, "is no fault"),
        (["--stop-step", "3"], {"LASTGOOD_REPLICA": "1", "LASTGOOD_STOP_STEP": "4"}, "contradicts"),
    ],
    ids=["unknown", "number", "batch", "hint", "fault", "no-fault", "contradiction"],
)
def test_usage_error_is_one_line_and_leaves_nothing(
    tmp_path: Path, arguments: list[str], environ: Mapping[str, str], said: str
) -> None:
    """A misread argument would train something else than what was asked for."""
    family = tmp_path / "f"
    with Fleet(family, 1, [*SOLO, *arguments], environ={"LASTGOOD_FAMILY": str(family), **environ}) as fleet:
        assert fleet.wait() == [64]
    assert said in last_words(fleet)
    assert not list(family.glob("0*"))


def test_job_overtaken_by_a_newer_start_is_fenced(tmp_path: Path) -> None:
    """An orphan that goes on training must stop at its next save, and say why."""
    family = tmp_path / "f"
    train(family, 1, [*SOLO, "--stop-step", "2"])
    with Fleet(family, 1, [*SOLO, "--save-every", "2", "--step-delay", "0.1"]) as orphan:
        incarnation = orphan.incarnation
        os.kill(orphan.ranks[0].pid or 0, signal.SIGSTOP)
        train(family, 1, [*SOLO, "--stop-step", "3"])
        os.kill(orphan.ranks[0].pid or 0, signal.SIGCONT)
        assert orphan.wait() == [1]
    stopped = records(family, incarnation)[-1]
    assert isinstance(stopped, Stopped)
    assert stopped.reason is StopReason.FENCED
    assert "newer" in last_words(orphan)


def test_sigterm_ends_a_rank_at_once_and_is_reported(tmp_path: Path) -> None:
    """A restarting launcher waits for this exit; a save is not possible, since the ranks are told one by one."""
    family = tmp_path / "f"
    with Fleet(family, 1, [*SOLO, "--save-every", "3", "--step-delay", "0.3"]) as fleet:
        follower = TraceReader(family).follow(fleet.incarnation, 0)
        fleet.until(lambda: any(at_step(4)(record) for record in follower.poll()))
        fleet.ranks[0].terminate()
        begin = time.monotonic()
        assert fleet.wait() == [128 + signal.SIGTERM]
        assert time.monotonic() - begin < 30
    stopped = records(family, 1)[-1]
    assert isinstance(stopped, Stopped)
    assert stopped.reason is StopReason.SIGNAL
    assert not (family / str(GenerationId(1, stopped.step))).exists() or stopped.step % 3 == 0
    assert "SIGTERM" in last_words(fleet)


def test_workers_of_a_killed_rank_die_with_it(tmp_path: Path) -> None:
    """A loader worker that outlives its rank would be an orphan of every drill."""
    arguments = [argument for argument in SOLO if argument not in ("--workers", "0")]
    with Fleet(tmp_path / "f", 1, [*arguments, "--workers", "2", "--step-delay", "0.2"]) as fleet:
        follower = TraceReader(tmp_path / "f").follow(fleet.incarnation, 0)
        fleet.until(lambda: any(at_step(1)(record) for record in follower.poll()))
        workers = psutil.Process(fleet.ranks[0].pid).children()
        assert len(workers) >= 2
        fleet.kill()
        _, alive = psutil.wait_procs(workers, timeout=2)
    assert not alive


def test_rank_left_alone_by_a_killed_peer_ends_by_itself(tmp_path: Path) -> None:
    """A survivor that waited for ever would hold its device until somebody noticed."""
    arguments = [*SOLO, "--strategy", "ddp", "--step-delay", "0.1"]
    with Fleet(tmp_path / "f", 2, arguments) as fleet:
        follower = TraceReader(tmp_path / "f").follow(fleet.incarnation, 0)
        fleet.until(lambda: any(at_step(2)(record) for record in follower.poll()))
        fleet.ranks[1].kill()
        codes = fleet.wait()
    assert codes == [70, -signal.SIGKILL]
    stopped = records(tmp_path / "f", 1)[-1]
    assert isinstance(stopped, Stopped)
    assert stopped.reason is StopReason.FAILED


def test_background_saves_resume_like_foreground_ones(tmp_path: Path) -> None:
    """Training goes on while a copy is written, and what is committed must be the state of its own step."""
    control, resumed = tmp_path / "control", tmp_path / "resumed"
    arguments = [*SOLO, "--strategy", "fsdp2", "--stop-step", "8", "--save-every", "2", "--digest-every", "1"]
    train(control, 2, arguments)
    with Fleet(resumed, 2, [*arguments, "--asynchronous", "--step-delay", "0.05"]) as fleet:
        fleet.kill_when(at_save(4))
    train(resumed, 2, [*arguments, "--asynchronous"])
    begun = [record.step for record in records(resumed, 2) if isinstance(record, Discovered)]
    assert begun[0] in (4, 6)
    for rank in (0, 1):
        expected, found = TraceReader(control).steps(1, rank), TraceReader(resumed).steps(2, rank)
        assert [found[k].digests for k in found] == [expected[k].digests for k in found]
    saves = [record.step for record in records(resumed, 2) if isinstance(record, Saved)]
    assert saves == list(range(begun[0] + 2, 9, 2))


def refuse_writes(family: Path) -> None:
    """Make the next staging impossible, for root too."""
    staging = family / ".lastgood" / "staging"
    staging.rename(staging.with_name("staging-before"))
    staging.touch()


@pytest.mark.parametrize("mode", [[], ["--asynchronous"]], ids=["foreground", "background"])
def test_failed_save_ends_the_job_loudly_and_keeps_the_former_one(tmp_path: Path, mode: list[str]) -> None:
    """A job that trains on without saving loses everything at its next interruption."""
    family = tmp_path / "f"
    with Fleet(family, 1, [*SOLO, "--save-every", "2", "--step-delay", "0.2", *mode]) as fleet:
        follower = TraceReader(family).follow(fleet.incarnation, 0)
        fleet.until(lambda: any(at_save(2)(record) for record in follower.poll()))
        refuse_writes(family)
        code = fleet.wait()[0]
    assert code in (1, 2)
    assert "staging" in last_words(fleet)
    (family / ".lastgood" / "staging").unlink()
    train(family, 1, [*SOLO, "--stop-step", "20"])
    begun = [record.step for record in records(family, 2) if isinstance(record, Discovered)]
    assert begun == [2]


@pytest.mark.slow
def test_torchrun_restarts_after_a_killed_rank_and_ends_like_a_control(tmp_path: Path) -> None:
    """The way that a real launcher takes: the agent sees the death, ends the other rank, and starts both again."""
    control, family = tmp_path / "control", tmp_path / "f"
    arguments = ["--strategy", "ddp", "--steps", "16", "--samples", "192", "--save-every", "3", "--digest-every", "1"]
    train(control, 2, [*arguments, "--allow-fresh"])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    program = ["-m", "lastgood.replica.trainer", "--family", str(family), "--allow-fresh", "--step-delay", "0.1"]
    environ = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, *program, *arguments], env=environ, stderr=subprocess.PIPE, text=True) as agent:
        kill_rank_one(family)
        _, said = agent.communicate(timeout=240)
    assert agent.returncode == 0, said
    assert TraceReader(family).incarnations() == (1, 2)
    for rank in (0, 1):
        expected, found = TraceReader(control).steps(1, rank), TraceReader(family).steps(2, rank)
        assert [found[k].digests for k in found] == [expected[k].digests for k in found]
        assert max(found) == 16


def kill_rank_one(family: Path) -> None:
    """SIGKILL rank 1 of the first life once it has done seven steps."""
    follower, deadline = TraceReader(family).follow(1, 1), time.monotonic() + 120
    started: list[Started] = []
    while time.monotonic() < deadline:
        seen = follower.poll()
        started.extend(record for record in seen if isinstance(record, Started))
        if any(at_step(7)(record) for record in seen):
            os.kill(started[0].pid, signal.SIGKILL)
            return
        time.sleep(0.01)
    raise AssertionError("seven steps were not reached in time")


FAULTY = ("--stop-step", "2", "--save-every", "0", "--ema")
FILES: Mapping[Component, str] = {
    Component.MODEL: "model/",
    Component.OPTIMIZER: "optimizer/",
    Component.EMA: "ema/",
    Component.RNG: "rng/",
    Component.SCHEDULER: "scheduler.json",
    Component.SCALER: "scaler.json",
    Component.DATA: "data.json",
    Component.CONFIG: "config.json",
    Component.ACCUMULATION: "config.json",
    Component.TOPOLOGY: "config.json",
}
STEADY = (Component.CONFIG, Component.ACCUMULATION, Component.TOPOLOGY)
"""Equal before and after a step, so that there is no stale one."""


def slow_but(fast: Component, components: Iterable[Component]) -> list[object]:
    """One component for every run of the tests, all others for the slow ones."""
    return [one if one is fast else pytest.param(one, marks=pytest.mark.slow) for one in components]


def saved_files(family: Path, world_size: int, fault: str = "") -> dict[str, bytes]:
    """What one save of the course holds; training is deterministic, so a fault shows against a healthy one."""
    environ = {"LASTGOOD_REPLICA": "1", "LASTGOOD_FAMILY": str(family), "LASTGOOD_FAULT": fault}
    strategy = ["--strategy", "fsdp2"] if world_size > 1 else []
    family.parent.mkdir(exist_ok=True)
    train(family, world_size, [*SOLO, *FAULTY, *strategy], environ=environ)
    directory = family / str(GenerationId(1, 2))
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """A healthy save of one rank."""
    return saved_files(tmp_path_factory.mktemp("healthy") / "f", 1)


def changed_files(healthy: Mapping[str, bytes], files: Mapping[str, bytes]) -> list[str]:
    assert files.keys() <= healthy.keys()
    return sorted(path for path in healthy if files.get(path) != healthy[path])


@pytest.mark.parametrize("component", slow_but(Component.RNG, FILES))
def test_omitted_component_is_in_no_file_and_no_promise(
    tmp_path: Path, healthy: Mapping[str, bytes], component: Component
) -> None:
    """A forgotten component must look forgotten, or the check that finds it was never tried."""
    changed = changed_files(healthy, saved_files(tmp_path / "f", 1, f"omit:{component}"))
    assert changed
    assert all(path.startswith(FILES[component]) for path in changed)
    written = manifest(tmp_path / "f", 1, 2)
    assert component not in {promise.component for promise in written.job.promises}
    assert component not in {artifact.component for artifact in written.artifacts}


@pytest.mark.parametrize("component", slow_but(Component.OPTIMIZER, [one for one in FILES if one not in STEADY]))
def test_stale_component_is_that_of_the_step_before(
    tmp_path: Path, healthy: Mapping[str, bytes], component: Component
) -> None:
    """Everything else is of the save's own step, digests and receipts included: only a restore can tell."""
    changed = changed_files(healthy, saved_files(tmp_path / "f", 1, f"stale:{component}"))
    assert changed
    assert all(path.startswith(FILES[component]) for path in changed)


@pytest.mark.parametrize("component", slow_but(Component.RNG, [Component.MODEL, Component.OPTIMIZER, Component.RNG]))
def test_swapped_ranks_hold_each_other_s_values(tmp_path: Path, component: Component) -> None:
    """The files keep saying whose they are, as those of a rank that saved its neighbour's state would."""
    files = saved_files(tmp_path / "swapped" / "f", 2, f"swap:{component}")
    changed = changed_files(saved_files(tmp_path / "healthy" / "f", 2), files)
    suffix = "json" if component is Component.RNG else "safetensors"
    assert changed == [f"{component}/rank-0000{rank}.{suffix}" for rank in (0, 1)]
