from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lastgood.identity import GenerationId
from lastgood.replica.trace import (
    Discovered,
    NotFinite,
    Phase,
    Saved,
    Started,
    Step,
    Stopped,
    StopReason,
    TraceReader,
    TraceRecord,
)
from lastgood.replica.tracing import RunTrace
from lastgood.run import Run, SoloGroup

ROOT = Path(__file__).resolve().parents[2]


def test_plain_loop_is_traced_with_one_call_a_step(tmp_path: Path) -> None:
    """Whoever writes a loop by hand must get a whole trace without knowing records, marks or spans."""
    run = Run.start(str(tmp_path / "f"), SoloGroup(), allow_fresh=True)
    with RunTrace.of(run) as trace:
        trace.step(1, 0.5)
        time.sleep(0.01)
        trace.step(2, float("nan"), grad_norm=1.5, learning_rates={"all": 0.1}, scalars={"scale": 2.0})
        trace.saved(GenerationId(1, 2))
        trace.stopped(StopReason.FINISHED, 2)
    run.close()
    told = tuple(TraceReader(tmp_path / "f").records(1, 0))
    assert [type(record) for record in told] == [Started, Discovered, Step, Step, Saved, Stopped]
    first, second = (record for record in told if isinstance(record, Step))
    assert (first.loss, second.loss, second.grad_norm) == (0.5, NotFinite.NAN, 1.5)
    assert first.spans[0].end_ns == second.spans[0].begin_ns, "a step begins where the one before ended"
    assert second.spans[0].seconds >= 0.01


def test_trace_says_in_which_environment_sums_are_made(tmp_path: Path) -> None:
    """A restore that differs in the last bits must find in both traces why it may, without a word from the loop."""
    run = Run.start(str(tmp_path / "f"), SoloGroup(), allow_fresh=True)
    RunTrace.of(run, settings={"strategy": "single"}).close()
    run.close()
    started = TraceReader(tmp_path / "f").started(1, 0)
    assert started is not None
    assert started.settings["python"] == platform.python_version()
    assert {"processor", "threads", "strategy"} <= started.settings.keys()


def test_phase_travels_in_the_record_that_ends_it(tmp_path: Path) -> None:
    """A load that is measured but reported nowhere would count as unaccounted time of a recovery."""
    run = Run.start(str(tmp_path / "f"), SoloGroup(), allow_fresh=True)
    with RunTrace.of(run) as trace:
        with trace.timeline.phase(Phase.LOAD):
            time.sleep(0.002)
        trace.step(1, 0.5)
    run.close()
    step = TraceReader(tmp_path / "f").steps(1, 0)[1]
    assert [span.phase for span in step.spans] == [Phase.LOAD, Phase.STEP]


def steps_of(family: Path, incarnation: int) -> dict[int, float]:
    return {step: float(record.loss) for step, record in TraceReader(family).steps(incarnation, 0).items()}


def train_example(family: Path, steps: int, **environ: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / "train_minimal.py"), str(family), "--steps", str(steps)]
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_example_of_a_plain_loop_goes_on_where_it_stood(tmp_path: Path) -> None:
    """It is the first thing that a training engineer copies, so it must hold what it shows."""
    pytest.importorskip("torch", reason="the example trains")
    train_example(tmp_path / "control", 45)
    train_example(tmp_path / "f", 45, LASTGOOD_STOP_STEP="25")
    train_example(tmp_path / "f", 45)
    assert list(steps_of(tmp_path / "f", 1)) == list(range(1, 26))
    resumed, control = steps_of(tmp_path / "f", 2), steps_of(tmp_path / "control", 1)
    assert resumed == {step: control[step] for step in range(26, 46)}
    kinds: list[type[TraceRecord]] = [type(record) for record in TraceReader(tmp_path / "f").records(2, 0)]
    assert kinds.count(Saved) == 3
