"""What it costs to make the ledger of 100,000 records again from storage, and whether that grows with their number."""

from __future__ import annotations

import shutil
import statistics
from datetime import UTC, datetime

from benchmarks.harness import Benchmark, Row, Setting, wall
from lastgood.ledger import Ledger, open_ledger, queries
from lastgood.testing.evidence import Past, fabricate
from tests.ledger.server import PROGRAM, new_database, postgresql

RECORDS = 100_000
FAMILIES = 4
SAVES = 67_200  # with their restores, drills and repeated gates a little more than RECORDS
LIMIT_SECONDS = 60.0
LINEAR = 1.3
"""Four times the records may cost this much more for each: indexes are a few levels deeper, and no more."""


def ledger(setting: Setting) -> tuple[Row, ...]:
    root = setting.workspace / "runs"
    root.mkdir()
    uris = {}
    for number in range(FAMILIES):
        saves = SAVES // FAMILIES
        past = Past(
            until=datetime(2026, 3, 1, tzinfo=UTC),
            saves=saves,
            lives=10,
            failed_verifications=saves // 100,
            failed_restores=saves // 200,
            failed_drills=saves // 200,
            inconclusive=saves // 7,
            abandoned=saves // 200,
            payload="newest",
            seed=number,
        )
        name = f"family-{number}"
        fabricate(root, name, past)
        uris[name] = str(root / name)
    rows = list(_on("SQLite", f"sqlite:///{setting.workspace / 'ledger.sqlite'}", uris))
    if shutil.which(PROGRAM):
        with postgresql() as home:
            rows.extend(_on("PostgreSQL", new_database(home, "bench"), uris))
    return tuple(rows)


def _on(database: str, url: str, uris: dict[str, str]) -> list[Row]:
    """Read a quarter, a half, all and a quarter again; then all over a full ledger, and once more with nothing new."""
    names = list(uris)
    each: dict[int, list[float]] = {}
    made, found = 0.0, 0
    with open_ledger(url) as opened:
        # A quarter before and after: a neighbour who came meanwhile is met by both sides of the comparison.
        for count in (1, 2, FAMILIES, 1):
            some = {name: uris[name] for name in names[:count]}
            opened.keep_only({})
            seconds = wall(lambda some=some: opened.rebuild(some))  # type: ignore[misc]
            records = _records(opened)
            each.setdefault(count, []).append(seconds / records)
            if count == FAMILIES:
                made, found = seconds, records
        opened.rebuild(uris)
        again = wall(lambda: opened.rebuild(uris))
        nothing = wall(lambda: opened.update(uris))
    costs = {count: statistics.mean(some) for count, some in each.items()}
    detail = ", ".join(f"{1e6 * cost:.0f} µs at {RECORDS * count // FAMILIES:,}" for count, cost in costs.items())
    what = f"`lastgood ledger rebuild`, {database}"
    return [
        Row(
            what=f"{what}, {found:,} records",
            against="a minute",
            measured=made,
            at_most=LIMIT_SECONDS,
            unit="s",
            detail=f"from nothing; {again:.3g} s over a full ledger; an update with nothing new {nothing:.3g} s",
        ),
        Row(
            what=f"{what}, a record at {RECORDS:,}",
            against=f"at {RECORDS // FAMILIES:,}",
            measured=costs[FAMILIES] / costs[1],
            at_most=LINEAR,
            detail=detail,
        ),
    ]


def _records(opened: Ledger) -> int:
    with opened.reading() as moment:
        return sum(len(query(moment).rows) for query in (queries.verifications, queries.restores, queries.drills))


BENCHMARKS = (Benchmark(name="ledger", run=ledger),)
