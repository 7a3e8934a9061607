"""What training pays: loading and publishing 500 MB of registered state, and the trace, against plain PyTorch.

The contenders run in processes of their own (`training`), with one torch thread, as torchrun sets it: loads in a fresh
one each, since a process loads once; saves and steps side by side on the same live objects, since a process does many.
What is read is in the page cache; what is written is flushed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.harness import Benchmark, Row, Setting, compare, in_turn

PUBLISHING_PAIRS = 9
TORCH_LOAD = "`torch.load` + `load_state_dict`"
TORCH_SAVE = "`torch.save` + `fsync`"


def load(setting: Setting) -> tuple[Row, ...]:
    training("save", "", setting)
    contenders = ("ours", "theirs", "theirs mapped", "ours with copy")
    taken = in_turn({one: partial(training, "load", one, setting) for one in contenders}, setting.rounds)
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
    taken = training("publish", str(max(setting.rounds, PUBLISHING_PAIRS)), setting)
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
    taken = training("trace", str(setting.rounds), setting)
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


def training(subject: str, how: str, setting: Setting) -> Any:
    """Run one subject of `benchmarks.training` in a process of its own, and return what it prints."""
    command = [sys.executable, "-m", "benchmarks.training", subject, how, "--workspace", str(setting.workspace)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=3600)
    return json.loads(done.stdout)


BENCHMARKS = (
    Benchmark(name="load", run=load),
    Benchmark(name="publish", run=publish),
    Benchmark(name="trace", run=trace),
)
