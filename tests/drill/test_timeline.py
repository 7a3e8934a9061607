from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.drill.timeline import DrillPhase, has_recovered, measure_recovery
from lastgood.replica.trace import TICK_NS, TRACE_VERSION, Discovered, Loaded, Mark, Phase, Span, Started, Step
from lastgood.restore.evidence import RankTrace, read_rank

ORDER = (Phase.LAUNCH, Phase.IMPORT, Phase.JOIN, Phase.BUILD, Phase.DISCOVER, Phase.LOAD, Phase.STEP)


def mark(at_ns: int) -> Mark:
    return Mark(monotonic_ns=at_ns, wall=datetime(2026, 1, 1, tzinfo=UTC))


def rank_trace(rank: int, spans: dict[Phase, tuple[int, int]], *, world_size: int = 1) -> RankTrace:
    """A resumed rank with these spans; two steps, of which the first ends the recovery."""
    at = {phase: Span(phase=phase, begin_ns=begin, end_ns=end) for phase, (begin, end) in spans.items()}

    def some(*phases: Phase) -> tuple[Span, ...]:
        return tuple(at[phase] for phase in phases if phase in at)

    end_ns = spans[Phase.STEP][1] if Phase.STEP in spans else 10**6
    started = Started(
        at=mark(spans.get(Phase.LAUNCH, (10, 20))[0]),
        spans=some(Phase.LAUNCH, Phase.IMPORT, Phase.JOIN, Phase.BUILD),
        version=TRACE_VERSION,
        incarnation=2,
        rank=rank,
        world_size=world_size,
        pid=1,
        host="here",
        lag_steps=0,
        settings={},
    )
    discovered = Discovered(at=mark(end_ns), spans=some(Phase.DISCOVER), generation="00000001-0000000000000005", step=5)
    loaded = Loaded(
        at=mark(end_ns),
        spans=some(Phase.LOAD),
        generation="00000001-0000000000000005",
        step=5,
        keys={},
        expectations=None,
        learning_rates={},
        optimizer_steps={},
        scalars={},
    )
    first = Step(at=mark(end_ns), spans=some(Phase.STEP), step=6, loss=1.0, grad_norm=None, learning_rates={})
    later = Span(phase=Phase.STEP, begin_ns=end_ns + 5, end_ns=end_ns + 9)
    second = Step(at=mark(end_ns + 9), spans=(later,), step=7, loss=1.0, grad_norm=None, learning_rates={})
    return read_rank(rank, (started, discovered, loaded, first, second))


def end_to_end(rank: int, begin_ns: int, widths: list[int], gaps: list[int], *, world_size: int = 1) -> RankTrace:
    spans = {}
    for phase, width, gap in zip(ORDER, widths, gaps, strict=True):
        spans[phase] = (begin_ns, begin_ns + width)
        begin_ns += width + gap
    return rank_trace(rank, spans, world_size=world_size)


lengths = st.lists(st.integers(0, 10**10), min_size=7, max_size=7)


@given(lengths, lengths, st.integers(0, 10**10), st.integers(0, 10**10))
def test_phases_and_the_rest_are_the_recovery_time(
    widths: list[int], gaps: list[int], stop: int, relaunch: int
) -> None:
    """Nothing of a recovery may be lost or counted twice, to the nanosecond, and a gap is never given to a phase."""
    trace = end_to_end(0, 1000 + stop + relaunch, widths, gaps)
    recovery = measure_recovery(1000, 1000 + stop, {0: trace})
    assert recovery.trouble is None
    assert [phase.phase for phase in recovery.phases] == list(DrillPhase)
    assert sum(phase.end_ns - phase.begin_ns for phase in recovery.phases) + recovery.unaccounted_ns == recovery.rto_ns
    assert recovery.unaccounted_ns == sum(gaps[:-1])
    assert recovery.rto_ns == stop + relaunch + sum(widths) + sum(gaps[:-1])


@given(st.lists(lengths, min_size=2, max_size=5), st.data())
def test_the_timeline_is_that_of_the_last_rank(ranks: list[list[int]], data: st.DataObject) -> None:
    """A job has recovered when all of its ranks have: the timeline of a quicker one would look better than it was."""
    begins = [data.draw(st.integers(2000, 10**10)) for _ in ranks]
    traces = {
        rank: end_to_end(rank, begin, widths, [0] * 7, world_size=len(ranks))
        for rank, (begin, widths) in enumerate(zip(begins, ranks, strict=True))
    }
    recovery = measure_recovery(1000, 1500, traces)
    ends = {rank: begin + sum(widths) for rank, (begin, widths) in enumerate(zip(begins, ranks, strict=True))}
    assert recovery.end_ns == max(ends.values())
    assert ends[recovery.rank] == recovery.end_ns
    assert recovery.unaccounted_ns == 0


def test_a_launcher_quicker_than_our_look_leaves_no_negative_phase() -> None:
    """The end of the dead is seen a little late; a new process that was created before must not count twice."""
    recovery = measure_recovery(1000, 5000, {0: end_to_end(0, 3000, [10] * 7, [0] * 7)})
    assert (recovery.seconds(DrillPhase.STOP), recovery.seconds(DrillPhase.RELAUNCH)) == (2e-6, 0.0)
    assert recovery.unaccounted_ns == 0


@pytest.mark.parametrize(("before_ns", "is_believed"), [(1, True), (TICK_NS - 1, True), (TICK_NS, False)])
def test_a_process_created_in_the_tick_of_the_kill_came_after_it(before_ns: int, is_believed: bool) -> None:
    """The kernel dates it to the tick before; only one that is dated earlier still was there when the kill came."""
    kill_ns = 10**9
    spans = {Phase.LAUNCH: (kill_ns - before_ns, kill_ns + 500), Phase.STEP: (kill_ns + 500, kill_ns + 900)}
    recovery = measure_recovery(kill_ns, kill_ns + 5000, {0: rank_trace(0, spans)})
    assert (recovery.trouble is None) is is_believed
    if is_believed:
        assert recovery.seconds(DrillPhase.LAUNCH) == 5e-7
        assert recovery.seconds(DrillPhase.STOP) == recovery.seconds(DrillPhase.RELAUNCH) == 0
        assert recovery.unaccounted_ns == 0


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ({Phase.LOAD: (2000, 2200), Phase.BUILD: (2100, 2300), Phase.STEP: (2300, 2400)}, "begins before load"),
        ({Phase.LAUNCH: (2000, 9000), Phase.STEP: (2500, 2600)}, "begins before launch"),
        ({Phase.LAUNCH: (500, 900), Phase.STEP: (2500, 2600)}, "stop ends 0.0005 ms before it begins"),
        ({Phase.LOAD: (2200, 2100), Phase.STEP: (2500, 2600)}, "load ends 0.0001 ms before it begins"),
    ],
)
def test_contradicting_marks_are_named_and_explain_nothing(spans: dict[Phase, tuple[int, int]], says: str) -> None:
    """Overlapping phases could explain more time than passed; then none is believed, and the recovery time stands."""
    recovery = measure_recovery(1000, 1500, {0: rank_trace(0, spans)})
    assert recovery.trouble is not None
    assert says in recovery.trouble
    assert recovery.phases == ()
    assert recovery.unaccounted_ns == recovery.rto_ns > 0


def test_a_replica_without_marks_leaves_its_time_unaccounted() -> None:
    """What nobody measured is not spread over phases that somebody did."""
    recovery = measure_recovery(0, 5, {0: rank_trace(0, {})})
    assert [phase.phase for phase in recovery.phases] == [DrillPhase.STOP, DrillPhase.RELAUNCH, DrillPhase.LAUNCH]
    assert recovery.unaccounted_ns == 10**6 - 10


def test_a_job_has_recovered_when_every_rank_has_stepped() -> None:
    """One rank that steps alone, or ranks that disagree about their number, are no recovered job."""
    spans = {Phase.STEP: (2000, 2100)}
    two = {rank: rank_trace(rank, spans, world_size=2) for rank in (0, 1)}
    assert has_recovered(two)
    assert not has_recovered({0: two[0]})
    assert not has_recovered({})
    assert not has_recovered({0: two[0], 1: rank_trace(1, spans, world_size=3)})
    unstepped = read_rank(1, (two[1].started, two[1].discovered))  # type: ignore[arg-type]  # both are there
    assert not has_recovered({0: two[0], 1: unstepped})
