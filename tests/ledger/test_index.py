"""The ledger follows storage: what is new, what changed standing, what is gone, what cannot be read."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood.family import Family
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.ledger import Ledger, open_ledger, queries
from lastgood.location import locate
from lastgood.records import list_records
from lastgood.testing.build import build_family
from lastgood.testing.evidence import Past, StoredDocument, fabricate, fabricate_documents
from lastgood.verdict import Tier
from tests.ledger.conftest import EVENTFUL, UNTIL
from tests.ledger.contents import contents

FAMILY = "llm-7b"
KEYS = FamilyKeys(FAMILY)


def uris(root: Path, *families: str) -> dict[str, str]:
    return {family: str(root / family) for family in families or (FAMILY,)}


def store(root: Path, document: StoredDocument, data: bytes | None = None) -> None:
    path = root / document.key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(document.data if data is None else data)


def record_path(root: Path, number: int = 0) -> Path:
    return sorted((root / KEYS.records).glob("*/*.json"))[number]


@pytest.mark.parametrize("seed", range(4))
def test_a_rebuild_makes_the_rows_that_any_updates_made(url: str, root: Path, tmp_path: Path, seed: int) -> None:
    """The ledger is an index only if nobody can see how it came to be: what arrived late, or torn, or went away."""
    luck = random.Random(seed)
    documents = list(fabricate_documents(FAMILY, EVENTFUL))
    luck.shuffle(documents)
    doomed = {document.key for document in documents if luck.random() < 0.02}
    with open_ledger(url) as ledger:
        for document in documents:
            torn = document.data[: len(document.data) // 2] if luck.random() < 0.1 else None
            store(root, document, torn)
            if luck.random() < 0.03:
                ledger.update(uris(root))
            if torn is not None and (KEYS.records in document.key or luck.random() < 0.9):
                store(root, document)
        for key in doomed:
            if "/incarnations/" not in key and (root / key).exists() and "/staging/" not in key:
                (root / key).unlink()
        ledger.update(uris(root))
        kept = contents(ledger)
        ledger.rebuild(uris(root))
        assert contents(ledger) == kept
    with open_ledger(f"sqlite:///{tmp_path / 'fresh.sqlite'}") as fresh:
        fresh.update(uris(root))
        assert contents(fresh) == kept
    assert len(kept["records"]) > 30


def test_every_save_and_record_is_there_once(ledger: Ledger, root: Path) -> None:
    """What the ledger says is what storage holds: no record is lost, doubled or changed on the way."""
    fabricate(root, FAMILY, EVENTFUL)
    (indexed,) = ledger.update(uris(root))
    location = locate(str(root / FAMILY))
    survey, stored = Family(location).survey(), list_records(location.store, location.keys)
    with ledger.reading() as moment:
        saves = queries.saves(moment).mappings()
        told = [
            (row["generation"], tier, row["attempt"], row["outcome"], row["started_at"], row["seconds"])
            for tier, query in zip(Tier, (queries.verifications, queries.restores, queries.drills), strict=True)
            for row in query(moment).mappings()
        ]
    assert [row["generation"] for row in saves] == sorted(map(str, (*survey.candidates, *survey.fenced)))
    assert sorted(told) == sorted(
        (one.generation, one.tier, one.attempt, one.verdict.outcome, one.started_at, one.measurements.seconds)
        for one in stored
    )
    assert (indexed.new_saves, indexed.new_records, indexed.malformed) == (len(saves), len(stored), ())


def test_a_known_document_is_never_read_again(ledger: Ledger, root: Path) -> None:
    """An update costs what is new, or it could not run beside every save; bytes that rot are the rebuild's to find."""
    fabricate(root, FAMILY, Past(until=UNTIL, saves=6))
    ledger.update(uris(root))
    before = contents(ledger)
    record_path(root).write_bytes(b"rotten")
    next((root / KEYS.manifests).iterdir()).write_bytes(b"rotten")
    (again,) = ledger.update(uris(root))
    assert (again.new_saves, again.new_records, again.exit_code) == (0, 0, 0)
    assert contents(ledger) == before
    (rebuilt,) = ledger.rebuild(uris(root))
    assert len(rebuilt.malformed) == 2


def _garbage(path: Path, root: Path) -> None:
    path.write_bytes(b"{")


def _of_another_key(path: Path, root: Path) -> None:
    path.write_bytes(record_path(root, 1).read_bytes())


def _of_another_family(path: Path, root: Path) -> None:
    path.write_bytes(path.read_bytes().replace(FAMILY.encode(), b"another"))


def _of_a_later_version(path: Path, root: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"schema_version":1', b'"schema_version":2'))


def _of_no_calendar(path: Path, root: Path) -> None:
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps(record | {"started_at": "0001-01-01T00:00:00+14:00"}))


def _pipe(path: Path, root: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path, root: Path) -> None:
    path.unlink()
    path.symlink_to(record_path(root, 1))


@pytest.mark.parametrize(
    "spoil", [_garbage, _of_another_key, _of_another_family, _of_a_later_version, _of_no_calendar, _pipe, _link]
)
def test_a_malformed_record_is_named_and_the_others_are_in(
    ledger: Ledger, root: Path, spoil: Callable[[Path, Path], None]
) -> None:
    """One bad object, put there by anybody, must neither hide evidence nor pass for some."""
    fabricate(root, FAMILY, Past(until=UNTIL, saves=6))
    path = record_path(root)
    whole = path.read_bytes()
    spoil(path, root)
    (indexed,) = ledger.update(uris(root))
    assert indexed.failure is None
    (bad,) = indexed.malformed
    assert bad.key == f"records/{path.parent.name}/{path.name}"
    assert f"{KEYS.records}/{path.parent.name}/{path.name}" in bad.message
    assert indexed.exit_code == 1
    with ledger.reading() as moment:
        assert queries.malformed(moment).rows == ((FAMILY, bad.key, bad.message),)
        assert len(queries.verifications(moment).rows) == 5
    path.unlink()
    path.write_bytes(whole)
    (healed,) = ledger.update(uris(root))
    assert (healed.new_records, healed.malformed, healed.exit_code) == (1, (), 0)


def test_a_save_whose_manifest_is_gone_is_still_a_save(ledger: Ledger, root: Path) -> None:
    """A commit that nothing describes any more must not vanish from the count of what was promised."""
    fabricate(root, FAMILY, Past(until=UNTIL, saves=4))
    (root / KEYS.manifest(GenerationId(1, 200))).unlink()
    (indexed,) = ledger.update(uris(root))
    assert [bad.key for bad in indexed.malformed] == ["manifests/00000001-0000000000000200.json"]
    with ledger.reading() as moment:
        saves = {row["step"]: row for row in queries.saves(moment).mappings()}
    assert (saves[200]["state"], saves[200]["run"], saves[200]["bytes"]) == ("candidate", None, None)
    assert saves[300]["run"] == f"{FAMILY}-run"


def test_a_store_that_cannot_tell_leaves_what_was_known(ledger: Ledger, root: Path) -> None:
    """An unmounted file system is no empty family: the report must say so and go on showing what it knew."""
    fabricate(root, FAMILY, EVENTFUL)
    ledger.update(uris(root))
    before = contents(ledger)
    away = root.rename(root.with_name("away"))
    for act in (ledger.update, ledger.rebuild):
        (indexed,) = act(uris(root))
        assert indexed.exit_code == 2
        assert "root is not a directory" in str(indexed.failure)
        assert contents(ledger) == before
    with ledger.reading() as moment:
        (family,) = queries.families(moment).mappings()
    assert (family["state"], family["committed"], family["hint"] is None) == ("could not tell", 21, False)
    away.rename(root)
    ledger.update(uris(root))
    with ledger.reading() as moment:
        (family,) = queries.families(moment).mappings()
    assert (family["state"], family["failure"]) == ("quarantined", None)


def test_a_reading_that_breaks_off_changes_nothing(ledger: Ledger, root: Path) -> None:
    """Half a family would be a lie that looks like one moment: saves that nobody judged, or passes without saves."""
    fabricate(root, FAMILY, Past(until=UNTIL, saves=4))
    fabricate(root, "other", Past(until=UNTIL, saves=4))
    ledger.update(uris(root))
    before = contents(ledger)
    fabricate(root, FAMILY, Past(until=UNTIL, saves=8))
    records = root / KEYS.records
    records.rename(root / "records")
    records.write_bytes(b"not a directory")
    broken, other = ledger.update(uris(root, FAMILY, "other"))
    assert (broken.exit_code, other.exit_code) == (2, 0)
    after = contents(ledger)
    assert {row for row in after["generations"] if row[0] == FAMILY} == set(before["generations"])
    assert len(after["generations"]) == 8


def test_a_decision_that_is_not_lawful_is_said_and_guessed_past_by_nobody(ledger: Ledger, root: Path) -> None:
    """Which saves are kept is unknown then, and yesterday's answer stands as yesterday's."""
    fabricate(root, FAMILY, Past(until=UNTIL, saves=4))
    ledger.update(uris(root))
    (root / KEYS.resume(1)).write_bytes(b"{")
    (indexed,) = ledger.update(uris(root))
    assert indexed.exit_code == 1
    assert "incarnations/00000001.resume" in str(indexed.failure)


def test_a_rollback_changes_the_standing_of_known_saves(ledger: Ledger, root: Path) -> None:
    """Records never change, but what they are worth does: the ledger follows decisions, refusals and releases."""
    built = build_family(root, FAMILY, steps=(10, 20, 30))
    family = Family(locate(str(root / FAMILY)))
    ledger.update(uris(root))
    family.rollback(built.generations[1], reason="loss spiked")
    family.quarantine(reason="bad shard", generation=built.generations[0])
    ledger.update(uris(root))
    with ledger.reading() as moment:
        assert [row["state"] for row in queries.saves(moment).mappings()] == ["barred", "candidate", "fenced"]
        (told,) = queries.families(moment).mappings()
    assert told["state"] == "quarantined"
    assert told["quarantine"].startswith("operator-")
    assert (told["latest"], told["candidates"], told["committed"]) == (None, 1, 3)
    family.release(reason="it was the disk")
    ledger.update(uris(root))
    with ledger.reading() as moment:
        (told,) = queries.families(moment).mappings()
    assert (told["state"], told["latest"]) == ("ready", str(built.generations[1]))


def test_a_family_that_moved_is_read_anew(ledger: Ledger, root: Path) -> None:
    """Of a family under another root nothing is known: rows of the old place would mix two runs of one name."""
    fabricate(root, FAMILY, Past(until=UNTIL, saves=6))
    ledger.update(uris(root))
    (root / "elsewhere").mkdir()
    fabricate(root / "elsewhere", FAMILY, Past(until=UNTIL, saves=3))
    (moved,) = ledger.update(uris(root / "elsewhere"))
    assert moved.new_saves == 3
    with ledger.reading() as moment:
        assert len(queries.saves(moment).rows) == 3
        assert [row["uri"] for row in queries.families(moment).mappings()] == [str(root / "elsewhere" / FAMILY)]


def test_a_family_without_a_save_is_known_and_empty(ledger: Ledger, root: Path) -> None:
    """A job that has not saved yet is no error, and the report must be able to name it."""
    (indexed,) = ledger.update(uris(root))
    assert indexed.exit_code == 0
    with ledger.reading() as moment:
        (told,) = queries.families(moment).mappings()
    assert (told["state"], told["publishes_begun"], told["newest_save_at"]) == ("nothing to resume", 0, None)


def test_processes_that_update_at_once_leave_one_ledger(url: str, root: Path, tmp_path: Path) -> None:
    """Two flows finish at the same minute, on a ledger that nobody has made yet: neither may fail or double a row."""
    fabricate(root, FAMILY, Past(until=UNTIL, saves=40))
    fabricate(root, "other", EVENTFUL)
    program = (
        "import json, sys; from lastgood.ledger import open_ledger\n"
        "with open_ledger(sys.argv[1]) as ledger:\n"
        "    told = [one for _ in range(3) for one in ledger.update(json.loads(sys.argv[2]))]\n"
        "assert all(one.exit_code == 0 for one in told), told"
    )
    arguments = [sys.executable, "-c", program, url, json.dumps(uris(root, FAMILY, "other"))]
    running = [subprocess.Popen(arguments, stderr=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate(timeout=200)[1] for process in running] == [b""] * 4
    assert [process.returncode for process in running] == [0] * 4
    with open_ledger(url) as raced, open_ledger(f"sqlite:///{tmp_path / 'alone.sqlite'}") as alone:
        alone.update(uris(root, FAMILY, "other"))
        assert contents(raced) == contents(alone)


def test_only_named_families_are_kept(ledger: Ledger, root: Path) -> None:
    """A family that nobody configures any more would be red in the report for ever."""
    for family in (FAMILY, "old"):
        fabricate(root, family, EVENTFUL)
    ledger.update(uris(root, FAMILY, "old"))
    assert ledger.keep_only({FAMILY: None}) == ("old",)
    assert {row[0] for row in contents(ledger)["generations"]} == {FAMILY}
    assert {row[0] for row in contents(ledger)["records"]} == {FAMILY}
