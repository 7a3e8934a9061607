"""`make oracle`: measure every cell, write the table into the package and the page that shows it.

`python -m tests.oracle deepspeed_3 torch_dcp` measures these specimens again and leaves the others as they stand.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec

from lastgood.documents import parse
from lastgood.formats.oracle import FORMAT_VERSION, MAXIMUM_TABLE_BYTES, Cell, Oracle
from tests.corpus import SPECIMENS, Corpus, Host
from tests.corpus.specimens import write_specimen
from tests.oracle.drawing import differences, drawn
from tests.oracle.faults import damages
from tests.oracle.measuring import Bench
from tests.oracle.page import page_of

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = REPOSITORY / "tasks" / "lastgood" / "formats" / "oracle.json"
PAGE = REPOSITORY / "docs" / "oracle.md"
DISTRIBUTIONS = ("torch", "transformers", "accelerate", "peft", "lightning", "deepspeed", "safetensors", "torchdata")


def main() -> None:
    """Measure what is named, or everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specimens", nargs="*", metavar="SPECIMEN", help=f"of {', '.join(SPECIMENS)}")
    parser.add_argument("--page", action="store_true", help="write the page from the table as it stands")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="how many specimens at once; 2")
    parser.add_argument("--draw", type=int, metavar="N", help="measure N cells again and compare; writes nothing")
    parser.add_argument("--seed", type=int, default=0, help="which cells are drawn; 0")
    parser.add_argument(
        "--corpus", type=Path, metavar="DIRECTORY", help="specimens for --draw that are written already"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.specimens) - set(SPECIMENS):
        parser.error(f"no such specimen: {', '.join(sorted(unknown))}")
    if arguments.draw:
        sys.exit(check(arguments.draw, arguments.seed, arguments.corpus))
    if not arguments.page:
        names = arguments.specimens or list(SPECIMENS)
        with ThreadPoolExecutor(max_workers=arguments.at_once) as pool:
            running = {pool.submit(measured, name): name for name in names}
            for done in as_completed(
                running
            ):  # kept as soon as it is there: the whole takes the better part of an hour
                write_table(with_cells(read_table(), running[done], done.result()))
    PAGE.write_text(page_of(read_table()), encoding="utf-8")


def check(count: int, seed: int, corpus: Path | None) -> int:
    """Measure cells again; exit status 1 if one is not as the table says."""
    cells = drawn(read_table(), count, seed)
    with tempfile.TemporaryDirectory(prefix="lastgood-oracle-") as scratch:
        lines = differences(cells, Corpus(corpus or Path(scratch)))
    print(f"{len(cells)} cells of {', '.join(dict.fromkeys(cell.specimen for cell in cells))}, seed {seed}")
    print("\n".join(lines) or "all as the table says")
    return 1 if lines else 0


def measured(name: str) -> list[Cell]:
    """All cells of one specimen, which is written first."""
    kind = SPECIMENS[name]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lastgood-oracle-") as directory, Host(kind.program) as host:
        specimen = write_specimen(kind, Path(directory) / name, host)
        bench = Bench(specimen, host)
        cells = [bench.measure(damage) for damage in damages(specimen)]
    print(f"{name}: {len(cells)} cells in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return cells


def with_cells(table: Oracle, specimen: str, cells: list[Cell]) -> Oracle:
    """The table with these cells in place of the specimen's former ones, in the order of the specimens."""
    rest = [cell for cell in table.cells if cell.specimen != specimen and cell.specimen in SPECIMENS]
    order = list(SPECIMENS)
    ordered = sorted([*rest, *cells], key=lambda cell: order.index(cell.specimen))
    return Oracle(format_version=FORMAT_VERSION, versions=versions(), cells=tuple(ordered))


def versions() -> dict[str, str]:
    """What is installed, without the local suffix of a build."""
    return {name: importlib.metadata.version(name).partition("+")[0] for name in DISTRIBUTIONS}


def read_table() -> Oracle:
    """The table as it stands, or an empty one."""
    if not TABLE.exists():
        return Oracle(format_version=FORMAT_VERSION, versions={}, cells=())
    return parse(Oracle, TABLE.read_bytes(), str(TABLE), limit_bytes=MAXIMUM_TABLE_BYTES)


def write_table(table: Oracle) -> None:
    """One cell a line, so that a change of one reaction is one line of a diff."""
    cells = ",\n".join(json.dumps(_without_defaults(cell), ensure_ascii=False) for cell in table.cells)
    head = json.dumps({"format_version": table.format_version, "versions": dict(table.versions)}, indent=None)[:-1]
    TABLE.write_text(f'{head},\n"cells": [\n{cells}\n]}}\n', encoding="utf-8")


def _without_defaults(cell: Cell) -> dict[str, object]:
    fields = msgspec.to_builtins(cell)
    fields["effects"] = [{key: value for key, value in effect.items() if value} for effect in fields["effects"]]
    return {key: value for key, value in fields.items() if value}


if __name__ == "__main__":
    main()
