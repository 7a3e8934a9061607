"""Reading in rotation: all of it within so many saves, by evidence alone, and never less than the verdict says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.checks import GENERATION_CHECKS
from lastgood.config import Objectives
from lastgood.criteria import Criterion, Evidence, Held, judge_family
from lastgood.digest import HashRequest
from lastgood.errors import StoreTransientError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.manifest import Manifest
from lastgood.reasons import NoteReason, Reason
from lastgood.reconcile import find_stale
from lastgood.records import list_records
from lastgood.rotation import next_slice
from lastgood.stores import LocalStore, VerifySettings
from lastgood.stores.port import Hashed, Progress
from lastgood.testing.build import BuiltFamily, build_family, build_life
from lastgood.verdict import Check, Outcome, Rung, Slice, Tier, Verdict
from lastgood.verify import cut_shares
from lastgood.verify.reading import read_stored_manifest

ROTATING = VerifySettings(mode="rotating", rotation=4)
STEPS = tuple(range(12, 12 * 12, 12))


class CountingStore(LocalStore):
    """A local store that counts how often each artifact was read to its end."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: defaultdict[str, list[str]] = defaultdict(list)

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        for hashed in super().hash(prefix, requests, progress):
            self.read[prefix].append(hashed.path)
            yield hashed


class FailingStore(LocalStore):
    """A store that goes away whenever payload is read."""

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        raise StoreTransientError("cannot read: no reply")


def family_over(store: LocalStore, built: BuiltFamily, settings: VerifySettings = ROTATING) -> Family:
    return Family(Location(store=store, keys=built.keys, generation=None, verify=settings))


def save(built: BuiltFamily) -> BuiltFamily:
    """One save more, by a life of its own."""
    last = built.generations[-1].step if built.generations else 0
    return build_life(built, steps=(last + 12,))


def gate(family: Family) -> list[Verdict]:
    """What a run of the gate does: whatever has no verdict, then whatever owes a slice."""
    return [family.verify(one) for one in family.unjudged()] + [family.verify(one) for one in family.owing()]


def manifest_of(built: BuiltFamily, generation: GenerationId) -> Manifest:
    manifest = read_stored_manifest(built.store, built.keys, generation, None).manifest
    assert manifest is not None
    return manifest


def paths_of(built: BuiltFamily, generation: GenerationId) -> dict[str, int]:
    return {artifact.path: artifact.bytes for artifact in manifest_of(built, generation).artifacts}


def flip(built: BuiltFamily, generation: GenerationId, path: str) -> None:
    file = built.root / built.keys.artifacts(generation) / path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)


def check(verdict: Verdict, name: str) -> Check:
    return next(check for check in verdict.checks if check.name == name)


# What comes next.


@given(st.integers(2, 20), st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(0, 40))
def test_what_is_read_follows_upon_what_was_read(rotation: int, batches: list[int], origin: int) -> None:
    """However many saves a gate finds at once, no slice is left out, and so many saves have read all of them."""
    saves, last, read = 1, None, list[int]()
    for batch in batches:
        saves += batch
        turn = next_slice(rotation, saves=saves, last=last, origin=origin)
        if turn.owed:
            last = turn.slice
            read += turn.slice.numbers
        assert read == [(origin + number) % rotation for number in range(min(saves, rotation))]
    assert last is not None
    assert last.covers is (saves >= rotation)


@given(st.integers(2, 20), st.integers(1, 60))
def test_what_goes_on_reads_a_slice_a_save_for_ever(rotation: int, saves: int) -> None:
    """Of the newest saves a byte that is flipped long after it was read is found within a rotation."""
    last = None
    for number in range(1, saves + 1):
        turn = next_slice(rotation, saves=number, last=last, goes_on=True)
        assert turn.owed
        assert turn.slice.numbers == ((number - 1) % rotation,)
        last = turn.slice


def test_nothing_is_owed_twice_for_one_save_and_asking_by_hand_reads_on() -> None:
    """An event that comes twice costs nothing; a person who asks gets the next slice, and no save is counted for it."""
    first = next_slice(4, saves=1, last=None).slice
    again = next_slice(4, saves=1, last=first)
    assert not again.owed
    assert (again.slice.first, again.slice.done, again.slice.saves) == (1, 2, 1)
    assert next_slice(4, saves=2, last=again.slice).owed


def test_another_rotation_begins_anew() -> None:
    """Slices of sevenths say nothing of quarters."""
    turn = next_slice(7, saves=3, last=Slice(first=1, count=1, rotation=4, done=4, saves=2), origin=2)
    assert turn.owed
    assert turn.slice == Slice(first=2, count=1, rotation=7, done=1, saves=3)


def test_what_was_read_whole_owes_nothing_unless_it_goes_on() -> None:
    """Whoever turns the rotation on, over a thousand saves, does not want to read them all again."""
    assert not next_slice(4, saves=9, last=None, at_once=True).owed
    assert next_slice(4, saves=9, last=None, at_once=True, goes_on=True).owed


# Over saves.


def test_every_byte_is_read_within_a_rotation_of_saves_and_none_twice(tmp_path: Path) -> None:
    """The acceptance of the rotation, counted where the bytes are read."""
    built, store = BuiltFamily(root=tmp_path, family="llm-7b", generations=()), CountingStore(tmp_path)
    for _ in range(8):
        built = save(built)
        before = {prefix: len(read) for prefix, read in store.read.items()}
        gate(family_over(store, built))
        for position, generation in enumerate(reversed(built.generations)):
            read = store.read[built.keys.artifacts(generation)]
            paths = paths_of(built, generation)
            assert len(set(read)) == len(read), "once is enough"
            assert set(read) == set(paths) if position >= 3 else set(read) < set(paths)
            longest = sum(paths.values()) / 4 + max(paths.values())
            new = read[before.get(built.keys.artifacts(generation), 0) :]
            assert sum(paths[path] for path in new) <= longest
    assert gate(family_over(store, built)) == [], "a second run finds nothing to do"


def test_the_newest_saves_together_read_every_slice_first_hand(tmp_path: Path) -> None:
    """Where only three saves are kept, a shard that every save loses must not wait in a slice that is never reached."""
    built = BuiltFamily(root=tmp_path, family="llm-7b", generations=())
    begun = []
    for _ in range(5):
        built = save(built)
        verdict = gate(family_over(built.store, built))[0]
        assert verdict.slice is not None
        begun.append(verdict.slice.first)
    assert begun == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("age", [0, 1, 3])
def test_a_byte_flipped_at_rest_is_found_within_a_rotation(tmp_path: Path, age: int) -> None:
    """In whichever artifact of whichever kept save, also in a slice that was read before: the newest are read on."""
    settings = VerifySettings(mode="rotating", rotation=4, generations=100)
    built = BuiltFamily(root=tmp_path, family="llm-7b", generations=())
    for _ in range(4):
        built = save(built)
        gate(family_over(built.store, built, settings))
    victim = built.generations[-1 - age]
    path = sorted(paths_of(built, victim))[age]
    flip(built, victim, path)
    found: list[str] = []
    for _ in range(4):
        built = save(built)
        verdicts = gate(family_over(built.store, built, settings))
        found += [f.offender for verdict in verdicts for f in verdict.findings if f.reason is Reason.DIGEST_MISMATCH]
    assert found == [path]
    assert victim in family_over(built.store, built).survey().barred


def test_a_drained_batch_reads_what_each_save_would_have_read(tmp_path: Path) -> None:
    """A gate that was away must not stretch the promise."""
    built = build_family(tmp_path, "llm-7b", steps=STEPS[:6])
    store = CountingStore(tmp_path)
    gate(family_over(store, built))
    for position, generation in enumerate(reversed(built.generations)):
        paths, read = paths_of(built, generation), store.read[built.keys.artifacts(generation)]
        assert set(read) == set(paths) if position >= 3 else set(read) < set(paths)


# What is said.


def test_the_verdict_says_what_was_read_and_what_was_not(tmp_path: Path) -> None:
    """A pass that read a quarter must not look like one that read all of it."""
    built = build_family(tmp_path, "llm-7b", steps=(12,))
    family = family_over(built.store, built)
    verdict = family.verify(built.newest)
    assert (verdict.outcome, verdict.rung) == (Outcome.PASS, Rung.ROTATING)
    assert verdict.slice == Slice(first=0, count=1, rotation=4, done=1, saves=1)
    detail = check(verdict, "digests").detail
    paths = paths_of(built, built.newest)
    assert detail.startswith("slice 1 of 4 (1 read in succession): ")
    shares = cut_shares(manifest_of(built, built.newest).artifacts, 4, lambda artifact: artifact.bytes)
    unread = [artifact for share in shares[1:] for artifact in share]
    assert f"not read: {len(unread)} artifacts, {sum(artifact.bytes for artifact in unread)} bytes" in detail
    assert [c.name for c in verdict.checks] == list(GENERATION_CHECKS)
    (record,) = list_records(built.store, built.keys)
    assert record.verdict == verdict
    assert record.measurements.read_bytes is not None
    assert 0 < record.measurements.read_bytes < sum(paths.values())


def test_a_rotating_pass_is_evidence_and_latest_says_how_much_was_read(tmp_path: Path) -> None:
    """Who chose the rotation is not called unverified for it, nor told that all was read."""
    built = build_family(tmp_path, "llm-7b", steps=(12,))
    family = family_over(built.store, built)
    verdict = family.verify(built.newest)
    assert family.unjudged() == ()
    assert Tier.MANIFEST not in {one.tier for one in find_stale(family, Objectives(verify_age_seconds=1e-9))}
    assert [note.reason for note in family.latest().notes] == [NoteReason.PARTLY_READ]
    standing = judge_family(Evidence.of(verdict), None).standings[0]
    assert (standing.criterion, standing.held) == (Criterion.ARTIFACTS_VERIFY, Held.HELD)
    for _ in range(3):
        family.verify(built.newest)
    assert family.latest().notes == ()


def test_where_nothing_rotates_any_more_slices_stand_once_they_are_all_of_it(tmp_path: Path) -> None:
    """Turning the rotation off asks for what it had not read yet, and for nothing else."""
    built = build_family(tmp_path, "llm-7b", steps=(12, 24))
    family = family_over(built.store, built)
    gate(family)
    for _ in range(3):
        family.verify(built.newest)
    whole = family_over(built.store, built, VerifySettings())
    assert whole.unjudged() == (built.generations[0],)
    assert whole.verify(built.generations[0]).rung is Rung.FULL
    assert whole.unjudged() == ()


def test_small_generations_and_single_artifacts_are_read_whole(tmp_path: Path) -> None:
    """What costs nothing to read is read."""
    built = build_family(tmp_path, "llm-7b", steps=(12,))
    small = VerifySettings(mode="rotating", rotation=4, read_all_below_gib=1.0)
    verdict = family_over(built.store, built, small).verify(built.newest)
    assert (verdict.rung, verdict.slice) == (Rung.FULL, None)
    assert family_over(built.store, built, small).owing() == ()


def test_reading_all_by_hand_ends_what_is_owed(tmp_path: Path) -> None:
    """Nothing is read again that was just read whole."""
    built = build_family(tmp_path, "llm-7b", steps=(12,))
    family = family_over(built.store, built)
    gate(family)
    judged = family.judge(built.newest, read_all=True)
    family.keep(judged.verdict, built.newest, judged.started_at, judged.measurements)
    assert judged.verdict.rung is Rung.FULL
    built = save(built)
    later = family_over(built.store, built)
    assert [verdict.subject for verdict in gate(later)] == [f"llm-7b/{built.newest}"]
    on_and_on = family_over(built.store, built, VerifySettings(mode="rotating", rotation=4, generations=9))
    assert [verdict.subject for verdict in gate(on_and_on)] == [f"llm-7b/{built.generations[0]}"]
    assert on_and_on._unread(built.generations[0]) == (), "it was read whole before"


def test_trouble_reads_nothing_and_the_same_slice_is_owed_again(tmp_path: Path) -> None:
    """What a store could not give was not read, whatever record it left."""
    built = build_family(tmp_path, "llm-7b", steps=(12,))
    (troubled,) = gate(family_over(FailingStore(tmp_path), built))
    assert troubled.outcome is Outcome.INCONCLUSIVE
    assert family_over(built.store, built).latest().notes[0].reason is NoteReason.COMMITTED_UNVERIFIED
    (verdict,) = gate(family_over(built.store, built))
    assert verdict.slice == troubled.slice
    assert verdict.outcome is Outcome.PASS


def test_a_fail_of_a_slice_bars_as_any_fail(tmp_path: Path) -> None:
    """A fail counts on every rung, and no later slice of it is read."""
    built = build_family(tmp_path, "llm-7b", steps=(12, 24))
    for path in paths_of(built, built.newest):
        flip(built, built.newest, path)
    family = family_over(built.store, built)
    gate(family)
    assert built.newest in family.survey().barred
    assert family.latest().generation == built.generations[0]
    built = save(built)
    later = gate(family_over(built.store, built))
    assert f"llm-7b/{built.generations[1]}" not in {verdict.subject for verdict in later}


def test_two_gates_at_one_slice_leave_one_record_and_at_two_slices_two(tmp_path: Path) -> None:
    """An event that came twice must not count a slice twice, nor one verdict hide what another read."""
    built = build_family(tmp_path, "llm-7b", steps=(12,))
    family = family_over(built.store, built)
    first, second = family.judge(built.newest), family.judge(built.newest)
    for judged in (first, second):
        family.keep(judged.verdict, built.newest, judged.started_at, judged.measurements, attempt=1)
    assert len(list_records(built.store, built.keys)) == 1
    third = family.judge(built.newest)
    family.keep(third.verdict, built.newest, third.started_at, third.measurements, attempt=1)
    slices = [record.verdict.slice for record in list_records(built.store, built.keys)]
    assert [one.done for one in slices if one is not None] == [1, 2]
