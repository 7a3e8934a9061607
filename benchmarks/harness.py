"""Paired runs, medians and ratios.

Rules: whatever is compared runs in turn (A B A B), so that a busy neighbour meets both; the first round is thrown away,
since it fills caches; each later round gives one ratio, and the median of the ratios is judged. A time is what the
contender itself returns, so that it decides what counts as start-up.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import benchmarks


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one run took, in seconds; CPU is user and system time of the process and its children."""

    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Args:
        what: What was measured, e.g. `verify, 52 files of 1 GiB, SHA-256`.
        against: The peer, e.g. `sha256sum -c`, or `itself`.
        measured: The figure that is judged.
        at_most: Its limit; None for a row that only informs.
        unit: What the two are counted in: `×` for a ratio.
        detail: Where the figure comes from: medians, spread, versions.
    """

    what: str
    against: str
    measured: float
    at_most: float | None
    unit: str = "×"
    detail: str = ""

    @property
    def is_met(self) -> bool:
        return self.at_most is None or self.measured <= self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a benchmark is given: the rounds to judge, a directory that is removed afterwards, one that keeps peers."""

    rounds: int
    workspace: Path
    peers: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A named measurement that gives one or more rows."""

    name: str
    run: Callable[[Setting], Sequence[Row]]


class PeerMissing(Exception):
    """A peer is neither on this machine nor can be installed, so that nothing can be said about it."""


def collect() -> dict[str, Benchmark]:
    """All benchmarks of this folder by name, in the order of their modules."""
    names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name[:6] == "bench_")
    found = [one for name in names for one in importlib.import_module(f"benchmarks.{name}").BENCHMARKS]
    return {one.name: one for one in found}


def in_turn(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, tuple[float, ...]]:
    """Run every contender once a round, and return the seconds that each took in the judged rounds.

    The order alternates from round to round, so that none always runs on what another left behind.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(rounds + 1):
        names = list(contenders)
        for name in names if round_ % 2 == 0 else reversed(names):
            seconds = contenders[name]()
            if round_ > 0:
                taken[name].append(seconds)
    return {name: tuple(seconds) for name, seconds in taken.items()}


def compare(
    what: str, ours: Sequence[float], theirs: Sequence[float], *, against: str, at_most: float | None, detail: str = ""
) -> Row:
    """The row for two contenders of `in_turn`: the median of the ratios of their rounds."""
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    medians = f"{statistics.median(ours):.3g} s to {statistics.median(theirs):.3g} s"
    spread = f"{ratios[0]:.3g}–{ratios[-1]:.3g} in {len(ratios)} rounds"
    return Row(
        what=what,
        against=against,
        measured=statistics.median(ratios),
        at_most=at_most,
        detail="; ".join(part for part in (medians, spread, detail) if part),
    )


def wall(work: Callable[[], object]) -> float:
    """Seconds that a call takes by the monotonic clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run_command(command: Sequence[str | Path], *, directory: Path | None = None) -> Usage:
    """Run a command to its end and say what it took.

    Raises:
        RuntimeError: It failed: the time of a failed peer means nothing.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=600
    )
    wall_seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()[-500:]}")
    cpu_seconds = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return Usage(wall_seconds=wall_seconds, cpu_seconds=cpu_seconds)


def machine() -> str:
    """One line about where this ran, and whether wall times on it can be trusted."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    # Our own work is as many threads as there are cores; half as much again is a neighbour's.
    busy = "; busy with other work, so that more threads gain little: repeat a miss" if load > 1.5 * cores else ""
    return f"{cores} cores, load {load:.1f}{busy}"


def markdown(rows: Sequence[Row]) -> str:
    """The table that people read."""
    lines = ["| what | against | measured | at most | | from |", "|---|---|---|---|---|---|"]
    for row in rows:
        limit = "" if row.at_most is None else f"{row.at_most:g} {row.unit}"
        met = "" if row.at_most is None else "met" if row.is_met else "**missed**"
        lines.append(f"| {row.what} | {row.against} | {row.measured:.3g} {row.unit} | {limit} | {met} | {row.detail} |")
    return "\n".join(lines)
