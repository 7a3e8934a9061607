"""Frames: columns that are a promise, the same on every database, and families that nothing is known of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pandas
import pytest

from lastgood.family import Family
from lastgood.ledger import open_ledger, queries
from lastgood.location import locate
from lastgood.records import Measurements
from lastgood.report.building import read_frames
from lastgood.report.frames import COLUMNS, COUNT, TEXT, Frames, make_frame, newest_of_each
from lastgood.report.indicators import INDICATOR_COLUMNS, measure
from lastgood.report.report import OBJECTIVE_COLUMNS
from lastgood.testing.evidence import Past, fabricate
from lastgood.verdict import Check, CheckState, Finding, Reason, Rung, Tier, judge
from tests.ledger.conftest import EVENTFUL
from tests.ledger.server import PROGRAM, new_database
from tests.report.healthy import NOW, ago, healthy, record

NAMES = [one.name for one in fields(Frames)]


def test_columns_are_a_promise(golden: Callable[[str, bytes], None]) -> None:
    """Notebooks and dashboards take columns by name, so one that is renamed is one that they no longer see."""
    told = {**COLUMNS, "indicators": INDICATOR_COLUMNS, "objectives": OBJECTIVE_COLUMNS}
    spelled = {name: dict(columns) for name, columns in told.items()}
    golden("report-columns.json", json.dumps(spelled, indent=2).encode() + b"\n")


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_frame_has_its_columns_and_types(name: str) -> None:
    """The first report of an installation is about nothing yet, and must not fail for want of a column."""
    empty, full = getattr(Frames.of(), name), getattr(healthy().frames(), name)
    assert {column: str(kind) for column, kind in empty.dtypes.items()} == dict(COLUMNS[name])
    assert (empty.dtypes == full.dtypes).all()
    assert not full.empty


def test_what_is_not_there_is_never_a_number() -> None:
    """A restore that measured no load did not load in no time; text that is missing is empty, and a count is zero."""
    frame = make_frame("restores", [{"family": "a", "load_seconds": None, "message": None, "attempt": 1, "step": None}])
    assert frame["load_seconds"].isna().all()
    assert frame["finished_at"].isna().all()
    assert (frame.loc[0, "message"], frame.loc[0, "step"]) == ("", 0)


def test_rows_and_columns_make_the_same_frame() -> None:
    """The ledger answers by column and tests by row; neither may shift a value."""
    rows = healthy().saves
    columns = {name: [row.get(name) for row in rows] for name in COLUMNS["saves"]}
    pandas.testing.assert_frame_equal(make_frame("saves", rows), make_frame("saves", columns))


def ledger_of(url: str, root: Path) -> tuple[Frames, pandas.DataFrame]:
    with open_ledger(url, now=lambda: NOW) as ledger:
        ledger.update({name: str(root / name) for name in ("llm-7b", "quiet")})
        frames = read_frames(ledger, ["llm-7b", "quiet", "never-read"])
    return frames, measure(frames, {}, NOW)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    fabricate(tmp_path / "runs", "llm-7b", EVENTFUL)
    fabricate(tmp_path / "runs", "quiet", Past(until=NOW, saves=3, restore_every=0))
    return tmp_path / "runs"


@pytest.mark.service(PROGRAM)
def test_postgresql_and_sqlite_give_the_same_report(root: Path, tmp_path: Path, server: Path) -> None:
    """A team that moves its ledger to a server must not see another report the next morning."""
    mine, my_figures = ledger_of(f"sqlite:///{tmp_path / 'ledger.sqlite'}", root)
    theirs, their_figures = ledger_of(new_database(server, "report"), root)
    for name in NAMES:
        pandas.testing.assert_frame_equal(getattr(mine, name), getattr(theirs, name), obj=name)
    pandas.testing.assert_frame_equal(my_figures, their_figures)


def test_frames_hold_what_the_ledger_holds(root: Path, tmp_path: Path) -> None:
    """A row that is lost between the ledger and the page is evidence that nobody sees."""
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    frames, _ = ledger_of(url, root)
    with open_ledger(url) as ledger, ledger.reading() as moment:
        for name in ("saves", "publishes", "verifications", "restores", "drills", "phases", "checks"):
            told = getattr(queries, name)(moment).mappings()
            frame = getattr(frames, name)
            assert len(frame) == len(told) > 0
            for column, kind in COLUMNS[name].items():
                if kind in (TEXT, COUNT):
                    assert frame[column].tolist() == [row[column] or type(frame[column].iloc[0])() for row in told]


def test_a_family_stands_in_the_report_before_anything_is_known_of_it(root: Path, tmp_path: Path) -> None:
    """Silence about a configured family would look like health."""
    frames, figures = ledger_of(f"sqlite:///{tmp_path / 'ledger.sqlite'}", root)
    assert frames.families["family"].tolist() == figures["family"].tolist() == ["llm-7b", "quiet", "never-read"]
    assert frames.families["state"].tolist() == ["quarantined", "ready", "could not tell"]
    assert frames.families["verdict"].tolist() == ["fail", "not_run", "not_run"]
    assert frames.families["why"].tolist()[1:] == [
        "not shown: strict loading reports no unexplained keys: no record of tier 2",
        "not shown: every required artifact verifies: no record of tier 1",
    ]
    assert "quarantined by" in frames.families["why"].iloc[0]
    assert frames.criteria.groupby("family").size().tolist() == [6, 6, 6]


@pytest.mark.parametrize("rung", [Rung.LOAD_ONLY, Rung.TOPOLOGY_CHANGE])
def test_a_weaker_rung_that_passed_replaces_no_full_evidence(tmp_path: Path, rung: Rung) -> None:
    """Whoever loads a save by hand has shown less than the night did: the verdict stands, on the record it stood on."""
    (tmp_path / "runs").mkdir()
    fabricate(tmp_path / "runs", "llm-7b", Past(until=NOW, saves=8))
    before = verdict_of(tmp_path)
    assert before.families["verdict"].tolist() == ["pass"]
    keep_weaker(tmp_path, rung)
    after = verdict_of(tmp_path)
    assert len(after.restores) == len(before.restores) + 1
    for name in ("families", "criteria", "checks"):
        pandas.testing.assert_frame_equal(getattr(after, name), getattr(before, name), obj=name)


def test_a_weaker_rung_that_failed_fails_the_family(tmp_path: Path) -> None:
    """What does not even load is broken, however far the gate meant to go; a release heals no verdict."""
    (tmp_path / "runs").mkdir()
    fabricate(tmp_path / "runs", "llm-7b", Past(until=NOW, saves=8))
    keep_weaker(tmp_path, Rung.LOAD_ONLY, fails=True)
    Family(locate(str(tmp_path / "runs" / "llm-7b"))).release(reason="looked at")
    (told,) = verdict_of(tmp_path).families.to_dict("records")
    assert (told["state"], told["verdict"], told["strict_load"]) == ("ready", "fail", "failed")


def test_a_weaker_rung_is_shown_where_there_is_nothing_else(tmp_path: Path) -> None:
    """A first look that only loaded has shown that much, and what it left open is named."""
    (tmp_path / "runs").mkdir()
    fabricate(tmp_path / "runs", "llm-7b", Past(until=NOW, saves=8, restore_every=0))
    keep_weaker(tmp_path, Rung.LOAD_ONLY)
    frames = verdict_of(tmp_path)
    (told,) = frames.families.to_dict("records")
    assert (told["verdict"], told["strict_load"], told["smoke_step"]) == ("not_run", "held", "not_shown")
    assert "rung is load_only" in told["why"]
    assert frames.checks[frames.checks["tier"] == 2]["check"].tolist() == ["generation_discovered", "strict_load"]


def verdict_of(directory: Path) -> Frames:
    with open_ledger(f"sqlite:///{directory / 'ledger.sqlite'}", now=lambda: NOW) as ledger:
        ledger.update({"llm-7b": str(directory / "runs" / "llm-7b")})
        return read_frames(ledger, ["llm-7b"])


def keep_weaker(directory: Path, rung: Rung, *, fails: bool = False) -> None:
    """Put one more verdict on the newest save on record."""
    family = Family(locate(str(directory / "runs" / "llm-7b")), now=lambda: NOW)
    generation = family.survey().candidates[0]
    findings = (Finding(reason=Reason.KEY_MISSING, message="key missing: w", offender="model"),) if fails else ()
    checks = (
        Check(name="generation_discovered", state=CheckState.RAN, detail="2 of 2 ranks"),
        Check(name="strict_load", state=CheckState.RAN, detail="2 of 2 ranks", findings=findings),
    )
    verdict = judge(tier=Tier.RESTORE, rung=rung, subject="llm-7b", checks=checks, required=("strict_load",))
    family.keep(verdict, generation, NOW, Measurements(seconds=1.0))


def test_the_newest_record_of_a_family_is_no_weaker_pass() -> None:
    """A page and an alarm that show the newest outcome must not turn green because somebody looked in."""
    rows = [
        record("a", 100, ago(hours=3)),
        record("a", 200, ago(hours=2), outcome="fail"),
        record("a", 300, ago(hours=1), rung="load_only"),
        record("b", 100, ago(hours=3)),
        record("b", 200, ago(hours=2), outcome="fail", rung="load_only"),
        record("c", 100, ago(hours=3), rung="load_only"),
    ]
    newest = newest_of_each(make_frame("restores", rows)).set_index("family")
    assert newest["step"].to_dict() == {"a": 200, "b": 200, "c": 100}
