"""A family's caches: judged by what decides, repaired from it, and never judged too early."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lastgood import documents
from lastgood.checks import FAMILY_CHECKS
from lastgood.errors import FormatError, StoreLimitError, UsageError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import ActivePointer, Passed, Refusal
from lastgood.protocol import burn, claim, decide, perform, prove, refresh_caches, refuse, rollback
from lastgood.protocol.commits import commit_digest
from lastgood.protocol.survey import RefusalName
from lastgood.reasons import NoteReason, Reason
from lastgood.stores import LocalStore
from lastgood.testing.build import BuiltFamily, build_life
from lastgood.testing.damage import CATALOGUE, Damage, Judge, Scene
from lastgood.verdict import CheckState, Outcome, Verdict, waive
from lastgood.verify import repair_pointers, verify_family

AT_ONCE = timedelta(0)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REPAIRABLE = [
    damage
    for damage in CATALOGUE.values()
    if damage.judge is Judge.FAMILY and damage.reason not in (Reason.NAME_MALFORMED, Reason.DECISION_MALFORMED)
]


def verify(built: BuiltFamily | Scene) -> Verdict:
    return verify_family(built.store, built.keys, settle=AT_ONCE)


def pass_restore(built: BuiltFamily, generation: GenerationId) -> None:
    passed = Passed(generation=str(generation), record="records/x", created_at=NOW)
    perform(built.store, prove(built.keys, generation, documents.canonical_bytes(passed)))


def quarantine(built: BuiltFamily) -> None:
    refusal = Refusal(source="operator", generation=None, reason="drill", findings=(), created_at=NOW, by="test")
    perform(built.store, refuse(built.keys, RefusalName(source="operator", tag="0000", generation=None), refusal))


@pytest.mark.parametrize("damage", REPAIRABLE, ids=lambda damage: damage.name)
def test_a_damaged_pointer_is_repaired_from_what_decides(scene: Scene, damage: Damage) -> None:
    """Caches carry no truth of their own, so every fault in one can be mended without asking anybody."""
    offender = damage.apply(scene)
    assert offender in repair_pointers(scene.store, scene.keys)
    assert verify(scene).findings == ()
    assert repair_pointers(scene.store, scene.keys) == ()


@pytest.mark.parametrize("damage", REPAIRABLE, ids=lambda damage: damage.name)
def test_a_damaged_pointer_is_repaired_where_nothing_can_be_swapped(
    scene: Scene, damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a bucket without conditional replacement, `reconcile` is what mends these caches, so it must be able to."""

    def refuse_swap(self: LocalStore, key: str, data: bytes, *, expected: bytes | None) -> bool:
        if expected is not None:
            raise StoreLimitError(f"cannot swap {key}: no conditional_replace")
        return self.create(key, data)

    monkeypatch.setattr(LocalStore, "compare_and_swap", refuse_swap)
    assert damage.apply(scene) in repair_pointers(scene.store, scene.keys)
    assert verify(scene).findings == ()


def test_repair_refuses_to_guess_past_a_damaged_decision(scene: Scene) -> None:
    """Where nobody knows what is kept, a rewritten pointer would be an invention."""
    CATALOGUE["decision_torn"].apply(scene)
    with pytest.raises(FormatError):
        repair_pointers(scene.store, scene.keys)


def test_a_family_after_passes_quarantine_and_rollback_is_healthy(healthy: BuiltFamily) -> None:
    """Whatever lawfully happens to a family leaves its caches in agreement."""
    pass_restore(healthy, healthy.generations[0])
    quarantine(healthy)
    perform(healthy.store, refresh_caches(healthy.keys))
    verdict = verify(healthy)
    assert verdict.findings == ()
    assert {note.reason for note in verdict.notes} == {NoteReason.QUARANTINE_IN_FORCE}
    steps = rollback(healthy.keys, healthy.generations[1], nonce="1" * 32, host="test", reason="loss spike")
    perform(healthy.store, steps)
    perform(healthy.store, refresh_caches(healthy.keys))
    assert verify(healthy).findings == ()


def test_last_good_lags_behind_a_new_pass(healthy: BuiltFamily) -> None:
    """A crash between a pass and its cache is lawful, and said."""
    pass_restore(healthy, healthy.generations[0])
    perform(healthy.store, refresh_caches(healthy.keys))
    pass_restore(healthy, healthy.newest)
    found = verify(healthy).findings
    assert [(f.reason, f.offender, f.expected) for f in found] == [
        (Reason.POINTER_STALE, healthy.keys.last_good, str(healthy.newest))
    ]


def test_a_quarantine_without_its_notice_is_said(healthy: BuiltFamily) -> None:
    """People look at the notice, so one that is missing is a finding although no decision reads it."""
    quarantine(healthy)
    found = verify(healthy).findings
    assert [(f.reason, f.offender) for f in found] == [(Reason.POINTER_STALE, healthy.keys.quarantine)]


def test_a_pointer_into_an_older_life_is_rolled_back(healthy: BuiltFamily) -> None:
    """Each life writes its own pointer; one that names an older life's generation was put there by somebody else."""
    built = build_life(healthy, steps=(48,))
    old = built.root / built.keys.active(1)
    (built.root / built.keys.active(2)).write_bytes(old.read_bytes())
    assert [finding.reason for finding in verify(built).findings] == [Reason.POINTER_ROLLED_BACK]


def test_a_lagging_pointer_of_a_dead_life_is_no_finding(healthy: BuiltFamily) -> None:
    """A crash leaves the dead life's pointer behind for ever; the family must not stay red for it."""
    built = build_life(healthy, steps=(48,))
    (built.root / built.keys.active(1)).unlink()
    assert verify(built).outcome is Outcome.PASS


def test_a_burned_slot_is_not_what_the_pointer_should_name(healthy: BuiltFamily) -> None:
    """A burned marker is nobody's newest commit."""
    perform(healthy.store, burn(healthy.keys, GenerationId(1, 48), "1" * 32))
    assert verify(healthy).findings == ()


def test_a_pointer_that_is_about_to_be_written_is_not_reported(scene: Scene) -> None:
    """A publisher writes its pointer just after its marker: whoever looks between the two must look again."""
    CATALOGUE["active_pointer_lags"].apply(scene)
    newest = documents.canonical_bytes(
        ActivePointer(
            generation=str(scene.generation),
            commit=commit_digest(scene.commit_path.read_bytes()),
        )
    )
    publisher = threading.Timer(0.05, scene.active_path.write_bytes, (newest,))
    publisher.start()
    verdict = verify_family(scene.store, scene.keys, settle=timedelta(seconds=1))
    publisher.join()
    assert verdict.findings == ()


def test_leftovers_are_notes_and_a_publish_in_progress_is_none(healthy: BuiltFamily) -> None:
    """What a dead life left is worth saying; what the living one is writing is its own business."""
    keys, root = healthy.keys, healthy.root
    (root / f"{keys.staging}/00000001-0000000000000030~00000000/payload").mkdir(parents=True)
    (root / f"{keys.staging}/00000001-0000000000000099~00000000/payload").mkdir(parents=True)
    (root / f"{keys.family}/00000001-0000000000000031").mkdir()
    (root / f"{keys.family}/checkpoint-500").mkdir()
    perform(healthy.store, claim(keys, nonce="2" * 32, host="test"))
    verdict = verify(healthy)
    assert verdict.findings == ()
    assert {(note.reason, note.offender.rpartition("/")[2]) for note in verdict.notes} == {
        (NoteReason.CLAIM_WITHOUT_DECISION, "00000002"),
        (NoteReason.STAGING_ABANDONED, "00000001-0000000000000030~00000000"),
        (NoteReason.STAGING_ABANDONED, "00000001-0000000000000099~00000000"),
        (NoteReason.STAGING_ABANDONED, "00000001-0000000000000031"),
    }
    (root / f"{keys.staging}/00000002-0000000000000099~00000000/payload").mkdir(parents=True)
    assert len(verify(healthy).notes) == 4


def test_an_orphans_commit_is_a_note(scene: Scene) -> None:
    """What a takeover cut stays as audit; the family itself is well."""
    CATALOGUE["generation_committed_by_an_orphan"].apply(scene)
    verdict = verify(scene)
    assert verdict.findings == ()
    assert [(note.reason, note.offender) for note in verdict.notes] == [
        (NoteReason.COMMIT_NOT_KEPT, scene.keys.commit(scene.generation))
    ]


def test_an_unknown_family_is_a_usage_error(healthy: BuiltFamily) -> None:
    """A typing error must not look like an empty family."""
    with pytest.raises(UsageError, match="not a lastgood family"):
        verify_family(healthy.store, FamilyKeys("llm-8b"))


def begin(store: LocalStore, keys: FamilyKeys, nonce: str) -> int:
    """A life that claimed, found nothing and started at step zero."""
    number = perform(store, claim(keys, nonce=nonce, host="test"))
    perform(store, decide(keys, number, nonce=nonce, allow_fresh=True))
    return number


def only_claimed(store: LocalStore, keys: FamilyKeys) -> None:
    perform(store, claim(keys, nonce="1" * 32, host="test"))


def only_begun(store: LocalStore, keys: FamilyKeys) -> None:
    begin(store, keys, "1" * 32)


def only_burned(store: LocalStore, keys: FamilyKeys) -> None:
    number = begin(store, keys, "1" * 32)
    perform(store, burn(keys, GenerationId(number, 12), "2" * 32))


def only_fenced(store: LocalStore, keys: FamilyKeys) -> None:
    older = begin(store, keys, "1" * 32)
    begin(store, keys, "2" * 32)
    perform(store, burn(keys, GenerationId(older, 12), "3" * 32))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (only_claimed, "nothing was ever committed"),
        (only_begun, "nothing was ever committed"),
        (only_burned, "1 burned"),
        (only_fenced, "1 not kept by the takeover of incarnation 2"),
    ],
)
def test_a_family_without_a_commit_that_counts_never_passes(
    make: Callable[[LocalStore, FamilyKeys], None], why: str, tmp_path: Path
) -> None:
    """Caches that agree with nothing are no evidence, and no configuration can waive that nothing was verified."""
    store, keys = LocalStore(tmp_path), FamilyKeys("llm-7b")
    make(store, keys)
    verdict = verify_family(store, keys, settle=AT_ONCE)
    assert (verdict.outcome, verdict.findings) == (Outcome.NOT_RUN, ())
    told = [(check.name, check.detail) for check in verdict.checks if check.state is CheckState.NOT_RUN]
    assert told == [("nothing_committed", f"no commit that counts: {why}")]
    assert waive(verdict, dict.fromkeys(FAMILY_CHECKS, "accepted")).outcome is Outcome.NOT_RUN
