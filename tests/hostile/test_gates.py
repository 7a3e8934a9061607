"""What races, damage and links do to gates and sweeps: evidence stands, and nothing outside of a family goes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from lastgood.cli import run
from lastgood.errors import StorePermanentError
from lastgood.family import Family
from lastgood.location import Location
from lastgood.reconcile import sweep, tidy
from lastgood.records import Measurements, list_records
from lastgood.stores import LocalStore
from lastgood.stores.port import Names
from lastgood.testing.build import BuiltFamily, Recipe, build_family, build_life
from lastgood.verdict import Check, CheckState, Outcome, Rung, Tier, Verdict, judge
from lastgood.verify import Depth

LATER = datetime.now(UTC) + timedelta(days=30)


@pytest.fixture
def built(tmp_path: Path) -> BuiltFamily:
    return build_family(tmp_path, "llm-7b", recipe=Recipe(world_size=1))


@pytest.fixture
def family(built: BuiltFamily) -> Family:
    return Family(Location(store=built.store, keys=built.keys, generation=None))


def could_not_tell(family: Family) -> Verdict:
    check = Check(name="bytes", state=CheckState.INCONCLUSIVE, detail="input/output error")
    subject = family.location.keys.family
    return judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject=subject, checks=[check], required=["bytes"])


class AttendedStore(LocalStore):
    """A store at which somebody else acts right after one of the readings, counted from 0."""

    def __init__(self, root: Path, after: int, act: Callable[[], object]) -> None:
        super().__init__(root)
        self.readings = 0
        self._after, self._act = after, act

    def names(self, prefix: str) -> Names:
        found = super().names(prefix)
        self._has_read()
        return found

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        found = super().get(key, limit_bytes=limit_bytes)
        self._has_read()
        return found

    def _has_read(self) -> None:
        self.readings += 1
        if self.readings == self._after + 1:
            self._act()


def test_a_gate_that_ends_at_any_moment_of_another_leaves_one_record(tmp_path: Path) -> None:
    """A save of a thousand was judged twice: its record came between two questions of a gate that was just asking."""
    met = 0
    for after in itertools.count():
        root = tmp_path / str(after)
        root.mkdir()
        built = build_family(root, "llm-7b", recipe=Recipe(world_size=1))
        first = Family(Location(store=built.store, keys=built.keys, generation=None))
        store = AttendedStore(built.root, after, lambda one=first, at=built.newest: one.verify(at))
        second = Family(Location(store=store, keys=built.keys, generation=None))
        attempt = second.due_attempt(built.newest, Tier.MANIFEST)
        if store.readings <= after:
            break
        met += 1
        if attempt is not None:
            judged = second.judge(built.newest)
            second.keep(judged.verdict, built.newest, judged.started_at, judged.measurements, attempt=attempt)
        records = list_records(built.store, built.keys)
        assert [(one.generation, one.attempt) for one in records] == [(str(built.newest), 1)], f"after reading {after}"
    assert met >= 3, "the manifest and two listings of what is on record"


def test_a_pass_stands_though_a_second_verifier_could_not_tell(built: BuiltFamily, family: Family) -> None:
    """Of two verifiers one may hit a sick disk; a save that is proven must not be read, and recorded, once more."""
    attempt = family.due_attempt(built.newest, Tier.MANIFEST)
    judged = family.judge(built.newest)
    for verdict in (judged.verdict, could_not_tell(family)):
        family.keep(verdict, built.newest, judged.started_at, judged.measurements, attempt=attempt)
    outcomes = [record.verdict.outcome for record in list_records(built.store, built.keys)]
    assert outcomes == [Outcome.PASS, Outcome.INCONCLUSIVE]
    assert family.due_attempt(built.newest, Tier.MANIFEST) is None
    assert built.newest not in family.unjudged()
    assert family.latest().notes == (), "its bytes were read"


def test_a_full_pass_stands_though_somebody_looked_at_sizes_later(built: BuiltFamily, family: Family) -> None:
    """A weaker look by hand takes nothing away from the evidence that there is."""
    family.verify(built.newest)
    family.verify(built.newest, depth=Depth.METADATA)
    assert family.due_attempt(built.newest, Tier.MANIFEST) is None
    assert family.due_attempt(built.newest, Tier.MANIFEST, older_than=timedelta(0)) == 3


def test_evidence_that_nobody_could_renew_ages_all_the_same(built: BuiltFamily, family: Family) -> None:
    """A gate that could not tell must not make old evidence look fresh."""
    family.verify(built.newest)
    family.keep(could_not_tell(family), built.newest, datetime.now(UTC), Measurements())
    assert family.due_attempt(built.newest, Tier.MANIFEST, older_than=timedelta(days=1)) is None
    assert family.due_attempt(built.newest, Tier.MANIFEST, older_than=timedelta(0)) == 3


def test_status_speaks_of_a_family_with_a_spoiled_record(
    built: BuiltFamily, family: Family, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 3 a.m. one torn file of evidence must not hide what may be resumed."""
    for generation in built.generations[-2:]:
        family.verify(generation)
    for record in (built.root / built.keys.records / str(built.newest)).iterdir():
        record.chmod(0o644)
        record.write_bytes(b"\xff torn")
    assert run(["status", family.location.family_uri]) == 0
    shown = capsys.readouterr().out
    assert str(built.newest) in shown
    assert "could not tell" not in shown.lower()


def put_aside(directory: Path, elsewhere: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    elsewhere.mkdir()
    directory.symlink_to(elsewhere)


@pytest.mark.parametrize("prefix", ["staging", "manifests"])
def test_a_sweep_removes_nothing_behind_a_link(built: BuiltFamily, family: Family, tmp_path: Path, prefix: str) -> None:
    """Whoever may write into one family must not reach the stagings of another through the sweep."""
    built = build_life(built, steps=[60], recipe=Recipe(world_size=1))
    elsewhere, key = tmp_path / "elsewhere", getattr(built.keys, prefix)
    put_aside(built.root / key, elsewhere)
    (elsewhere / "00000001-0000000000000900~ffffffff").mkdir()
    (elsewhere / ".tmp-0123456789abcdef").write_bytes(b"theirs")
    swept = sweep(family.location, now=LATER)
    assert len(list(elsewhere.iterdir())) == 2
    assert any("link" in error.message for error in swept.errors)
    with pytest.raises(StorePermanentError, match="link"):
        built.store.sweep(key, before=LATER)


def test_a_family_that_is_a_link_itself_is_swept(built: BuiltFamily, family: Family, tmp_path: Path) -> None:
    """People put a large family onto another disk and leave a link; its leftovers must go as anybody's."""
    home = built.root / built.family
    home.rename(tmp_path / "big")
    home.symlink_to(tmp_path / "big")
    left = built.root / built.keys.commits / ".tmp-0123456789abcdef"
    left.write_bytes(b"left")
    assert sweep(family.location, now=LATER).errors == ()
    assert not left.exists()


def test_a_sweep_on_a_machine_whose_clock_is_ahead_leaves_what_is_being_written(
    built: BuiltFamily, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher links its marker from a temporary file; a sweep a day ahead of it would fail save after save."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=30)

    monkeypatch.setattr("lastgood.reconcile.datetime", Ahead)
    written = built.root / built.keys.commits / ".tmp-0123456789abcdef"
    written.write_bytes(b"a marker under way")
    assert tidy(family.location).removed == ()
    assert written.exists()
