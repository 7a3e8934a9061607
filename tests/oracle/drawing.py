"""Cells drawn from the table at random and measured again, so that the table is kept true at a hundredth of its cost.

Compares reactions and kinds of consequences: no amounts, for they move with compilers, and no wording.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from lastgood.formats.oracle import Cell, Oracle
from tests.corpus import SPECIMENS, Corpus, Host
from tests.oracle.faults import damages
from tests.oracle.measuring import Bench

DRAWN_SPECIMENS = 3
"""Each costs the start of its framework and two healthy runs: as much as twenty cells."""


def drawn(table: Oracle, count: int, seed: int) -> list[Cell]:
    """`count` cells of a few specimens."""
    draw = random.Random(seed)
    names = draw.sample(sorted(SPECIMENS), DRAWN_SPECIMENS)
    cells = [cell for cell in table.cells if cell.specimen in names]
    return draw.sample(cells, min(count, len(cells)))


def differences(cells: Sequence[Cell], corpus: Corpus) -> list[str]:
    """What is no longer as the cells say, a line each."""
    lines = []
    for name in dict.fromkeys(cell.specimen for cell in cells):
        specimen = corpus[name]
        listed = {damage.key: damage for damage in damages(specimen)}
        with Host(specimen.kind.program) as host:
            bench = Bench(specimen, host)
            for cell in (cell for cell in cells if cell.specimen == name):
                again = bench.measure(listed[cell.fault.value, cell.target, cell.entry])
                if _answer(cell) != _answer(again):
                    where = f"{name}: {cell.fault} {cell.target} {cell.entry}"
                    lines.append(f"{where}: expected {_answer(cell)}, found {_answer(again)} {again.said}")
    return lines


def _answer(cell: Cell) -> tuple[str, tuple[str, ...]]:
    return cell.reaction.value, tuple(sorted(cell.consequences))
