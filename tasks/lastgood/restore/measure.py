"""How long a restore took, from the marks that the replica itself set.

Decides whose mark counts: every rank waits for the slowest, so a phase took as long as on the rank on which it took
longest. What a launcher and its imports cost before the first phase is the replica's own time, and no phase of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from lastgood.records import Measurements
from lastgood.replica.trace import Phase
from lastgood.restore.evidence import Evidence, RankTrace
from lastgood.restore.materialize import Copy

__all__ = ["measure"]


def measure(copy: Copy, evidence: Evidence | None) -> Measurements:
    """Draw the figures from what was left behind.

    Args:
        copy: What reading, hashing and writing the private copy gave, refused or not.
        evidence: Of the replica; None if it was not started.
    """
    if evidence is None:
        return Measurements(
            seconds=copy.seconds,
            read_bytes=copy.read_bytes,
            read_seconds=copy.read_seconds,
            phases={"copy": copy.seconds},
        )
    slowest = _slowest(evidence.ranks.values())
    return Measurements(
        seconds=copy.seconds + evidence.end.seconds,
        read_bytes=copy.read_bytes,
        read_seconds=copy.read_seconds,
        discovery_seconds=slowest.get(Phase.DISCOVER),
        load_seconds=slowest.get(Phase.LOAD),
        first_step_seconds=slowest.get(Phase.STEP),
        phases={"copy": copy.seconds, "replica": evidence.end.seconds, **{p.value: s for p, s in slowest.items()}},
    )


def _slowest(ranks: Iterable[RankTrace]) -> dict[Phase, float]:
    """Of each phase that was reported, the seconds of its first span on the rank on which that took longest."""
    slowest: dict[Phase, float] = {}
    for trace in ranks:
        for phase, spent in _first_spans(trace).items():
            slowest[phase] = max(spent, slowest.get(phase, 0.0))
    return slowest


def _first_spans(trace: RankTrace) -> dict[Phase, float]:
    records = (trace.started, trace.discovered, trace.loaded, trace.refused, *trace.steps.values(), *trace.saved)
    spans = sorted((span for record in records if record for span in record.spans), key=lambda span: span.begin_ns)
    first: dict[Phase, float] = {}
    for span in spans:
        first.setdefault(span.phase, span.seconds)
    return first
