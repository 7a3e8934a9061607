"""The trace in a plain training loop: one call a step.

    run = Run.start("/checkpoints/llm-7b", SoloGroup(), allow_fresh=True)
    with RunTrace.of(run) as trace:
        ...
        trace.step(step, loss.item(), learning_rates={"all": rate})
        ...
        trace.saved(run.publish(...).generation)

Decides what a loop need not spell out: marks, spans, the first and the last record. Leaves the records to `events` and
their writing to `trace`. Rule: a step begins where the record before it ended, unless the loop says otherwise.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from lastgood.identity import GenerationId
from lastgood.manifest import Expectations, RankExpectations
from lastgood.replica.events import (
    TRACE_VERSION,
    Discovered,
    Loaded,
    Mark,
    Phase,
    Refused,
    Saved,
    Span,
    Started,
    Step,
    Stopped,
    StopReason,
    Timeline,
    host_name,
    measured,
)
from lastgood.replica.shipping import TraceHome
from lastgood.replica.trace import TraceRecord, TraceWriter
from lastgood.run import ResumedGeneration, Run
from lastgood.verdict import Finding, Note

__all__ = ["RunTrace", "computing_environment"]


class RunTrace:
    """One rank's trace of one life; the first record is written at once.

    Args:
        family: The family's directory.
        incarnation: Of the run; 0 where it claims none.
        life: The nonce by which a run that claims no number is told from others.
        rank: Of this process.
        world_size: Number of ranks.
        settings: What decides determinism and is worth reading; `computing_environment` is told in any case.
        timeline: Spans of what happened before.
        lag_steps: See `Started`; only with `step_later`.
        ship: Sends what was written to a family elsewhere; called at every save and at the end.

    Raises:
        UsageError: This rank of this life has a trace already.
        StorePermanentError: It cannot be written.
    """

    def __init__(
        self,
        family: Path,
        incarnation: int,
        *,
        life: str | None = None,
        rank: int = 0,
        world_size: int = 1,
        settings: Mapping[str, str] | None = None,
        timeline: Timeline | None = None,
        lag_steps: int = 0,
        ship: Callable[[], None] = lambda: None,
    ) -> None:
        self._ship = ship
        self.timeline = timeline if timeline is not None else Timeline()
        self._writer = TraceWriter(family, incarnation if life is None else life, rank)
        self._writer.write(
            Started(
                at=Mark.now(),
                spans=self.timeline.take(),
                version=TRACE_VERSION,
                incarnation=incarnation,
                rank=rank,
                world_size=world_size,
                pid=os.getpid(),
                host=host_name(),
                lag_steps=lag_steps,
                settings={**computing_environment(), **(settings or {})},
            )
        )
        self._ended_ns = time.monotonic_ns()

    @classmethod
    def of(cls, run: Run, *, rank: int = 0, world_size: int = 1, settings: Mapping[str, str] | None = None) -> Self:
        """Begin the trace of a run that has started, with what it decided to resume."""
        home = TraceHome(run.location, run.incarnation, rank)
        trace = cls(home.family, run.incarnation, rank=rank, world_size=world_size, settings=settings, ship=home.ship)
        trace.discovered(run.resumed)
        return trace

    def discovered(self, resumed: ResumedGeneration | None) -> None:
        """Say what this life resumes; None for a fresh start."""
        self._writer.write(
            Discovered(
                at=Mark.now(),
                spans=self.timeline.take(),
                generation=str(resumed.generation) if resumed else None,
                step=resumed.manifest.step if resumed else None,
            )
        )
        self._ended_ns = time.monotonic_ns()

    def loaded(
        self,
        resumed: ResumedGeneration,
        *,
        keys: Mapping[str, int],
        observed: Expectations | None = None,
        findings: tuple[Finding, ...] = (),
        notes: tuple[Note, ...] = (),
    ) -> None:
        """Say what was loaded.

        Args:
            resumed: From the run.
            keys: Component → number of keys.
            observed: What the loaded objects say, with this rank's entry alone; None where nothing can be observed.
            findings: Why it is refused.
            notes: What is worth knowing.
        """
        rank: RankExpectations | None = observed.ranks[0] if observed is not None else None
        self._writer.write(
            Loaded(
                at=Mark.now(),
                spans=self.timeline.take(),
                generation=str(resumed.generation),
                step=resumed.manifest.step,
                keys=dict(keys),
                expectations=rank,
                learning_rates=observed.learning_rates if observed is not None else {},
                optimizer_steps=observed.optimizer_steps if observed is not None else {},
                scalars=observed.scalars if observed is not None else {},
                findings=findings,
                notes=notes,
            )
        )
        self._ended_ns = time.monotonic_ns()

    def step(
        self,
        step: int,
        loss: float,
        *,
        grad_norm: float | None = None,
        learning_rates: Mapping[str, float] | None = None,
        sample_ids: tuple[tuple[str | int, ...], ...] = (),
        draws: Mapping[str, tuple[float | int, ...]] | None = None,
        optimizer_steps: Mapping[str, int] | None = None,
        scalars: Mapping[str, float] | None = None,
        digests: Mapping[str, str] | None = None,
        begin_ns: int | None = None,
    ) -> None:
        """Say that a step is completed; see `events.Step` for each value.

        Args:
            step: The completed step.
            begin_ns: When it began on the monotonic clock; where the record before it ended if None.
        """
        at, spans = self.step_ends(begin_ns)
        self._writer.write(
            Step(
                at=at,
                spans=spans,
                step=step,
                loss=measured(loss),
                grad_norm=None if grad_norm is None else measured(grad_norm),
                learning_rates=dict(learning_rates or {}),
                sample_ids=sample_ids,
                draws=dict(draws or {}),
                optimizer_steps=dict(optimizer_steps or {}),
                scalars={name: measured(value) for name, value in (scalars or {}).items()},
                digests=dict(digests or {}),
            )
        )

    def step_ends(self, begin_ns: int | None = None) -> tuple[Mark, tuple[Span, ...]]:
        """Mark the end of a step now: for a record that is made by hand."""
        at = Mark.now()
        span = Span(phase=Phase.STEP, begin_ns=begin_ns or self._ended_ns, end_ns=at.monotonic_ns)
        self._ended_ns = at.monotonic_ns
        return at, (*self.timeline.take(), span)

    def step_later(self, make: Callable[[], Step]) -> None:
        """Write a step whose values are on their way to the host, once the next record comes."""
        self._writer.write_later(make)

    def write(self, record: TraceRecord) -> None:
        """Write a record that was made by hand."""
        self._writer.write(record)
        self._ended_ns = record.at.monotonic_ns

    def saved(self, generation: GenerationId) -> None:
        """Say that a generation was committed."""
        self._writer.write(
            Saved(at=Mark.now(), spans=self.timeline.take(), generation=str(generation), step=generation.step)
        )
        self._ship()
        self._ended_ns = time.monotonic_ns()

    def refused(self, findings: tuple[Finding, ...], message: str) -> None:
        """Say that this rank will not train on what it was given."""
        self._writer.write(Refused(at=Mark.now(), spans=self.timeline.take(), findings=findings, message=message))
        self._ship()

    def stopped(self, reason: StopReason, step: int, message: str = "") -> None:
        """Say that this rank ends of its own accord."""
        self._writer.write(
            Stopped(at=Mark.now(), spans=self.timeline.take(), reason=reason, step=step, message=message)
        )
        self._ship()

    def close(self) -> None:
        """Write what is still on its way, and close the file."""
        self._writer.close()
        self._ship()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def computing_environment() -> dict[str, str]:
    """What decides the last bits of this process's sums; of torch only where the loop has loaded it."""
    told = {"python": platform.python_version(), "processor": _processor()}
    torch = sys.modules.get("torch")
    if torch is None:
        return {**told, "threads": os.environ.get("OMP_NUM_THREADS", "")}
    told |= {"torch": str(torch.__version__), "threads": str(torch.get_num_threads()), "device": "cpu"}
    if torch.cuda.is_initialized():
        told |= {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    return told


def _processor() -> str:
    """Libraries choose their kernels by the processor's model; the architecture where the kernel tells no model."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()
