"""`python -m benchmarks [name…] [--rounds N] [--json]`: see the package."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import PeerMissing, Row, Setting, collect, machine, markdown

PEERS = Path(__file__).resolve().parent.parent / ".bench"


def main() -> int:
    """Run what was asked for, print it, and return 0 (all met), 1 (a target missed) or 2 (a peer or name missing)."""
    known = collect()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of: {', '.join(known)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="judged rounds of each comparison (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--workspace", type=Path, help="where to put up to 10 GB of data (default: TMPDIR)")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    if asked.rounds < 1:
        parser.error("--rounds: expected at least 1")
    rows: list[Row] = []
    missing: list[str] = []
    for name in asked.names or known:
        print(f"{name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="lastgood-bench-", dir=asked.workspace) as workspace:
            setting = Setting(rounds=asked.rounds, workspace=Path(workspace), peers=PEERS)
            try:
                rows.extend(known[name].run(setting))
            except PeerMissing as error:
                missing.append(f"{name}: {error}")
    if asked.json:
        document = {"machine": machine(), "missing": missing, "rows": [_as_json(row) for row in rows]}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print(f"{markdown(rows)}\n\nOn {machine()}.")
        for line in missing:
            print(f"not run: {line}")
    if missing:
        return 2
    return 0 if all(row.is_met for row in rows) else 1


def _as_json(row: Row) -> dict[str, object]:
    return {**dataclasses.asdict(row), "is_met": row.is_met}


if __name__ == "__main__":
    sys.exit(main())
