"""What the frameworks' own loaders do with a damaged checkpoint: measured, not read off their source.

Decides how a measured reaction is found for a fault that a reader has seen; `oracle.json` beside this module is the
table, written by `make oracle` from real loaders on damaged copies of checkpoints that those loaders had just written.
Leaves to the readers which fault it is, and to whoever renders a finding how to say it. A reaction that was not
measured is absent: nobody may conclude from its absence that a loader would raise. Source: ADR 0012.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files

from lastgood.documents import Document, parse

__all__ = ["Cell", "Consequence", "Effect", "Fault", "Oracle", "Reaction", "measured", "reactions"]

FORMAT_VERSION = 1
MAXIMUM_TABLE_BYTES = 8 * 2**20


class Fault(StrEnum):
    """What was done to a healthy checkpoint; one thing at a time."""

    NONE = "none"
    """Nothing: the resume is compared with the run that was never interrupted, all others with this resume."""
    FILE_DELETED = "file_deleted"
    FILE_TRUNCATED = "file_truncated"
    """Cut to half its length."""
    FILE_EMPTY = "file_empty"
    BYTE_FLIPPED = "byte_flipped"
    """In the middle of the largest tensor, where the file holds one; else in the middle of the file."""
    OLDER_FILE = "older_file"
    """Replaced by the file of that name of the checkpoint before."""
    ENTRY_REMOVED = "entry_removed"
    """A key of the dictionary that the file holds is gone."""
    ENTRY_EMPTIED = "entry_emptied"
    """A list or dictionary in it holds nothing."""
    COUNTER_EDITED = "counter_edited"
    """It counts half the steps that were done."""
    POINTER_DANGLING = "pointer_dangling"
    """It names what does not exist."""
    NEWER_EMPTY_DIRECTORY = "newer_empty_directory"
    RANK_LEFT_OVER = "rank_left_over"
    """A file of a rank that the run does not have, from a larger one."""
    RANK_REPEATED = "rank_repeated"
    """Every rank has rank 0's file."""
    FEWER_RANKS = "fewer_ranks"
    """Resumed by one rank less than wrote it."""


class Reaction(StrEnum):
    """What anybody would notice while the job resumes."""

    RAISED = "raised"
    """Every rank ended with an error."""
    RAISED_ON_SOME_RANKS = "raised_on_some_ranks"
    """Some ranks ended with an error while loading; others had loaded, and went on until they missed them."""
    LOGGED = "logged"
    """It trained on; a line was printed that a healthy resume does not print."""
    SILENT = "silent"
    """It trained on and printed nothing. Without consequences: harmless."""
    HANG = "hang"
    """A rank had to be ended at the deadline."""


class Consequence(StrEnum):
    """How a resume that trained on differs from the one of the undamaged copy."""

    STEP_ZERO = "step_zero"
    STEP_DIFFERS = "step_differs"
    COUNTER_DIFFERS = "counter_differs"
    """Another counter of the framework, by its name."""
    LEARNING_RATE_RESTARTED = "learning_rate_restarted"
    LEARNING_RATE_DIFFERS = "learning_rate_differs"
    MODEL_DIFFERS = "model_differs"
    """Right after loading."""
    OPTIMIZER_EMPTY = "optimizer_empty"
    OPTIMIZER_DIFFERS = "optimizer_differs"
    RNG_DIFFERS = "rng_differs"
    SAMPLES_REPEATED = "samples_repeated"
    """Samples come again that were trained on in the same epoch before the checkpoint."""
    SAMPLES_DIFFER = "samples_differ"
    BATCH_DIFFERS = "batch_differs"
    """Samples a step, over all ranks."""
    WEIGHTS_NAN = "weights_nan"
    """At the end of the run."""
    WEIGHTS_DIFFER = "weights_differ"
    """At the end of the run."""
    FEWER_STEPS = "fewer_steps"
    """It ended without an error after other steps than it should have trained."""


class Effect(Document, frozen=True, kw_only=True):
    """One consequence, with the figures."""

    consequence: Consequence
    expected: str = ""
    found: str = ""


class Cell(Document, frozen=True, kw_only=True):
    """What one loader did with one fault."""

    specimen: str
    """Framework and layout of the checkpoint, e.g. `deepspeed_3`."""
    framework: str
    fault: Fault
    target: str = ""
    """Path of what was damaged, below the checkpoint, or with a leading `../` beside it; empty: the checkpoint."""
    entry: str = ""
    """Key within the file, of the faults that are about one."""
    reaction: Reaction
    said: str = ""
    """Type and message of the error, or the first line that was printed."""
    effects: tuple[Effect, ...] = ()

    @property
    def consequences(self) -> frozenset[Consequence]:
        """What went wrong without being noticed, or in spite of it."""
        return frozenset(effect.consequence for effect in self.effects)

    @property
    def swallowed(self) -> bool:
        """Whether the loader went on, without a word, to something other than the undamaged resume."""
        return self.reaction is Reaction.SILENT and bool(self.effects)


class Oracle(Document, frozen=True, kw_only=True):
    """The whole table. Law: no two cells agree in specimen, fault, target and entry."""

    format_version: int
    versions: Mapping[str, str]
    """Distribution → version that was measured."""
    cells: tuple[Cell, ...]


@cache
def measured() -> Oracle:
    """The table of this release.

    Raises:
        FormatError: The installation is damaged.
    """
    data = files("lastgood.formats").joinpath("oracle.json").read_bytes()
    return parse(Oracle, data, "lastgood/formats/oracle.json", limit_bytes=MAXIMUM_TABLE_BYTES)


def reactions(
    framework: str, fault: Fault, *, target: str | None = None, specimen: str | None = None
) -> tuple[Cell, ...]:
    """What was measured of a framework's loader for a fault, in the order of the table.

    Args:
        framework: As in the table, e.g. `hf_trainer`.
        fault: What is wrong.
        target: Path below the checkpoint of what is damaged; numbers in it match any number, so that
            `rng_state_13.pth` finds what was measured on `rng_state_1.pth`. None: any.
        specimen: Only this layout. None: any.
    """
    wanted = None if target is None else _numberless(target)
    return tuple(
        cell
        for cell in measured().cells
        if cell.framework == framework
        and cell.fault is fault
        and (wanted is None or _numberless(cell.target) == wanted)
        and (specimen is None or cell.specimen == specimen)
    )


def _numberless(path: str) -> str:
    return re.sub(r"[0-9]+", "#", path)
