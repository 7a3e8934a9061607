"""From storage to requests: what the watcher asks for, whatever hints it gets, and how it gets them."""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from lastgood.identity import GenerationId
from lastgood.records import Record, list_records
from lastgood.verdict import Tier
from lastgood_prefect import hints as hints_module
from lastgood_prefect.requests import RunState
from lastgood_prefect.settings import ConfiguredFamily
from lastgood_prefect.watcher import Backlog, Cadence, Watcher
from tests.pipeline.memory import Clock, GrowingFamily, MemoryRuns

HINTED = frozenset({"llm-7b"})
NOTHING: frozenset[str] = frozenset()
QUICK = Cadence(
    tick=timedelta(seconds=0.1), poll=timedelta(seconds=0.1), listing=timedelta(days=1)
)  # a day: what is asked for comes from a hint


def wait_until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that another thread brings about."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@contextmanager
def running(watcher: Watcher) -> Iterator[None]:
    """A watcher in a thread of its own."""
    stop = threading.Event()
    thread = threading.Thread(target=watcher.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def test_thousands_of_judged_generations_are_not_asked_about_again(
    growing: GrowingFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every save lists the family; what it costs must not grow with what was judged long ago."""
    growing.save(3)
    growing.judge()
    family = growing.family
    asked: list[GenerationId] = []
    standing_record = family.standing_record

    def counted(generation: GenerationId, tier: Tier) -> Record | None:
        asked.append(generation)
        return standing_record(generation, tier)

    monkeypatch.setattr(family, "standing_record", counted)
    backlog = Backlog(family)
    assert backlog.look(recheck=False) == NOTHING
    assert sorted(asked) == list(growing.built.generations)
    newest = growing.save()
    asked.clear()
    assert backlog.look(recheck=False) == {newest}
    assert backlog.look(recheck=False) == NOTHING
    assert asked == [newest]
    growing.judge()
    backlog.look(recheck=True)
    assert backlog.due == NOTHING
    asked.clear()
    backlog.look(recheck=True)
    assert asked == []


def test_a_generation_that_a_rollback_keeps_again_is_due_again(growing: GrowingFamily) -> None:
    """What was cut is remembered neither as judged nor as due: an operator may go back to it."""
    first = growing.save()
    second = growing.save()
    backlog = Backlog(growing.family)
    growing.judge(first)
    backlog.look(recheck=False)
    assert backlog.due == {second}
    growing.family.rollback(first, reason="loss spiked")
    backlog.look(recheck=False)
    assert backlog.due == NOTHING
    growing.family.rollback(second, reason="it did not")
    assert backlog.look(recheck=False) == {second}


@pytest.mark.parametrize("seed", range(6))
def test_doubled_reordered_late_and_lost_hints_lead_to_the_same_verdicts(
    tmp_path: Path, runs: MemoryRuns, clock: Clock, seed: int
) -> None:
    """Storage events are delivered at least once, at most once, late or not at all, depending on who delivers them."""
    chance = random.Random(seed)
    families = [GrowingFamily(tmp_path, f"family-{number}") for number in range(2)]
    watcher = Watcher([one.configured for one in families], runs, clock=clock)
    by_name = {one.configured.name: one for one in families}
    pending: list[str] = []
    for _ in range(12):
        saving = chance.choice(families)
        saving.save(chance.randint(1, 2))
        pending += [saving.configured.name] * chance.choice((0, 1, 1, 2))
        chance.shuffle(pending)
        delivered, pending = pending[:2], pending[2:]
        watcher.look(frozenset(delivered))
        clock.seconds += chance.choice((0, 1, 30, 61))
        _work(runs, by_name, chance)
    for _ in range(40):
        clock.seconds += 61
        watcher.look(NOTHING)
        _work(runs, by_name, chance)
    for one in families:
        judged = [record.generation for record in list_records(one.built.store, one.built.keys)]
        assert judged == [str(generation) for generation in sorted(one.built.generations)], "exactly one each"


def _work(runs: MemoryRuns, families: dict[str, GrowingFamily], chance: random.Random) -> None:
    """Be the worker: begin, finish or crash runs, as it comes."""
    names = {run: key.split("/")[1] for key, run in runs.keys.items()}
    for run in [*runs.in_state(RunState.SCHEDULED), *runs.in_state(RunState.PENDING)]:
        runs.put(run, chance.choice((RunState.PENDING, RunState.RUNNING, RunState.RUNNING)))
    for run in runs.in_state(RunState.RUNNING):
        family = families[names[run]]
        fate = chance.random()
        if fate < 0.5:
            family.judge()
        elif fate < 0.7:
            family.judge(*sorted(family.due())[:1])
        if fate < 0.8:
            runs.put(run, RunState.ENDED)


def test_saves_made_while_nobody_watched_are_found_at_the_start(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """No event tells of them any more."""
    growing.save(2)
    assert Watcher([growing.configured], runs, clock=clock).once()
    assert len(runs.keys) == 1


def test_a_save_whose_event_was_lost_is_found_by_the_slow_listing(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock
) -> None:
    """An event is a hint and may be lost; a save is not."""
    watcher = Watcher([growing.configured], runs, clock=clock)
    watcher.look(HINTED)
    growing.save()
    clock.seconds += 59
    watcher.look(NOTHING)
    assert runs.keys == {}
    clock.seconds += 2
    watcher.look(NOTHING)
    assert len(runs.keys) == 1


def test_a_silent_server_is_asked_less_often_and_loses_no_save(
    growing: GrowingFamily, runs: MemoryRuns, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A server restarts now and then; it must neither be hammered nor be missed for long when it is back."""
    caplog.set_level(logging.INFO, "lastgood.watch")
    watcher = Watcher([growing.configured], runs, clock=clock)
    growing.save()
    runs.is_silent = True
    for _ in range(300):
        assert not watcher.look(HINTED)
        clock.seconds += 1
    assert runs.requests <= 35
    growing.save()
    runs.is_silent = False
    clock.seconds += 30
    watcher.look(HINTED)
    assert len(runs.in_state(RunState.SCHEDULED)) == 1
    assert "asking again in 10 s" in caplog.text
    assert "the server answers again" in caplog.text


def test_a_family_that_cannot_be_read_does_not_hold_up_the_others(
    growing: GrowingFamily,
    grow: Callable[[str], GrowingFamily],
    runs: MemoryRuns,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One damaged document or one denied directory is one family's trouble, said once, and over when it is mended."""
    caplog.set_level(logging.INFO, "lastgood.watch")
    growing.save()
    other = grow("llm-13b")
    other.save()
    claim = next((growing.built.root / "llm-7b/.lastgood/incarnations").glob("*.resume"))
    whole = claim.read_bytes()
    claim.write_bytes(b"{")
    watcher = Watcher([growing.configured, other.configured], runs, clock=clock)
    both = frozenset({"llm-7b", "llm-13b"})
    for _ in range(3):
        assert not watcher.look(both)
    assert [key.split("/")[1] for key in runs.keys] == ["llm-13b"]
    assert caplog.text.count("cannot tell what is due") == 1
    claim.write_bytes(whole)
    assert watcher.look(both)
    assert len(runs.keys) == 2


def test_each_new_generation_is_announced(growing: GrowingFamily, runs: MemoryRuns, clock: Clock) -> None:
    """Users' automations hang on the event; one that was announced is not announced with every look."""
    heard: list[tuple[str, GenerationId]] = []

    def announce(family: ConfiguredFamily, generation: GenerationId) -> None:
        heard.append((family.name, generation))

    watcher = Watcher([growing.configured], runs, announce=announce, clock=clock)
    first = growing.save()
    watcher.look(HINTED)
    watcher.look(HINTED)
    second = growing.save()
    watcher.look(HINTED)
    assert heard == [("llm-7b", first), ("llm-7b", second)]


@pytest.mark.parametrize("by", ["inotify", "listing"])
def test_a_commit_is_noticed(
    growing: GrowingFamily,
    runs: MemoryRuns,
    by: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both ways of watching see a save that comes while they wait, and say which way it is."""
    caplog.set_level(logging.INFO, "lastgood.watch")
    if by == "listing":
        monkeypatch.setattr(hints_module, "file_system_of", lambda path: "nfs4")
    growing.save()
    growing.judge()
    with running(Watcher([growing.configured], runs, cadence=QUICK)):
        wait_until(lambda: f"commits by {by} (" in caplog.text)
        time.sleep(0.3)  # past its first listing, so that only a hint can tell
        growing.save()
        wait_until(lambda: runs.keys)


def test_a_family_that_appears_later_is_noticed(
    growing: GrowingFamily, grow: Callable[[str], GrowingFamily], runs: MemoryRuns
) -> None:
    """A family is configured before its first save; neither it nor its root may need a restart of the watcher."""
    later = GrowingFamily(growing.built.root / "not" / "yet", "llm-13b")
    with running(Watcher([growing.configured, later.configured], runs, cadence=QUICK)):
        time.sleep(0.3)
        growing.save()
        wait_until(lambda: len(runs.keys) == 1)
        later.built.root.mkdir(parents=True)
        later.save()
        wait_until(lambda: len(runs.keys) == 2)


def test_a_root_that_vanishes_and_returns_is_watched_again(growing: GrowingFamily, runs: MemoryRuns) -> None:
    """File systems are unmounted and mounted again; the directory of that name is then another one."""
    root = growing.built.root / "mounted"
    root.mkdir()
    family = GrowingFamily(root)
    family.save()
    family.judge()
    with running(Watcher([family.configured], runs, cadence=QUICK)):
        time.sleep(0.3)
        os.rename(root, growing.built.root / "away")
        time.sleep(0.5)
        shutil.copytree(growing.built.root / "away", root, symlinks=True)
        time.sleep(0.5)
        assert runs.keys == {}
        family.save()
        wait_until(lambda: runs.keys)


def test_a_kernel_without_watches_left_makes_listings_of_it(
    growing: GrowingFamily, runs: MemoryRuns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`max_user_watches` is small on many machines, and what used it up is not ours to know."""

    def refuse(*paths: str, **settings: object) -> Iterator[object]:
        raise OSError(28, "OS file watch limit reached")
        yield

    monkeypatch.setattr(hints_module, "watch", refuse)
    growing.save()
    growing.judge()
    with running(Watcher([growing.configured], runs, cadence=QUICK)):
        wait_until(lambda: "listing instead" in caplog.text)
        time.sleep(0.3)
        growing.save()
        wait_until(lambda: runs.keys)
