"""Which gate runs are asked for, under which keys, and what happens when they never judge anything."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lastgood.identity import GenerationId
from lastgood.records import RecordName, list_records
from lastgood.verdict import Check, CheckState, Outcome, Rung, Tier, judge
from lastgood_prefect.requests import FamilyRequests, GateRun, Patience, RunState, Unanswered, gate_key
from tests.pipeline.memory import Clock, GrowingFamily, MemoryRuns

PATIENCE = Patience(
    pending=timedelta(seconds=120),
    running=timedelta(seconds=900),
    rest=timedelta(seconds=2),
    longest_rest=timedelta(seconds=60),
)


def requests_of(growing: GrowingFamily, runs: MemoryRuns, clock: Clock) -> FamilyRequests:
    return FamilyRequests(growing.family, runs, patience=PATIENCE, clock=clock)


def asked_for(requests: FamilyRequests, growing: GrowingFamily) -> GateRun:
    """The run that is asked for now; there must be one."""
    run = requests.follow(growing.due())
    assert run is not None, "no run was asked for"
    return run


def test_a_key_names_one_piece_of_work() -> None:
    """Two watchers and a retried request must meet in one run; another manifest or attempt must not."""
    name = RecordName(generation=GenerationId(2, 48), manifest="0123456789abcdef", tier=Tier.MANIFEST, attempt=3)
    assert gate_key("llm-7b", name) == "lastgood/llm-7b/00000002-0000000000000048/0123456789abcdef/tier1/3"
    assert gate_key("llm-7b", name, 2) == gate_key("llm-7b", name) + "/again-2"


def test_one_save_is_one_run_and_then_nothing(growing: GrowingFamily, runs: MemoryRuns, clock: Clock) -> None:
    """A healthy save costs one run; whatever it is asked afterwards, the orchestrator hears nothing more."""
    saved, requests = growing.save(), requests_of(growing, runs, clock)
    asked = asked_for(requests, growing)
    assert asked.state is RunState.SCHEDULED
    runs.put(asked.id, RunState.RUNNING)
    assert requests.follow(growing.due()) is None
    growing.judge(saved)
    assert requests.follow(growing.due()) is None
    heard = runs.requests
    assert requests.follow(growing.due()) is None
    assert (len(runs.keys), runs.requests, requests.run) == (1, heard, None)


@pytest.mark.parametrize("waiting", [RunState.SCHEDULED, RunState.PENDING])
def test_saves_join_a_run_that_has_not_begun(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock, waiting: RunState
) -> None:
    """A run a save costs seconds of processor; one that has yet to list storage will find the new saves there."""
    growing.save(3)
    requests = requests_of(growing, runs, clock)
    asked = asked_for(requests, growing)
    runs.put(asked.id, waiting)
    growing.save(2)
    requests.follow(growing.due())
    growing.judge()
    runs.put(asked.id, RunState.ENDED)
    requests.follow(growing.due())
    assert len(runs.keys) == 1


def test_a_run_that_had_begun_swallows_no_later_save(growing: GrowingFamily, runs: MemoryRuns, clock: Clock) -> None:
    """It may have listed storage a moment before the commit; the save is asked for when that run ends without it."""
    first, requests = growing.save(), requests_of(growing, runs, clock)
    asked = asked_for(requests, growing)
    runs.put(asked.id, RunState.RUNNING)
    requests.follow(growing.due())
    later = growing.save()
    assert requests.follow(growing.due()) is None
    growing.judge(first)
    runs.put(asked.id, RunState.ENDED)
    assert asked_for(requests, growing).id != asked.id
    assert any(str(later) in key for key in runs.keys)


def test_a_run_that_goes_on_with_nothing_left_is_not_waited_for(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """Its last seconds are clean-up; a save that comes then would wait for them for nothing."""
    requests = requests_of(growing, runs, clock)
    growing.save()
    asked = asked_for(requests, growing)
    runs.put(asked.id, RunState.RUNNING)
    requests.follow(growing.due())
    growing.judge()
    requests.follow(growing.due())
    growing.save()
    assert asked_for(requests, growing).id != asked.id


def test_a_crashed_run_is_followed_by_another_one(growing: GrowingFamily, runs: MemoryRuns, clock: Clock) -> None:
    """Its key returns the dead run for ever (measured), so the key must move on while nothing is on record."""
    growing.save()
    requests = requests_of(growing, runs, clock)
    asked = asked_for(requests, growing)
    runs.put(asked.id, RunState.ENDED)
    assert requests.follow(growing.due()) is None, "it rests first"
    clock.seconds += 2
    assert asked_for(requests, growing).id != asked.id
    assert sorted(runs.keys) == [min(runs.keys), f"{min(runs.keys)}/again-1"]


def test_whoever_forgot_everything_joins_the_run_or_passes_the_dead_ones(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """A watcher that was killed and started again must neither start doubles nor stop at a corpse."""
    growing.save()
    asked = asked_for(requests_of(growing, runs, clock), growing)
    assert requests_of(growing, runs, clock).follow(growing.due()) == asked
    runs.put(asked.id, RunState.ENDED)
    assert asked_for(requests_of(growing, runs, clock), growing).id != asked.id
    assert len(runs.keys) == 2


def test_a_run_found_running_takes_only_the_save_of_its_key(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """Whoever forgot when it began cannot know what it listed, but it was asked for because of its key's save."""
    first = growing.save()
    asked = asked_for(requests_of(growing, runs, clock), growing)
    runs.put(asked.id, RunState.RUNNING)
    growing.save()
    requests = requests_of(growing, runs, clock)
    assert requests.follow(growing.due()) is not None
    growing.judge(first)
    runs.put(asked.id, RunState.ENDED)
    assert requests.follow(growing.due()) is not None, "the other save does not rest: no run was there for it"


def test_an_inconclusive_record_moves_the_key_by_its_attempt(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """The next gate writes under the next attempt, and its run must not be taken for the former one."""
    saved, requests = growing.save(), requests_of(growing, runs, clock)
    asked = asked_for(requests, growing)
    unclear = judge(
        tier=Tier.MANIFEST,
        rung=Rung.FULL,
        subject=f"llm-7b/{saved}",
        checks=[Check(name="digests", state=CheckState.INCONCLUSIVE, detail="the store could not tell")],
        required=["digests"],
    )
    assert unclear.outcome is Outcome.INCONCLUSIVE
    judged = growing.family.judge(saved)
    growing.family.keep(unclear, saved, judged.started_at, judged.measurements, attempt=1)
    runs.put(asked.id, RunState.ENDED)
    requests.follow(growing.due())
    clock.seconds += 2
    assert requests.follow(growing.due()) is not None
    assert [key.rpartition("/")[2] for key in runs.keys] == ["1", "2"]


def test_a_run_that_always_dies_is_asked_for_less_and_less_and_holds_nobody_up(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """A worker that cannot start a flow must not be flooded, and the next save must not wait for the old one's rest."""
    growing.save()
    requests = requests_of(growing, runs, clock)
    for _ in range(600):
        if (run := requests.follow(growing.due())) is not None:
            runs.put(run.id, RunState.ENDED)
        clock.seconds += 1
    assert 10 <= len(runs.keys) <= 20
    growing.save()
    assert requests.follow(growing.due()) is not None


def test_a_run_that_no_worker_takes_waits_as_it_is(growing: GrowingFamily, runs: MemoryRuns, clock: Clock) -> None:
    """A second run would lack the same worker, and days without one must not end in thousands of late runs."""
    growing.save()
    requests = requests_of(growing, runs, clock)
    requests.follow(growing.due())
    clock.seconds += 10 * 86_400
    assert requests.follow(growing.due()) is None
    assert len(runs.keys) == 1


def test_a_run_whose_worker_died_is_buried_and_asked_for_again(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """It would stay pending for ever (measured), and hold a slot of whatever limit it runs under."""
    growing.save()
    requests = requests_of(growing, runs, clock)
    asked = asked_for(requests, growing)
    runs.put(asked.id, RunState.PENDING)
    requests.follow(growing.due())
    clock.seconds += 119
    growing.save()
    assert requests.follow(growing.due()) is None, "a new save is no progress, and none is lost by it"
    clock.seconds += 2
    requests.follow(growing.due())
    clock.seconds += 2
    assert asked_for(requests, growing).id != asked.id
    assert runs.buried == [asked.id]


def test_a_run_that_judges_on_is_left_alone_and_one_that_stands_still_is_given_up(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """A machine that died says nothing; hours of honest work over terabytes must not look like that."""
    growing.save(4)
    requests = requests_of(growing, runs, clock)
    asked = asked_for(requests, growing)
    runs.put(asked.id, RunState.RUNNING)
    for generation in sorted(growing.due())[:3]:
        requests.follow(growing.due())
        clock.seconds += 800
        growing.judge(generation)
    assert requests.follow(growing.due()) is None
    clock.seconds += 901
    requests.follow(growing.due())
    clock.seconds += 2
    assert asked_for(requests, growing).id != asked.id
    assert runs.buried == [], "it may be alive, and its record would count"


def test_a_deleted_run_is_asked_for_again(growing: GrowingFamily, runs: MemoryRuns, clock: Clock) -> None:
    """Somebody may tidy up the server while a run waits; the save has still to be judged."""
    growing.save()
    requests = requests_of(growing, runs, clock)
    asked_for(requests, growing)
    runs.runs.clear()
    runs.keys.clear()
    requests.follow(growing.due())
    clock.seconds += 2
    assert requests.follow(growing.due()) is not None


def test_a_lost_answer_makes_no_second_run(growing: GrowingFamily, runs: MemoryRuns, clock: Clock) -> None:
    """The server may die between its commit and its answer; the repeated request must find that run."""
    growing.save()
    requests = requests_of(growing, runs, clock)
    runs.loses_answers = True
    with pytest.raises(Unanswered):
        requests.follow(growing.due())
    runs.loses_answers = False
    assert requests.follow(growing.due()) is not None
    assert len(runs.keys) == 1


def test_what_was_judged_by_somebody_else_meanwhile_is_not_asked_for(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """Somebody at the command line, or `reconcile`, may be faster than a request."""
    growing.save()
    due = growing.due()
    growing.judge()
    assert requests_of(growing, runs, clock).follow(due) is None
    assert runs.keys == {}
    assert len(list_records(growing.built.store, growing.built.keys)) == 1


def test_a_save_whose_every_run_died_is_left_to_reconcile(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """Looking for a key that is not spent must end, and must not begin again with every tick."""
    growing.save()
    for _ in range(100):
        asked = asked_for(requests_of(growing, runs, clock), growing)
        runs.put(asked.id, RunState.ENDED)
    requests = requests_of(growing, runs, clock)
    assert requests.follow(growing.due()) is None
    heard = runs.requests
    clock.seconds += 600
    assert requests.follow(growing.due()) is None
    assert runs.requests == heard
