"""Keeping verdicts: each tier's effects, their order under a crash, and records that are never changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from lastgood import documents
from lastgood.errors import FormatError, StorePermanentError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import Commit, GenerationPointer, Release
from lastgood.protocol import Policy, choose, claim, commit, decide, perform, release, take_survey
from lastgood.reasons import Reason
from lastgood.records import Measurements, keep_verdict, list_records, newest_record, newest_records
from lastgood.records.record import read_record
from lastgood.stores.memory import MemoryStore
from lastgood.verdict import Check, CheckState, Finding, Outcome, Rung, Tier, Verdict, judge

KEYS = FamilyKeys("llm-7b")
MANIFEST = f"blake3:{'ab' * 32}"
START = datetime(2026, 1, 1, tzinfo=UTC)


class DyingStore(MemoryStore):
    """A store whose holder dies after so many writes."""

    def __init__(self, objects: dict[str, bytes], writes: int) -> None:
        super().__init__()
        self.objects = dict(objects)
        self.writes = writes

    def _write(self) -> None:
        if self.writes == 0:
            raise StorePermanentError("died")
        self.writes -= 1

    def create(self, key: str, data: bytes) -> bool:
        self._write()
        return super().create(key, data)

    def compare_and_swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        self._write()
        return super().compare_and_swap(key, data, expected=expected)


def family(steps: tuple[int, ...] = (12, 24)) -> tuple[MemoryStore, tuple[GenerationId, ...]]:
    store = MemoryStore()
    number = perform(store, claim(KEYS, nonce="0" * 32, host="test"))
    perform(store, decide(KEYS, number, nonce="0" * 32, allow_fresh=True))
    generations = tuple(GenerationId(number, step) for step in steps)
    for generation in generations:
        marker = Commit(generation=str(generation), manifest=MANIFEST, previous=None, nonce="0" * 32)
        perform(store, commit(KEYS, generation, documents.canonical_bytes(marker)))
    return store, generations


def verdict(
    tier: Tier, *, reason: Reason | None = None, rung: Rung = Rung.FULL, state: CheckState = CheckState.RAN
) -> Verdict:
    findings = (Finding(reason=reason, message=f"{reason}: model", offender="model"),) if reason else ()
    check = Check(name="everything", state=state, detail="looked at", findings=findings)
    return judge(tier=tier, rung=rung, subject="llm-7b", checks=(check,), required=("everything",))


def clock() -> Callable[[], datetime]:
    ticks = count()
    return lambda: START + timedelta(seconds=next(ticks))


def latest(store: MemoryStore, policy: Policy = Policy.VERIFIED) -> GenerationId | None:
    return perform(store, choose(KEYS, policy=policy)).generation


def test_a_tier_1_fail_bars_its_generation_only() -> None:
    """One torn save must not stop a family whose older checkpoints are whole."""
    store, (older, newest) = family()
    keep_verdict(store, KEYS, verdict(Tier.MANIFEST, reason=Reason.SIZE_MISMATCH), generation=newest)
    survey = perform(store, take_survey(KEYS))
    assert (set(survey.barred), survey.quarantine) == ({newest}, ())
    assert latest(store) == older


def test_a_tier_2_fail_quarantines_the_family() -> None:
    """A checkpoint that verifies and does not restore says that the way of saving is broken."""
    store, (older, newest) = family()
    keep_verdict(store, KEYS, verdict(Tier.RESTORE), generation=older)
    keep_verdict(store, KEYS, verdict(Tier.RESTORE, reason=Reason.RNG_DIVERGED), generation=newest)
    survey = perform(store, take_survey(KEYS))
    assert (set(survey.barred), survey.quarantine) == ({newest}, (f"tier2-0001_{newest}",))
    assert latest(store) == older


@pytest.mark.parametrize(
    ("reason", "quarantined"),
    [(Reason.RTO_EXCEEDED, False), (Reason.DRILL_NOT_RECOVERED, False), (Reason.TENSOR_DIGEST_DIVERGED, True)],
)
def test_a_tier_3_fail_quarantines_only_if_it_blames_the_checkpoint(reason: Reason, quarantined: bool) -> None:
    """A scheduler that is too slow says nothing against the bytes."""
    store, (_, newest) = family()
    kept = keep_verdict(store, KEYS, verdict(Tier.DRILL, reason=reason), generation=newest)
    assert bool(perform(store, take_survey(KEYS)).quarantine) is quarantined
    assert kept.record is not None
    assert kept.record.verdict.outcome is Outcome.FAIL


@pytest.mark.parametrize("reason", [Reason.COMMIT_MISSING, Reason.GENERATION_FENCED, Reason.GENERATION_BARRED])
def test_a_tier_1_fail_about_the_family_bars_nothing(reason: Reason) -> None:
    """A publish in progress, or a branch that a rollback may want back, must not be barred for being so."""
    store, (_, newest) = family()
    kept = keep_verdict(store, KEYS, verdict(Tier.MANIFEST, reason=reason), generation=newest)
    assert not kept.effects.refuses
    assert not perform(store, take_survey(KEYS)).barred


def test_a_full_restore_proves_and_moves_last_good() -> None:
    """LAST_GOOD names the newest generation that a full restore passed."""
    store, (older, _) = family()
    keep_verdict(store, KEYS, verdict(Tier.RESTORE), generation=older)
    assert latest(store, Policy.PROVEN) == older
    pointer = documents.parse(GenerationPointer, store.objects[KEYS.last_good], "LAST_GOOD")
    assert pointer.generation == str(older)
    keep_verdict(store, KEYS, verdict(Tier.RESTORE, reason=Reason.RNG_DIVERGED), generation=older)
    pointer = documents.parse(GenerationPointer, store.objects[KEYS.last_good], "LAST_GOOD")
    assert pointer.generation is None


@pytest.mark.parametrize(
    "weaker",
    [
        verdict(Tier.RESTORE, rung=Rung.LOAD_ONLY),
        verdict(Tier.RESTORE, rung=Rung.TOPOLOGY_CHANGE),
        verdict(Tier.MANIFEST),
        verdict(Tier.DRILL),
        verdict(Tier.RESTORE, state=CheckState.INCONCLUSIVE),
        verdict(Tier.RESTORE, state=CheckState.NOT_RUN),
    ],
    ids=["load only", "topology change", "tier 1", "tier 3", "inconclusive", "not run"],
)
def test_anything_less_than_a_full_restore_is_recorded_and_changes_nothing(weaker: Verdict) -> None:
    """LAST_GOOD moves by the strongest evidence only; trouble elsewhere lets evidence age."""
    store, (_, newest) = family()
    before = dict(store.objects)
    kept = keep_verdict(store, KEYS, weaker, generation=newest)
    assert {key for key in store.objects if key not in before} == {kept.key}
    assert all(store.objects[key] == value for key, value in before.items())


def test_a_negative_control_touches_nothing() -> None:
    """A copy that was damaged on purpose must fail without a trace in production."""
    store, (_, newest) = family()
    before = dict(store.objects)
    failed = verdict(Tier.RESTORE, reason=Reason.RNG_DIVERGED)
    kept = keep_verdict(store, KEYS, failed, generation=newest, negative_control=True)
    assert kept.record is None
    assert store.objects == before


def test_a_crash_at_any_write_leaves_the_stricter_answer_and_can_be_repeated() -> None:
    """Between any two writes a failed generation is never offered, and an unrecorded pass permits nothing."""
    failed = verdict(Tier.RESTORE, reason=Reason.RNG_DIVERGED)
    healthy, (_, newest) = family()
    for writes in count():
        store = DyingStore(healthy.objects, writes)
        try:
            keep_verdict(store, KEYS, failed, generation=newest, attempt=1, now=lambda: START)
        except StorePermanentError:
            pass
        else:
            break
        recorded = bool(list_records(store, KEYS))
        barred = newest in perform(store, take_survey(KEYS)).barred
        assert barred >= recorded
        store.writes = 1000
        keep_verdict(store, KEYS, failed, generation=newest, attempt=1, now=lambda: START)
        assert len(list_records(store, KEYS)) == 1
        assert latest(store) is None
    assert writes >= 4
    passed = verdict(Tier.RESTORE)
    for writes in range(4):
        store = DyingStore(healthy.objects, writes)
        with pytest.raises(StorePermanentError):
            keep_verdict(store, KEYS, passed, generation=newest, attempt=1)
        assert len(list_records(store, KEYS)) >= len(perform(store, take_survey(KEYS)).proven)


def test_each_gate_run_has_its_own_record() -> None:
    """Fresh evidence is a new document; nothing on record is ever changed."""
    store, (_, newest) = family()
    now = clock()
    keep_verdict(store, KEYS, verdict(Tier.MANIFEST), generation=newest, now=now)
    first = dict(store.objects)
    keep_verdict(store, KEYS, verdict(Tier.MANIFEST), generation=newest, now=now)
    assert [record.attempt for record in list_records(store, KEYS)] == [1, 2]
    assert all(store.objects[key] == value for key, value in first.items())


def test_the_same_verdict_under_one_attempt_is_kept_once() -> None:
    """Events are delivered more than once; a hundred deliveries of one attempt leave one record."""
    store, (_, newest) = family()
    kept = [
        keep_verdict(store, KEYS, verdict(Tier.MANIFEST), generation=newest, attempt=1, now=now)
        for now in [clock()] * 100
    ]
    assert [k.is_new for k in kept] == [True] + [False] * 99
    assert len(list_records(store, KEYS)) == 1
    assert all(k.record == kept[0].record for k in kept)


def test_two_verifiers_that_disagree_are_both_on_record_and_the_fail_dominates() -> None:
    """Under one attempt the second verdict goes to the next, and no pass outvotes a fail."""
    store, (_, newest) = family()
    keep_verdict(store, KEYS, verdict(Tier.RESTORE), generation=newest, attempt=1)
    failed = verdict(Tier.RESTORE, reason=Reason.RNG_DIVERGED)
    kept = keep_verdict(store, KEYS, failed, generation=newest, attempt=1)
    assert kept.record is not None
    assert kept.record.attempt == 2
    assert latest(store, Policy.PROVEN) is None


def test_a_new_fail_after_a_release_quarantines_again() -> None:
    """A release lifts what was known when it was given, never what comes later."""
    store, (_, newest) = family()
    failed = verdict(Tier.RESTORE, reason=Reason.RNG_DIVERGED)
    keep_verdict(store, KEYS, failed, generation=newest)
    perform(store, release(KEYS, Release(reason="fixed", created_at=START, by="test")))
    assert not perform(store, take_survey(KEYS)).quarantine
    keep_verdict(store, KEYS, failed, generation=newest)
    assert perform(store, take_survey(KEYS)).quarantine


def test_records_carry_what_was_measured_and_are_found_again() -> None:
    """A report is built from records alone, so everything must come back from them."""
    store, (older, newest) = family()
    measured = Measurements(seconds=1.5, rto_seconds=12.25, rpo_loss_steps=3, phases={"unaccounted": 0.1})
    keep_verdict(store, KEYS, verdict(Tier.DRILL), generation=newest, measurements=measured, started_at=START)
    keep_verdict(store, KEYS, verdict(Tier.MANIFEST), generation=older)
    record = newest_record(store, KEYS, newest, Tier.DRILL, manifest=MANIFEST)
    assert record is not None
    assert (record.measurements, record.started_at, record.manifest) == (measured, START, MANIFEST)
    assert newest_record(store, KEYS, newest, Tier.RESTORE) is None
    assert newest_record(store, KEYS, newest, Tier.DRILL, manifest=f"blake3:{'cd' * 32}") is None
    assert {tier: r.generation for tier, r in newest_records(store, KEYS).items()} == {
        Tier.DRILL: str(newest),
        Tier.MANIFEST: str(older),
    }


def test_a_torn_record_is_refused_by_name() -> None:
    """A ledger rebuilt from records must not skip one in silence."""
    store, (_, newest) = family()
    kept = keep_verdict(store, KEYS, verdict(Tier.MANIFEST), generation=newest)
    assert kept.key is not None
    store.objects[kept.key] = store.objects[kept.key][:100]
    with pytest.raises(FormatError, match=kept.key):
        list_records(store, KEYS)


def test_a_record_of_before_the_bandwidth_was_measured_is_read() -> None:
    """Evidence is kept for years: what it does not say is not measured, and no reason to refuse it."""
    store, (generation, _) = family()
    keep_verdict(store, KEYS, verdict(Tier.RESTORE), generation=generation)
    (record,) = list_records(store, KEYS)
    key = record.name.key(KEYS)
    told = json.loads(store.objects[key])
    del told["measurements"]["read_seconds"]
    before = read_record(json.dumps(told).encode(), key)
    assert before == record
    assert before.measurements.read_bytes_per_second is None
