"""The table as a page for people: counts first, then what each loader swallows, then every cell.

Pure: the page is a function of the table, and a test holds them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from lastgood.formats.oracle import Cell, Consequence, Fault, Oracle, Reaction

INTRODUCTION = """\
# What the loaders swallow

Written by `make oracle`; do not edit. The same table is data in the package (`lastgood.formats.oracle`), and findings
on checkpoints of these frameworks cite it. `docs/adr/0012-oracle.md` says how it is measured, and what a cell does not
say.

Each cell: a framework trains a tiny model and saves after steps 4 and 8 of 12; **one thing** of a copy of the newest
checkpoint is damaged; the framework's own loader resumes that copy by its own rule, in processes of its own, up to step
12. What the resume of an undamaged copy does is what is expected. Consequences are measured on the resumed run: the
step that it starts at, its first learning rate, its samples, the random streams after its first step, its state before
the first step, its weights at the end.

- **raised**: every rank ended with an error. **raised on some ranks**: others had loaded, and went on until they missed
  a peer.
- **logged**: it trained on, and printed a line that a healthy resume does not print.
- **silent**: it trained on and printed nothing. With a consequence, that is *swallowed*; without one, the damage is
  harmless to this loader, which is said too.
- **hang**: a rank had to be ended after 90 seconds, twice.
"""

WORDS = {
    Consequence.STEP_ZERO: "starts at step zero",
    Consequence.STEP_DIFFERS: "starts at another step",
    Consequence.COUNTER_DIFFERS: "counter differs",
    Consequence.LEARNING_RATE_RESTARTED: "learning rate restarts",
    Consequence.LEARNING_RATE_DIFFERS: "learning rate differs",
    Consequence.MODEL_DIFFERS: "loaded weights differ",
    Consequence.OPTIMIZER_EMPTY: "optimizer state lost",
    Consequence.OPTIMIZER_DIFFERS: "optimizer state differs",
    Consequence.RNG_DIFFERS: "random streams differ",
    Consequence.SAMPLES_REPEATED: "samples repeated",
    Consequence.SAMPLES_DIFFER: "other samples",
    Consequence.BATCH_DIFFERS: "samples a step",
    Consequence.WEIGHTS_NAN: "weights become NaN",
    Consequence.WEIGHTS_DIFFER: "weights differ at the end",
    Consequence.FEWER_STEPS: "other number of steps",
}


def page_of(table: Oracle) -> str:
    """The whole page."""
    versions = ", ".join(f"{name} {version}" for name, version in table.versions.items())
    parts = [INTRODUCTION, f"Versions: {versions}; CPU, gloo.\n", _counts(table.cells), _healthy(table.cells)]
    for specimen, cells in groupby(table.cells, key=lambda cell: cell.specimen):
        parts.append(_specimen(specimen, [cell for cell in cells if cell.fault is not Fault.NONE]))
    return "\n".join(parts)


def _counts(cells: Iterable[Cell]) -> str:
    damaged = [cell for cell in cells if cell.fault is not Fault.NONE]
    lines = [
        "## Counts\n",
        "| checkpoint | cells | raised | on some ranks | only logged | **swallowed** | hang | harmless |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for specimen, group in groupby(damaged, key=lambda cell: cell.specimen):
        lines.append(_count_row(specimen, list(group)))
    lines.append(_count_row("**all**", damaged))
    return "\n".join(lines) + "\n"


def _count_row(name: str, cells: Sequence[Cell]) -> str:
    counted = Counter(cell.reaction for cell in cells)
    swallowed = sum(cell.swallowed for cell in cells)
    logged = sum(cell.reaction is Reaction.LOGGED and bool(cell.effects) for cell in cells)
    harmless = sum(cell.reaction in {Reaction.SILENT, Reaction.LOGGED} and not cell.effects for cell in cells)
    figures = (
        len(cells),
        counted[Reaction.RAISED],
        counted[Reaction.RAISED_ON_SOME_RANKS],
        logged,
        f"**{swallowed}**",
        counted[Reaction.HANG],
        harmless,
    )
    return f"| {name} | {' | '.join(str(figure) for figure in figures)} |"


def _healthy(cells: Iterable[Cell]) -> str:
    lines = [
        "## Undamaged\n",
        "What a resume of the undamaged checkpoint loses against the run that was never interrupted.\n",
        "| checkpoint | consequences |",
        "|---|---|",
    ]
    lines += [f"| {cell.specimen} | {_effects(cell) or 'none'} |" for cell in cells if cell.fault is Fault.NONE]
    return "\n".join(lines) + "\n"


def _specimen(name: str, cells: Sequence[Cell]) -> str:
    lines = [f"## {name}\n", "| fault | of | reaction | consequences | said |", "|---|---|---|---|---|"]
    for cell in cells:
        target = cell.target or "the newest checkpoint"
        of = f"`{target}`" + (f" key `{cell.entry}`" if cell.entry else "")
        reaction = f"**{_words(cell.reaction)}**" if cell.swallowed else _words(cell.reaction)
        lines.append(f"| {_words(cell.fault)} | {of} | {reaction} | {_effects(cell)} | {_escaped(cell.said)} |")
    return "\n".join(lines) + "\n"


def _words(value: Fault | Reaction) -> str:
    return value.value.replace("_", " ")


def _effects(cell: Cell) -> str:
    return "; ".join(
        WORDS[effect.consequence]
        + (f": {effect.found}" if effect.found else "")
        + (f" instead of {effect.expected}" if effect.expected else "")
        for effect in cell.effects
    )


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in "|<>*_`[]" else char for char in text)
