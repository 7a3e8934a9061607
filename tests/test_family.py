"""A family as its callers ask about it: evidence with its measurements, and answers that store trouble cannot bend."""

from __future__ import annotations

import errno
from datetime import timedelta
from pathlib import Path

import pytest

from lastgood.errors import StoreError, StoreTransientError, UsageError
from lastgood.family import Family
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.location import Location
from lastgood.records import list_records, newest_record
from lastgood.stores.grading import Grade, Limit, StoreGrade
from lastgood.testing.build import BuiltFamily, build_family
from lastgood.verdict import NoteReason, Outcome, Tier
from lastgood.verify import Depth


@pytest.fixture
def built(tmp_path: Path) -> BuiltFamily:
    return build_family(tmp_path, "llm-7b")


@pytest.fixture
def family(built: BuiltFamily) -> Family:
    return Family(Location(store=built.store, keys=built.keys, generation=None))


def test_a_tier_1_record_says_how_many_bytes_were_hashed(built: BuiltFamily, family: Family) -> None:
    """What a gate costs is planned from its records; a look at metadata reads no payload and must not claim to."""
    told: list[int] = []
    family.verify(built.newest, progress=told.append)
    whole = newest_record(built.store, built.keys, built.newest, Tier.MANIFEST)
    assert whole is not None
    assert whole.measurements.read_bytes == told[-1] == family.latest().manifest.total_bytes  # type: ignore[union-attr]
    family.verify(built.newest, depth=Depth.METADATA)
    looked = newest_record(built.store, built.keys, built.newest, Tier.MANIFEST)
    assert looked is not None
    assert looked.measurements.read_bytes == 0


def test_a_record_names_the_grade_of_its_store(
    built: BuiltFamily, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evidence from a bucket that keeps no checksums must be told from evidence from one that does, years later."""
    family.verify(built.generations[0])
    grade = StoreGrade(grade=Grade.PUBLISH_WITH_LIMITS, limits=(Limit.STORED_CHECKSUMS,))
    monkeypatch.setattr(type(built.store), "grade", lambda self: grade)
    family.verify(built.newest)
    named = [
        record.store_grade
        for generation in (built.generations[0], built.newest)
        if (record := newest_record(built.store, built.keys, generation, Tier.MANIFEST)) is not None
    ]
    assert named == [None, grade], "a file system has none: its answers belong to one machine's mount"


def test_a_stray_directory_among_the_records_hides_no_evidence(built: BuiltFamily, family: Family) -> None:
    """`status` is read when something is wrong already; a directory that somebody made must not silence it."""
    family.verify(built.generations[0])
    (built.root / built.keys.records / "zzz-copy").mkdir()
    newest = family.newest_evidence()
    assert {tier: record.generation for tier, record in newest.items()} == {Tier.MANIFEST: str(built.generations[0])}


def test_latest_offers_nothing_older_when_the_store_cannot_read_the_newest(
    built: BuiltFamily, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older generation in place of one that nobody could read would lose steps in silence."""
    get = type(built.store).get

    def unreadable(self: object, key: str, *, limit_bytes: int) -> bytes | None:
        if key in (built.keys.commit(built.newest), built.keys.manifest(built.newest)):
            raise StoreTransientError(f"cannot read {key}: {errno.errorcode[errno.EIO]}")
        return get(built.store, key, limit_bytes=limit_bytes)

    monkeypatch.setattr(type(built.store), "get", unreadable)
    with pytest.raises(StoreError, match="cannot read"):
        family.latest()


def test_deep_neither_passes_nor_skips_what_it_cannot_read(
    built: BuiltFamily, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store trouble while bytes are read is `could not tell`, not a reason to take an older generation."""

    def broken(*_: object, **__: object) -> object:
        raise StoreError("cannot hash: input/output error")

    monkeypatch.setattr(type(built.store), "hash", broken)
    with pytest.raises(StoreError, match="cannot read"):
        family.latest(deep=True)


def test_the_note_of_an_unverified_generation_goes_with_its_first_record(built: BuiltFamily, family: Family) -> None:
    """A launch script's log says whether anybody ever read the bytes that it starts on."""
    assert [note.reason for note in family.latest().notes] == [NoteReason.COMMITTED_UNVERIFIED]
    family.verify(built.newest, depth=Depth.METADATA)
    assert [note.reason for note in family.latest().notes] == [NoteReason.COMMITTED_UNVERIFIED]
    assert family.verify(built.newest).outcome is Outcome.PASS
    assert family.latest().notes == ()


def test_another_writer_s_checkpoint_is_not_mistaken_for_an_empty_family(tmp_path: Path, built: BuiltFamily) -> None:
    """Before somebody starts afresh beside them, `latest` says that checkpoints lie there which it does not read."""
    (tmp_path / "hf-run" / "checkpoint-500").mkdir(parents=True)
    foreign = Family(Location(store=built.store, keys=FamilyKeys("hf-run"), generation=None))
    offer = foreign.latest()
    assert offer.generation is None
    assert [(note.reason, note.offender) for note in offer.notes] == [
        (NoteReason.UNPUBLISHED_CONTENT, "checkpoint-500")
    ]


def test_only_a_commit_can_be_quarantined_by_its_name(family: Family) -> None:
    """A mistyped generation must not look barred while the bad one is still offered."""
    with pytest.raises(UsageError, match="not a commit"):
        family.quarantine(reason="bad shard", generation=GenerationId(1, 99))
    assert family.survey().quarantine == ()


def test_the_operator_s_acts_need_a_family_that_is_there(built: BuiltFamily) -> None:
    """A mistyped family must not come into being by being rolled back, quarantined or released."""
    absent = Family(Location(store=built.store, keys=type(built.keys)("llm-7c"), generation=None))
    for act in (
        lambda: absent.rollback(built.newest, reason="spike"),
        lambda: absent.quarantine(reason="bad"),
        lambda: absent.release(reason="good again"),
    ):
        with pytest.raises(UsageError, match="not a lastgood family"):
            act()
    assert not (built.root / "llm-7c").exists()


def test_no_pass_is_kept_of_what_went_away(built: BuiltFamily, family: Family) -> None:
    """A mount that drops at the end of a reading leaves an empty directory, and a record in it would vouch for that."""
    judged = family.judge(built.newest)
    built.root.rename(built.root.with_name("away"))
    built.root.mkdir()
    with pytest.raises(StoreTransientError, match="went away while it was judged"):
        family.keep(judged.verdict, built.newest, judged.started_at, judged.measurements)
    assert list(built.root.iterdir()) == []


def test_two_gates_that_judge_at_once_leave_one_conclusive_record(built: BuiltFamily, family: Family) -> None:
    """Every event may be doubled, and two verifiers may run; the evidence must not depend on it."""
    attempts = [family.due_attempt(built.newest, Tier.MANIFEST) for _ in range(2)]
    judged = [family.judge(built.newest) for _ in range(2)]
    kept = [
        family.keep(one.verdict, built.newest, one.started_at, one.measurements, attempt=attempt, origin="run")
        for one, attempt in zip(judged, attempts, strict=True)
    ]
    assert attempts == [1, 1]
    assert [one.is_new for one in kept] == [True, False]
    assert [record.origin for record in list_records(built.store, built.keys)] == ["run"]
    assert family.due_attempt(built.newest, Tier.MANIFEST) is None


def test_evidence_is_due_again_when_it_ages_and_when_it_only_looked_at_metadata(
    built: BuiltFamily, family: Family
) -> None:
    """Bytes rot after they were read, and sizes alone never were evidence of bytes."""
    family.verify(built.newest, depth=Depth.METADATA)
    assert family.due_attempt(built.newest, Tier.MANIFEST) == 2
    family.verify(built.newest)
    assert family.due_attempt(built.newest, Tier.MANIFEST) is None
    assert family.due_attempt(built.newest, Tier.MANIFEST, older_than=timedelta(0)) == 3
    assert family.unjudged() == built.generations[:-1]
    assert family.unjudged(besides=built.generations[:1]) == built.generations[1:-1]


def test_of_what_is_old_only_that_without_a_record_is_asked_about(
    built: BuiltFamily, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate runs after every save: were it to read the evidence of each one before, each save would cost more."""
    oldest, *_, newest = built.generations
    family.verify(oldest, depth=Depth.METADATA)
    family.verify(newest, depth=Depth.METADATA)
    asked = []
    monkeypatch.setattr(Family, "standing_record", lambda self, one, tier: asked.append(one))
    assert family.unjudged(newest=1) == built.generations[1:]
    assert family.unjudged() == built.generations
    assert asked == [*built.generations[1:], *built.generations]


def test_a_spoiled_record_leaves_its_generation_due(built: BuiltFamily, family: Family) -> None:
    """One file that somebody damaged must not stop the gate of a whole family, and proves nothing."""
    family.verify(built.newest)
    (record,) = built.root.glob(f"llm-7b/.lastgood/records/{built.newest}/*.json")
    record.write_bytes(b"{")
    assert family.due_attempt(built.newest, Tier.MANIFEST) == 2
    assert family.unjudged() == built.generations
