from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lastgood.config import ReplicaSettings
from lastgood.drill import DrillResult, Fault, FaultKind, drill, random_fault
from lastgood.location import locate
from lastgood.replica import keeper
from lastgood.verdict import Outcome, Reason

DRILLS = 50 if os.environ.get("LASTGOOD_PROOF") else 5
UNACCOUNTED_RATIO = 0.02

LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node={world_size}")
TRAINER = ("-m", "lastgood.replica.trainer", "--allow-fresh", "--steps=100000", "--save-every=10", "--workers=1")


def settings(*arguments: str) -> ReplicaSettings:
    return ReplicaSettings(
        command=(*LAUNCHER, "--max-restarts=3", *TRAINER, *arguments), world_size=2, drill_timeout_seconds=240
    )


@contextlib.contextmanager
def decoys(directory: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes whose command lines are those of a drill's agent and rank, and that only wait for our end."""
    for module in ("torch/distributed/run.py", "lastgood/replica/trainer.py"):
        path = directory / module
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in path.relative_to(directory).parents[:-1]:
            (directory / package / "__init__.py").touch()
        path.write_text("import sys\nsys.stdin.read()\n")  # ends with us, whatever ends us
    command = [argument.format(world_size=2) for argument in settings().command]
    rank = [sys.executable, "-u", *TRAINER]
    beside = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, env={"PYTHONPATH": str(directory)}, start_new_session=True)
        for argv in (command, rank)
    ]
    try:
        yield beside
    finally:
        for process in beside:
            with process:  # closes its pipe, too
                process.kill()


def is_untouched(process: subprocess.Popen[bytes]) -> bool:
    """Alive, and not even stopped."""
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return process.poll() is None and state in "SR"


def demand_recovery(result: DrillResult) -> None:
    assert result.verdict.outcome is Outcome.PASS, [*result.verdict.checks, result.log_tail]
    assert result.attempts == 1
    assert result.recovery is not None
    accounted = sum(phase.end_ns - phase.begin_ns for phase in result.recovery.phases)
    assert accounted + result.recovery.unaccounted_ns == result.recovery.rto_ns
    assert 0 <= result.recovery.unaccounted_ratio <= UNACCOUNTED_RATIO
    assert [phase.phase.value for phase in result.recovery.phases] == [
        "stop",
        "relaunch",
        "launch",
        "import",
        "join",
        "build",
        "discover",
        "load",
        "first_step",
    ]


def test_torchrun_brings_the_reference_trainer_back(tmp_path: Path, record_property: Callable[..., None]) -> None:
    """The promise itself, on the real launcher: a rank dies inside a publish, and training goes on from the newest."""
    fault = Fault(kind=FaultKind.RANK, rank=1, steps_after_save=4, inside_publish=True, publish_ratio=0.3)
    with decoys(tmp_path / "decoys") as beside:
        result = drill(None, settings(), fault=fault, scratch=tmp_path)
        assert all(is_untouched(process) for process in beside)
    demand_recovery(result)
    record_property("RTO seconds", round(result.measurements.rto_seconds or 0.0, 3))
    record_property("RPO loss steps", result.measurements.rpo_loss_steps)
    record_property("phases seconds", {name: round(value, 3) for name, value in result.measurements.phases.items()})


@pytest.mark.slow
def test_drills_in_a_row_recover_at_the_first_try(tmp_path: Path, record_property: Callable[..., None]) -> None:
    """Stock torchrun fails a first restart in most tries (measured); one drill that passes proves little."""
    before = set(keeper.descendants(os.getpid()))
    results = []
    with decoys(tmp_path / "decoys") as beside:
        watched = before | set(keeper.descendants(os.getpid()))
        for seed in range(DRILLS):
            result = drill(None, settings(), fault=random_fault(seed, world_size=2), scratch=tmp_path)
            demand_recovery(result)
            assert set(keeper.descendants(os.getpid())) == watched
            assert all(is_untouched(process) for process in beside)
            results.append(result)
    assert {result.fault.kind for result in results} == set(FaultKind)
    assert {result.fault.inside_publish for result in results} == {False, True}
    recoveries = [result.recovery for result in results if result.recovery is not None]
    record_property("drills recovered at the first try", len(results))
    record_property("RTO seconds, median", round(statistics.median(one.rto_seconds for one in recoveries), 3))
    record_property("RTO seconds, most", round(max(one.rto_seconds for one in recoveries), 3))
    record_property("RPO loss steps, most", max(result.measurements.rpo_loss_steps or 0 for result in results))
    record_property("unaccounted ratio, most", round(max(one.unaccounted_ratio for one in recoveries), 4))


@pytest.mark.slow
def test_stale_arguments_of_torchrun_are_refused(tmp_path: Path) -> None:
    """Workers are restarted with the arguments of the first start; an old `--resume` must not lose a save."""
    fault = Fault(kind=FaultKind.RANK, rank=0, steps_after_save=1)
    place = tmp_path / "production"
    place.mkdir()
    made = drill(None, settings(), fault=fault, scratch=place, keep=True)
    assert made.scratch is not None
    assert made.resumed is not None
    production = locate(str(made.scratch / "root" / "drill" / str(made.resumed)))
    declared = settings(f"--resume={{family}}/{made.resumed}")
    result = drill(production, declared, fault=fault, scratch=tmp_path)
    assert {finding.reason for finding in result.verdict.findings} == {Reason.DRILL_NOT_RECOVERED}
    assert f"resume superseded: asked for {made.resumed}" in result.log_tail
