"""When a hint has done its work: once a run that will judge its generation was acknowledged, and not before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lastgood.identity import GenerationId
from lastgood_prefect.hints import Hint
from lastgood_prefect.requests import RunState
from lastgood_prefect.watcher import Watcher
from tests.pipeline.memory import Clock, GrowingFamily, MemoryRuns

HINTED = frozenset({"llm-7b"})


@pytest.fixture
def watcher(growing: GrowingFamily, runs: MemoryRuns, clock: Clock) -> Watcher:
    return Watcher([growing.configured], runs, clock=clock)


def is_done(watcher: Watcher, generation: GenerationId) -> bool:
    return Hint("llm-7b", generation).is_done(watcher.unasked())


def test_a_hint_is_done_when_its_run_was_acknowledged(growing: GrowingFamily, watcher: Watcher) -> None:
    """From then on the orchestrator keeps the work, and a queue need not."""
    saved = growing.save()
    watcher.look(HINTED)
    assert is_done(watcher, saved)


def test_a_hint_is_kept_while_the_server_is_silent(
    growing: GrowingFamily, watcher: Watcher, runs: MemoryRuns, clock: Clock
) -> None:
    """A message that were deleted now would be the only one who knew, if we then died."""
    saved = growing.save()
    runs.loses_answers = True
    watcher.look(HINTED)
    assert runs.keys
    assert not is_done(watcher, saved), "nobody acknowledged that run"
    runs.loses_answers = False
    clock.seconds += 30
    watcher.look(frozenset())
    assert is_done(watcher, saved)


def test_a_hint_is_kept_while_an_earlier_run_goes_on(
    growing: GrowingFamily, watcher: Watcher, runs: MemoryRuns, clock: Clock
) -> None:
    """That run listed storage before this save; only the next one is sure to judge it."""
    growing.save()
    watcher.look(HINTED)
    (first,) = runs.runs
    runs.put(first, RunState.RUNNING)
    watcher.look(frozenset())
    later = growing.save()
    watcher.look(HINTED)
    assert not is_done(watcher, later)
    growing.judge(growing.built.generations[0])
    runs.put(first, RunState.ENDED)
    watcher.look(HINTED)
    assert is_done(watcher, later)
    assert len(runs.runs) == 2


def test_a_hint_of_a_run_that_began_too_late_is_done(
    growing: GrowingFamily, watcher: Watcher, runs: MemoryRuns
) -> None:
    """A run that has not begun yet will list storage after this save."""
    growing.save()
    watcher.look(HINTED)
    later = growing.save()
    watcher.look(HINTED)
    assert is_done(watcher, later)
    assert len(runs.runs) == 1


def test_a_hint_is_done_though_its_run_died(
    growing: GrowingFamily, watcher: Watcher, runs: MemoryRuns, clock: Clock
) -> None:
    """The watcher asks again out of storage, so no message need be kept for it meanwhile."""
    saved = growing.save()
    watcher.look(HINTED)
    runs.put("run-1", RunState.ENDED)
    watcher.look(HINTED)
    assert is_done(watcher, saved)
    clock.seconds += 3
    watcher.look(frozenset())
    assert len(runs.runs) == 2
    assert is_done(watcher, saved)


def test_a_hint_is_kept_while_storage_cannot_tell(
    growing: GrowingFamily, watcher: Watcher, runs: MemoryRuns, clock: Clock
) -> None:
    """What was not looked at was not looked after."""
    saved = growing.save()
    claim = next((growing.built.root / "llm-7b/.lastgood/incarnations").glob("*.resume"))
    whole = claim.read_bytes()
    claim.write_bytes(b"{")
    watcher.look(HINTED)
    assert not is_done(watcher, saved)
    claim.write_bytes(whole)
    clock.seconds += 61
    watcher.look(frozenset())
    assert is_done(watcher, saved)


def test_a_hint_of_something_that_is_not_due_is_done(
    growing: GrowingFamily, watcher: Watcher, grow: Callable[[str], GrowingFamily]
) -> None:
    """Judged, cut or never committed: there is nothing to ask for, and a forged event must not be kept for ever."""
    judged = growing.save()
    growing.judge()
    watcher.look(HINTED)
    assert is_done(watcher, judged)
    assert is_done(watcher, GenerationId.parse("99999999-0000000000000001"))


def test_a_hint_of_a_family_that_nobody_watches_is_not_done(watcher: Watcher, growing: GrowingFamily) -> None:
    """A spool may outlive a change of what this relay watches; the next one may watch that family again."""
    watcher.look(HINTED)
    assert not Hint("llm-13b", growing.save()).is_done(watcher.unasked())
