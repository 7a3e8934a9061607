"""The records of a trace: what one rank of a replica reports of itself, each with a mark of the clock.

Decides what a replica can say. Leaves writing and reading to `trace`, judging to `restore` and `drill`.

Rules: each record carries one `Mark` of the machine's monotonic clock and of wall time, and nothing is ordered by wall
time. A *span* is a phase with both of its marks; the phases of one process lie end to end (launch, import, join, build,
discover, load, first step), so that a supervisor subtracts their sum from a recovery time and calls the rest
`unaccounted`. Spans travel in the record that ends them. Numbers that are not finite keep their name.

Source: docs/architecture.md.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from lastgood.documents import Document
from lastgood.manifest import RankExpectations
from lastgood.verdict import Finding, Note

__all__ = [
    "TICK_NS",
    "TRACE_VERSION",
    "Discovered",
    "Loaded",
    "Mark",
    "Measured",
    "NotFinite",
    "Phase",
    "Refused",
    "Saved",
    "Span",
    "Started",
    "Step",
    "StopReason",
    "Stopped",
    "Timeline",
    "TraceRecord",
    "host_name",
    "measured",
    "number",
    "process_started_ns",
]

TRACE_VERSION: Final = 1

TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""The kernel's clock tick, to which it dates the creation of a process: usually 10 ms."""

Nanoseconds = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class NotFinite(StrEnum):
    """A measured value that JSON has no number for, and that must not pass for a missing one."""

    NAN = "nan"
    INFINITY = "infinity"
    NEGATIVE_INFINITY = "-infinity"


Measured: TypeAlias = float | NotFinite
"""A number a run measured; not always a finite one."""


def measured(value: float) -> Measured:
    """Spell a float so that JSON can carry it; `number` is the way back."""
    if math.isfinite(value):
        return float(value)
    if math.isnan(value):
        return NotFinite.NAN
    return NotFinite.INFINITY if value > 0 else NotFinite.NEGATIVE_INFINITY


def number(value: Measured) -> float:
    """The float behind a measured value. Law: `number(measured(x))` is `x`, or NaN for NaN."""
    return float(value)


class Mark(Document, frozen=True):
    """A moment on two clocks.

    Args:
        monotonic_ns: `time.monotonic_ns()`: nanoseconds on the machine's one monotonic clock, the same for all of its
            processes; never comparable between machines or boots.
        wall: UTC, for people.
    """

    monotonic_ns: Nanoseconds
    wall: datetime

    @classmethod
    def now(cls) -> Mark:
        return cls(monotonic_ns=time.monotonic_ns(), wall=datetime.now(UTC))


class Phase(StrEnum):
    """What a replica spends its time on; a supervisor adds what happens before `launch`."""

    LAUNCH = "launch"
    """Process created until our first line runs."""
    IMPORT = "import"
    JOIN = "join"
    """The process group is being formed."""
    BUILD = "build"
    """Model, optimizer, loader, registry and its audit."""
    DISCOVER = "discover"
    """Claim, listing, decision, and a private verified copy where one is made."""
    LOAD = "load"
    """Strict load and the observation that follows it."""
    STEP = "step"
    """One optimizer step with all of its microbatches; the first one of a process ends its recovery."""
    SAVE = "save"
    """Capture until the commit was acknowledged, or until training could go on when publishing in the background."""


class Span(Document, frozen=True):
    """One phase with its two marks, in nanoseconds of the monotonic clock."""

    phase: Phase
    begin_ns: Nanoseconds
    end_ns: Nanoseconds

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9


class Started(Document, frozen=True, tag_field="kind", tag="started"):
    """A life of one rank begins; always the first record.

    Args:
        version: Of the trace format.
        lag_steps: How many completed steps may be unwritten because their values are fetched later (`trace`).
        settings: What decides determinism and is worth reading: device, backend, strategy, threads.
    """

    at: Mark
    spans: tuple[Span, ...]
    version: Annotated[int, Meta(ge=1)]
    incarnation: Count
    rank: Count
    world_size: Annotated[int, Meta(ge=1)]
    pid: Annotated[int, Meta(ge=1)]
    host: str
    lag_steps: Count
    settings: dict[str, str]


class Discovered(Document, frozen=True, tag_field="kind", tag="discovered"):
    """What the start decided to resume.

    Args:
        generation: Its id, or null for a fresh start.
        step: The completed step it names, or null for a fresh start.
    """

    at: Mark
    spans: tuple[Span, ...]
    generation: str | None
    step: Count | None


class Loaded(Document, frozen=True, tag_field="kind", tag="loaded"):
    """What the live objects say after a load, in the words of the manifest's expectations.

    Args:
        generation: Which.
        step: The completed step that the rank now stands at.
        keys: Component → number of keys loaded.
        expectations: This rank's, observed on the loaded objects by the code that observed them at the save.
        learning_rates: Group → rate that the next update will use.
        optimizer_steps: Optimizer → completed updates.
        scalars: Other exact values, e.g. the gradient scale.
        findings: What the strict load refused; anything here is followed by `Refused`.
        notes: What it accepted and says.
    """

    at: Mark
    spans: tuple[Span, ...]
    generation: str
    step: Count
    keys: dict[str, Count]
    expectations: RankExpectations | None
    learning_rates: dict[str, float]
    optimizer_steps: dict[str, Count]
    scalars: dict[str, float | int]
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()


class Step(Document, frozen=True, tag_field="kind", tag="step"):
    """One optimizer step is completed.

    Args:
        at: Its end.
        spans: One, `step`, from before its first batch was fetched until after the update.
        step: The *completed* step: k after the k-th update.
        loss: Mean over this rank's microbatches, before the update.
        grad_norm: Global norm before clipping, unscaled; null where the loop does not compute one.
        learning_rates: Group → rate *used* in this update.
        sample_ids: One tuple a microbatch, in the order in which this rank consumed them.
        draws: Random stream → draws consumed in this step, where the loop sees them (augmentation).
        optimizer_steps: Optimizer → completed updates, after this one.
        scalars: e.g. the gradient scale used; `skipped` is 1 where the scaler skipped the update.
        digests: Name → digest text of tensors or streams *after* the update, on a cadence of the loop's choosing.
    """

    at: Mark
    spans: tuple[Span, ...]
    step: Count
    loss: Measured
    grad_norm: Measured | None
    learning_rates: dict[str, float]
    sample_ids: tuple[tuple[str | int, ...], ...] = ()
    draws: dict[str, tuple[float | int, ...]] = {}
    optimizer_steps: dict[str, Count] = {}
    scalars: dict[str, Measured | int] = {}
    digests: dict[str, str] = {}

    @property
    def microbatches(self) -> int:
        """How many microbatches this rank accumulated, as far as it reported their sample ids."""
        return len(self.sample_ids)


class Saved(Document, frozen=True, tag_field="kind", tag="saved"):
    """A generation was committed (not merely written); in the background mode, once that is known."""

    at: Mark
    spans: tuple[Span, ...]
    generation: str
    step: Count


class StopReason(StrEnum):
    """Why a rank ended of its own accord."""

    FINISHED = "finished"
    """The last step was reached, or the stop step asked for."""
    SIGNAL = "signal"
    FENCED = "fenced"
    """A newer incarnation exists."""
    FAILED = "failed"
    """An exception; the message carries its one line."""


class Stopped(Document, frozen=True, tag_field="kind", tag="stopped"):
    """The rank ends of its own accord; a killed one writes nothing."""

    at: Mark
    spans: tuple[Span, ...]
    reason: StopReason
    step: Count
    message: str = ""


class Refused(Document, frozen=True, tag_field="kind", tag="refused"):
    """The rank will not train on what it was given; the process exits with 1."""

    at: Mark
    spans: tuple[Span, ...]
    findings: tuple[Finding, ...]
    message: str


TraceRecord: TypeAlias = Started | Discovered | Loaded | Step | Saved | Stopped | Refused


class Timeline:
    """Collects spans until the record that carries them is written."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    @contextmanager
    def phase(self, phase: Phase, *, begin_ns: int | None = None) -> Iterator[None]:
        """Measure a block; `begin_ns` where the phase began before the block could."""
        begin = time.monotonic_ns() if begin_ns is None else begin_ns
        yield
        self.add(phase, begin, time.monotonic_ns())

    def add(self, phase: Phase, begin_ns: int, end_ns: int) -> None:
        self._spans.append(Span(phase=phase, begin_ns=begin_ns, end_ns=end_ns))

    def take(self) -> tuple[Span, ...]:
        """Everything since the last call, in order."""
        spans, self._spans = tuple(self._spans), []
        return spans


def process_started_ns() -> int:
    """When the kernel created this process, on the clock of `time.monotonic_ns()`.

    The kernel keeps it in whole clock ticks, so it lies up to `TICK_NS` before the truth.

    Source: proc_pid_stat(5), field 22; clock_gettime(2), CLOCK_BOOTTIME counts suspended time and CLOCK_MONOTONIC
    does not.
    """
    # The second field is the command name in parentheses, which may itself hold spaces and parentheses.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    # Whoever loses the processor between the two clocks makes the difference too small.
    suspended_ns = max(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns() for _ in range(3))
    return int(fields[19]) * TICK_NS - suspended_ns


def host_name() -> str:
    """The host as `Started` names it."""
    return socket.gethostname()
