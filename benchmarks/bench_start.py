"""How long a launch script waits for the command line: CPU of a cold start, bytecode and page cache warm."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks import peers
from benchmarks.harness import Benchmark, Row, Setting, compare, in_turn, run_command

LEAST_ROUNDS = 9  # a start takes tenths of a second, which a neighbour's burst can double
IMPORT_PREFECT = "import os; os.environ.update(DO_NOT_TRACK='1', PREFECT_HOME={home!r}); import prefect"


def start(setting: Setting) -> tuple[Row, ...]:
    ours: list[str | Path] = [Path(sys.executable).parent / "lastgood", "verify", "--help"]
    theirs: list[str | Path] = [peers.prefect(setting.peers), "-c", IMPORT_PREFECT.format(home=str(setting.workspace))]
    taken = in_turn(
        {"ours": lambda: run_command(ours).cpu_seconds, "theirs": lambda: run_command(theirs).cpu_seconds},
        max(setting.rounds, LEAST_ROUNDS),
    )
    what = "`lastgood verify --help`, CPU"
    return (compare(what, taken["ours"], taken["theirs"], against="`import prefect`", at_most=0.2),)


BENCHMARKS = (Benchmark(name="start", run=start),)
