"""The data-quality report over many records: how long it takes, and whether it grows no faster than they do."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness import Benchmark, Row, Setting, Usage, run_command
from lastgood.config import DEFAULT_LEDGER
from lastgood.ledger import open_ledger
from lastgood.testing.evidence import Past, fabricate

RECORDS_A_FAMILY = 25_000
FAMILIES = (1, 2, 4)
MAXIMUM_SECONDS = 30.0
MAXIMUM_GROWTH = 1.25
"""Of what the second half of the records costs, to twice what the second quarter does: linear is 1."""
MAXIMUM_ROUNDS = 3
LEAST_SECONDS = 1e-3
RECORDS_A_SAVE = 1.375  # verified always, restored every fourth time, drilled every eighth
UNTIL = datetime(2026, 3, 1, tzinfo=UTC)

# Starting Python and loading Great Expectations counts, as it does for a cron job; what the verdict is does not.
_REPORT = """
import sys
from pathlib import Path
from lastgood.config import read_configuration
from lastgood.report.writing import write_report
write_report(read_configuration(Path(sys.argv[1])), sys.argv[2:])
"""

# One after the other in a process that has loaded everything: what is alike for all of them would hide the growth.
_GROWTH = """
import sys, time
from pathlib import Path
from lastgood.config import read_configuration
from lastgood.report.writing import write_report
configuration, rounds, names = read_configuration(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
write_report(configuration, names[:1])
for _ in range(rounds):
    for number in (1, 2, 4):
        before = time.process_time()
        write_report(configuration, names[:number])
        print(time.process_time() - before)
"""


def report(setting: Setting) -> Sequence[Row]:
    """A whole report by a process of its own, over a ledger that is up to date; the quickest of some rounds."""
    configuration, names = build(setting.workspace)
    rounds = min(setting.rounds, MAXIMUM_ROUNDS)
    taken = {number: [usage(configuration, names[:number]) for _ in range(rounds)] for number in FAMILIES}
    wall = {number: min(one.wall_seconds for one in found) for number, found in taken.items()}
    cpu = {number: min(one.cpu_seconds for one in found) for number, found in taken.items()}
    return (
        *(
            Row(
                what=f"report over {number * RECORDS_A_FAMILY:,} records",
                against="itself",
                measured=wall[number],
                at_most=MAXIMUM_SECONDS,
                unit="s",
                detail=f"{number} families, {cpu[number]:.1f} s of CPU; page, Data Docs, metrics",
            )
            for number in FAMILIES
        ),
        growth(configuration, names, rounds),
    )


def growth(configuration: Path, names: Sequence[str], rounds: int) -> Row:
    """What the second half of the records costs, against the second quarter."""
    command = [sys.executable, "-c", _GROWTH, str(configuration), str(rounds), *names]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
    spent = list(map(float, done.stdout.split()))
    quarter, half, whole = (statistics.median(spent[at :: len(FAMILIES)]) for at in range(len(FAMILIES)))
    added = max(whole - half, LEAST_SECONDS) / max(half - quarter, LEAST_SECONDS)
    first, second, third = FAMILIES
    return Row(
        what="report, CPU of the second half of the records",
        against="twice that of the second quarter",
        measured=added * (second - first) / (third - second),
        at_most=MAXIMUM_GROWTH,
        detail=f"{quarter:.2f} s, {half:.2f} s and {whole:.2f} s in a process that has loaded everything",
    )


def usage(configuration: Path, families: Sequence[str]) -> Usage:
    """What one report takes."""
    return run_command([sys.executable, "-c", _REPORT, configuration, *families])


def build(home: Path) -> tuple[Path, list[str]]:
    """Families of many records in a ledger: the path of their configuration, and their names."""
    (home / "runs").mkdir()
    past = Past(until=UNTIL, saves=round(RECORDS_A_FAMILY / RECORDS_A_SAVE), payload="newest")
    names = [f"family-{number}" for number in range(max(FAMILIES))]
    lines = []
    for name in names:
        fabricate(home / "runs", name, past)
        lines += [f"[families.{name}]", f'root = "{home / "runs"}"']
    path = home / "lastgood.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    with open_ledger(f"sqlite:///{home / DEFAULT_LEDGER}") as ledger:
        ledger.update({name: str(home / "runs" / name) for name in names})
    return path, names


BENCHMARKS = (Benchmark(name="report", run=report),)
