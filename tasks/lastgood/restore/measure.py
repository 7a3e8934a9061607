"""How long a restore took, from the marks of one clock.

Decides which marks bound a figure: every rank waits for the slowest, so a moment is reached when the last rank reaches
it. The supervisor's own start mark counts, since whoever waits for a restart waits for its launcher too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lastgood.manifest import Manifest
from lastgood.records import Measurements
from lastgood.replica.trace import Phase, Span
from lastgood.restore.evidence import Evidence, RankTrace

__all__ = ["measure"]


def measure(copy_seconds: float, manifest: Manifest | None, evidence: Evidence | None) -> Measurements:
    """Draw the figures from what was left behind.

    Args:
        copy_seconds: Reading, hashing and writing the private copy.
        manifest: Of what was copied; None if it was refused.
        evidence: Of the replica; None if it was not started.
    """
    if manifest is None or evidence is None:
        return Measurements(
            seconds=copy_seconds,
            read_bytes=manifest.total_bytes if manifest else None,
            phases={"copy": copy_seconds},
        )
    spans = {rank: _first_spans(trace) for rank, trace in evidence.ranks.items()}
    discovered = _reached(spans, Phase.DISCOVER)
    loaded = _reached(spans, Phase.LOAD)
    stepped = _reached(spans, Phase.STEP)
    return Measurements(
        seconds=copy_seconds + evidence.end.seconds,
        read_bytes=manifest.total_bytes,
        discovery_seconds=_between(evidence.end.began_ns, discovered),
        load_seconds=_between(discovered, loaded),
        first_step_seconds=_between(loaded, stepped),
        phases={"copy": copy_seconds, "replica": evidence.end.seconds, **_slowest(spans.values())},
    )


def _between(begin_ns: int | None, end_ns: int | None) -> float | None:
    if begin_ns is None or end_ns is None or end_ns < begin_ns:
        return None
    return (end_ns - begin_ns) / 1e9


def _reached(spans: Mapping[int, Mapping[Phase, Span]], phase: Phase) -> int | None:
    """When the last rank ended its first span of a phase; None if some rank never did."""
    ends = [found[phase].end_ns if phase in found else None for found in spans.values()]
    return None if not ends or None in ends else max(end for end in ends if end is not None)


def _slowest(spans: Iterable[Mapping[Phase, Span]]) -> dict[str, float]:
    slowest: dict[str, float] = {}
    for found in spans:
        for phase, span in found.items():
            slowest[phase.value] = max(span.seconds, slowest.get(phase.value, 0.0))
    return slowest


def _first_spans(trace: RankTrace) -> dict[Phase, Span]:
    """The first span of each phase that one rank reported."""
    records = (trace.started, trace.discovered, trace.loaded, trace.refused, *trace.steps.values(), *trace.saved)
    spans = sorted((span for record in records if record for span in record.spans), key=lambda span: span.begin_ns)
    found: dict[Phase, Span] = {}
    for span in spans:
        found.setdefault(span.phase, span)
    return found
