"""The figures of a restore are those of the phases that the replica marked, on the rank that took longest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lastgood.identity import FamilyKeys
from lastgood.location import Location
from lastgood.replica.trace import Discovered, Mark, Phase, Span, Step
from lastgood.restore.evidence import Evidence, RankTrace, ReplicaEnd
from lastgood.restore.materialize import Copy
from lastgood.restore.measure import measure
from lastgood.stores import LocalStore
from lastgood.testing.restore_traces import healthy_restore

READ = 8 * 2**20


def copied(seconds: float = 2.0, *, read: bool = True) -> Copy:
    """A copy that took so long, half a second of which was reading, if anything was read."""
    return Copy(
        location=Location(store=LocalStore(Path("nowhere")), keys=FamilyKeys("llm-7b"), generation=None),
        manifest=healthy_restore().manifest if read else None,
        checks=(),
        notes=(),
        seconds=seconds,
        read_bytes=READ if read else None,
        read_seconds=0.5 if read else None,
    )


def span(phase: Phase, begin_seconds: float, end_seconds: float) -> Span:
    return Span(phase=phase, begin_ns=int(begin_seconds * 1e9), end_ns=int(end_seconds * 1e9))


def trace(rank: int, *before: Span, steps: Mapping[int, Span] | None = None) -> RankTrace:
    """One rank that reported what came before its first step with its discovery."""
    return RankTrace(
        rank=rank,
        discovered=Discovered(at=Mark.now(), spans=before, generation=None, step=None),
        steps={
            number: Step(at=Mark.now(), spans=(took,), step=number, loss=1.0, grad_norm=None, learning_rates={})
            for number, took in (steps or {}).items()
        },
    )


def evidence(*traces: RankTrace) -> Evidence:
    end = ReplicaEnd(exit_status=0, seconds=20.0, deadline_seconds=60.0)
    return Evidence(end=end, ranks={each.rank: each for each in traces})


def test_discovery_is_the_replica_s_own_phase_and_no_import() -> None:
    """Tier 3 measures the same thing by the same name; imports would drown it, and no store makes them faster."""
    one = trace(0, span(Phase.IMPORT, 0, 8), span(Phase.DISCOVER, 8, 8.5), span(Phase.LOAD, 9, 10))
    measured = measure(copied(), evidence(one))
    assert (measured.discovery_seconds, measured.load_seconds) == (0.5, 1.0)
    assert measured.phases["import"] == 8.0


def test_a_phase_took_as_long_as_on_its_slowest_rank() -> None:
    """Everybody waits for the slowest: a quick rank's figure would promise what nobody gets."""
    quick = trace(0, span(Phase.DISCOVER, 0, 1), span(Phase.LOAD, 1, 2), steps={11: span(Phase.STEP, 2, 3)})
    slow = trace(1, span(Phase.DISCOVER, 0, 3), span(Phase.LOAD, 3, 7), steps={11: span(Phase.STEP, 7, 8)})
    measured = measure(copied(), evidence(quick, slow))
    assert (measured.discovery_seconds, measured.load_seconds, measured.first_step_seconds) == (3.0, 4.0, 1.0)
    assert (measured.seconds, measured.read_bytes, measured.read_seconds) == (22.0, READ, 0.5)
    assert measured.read_bytes_per_second == 2 * READ


def test_the_first_step_is_the_one_that_counts() -> None:
    """Later steps are warm; the recovery waits for the cold one."""
    steps = {11: span(Phase.STEP, 1, 5), 12: span(Phase.STEP, 5, 6), 13: span(Phase.STEP, 6, 16)}
    assert measure(copied(0.0), evidence(trace(0, steps=steps))).first_step_seconds == 4.0


def test_what_nobody_reported_is_not_measured() -> None:
    """Null says that nobody knows; a zero would be a record time."""
    measured = measure(copied(), evidence(trace(0, span(Phase.DISCOVER, 0, 1))))
    assert (measured.load_seconds, measured.first_step_seconds) == (None, None)
    refused = measure(copied(read=False), None)
    assert (refused.seconds, refused.read_bytes, refused.discovery_seconds) == (2.0, None, None)
    assert (refused.read_seconds, refused.read_bytes_per_second) == (None, None)
    assert refused.phases == {"copy": 2.0}


def test_a_copy_that_was_refused_was_read_all_the_same() -> None:
    """A gate that refuses a terabyte after reading it has cost a terabyte of reading."""
    measured = measure(copied(), None)
    assert (measured.read_bytes, measured.read_seconds) == (READ, 0.5)
