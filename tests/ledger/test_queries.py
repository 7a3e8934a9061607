"""What the report is told: columns that are a promise, the newest evidence, and why something is no pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.family import Family
from lastgood.ledger import Ledger, open_ledger, queries
from lastgood.ledger.rows import MAXIMUM_CHARACTERS, storable
from lastgood.location import locate
from lastgood.reasons import Reason
from lastgood.testing.evidence import HOSTILE, Past, fabricate
from tests.ledger.conftest import EVENTFUL, UNTIL
from tests.ledger.contents import contents
from tests.ledger.server import PROGRAM, new_database

FAMILY = "llm-7b"

RECORD = (
    "family", "generation", "step", "attempt", "outcome", "rung", "started_at", "finished_at", "seconds", "read_bytes",
    "reasons", "message", "offender", "hint", "host", "origin",
)  # fmt: skip
REPLICA = ("read_seconds", "read_bytes_per_second", "discovery_seconds", "load_seconds", "first_step_seconds")


@pytest.fixture
def filled(ledger: Ledger, root: Path) -> Ledger:
    fabricate(root, FAMILY, EVENTFUL)
    ledger.update({FAMILY: str(root / FAMILY)})
    return ledger


def test_columns_are_a_promise(filled: Ledger) -> None:
    """The report and whoever reads its frames take columns by name; a renamed one would be an empty one."""
    with filled.reading() as moment:
        assert queries.verifications(moment).columns == RECORD
        assert queries.restores(moment).columns == (*RECORD, *REPLICA)
        assert queries.drills(moment).columns == (*RECORD, *REPLICA, "rpo_loss_steps", "rto_seconds")
        assert queries.phases(moment).columns == ("family", "generation", "attempt", "phase", "seconds")
        assert queries.saves(moment).columns[:11] == (
            "family", "run", "generation", "incarnation", "step", "created_at", "bytes", "artifacts", "world_size",
            "state", "purpose",
        )  # fmt: skip
        assert queries.families(moment).columns[:11] == (
            "family", "uri", "state", "latest", "last_good", "quarantine", "candidates", "proven", "publishes_begun",
            "committed", "newest_save_at",
        )  # fmt: skip
        assert queries.checks(moment).columns[:6] == ("family", "generation", "tier", "check", "outcome", "detail")


def test_bandwidth_is_what_was_read_by_the_time_that_took(filled: Ledger) -> None:
    """It is kept nowhere, so that no record can contradict itself; whoever reads frames needs no arithmetic."""
    with filled.reading() as moment:
        rows = [*queries.restores(moment).mappings(), *queries.drills(moment).mappings()]
    measured = [row for row in rows if row["read_seconds"] is not None]
    assert measured
    for row in measured:
        assert row["read_bytes_per_second"] == pytest.approx(row["read_bytes"] / row["read_seconds"])
    assert all(row["read_bytes_per_second"] is None for row in rows if row not in measured)


def test_the_counters_of_a_family_are_those_of_its_past(filled: Ledger, root: Path) -> None:
    """Creation and recovery are judged by these numbers, and `lastgood status` must not say another thing."""
    with filled.reading() as moment:
        (told,) = queries.families(moment).mappings()
        states = [row["state"] for row in queries.saves(moment).mappings()]
    family = Family(locate(str(root / FAMILY)))
    survey = family.survey()
    assert told["state"] == "quarantined"
    assert told["last_good"] == str(survey.newest_proven)
    assert told["latest"] == str(family.latest().generation)
    assert told["quarantine"] == ",".join(survey.quarantine)
    assert (told["publishes_begun"], told["committed"]) == (24, 21)
    assert told["candidates"] == states.count("candidate")
    assert told["proven"] == len(
        {one for one in survey.proven if one in survey.candidates and one not in survey.barred}
    )
    assert {state: states.count(state) for state in set(states)} == {
        "candidate": 16, "barred": 4, "fenced": 1, "burned": 1,
    }  # fmt: skip


def test_checks_are_those_of_the_newest_evidence(filled: Ledger, root: Path) -> None:
    """The family verdict is judged over them, so they must come from the records that `status` calls the newest."""
    newest = Family(locate(str(root / FAMILY))).newest_evidence()
    with filled.reading() as moment:
        told = queries.checks(moment).mappings()
    assert [(row["tier"], row["generation"], row["check"], row["outcome"]) for row in told] == [
        (tier, record.generation, check.name, check.outcome)
        for tier, record in newest.items()
        for check in record.verdict.checks
    ]


def test_an_inconclusive_gate_hides_no_conclusive_evidence(ledger: Ledger, root: Path) -> None:
    """A night without a free device changes nothing: what was shown before stays shown, and ages."""
    past = Past(until=UNTIL, saves=4, restore_every=1, drill_every=0, inconclusive=8)
    fabricate(root, FAMILY, past)
    newest = max((root / FAMILY / ".lastgood" / "records").glob("*-0000000000000400/*-tier2-0002.json"))
    newest.unlink()  # the second attempt has not come yet
    ledger.update({FAMILY: str(root / FAMILY)})
    with ledger.reading() as moment:
        every = {row["generation"]: row["verdict"] for row in queries.checks(moment).mappings() if row["tier"] == 2}
        shown = {
            row["generation"]: row["verdict"]
            for row in queries.checks(moment, conclusive=True).mappings()
            if row["tier"] == 2
        }
    assert every == {"00000001-0000000000000400": "inconclusive"}
    assert shown == {"00000001-0000000000000300": "pass"}


def test_what_is_no_pass_says_why(filled: Ledger) -> None:
    """A row that only says fail sends its reader to look for a document at three in the morning."""
    with filled.reading() as moment:
        rows = [
            row
            for query in (queries.verifications, queries.restores, queries.drills)
            for row in query(moment).mappings()
        ]
        told = queries.findings(moment).mappings()
    failed = [row for row in rows if row["outcome"] == "fail"]
    assert len(failed) == len(told) == 5
    assert all(row["hint"] == Reason(row["reasons"]).hint and row["message"] and row["offender"] for row in failed)
    unclear = [row for row in rows if row["outcome"] == "inconclusive"]
    assert len(unclear) == 6
    assert all(row["message"].startswith("the store did not answer") and not row["reasons"] for row in unclear)
    assert {row["offender"] for row in unclear} <= {"digests", "replica_ended", "fault_fired"}
    assert all(row["message"] is None for row in rows if row["outcome"] == "pass")


def test_only_the_named_families_are_told(ledger: Ledger, root: Path) -> None:
    """A report about one family must not average in another."""
    for family in ("a", "b"):
        fabricate(root, family, Past(until=UNTIL, saves=3))
    ledger.update({family: str(root / family) for family in ("a", "b")})
    with ledger.reading() as moment:
        for query in (queries.families, queries.saves, queries.publishes, queries.verifications, queries.checks):
            assert {row["family"] for row in query(moment).mappings()} == {"a", "b"}
            assert {row["family"] for row in query(moment, names=["b"]).mappings()} == {"b"}
            assert queries.saves(moment, names=[]).rows == ()


def test_text_comes_back_as_it_was_but_for_what_no_database_holds(filled: Ledger) -> None:
    """Escaping is for whoever shows it; a text that was cleaned on the way would hide what somebody tried."""
    with filled.reading() as moment:
        assert {row["run"] for row in queries.saves(moment).mappings()} >= {
            f"{FAMILY}-run {HOSTILE.replace(chr(0), chr(0xFFFD))}"
        }
    assert storable("x" * (MAXIMUM_CHARACTERS + 1)) == "x" * (MAXIMUM_CHARACTERS - 1) + "…"


@pytest.mark.service(PROGRAM)
def test_postgresql_and_sqlite_hold_the_same_ledger(server: Path, root: Path, tmp_path: Path) -> None:
    """A team that moves from one to the other must find every figure again, in the same order."""
    names = ("a-b", "a_b", "A", "é", "b")
    for family in names:
        fabricate(root, family, EVENTFUL)
    urls = (f"sqlite:///{tmp_path / 'ledger.sqlite'}", new_database(server, "same"))
    told, held = [], []
    for url in urls:
        with open_ledger(url, now=lambda: UNTIL) as ledger:
            ledger.update({family: str(root / family) for family in names})
            held.append(contents(ledger))
            with ledger.reading() as moment:
                told.append([getattr(queries, name)(moment) for name in queries.FRAMES])
    assert held[0] == held[1]
    assert told[0] == told[1]
