"""One generation judged once: what is due, under which attempt, and what a try that is not the last leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError

from lastgood.config import FamilySettings
from lastgood.errors import StorePermanentError, StoreTransientError, UsageError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.protocol import burn, perform
from lastgood.records import Measurements, list_records
from lastgood.stores import LocalStore, VerifySettings
from lastgood.testing.build import BuiltFamily, build_family, build_life
from lastgood.verdict import Outcome, Rung, Tier, undecided
from lastgood.verify import Depth
from lastgood_prefect import verifying
from lastgood_prefect.settings import ConfiguredFamily
from lastgood_prefect.verifying import conclude, due, judge_once, verify_each


@pytest.fixture
def built(tmp_path: Path) -> BuiltFamily:
    return build_family(tmp_path, "llm-7b")


@pytest.fixture
def gate(built: BuiltFamily) -> ConfiguredFamily:
    location = Location(store=built.store, keys=built.keys, generation=None)
    return ConfiguredFamily(name="llm-7b", location=location, settings=FamilySettings(root=str(built.root)))


def recorded(built: BuiltFamily) -> list[tuple[Outcome, int]]:
    return [(record.verdict.outcome, record.attempt) for record in list_records(built.store, built.keys)]


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(LocalStore, "hash", fail)


def test_a_verdict_is_kept_under_the_attempt_that_was_due(built: BuiltFamily, gate: ConfiguredFamily) -> None:
    """Outside of a flow run the record names no run."""
    answer = judge_once(gate, built.newest, Depth.FULL)
    assert answer.record is not None
    assert answer.record.origin is None
    assert recorded(built) == [(Outcome.PASS, 1)]


def test_of_two_gates_at_one_generation_one_record_remains(
    built: BuiltFamily, gate: ConfiguredFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that came twice starts two runs; both ask, both judge, and the store takes one conclusive record."""
    together, due = threading.Barrier(2), Family.due_attempt

    def ask_together(self: Family, *arguments: Any, **options: Any) -> int | None:
        attempt = due(self, *arguments, **options)
        together.wait(timeout=60)
        return attempt

    monkeypatch.setattr(Family, "due_attempt", ask_together)
    with ThreadPoolExecutor(max_workers=2) as gates:
        answers = list(gates.map(lambda _: judge_once(gate, built.newest, Depth.FULL), range(2)))
    assert recorded(built) == [(Outcome.PASS, 1)]
    assert sorted(answer.kept.is_new for answer in answers if answer.kept is not None) == [False, True]


def test_passing_trouble_is_not_kept_before_the_last_try(
    built: BuiltFamily, gate: ConfiguredFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict that the next try may make conclusive would only use up an attempt."""
    failing(monkeypatch, StoreTransientError("cannot read: stale file handle"))
    answer = judge_once(gate, built.newest, Depth.FULL, last=False)
    assert isinstance(answer.error, StoreTransientError)
    assert "digests: " in answer.error.message
    assert recorded(built) == []
    assert judge_once(gate, built.newest, Depth.FULL, last=True).record is not None
    assert recorded(built) == [(Outcome.INCONCLUSIVE, 1)]


def test_lasting_trouble_is_kept_at_once(
    built: BuiltFamily, gate: ConfiguredFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking again would not help, so nobody waits for it."""
    failing(monkeypatch, StorePermanentError("cannot read: permission denied"))
    answer = judge_once(gate, built.newest, Depth.FULL, last=False)
    assert answer.error is None
    assert recorded(built) == [(Outcome.INCONCLUSIVE, 1)]


def test_a_fail_stands_whatever_trouble_lay_beside_it(
    built: BuiltFamily, gate: ConfiguredFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found before the store failed stays found; asking again could only find more."""
    (built.root / built.keys.artifacts(built.newest) / "data.json").unlink()
    failing(monkeypatch, StoreTransientError("cannot read: stale file handle"))
    judge_once(gate, built.newest, Depth.FULL, last=False)
    assert recorded(built) == [(Outcome.FAIL, 1)]


def test_an_inconclusive_record_leaves_the_generation_due(
    built: BuiltFamily, gate: ConfiguredFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crashed or troubled gate is followed by one under the next attempt, and that one's verdict stands."""
    with monkeypatch.context() as trouble:
        failing(trouble, StoreTransientError("cannot read: stale file handle"))
        judge_once(gate, built.newest, Depth.FULL)
    judge_once(gate, built.newest, Depth.FULL)
    assert judge_once(gate, built.newest, Depth.FULL).skipped is not None
    assert recorded(built) == [(Outcome.INCONCLUSIVE, 1), (Outcome.PASS, 2)]


def test_a_burned_slot_is_skipped_and_said_so(built: BuiltFamily, gate: ConfiguredFamily) -> None:
    """A watcher sees its marker as it sees any other; there is nothing behind it."""
    burned = GenerationId(1, 48)
    assert perform(built.store, burn(built.keys, burned, "5" * 32))
    answer = judge_once(gate, burned, Depth.FULL)
    assert "slot burned" in str(answer.skipped)
    assert recorded(built) == []


def test_a_generation_that_never_was_is_an_answer_and_no_crash(built: BuiltFamily, gate: ConfiguredFamily) -> None:
    """The others of its batch are judged all the same."""
    answer = judge_once(gate, GenerationId(1, 99), Depth.FULL)
    assert isinstance(answer.error, UsageError)
    assert conclude([answer, judge_once(gate, built.newest, Depth.FULL)]).name == "Failed"
    assert recorded(built) == [(Outcome.PASS, 1)]


def test_the_accepted_checks_of_the_family_hold(built: BuiltFamily, gate: ConfiguredFamily) -> None:
    """A gate in a flow waives what the same gate on the command line waives."""
    from lastgood.config import IgnoredCheck

    (built.root / built.keys.artifacts(built.newest) / "stranger.bin").write_bytes(b"x")
    ignored = IgnoredCheck(check="unexpected_files", reason="our logger writes there")
    settings = FamilySettings(root=str(built.root), ignore=(ignored,))
    waived = ConfiguredFamily(name=gate.name, location=gate.location, settings=settings)
    answer = judge_once(waived, built.newest, Depth.FULL)
    assert answer.record is not None
    assert answer.record.verdict.outcome is Outcome.PASS
    assert waived.family.due_attempt(built.newest, Tier.MANIFEST) is None


def test_a_listing_that_fails_costs_none_of_the_verdicts_before_it(
    built: BuiltFamily, gate: ConfiguredFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain lists again when it is through; a store that went away by then must not turn a found fail into doubt."""
    (built.root / built.keys.artifacts(built.newest) / "data.json").unlink()
    monkeypatch.setattr(verifying, "verify", lambda *asked: judge_once(*asked))

    def listed() -> Iterator[GenerationId]:
        yield built.newest
        raise StoreTransientError("cannot list: stale file handle")

    answers = verify_each(gate, listed(), Depth.FULL)
    assert [answer.record is not None for answer in answers] == [True, False]
    state = conclude(answers)
    assert state.name == "Failed"
    assert "artifact_missing" in str(state.message)
    assert "cannot list" in str(state.message)


def test_a_server_that_gives_no_slot_leaves_a_run_inconclusive(
    gate: ConfiguredFamily, built: BuiltFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server was killed: nobody looked at the save, so that the run must not be as red as for a broken one."""

    def refuse(*_: object, **__: object) -> None:
        raise ConcurrencySlotAcquisitionError("Unable to acquire concurrency slots on ['tag:tier1']: 503")

    monkeypatch.setattr(verifying, "verify_generation", refuse)
    state = conclude(verify_each(gate, [built.newest], Depth.FULL))
    assert state.name == "Inconclusive"
    assert f"no verdict: {built.newest}: Unable to acquire concurrency slots" in str(state.message)
    assert recorded(built) == []


def test_a_fail_that_stands_is_red_again(built: BuiltFamily, gate: ConfiguredFamily) -> None:
    """An event that comes twice, or a person who asks, must not be shown green for a generation that is barred."""
    (built.root / built.keys.artifacts(built.newest) / "data.json").unlink()
    judge_once(gate, built.newest, Depth.FULL)
    could_not = undecided(tier=Tier.MANIFEST, subject="llm-7b", check="digests", why="stale file handle")
    gate.family.keep(could_not, built.newest, datetime.now(UTC), Measurements())
    answer = judge_once(gate, built.newest, Depth.FULL)
    assert answer.record is None
    state = conclude([answer])
    assert state.name == "Failed"
    assert "artifact_missing" in str(state.message)
    assert "conclusive evidence stands (fail)" in str(state.message)
    assert recorded(built) == [(Outcome.FAIL, 1), (Outcome.INCONCLUSIVE, 2)]


def test_where_saves_are_read_in_rotation_older_ones_come_after_the_new_one(
    built: BuiltFamily, gate: ConfiguredFamily
) -> None:
    """An event names one save, and each kept save owes it a slice; an event that comes twice owes nothing more."""
    rotating = VerifySettings(mode="rotating", rotation=4)
    location = Location(store=built.store, keys=built.keys, generation=None, verify=rotating)
    turning = ConfiguredFamily(name=gate.name, location=location, settings=gate.settings)

    def judge(*named: GenerationId) -> list[GenerationId]:
        answers = [judge_once(turning, one, Depth.FULL) for one in due(turning, named)]
        assert all(answer.record is not None and answer.record.rung is Rung.ROTATING for answer in answers)
        return [answer.generation for answer in answers if answer.generation is not None]

    assert judge() == list(built.generations)
    newer = build_life(built, steps=(48,))
    assert judge(newer.newest) == [newer.newest, *built.generations]
    assert judge() == []
    assert {record.attempt for record in list_records(built.store, built.keys, generation=built.newest)} == {1, 2}
