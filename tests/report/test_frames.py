"""Frames: columns that are a promise, the same on every database, and families that nothing is known of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pandas
import pytest

from lastgood.ledger import open_ledger, queries
from lastgood.report.building import read_frames
from lastgood.report.frames import COLUMNS, COUNT, TEXT, Frames, make_frame
from lastgood.report.indicators import INDICATOR_COLUMNS, measure
from lastgood.report.report import OBJECTIVE_COLUMNS
from lastgood.testing.evidence import Past, fabricate
from tests.ledger.conftest import EVENTFUL
from tests.ledger.server import PROGRAM, new_database
from tests.report.healthy import NOW, healthy

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


def test_the_frames_of_one_family_hold_no_row_of_another() -> None:
    """A page's section draws its own family, however many there are."""
    frames = healthy("a", "b").frames()
    for name in NAMES:
        own = getattr(frames.of_family("a"), name)
        assert set(own["family"]) == {"a"}
        assert len(own) * 2 == len(getattr(frames, name))
