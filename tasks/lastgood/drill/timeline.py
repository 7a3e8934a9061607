"""From marks of one clock to the phases of a recovery, which add up to it exactly.

Decides which marks begin and end a phase, and whose; touches nothing. Rules:

- The recovery of a job runs from the kill to the moment when *every* rank has completed its first step. Its timeline is
  that of the *critical rank*, the one whose first step ended last: at each instant it says what that rank was doing.
  Where it waited for a slower rank, the wait shows in the phase in which it waited (join, first step).
- Each phase has two marks. What lies between two phases belongs to neither and is *unaccounted*; phases and unaccounted
  equal the recovery time to the nanosecond. Nothing is stretched to fill a gap.
- The supervisor's own marks are the kill and the end of the killed life's last process; all others are the replica's.
  The kernel dates a process to the clock tick before its creation (`TICK_NS`), so `relaunch` and `launch` are that much
  uncertain against each other; their sum is not. A process dated less than a tick before the kill was created after it.

Source: docs/architecture.md; `time.monotonic_ns` is one clock for all processes of one machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise

import msgspec

from lastgood.documents import Document
from lastgood.replica.trace import TICK_NS, Phase, Span
from lastgood.restore.evidence import RankTrace

__all__ = ["DrillPhase", "PhaseTime", "Recovery", "has_recovered", "measure_recovery"]


class DrillPhase(StrEnum):
    """What a recovery spends its time on, in order."""

    STOP = "stop"
    """The kill until the last process of the killed life has ended: the launcher notices, and stops the survivors."""
    RELAUNCH = "relaunch"
    """Until the new process was created: the launcher's own restart and rendezvous."""
    LAUNCH = "launch"
    """Process created until its first line runs."""
    IMPORT = "import"
    JOIN = "join"
    BUILD = "build"
    DISCOVER = "discover"
    LOAD = "load"
    FIRST_STEP = "first_step"


_PHASES: Mapping[Phase, DrillPhase] = {
    Phase.LAUNCH: DrillPhase.LAUNCH,
    Phase.IMPORT: DrillPhase.IMPORT,
    Phase.JOIN: DrillPhase.JOIN,
    Phase.BUILD: DrillPhase.BUILD,
    Phase.DISCOVER: DrillPhase.DISCOVER,
    Phase.LOAD: DrillPhase.LOAD,
    Phase.STEP: DrillPhase.FIRST_STEP,
}


class PhaseTime(Document, frozen=True, kw_only=True):
    """One phase with its two marks, in nanoseconds of the machine's monotonic clock."""

    phase: DrillPhase
    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9


class Recovery(Document, frozen=True, kw_only=True):
    """From the kill to the first step done.

    Law: the phases' nanoseconds and `unaccounted_ns` add up to `rto_ns`.

    Args:
        kill_ns: When the kill was sent, on the machine's monotonic clock.
        end_ns: When the last rank had completed its first step.
        rank: The critical rank, whose timeline this is.
        phases: In order, none overlapping another; empty where `trouble` says why.
        trouble: What about the marks contradicts itself, or None.
    """

    kill_ns: int
    end_ns: int
    rank: int
    phases: tuple[PhaseTime, ...]
    trouble: str | None = None

    @property
    def rto_ns(self) -> int:
        return self.end_ns - self.kill_ns

    @property
    def rto_seconds(self) -> float:
        return self.rto_ns / 1e9

    @property
    def unaccounted_ns(self) -> int:
        return self.rto_ns - sum(phase.end_ns - phase.begin_ns for phase in self.phases)

    @property
    def unaccounted_ratio(self) -> float:
        return self.unaccounted_ns / self.rto_ns

    def seconds(self, phase: DrillPhase) -> float | None:
        """How long one phase took, or None where the replica does not report it."""
        return next((found.seconds for found in self.phases if found.phase is phase), None)


def has_recovered(ranks: Mapping[int, RankTrace]) -> bool:
    """Whether every rank of a life has completed a step."""
    sizes = {trace.started.world_size for trace in ranks.values() if trace.started is not None}
    return len(sizes) == 1 and len(ranks) == sizes.pop() and all(trace.steps for trace in ranks.values())


def measure_recovery(kill_ns: int, gone_ns: int, ranks: Mapping[int, RankTrace]) -> Recovery:
    """Draw the timeline of a recovery.

    Args:
        kill_ns: When the kill was sent.
        gone_ns: When the last process of the killed life was seen to have ended.
        ranks: The traces of the life that recovered (`has_recovered`).
    """
    ends = {rank: _first_step_end(trace) for rank, trace in ranks.items()}
    critical = max(ends, key=lambda rank: (ends[rank], rank))
    first, *later = _spans(ranks[critical], ends[critical])
    spans = (_begun_after(kill_ns, first), *later)
    created_ns = spans[0].begin_ns
    # A launcher that restarts at once may be quicker than our own look at the dead.
    stopped_ns = min(max(gone_ns, kill_ns), created_ns)
    phases = (
        PhaseTime(phase=DrillPhase.STOP, begin_ns=kill_ns, end_ns=stopped_ns),
        PhaseTime(phase=DrillPhase.RELAUNCH, begin_ns=stopped_ns, end_ns=created_ns),
        *(PhaseTime(phase=_PHASES[span.phase], begin_ns=span.begin_ns, end_ns=span.end_ns) for span in spans),
    )
    trouble = _contradiction(phases)
    return Recovery(
        kill_ns=kill_ns,
        end_ns=ends[critical],
        rank=critical,
        phases=() if trouble else phases,
        trouble=trouble,
    )


def _first_step_end(trace: RankTrace) -> int:
    first = trace.steps[min(trace.steps)]
    return next((span.end_ns for span in first.spans if span.phase is Phase.STEP), first.at.monotonic_ns)


def _spans(trace: RankTrace, end_ns: int) -> list[Span]:
    """What one rank did until its first step was done, in the order in which it began."""
    records = (trace.started, trace.discovered, trace.loaded, trace.steps[min(trace.steps)])
    spans = [span for record in records if record is not None for span in record.spans]
    known = sorted((span for span in spans if span.phase in _PHASES), key=lambda span: (span.begin_ns, span.end_ns))
    if known:
        return known
    # A replica that reports no phases at all: its first mark is all that is known of its beginning.
    begin_ns = trace.started.at.monotonic_ns if trace.started is not None else end_ns
    return [Span(phase=Phase.LAUNCH, begin_ns=begin_ns, end_ns=begin_ns)]


def _begun_after(kill_ns: int, span: Span) -> Span:
    """The launch of a process that a quick launcher created in the tick of the kill."""
    if span.phase is Phase.LAUNCH and kill_ns - TICK_NS < span.begin_ns < kill_ns <= span.end_ns:
        return msgspec.structs.replace(span, begin_ns=kill_ns)
    return span


def _contradiction(phases: tuple[PhaseTime, ...]) -> str | None:
    for phase in phases:
        if phase.end_ns < phase.begin_ns:
            early = (phase.begin_ns - phase.end_ns) / 1e6
            return f"phase {phase.phase} ends {early:g} ms before it begins"
    for before, after in pairwise(phases):
        if after.begin_ns < before.end_ns:
            return f"phases overlap: {after.phase} begins before {before.phase} has ended"
    return None
