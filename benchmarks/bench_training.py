"""What training pays: loading and publishing 500 MB of registered state, and the trace, against plain PyTorch.

Both contenders of a pair work on the same live objects in one process of their own (`training`), with one torch thread,
as torchrun sets it. What they read is in the page cache; what they write is flushed. Absolute times are the machine's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.harness import Benchmark, Row, Setting, compare

PUBLISHING_PAIRS = 9
TORCH_LOAD = "`torch.load` + `load_state_dict`"
TORCH_SAVE = "`torch.save` + `fsync`"


def load(setting: Setting) -> tuple[Row, ...]:
    taken = measure("load", setting, setting.rounds)
    what = "load 500 MB into a built model and an optimizer, strict"
    return (
        compare(f"{what}, bytes already verified", taken["ours"], taken["theirs"], against=TORCH_LOAD, at_most=0.3),
        compare(
            f"{what}, bytes already verified",
            taken["ours"],
            taken["theirs mapped"],
            against="the same with `mmap=True`",
            at_most=None,
        ),
        compare(
            f"{what}, with tier 1 and a private copy",
            taken["ours with copy"],
            taken["theirs"],
            against=TORCH_LOAD,
            at_most=None,
        ),
    )


def publish(setting: Setting) -> tuple[Row, ...]:
    taken = measure("publish", setting, max(setting.rounds, PUBLISHING_PAIRS))
    return (
        compare(
            "publish 500 MB: hash, fsync, read back from the medium, commit",
            taken["ours"],
            taken["theirs"],
            against=TORCH_SAVE,
            at_most=1.6,
        ),
        compare(
            "the same in the background: how long training is blocked",
            taken["ours in background"],
            taken["theirs"],
            against=TORCH_SAVE,
            at_most=0.25,
        ),
    )


def trace(setting: Setting) -> tuple[Row, ...]:
    taken = measure("trace", setting, setting.rounds)
    return (with_and_without(taken["traced"], taken["untraced"], taken["tracing"]),)


def with_and_without(traced: Sequence[float], untraced: Sequence[float], tracing: Sequence[float]) -> Row:
    """The row for a small difference of large times: the median of the differences of pairs, over the median step.

    The ratio of two steps scatters by several percent, so the median of ratios would need thousands of pairs.
    """
    step = statistics.median(untraced)
    difference = statistics.median(one - other for one, other in zip(traced, untraced, strict=True))
    return Row(
        what="a training step with its trace, CPU",
        against="the same step without",
        measured=1 + difference / step,
        at_most=1.01,
        detail=f"{len(traced)} pairs of {step * 1e3:.3g} ms; "
        f"the reporting alone takes {statistics.median(tracing) * 1e6:.3g} µs",
    )


def measure(subject: str, setting: Setting, rounds: int) -> dict[str, list[float]]:
    """Run the contenders of one subject in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.training", subject]
    arguments = ["--rounds", str(rounds), "--workspace", str(setting.workspace)]
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, text=True, check=True, timeout=3600)
    taken: dict[str, list[float]] = json.loads(done.stdout)
    return taken


BENCHMARKS = (
    Benchmark(name="load", run=load),
    Benchmark(name="publish", run=publish),
    Benchmark(name="trace", run=trace),
)
