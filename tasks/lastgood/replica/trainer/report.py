"""The trainer's side of the trace: which record is written when, and how values reach it without waiting for a device.

Decides nothing about training. Rules: a step's record is written at once on a CPU; on a GPU its numbers are copied to
pinned memory by the stream itself and read one step later, so that nothing waits for a step that is still running.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.manifest import Component, Expectations
from lastgood.replica.events import Mark, Measured, Phase, Span, Step, StopReason, Timeline, measured
from lastgood.replica.shipping import TraceHome
from lastgood.replica.tracing import RunTrace
from lastgood.replica.trainer.parallel import World
from lastgood.run import ResumedGeneration
from lastgood.verdict import Finding, Note

__all__ = ["HostCopy", "Reporter", "StepReport"]


class HostCopy:
    """Scalars on their way from the device to the host.

    Args:
        scalars: One-element tensors of one device.
    """

    def __init__(self, *scalars: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._values: list[float] | Tensor
        if scalars[0].device.type == "cpu":
            self._values = [scalar.item() for scalar in scalars]
            return
        values = torch.stack([scalar.detach().to(torch.float64).reshape(()) for scalar in scalars])
        self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._values.copy_(values, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()

    def get(self) -> list[float]:
        """The values; waits for their own copy only, not for what was queued after it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values.tolist() if isinstance(self._values, Tensor) else self._values


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one step did.

    Args:
        numbers: Mean loss of the microbatches and gradient norm.
        scale: Of the gradients in this step; None on a GPU, where reading it back would wait.
    """

    step: int
    begin_ns: int
    numbers: HostCopy
    learning_rates: Mapping[str, float]
    sample_ids: tuple[tuple[int, ...], ...]
    draws: Mapping[str, tuple[float | int, ...]]
    optimizer_steps: Mapping[str, int]
    skipped: bool
    digests: Mapping[str, str]
    scale: float | None = None


class Reporter:
    """Writes this rank's trace, or nothing where the contract says so.

    Args:
        timeline: Spans of what happened before the trace could begin.
        device: Of this rank; decides whether step records lag.
    """

    def __init__(self, timeline: Timeline, device: torch.device) -> None:
        self.timeline = timeline
        self._lag_steps = 1 if device.type == "cuda" else 0
        self._trace: RunTrace | None = None

    def started(self, location: Location, incarnation: int, world: World, settings: Mapping[str, str]) -> None:
        """Open the trace: the incarnation is known."""
        home = TraceHome(location, incarnation, world.rank)
        self._trace = RunTrace(
            home.family,
            incarnation,
            rank=world.rank,
            world_size=world.world_size,
            settings=settings,
            timeline=self.timeline,
            lag_steps=self._lag_steps,
            ship=home.ship,
        )

    def discovered(self, resumed: ResumedGeneration | None) -> None:
        if self._trace is not None:
            self._trace.discovered(resumed)

    def loaded(
        self,
        resumed: ResumedGeneration,
        keys: Mapping[Component, int],
        observed: Expectations | None,
        findings: tuple[Finding, ...],
        notes: tuple[Note, ...],
    ) -> None:
        """Say what the live objects hold now; `observed` is None where a refused load left them untouched."""
        if self._trace is not None:
            counts = {component.value: count for component, count in keys.items()}
            self._trace.loaded(resumed, keys=counts, observed=observed, findings=findings, notes=notes)

    def step(self, report: StepReport) -> None:
        if self._trace is None:
            return
        at, spans = self._trace.step_ends(report.begin_ns)
        if self._lag_steps:
            self._trace.step_later(lambda: _record(report, at, spans))
        else:
            self._trace.write(_record(report, at, spans))

    def saved(self, generation: GenerationId) -> None:
        if self._trace is not None:
            self._trace.saved(generation)

    def stopped(self, reason: StopReason, step: int, message: str = "") -> None:
        if self._trace is not None:
            self._trace.stopped(reason, step, message)

    def refused(self, findings: tuple[Finding, ...], message: str) -> None:
        if self._trace is not None:
            self._trace.refused(findings, message)

    def saving(self, begin_ns: int) -> None:
        """Note how long a save kept training waiting; the next record carries it."""
        self.timeline.add(Phase.SAVE, begin_ns, time.monotonic_ns())


def _record(report: StepReport, at: Mark, spans: tuple[Span, ...]) -> Step:
    loss, norm = report.numbers.get()
    scale: dict[str, Measured | int] = {} if report.scale is None else {"scale": measured(report.scale)}
    return Step(
        at=at,
        spans=spans,
        step=report.step,
        loss=measured(loss),
        grad_norm=measured(norm),
        learning_rates=dict(report.learning_rates),
        sample_ids=report.sample_ids,
        draws=dict(report.draws),
        optimizer_steps=dict(report.optimizer_steps),
        scalars={"skipped": int(report.skipped), **scale},
        digests=dict(report.digests),
    )
