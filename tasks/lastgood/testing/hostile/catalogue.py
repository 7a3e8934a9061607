"""The form of the hostile catalogue: what an entry is, and how one is entered."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

__all__ = ["HOSTILE", "Answer", "Form", "Hostile", "enter"]

Build: TypeAlias = Callable[[str], bytes]
"""Makes the bytes of a file whose code, where it has any, creates a marker of this path."""


class Form(StrEnum):
    """What the file claims to be, hence which reader meets it."""

    TORCH = "torch"
    PICKLE = "pickle"
    SAFETENSORS = "safetensors"
    DCP_METADATA = "dcp_metadata"
    INDEX = "index"
    NO_FILE = "no_file"


class Answer(StrEnum):
    """What a reader must say.

    - `refused`: an error that names the file; nothing is described.
    - `global_named`: described, and the name that would have been imported is told.
    - `problem_named`: described, and what is wrong is told.
    """

    REFUSED = "refused"
    GLOBAL_NAMED = "global_named"
    PROBLEM_NAMED = "problem_named"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One file.

    Args:
        name: snake_case, stable.
        form: What it claims to be.
        answer: What a reader must say.
        fires: Whether loading it without any restriction (`pickle.load`, `torch.load(weights_only=False)`) creates the
            marker: the proof that it is hostile at all.
        explanation: What it tries, in a sentence.
        build: Makes its bytes; for what is no file, they are empty.
    """

    name: str
    form: Form
    answer: Answer
    fires: bool
    explanation: str
    build: Build

    def write(self, folder: Path, marker: Path) -> Path:
        """Write it into a folder under its own name and return its path."""
        path = folder / self.name
        if self.form is not Form.NO_FILE:
            path.write_bytes(self.build(str(marker)))
        elif self.name.startswith("pipe"):
            os.mkfifo(path)
        elif self.name.startswith("directory"):
            path.mkdir()
        else:
            path.symlink_to("/dev/zero" if self.name.endswith("device") else "/etc/hostname")
        return path


HOSTILE: dict[str, Hostile] = {}
"""Name → hostile file."""


def enter(form: Form, answer: Answer = Answer.REFUSED, *, fires: bool = False) -> Callable[[Build], Build]:
    """Enter a function into the catalogue under its own name; its docstring is the explanation."""

    def register(build: Build) -> Build:
        explanation = " ".join((build.__doc__ or "").split())
        if build.__name__ in HOSTILE or not explanation:
            raise AssertionError(f"entered twice or without an explanation: {build.__name__}")
        hostile = Hostile(
            name=build.__name__, form=form, answer=answer, fires=fires, explanation=explanation, build=build
        )
        HOSTILE[hostile.name] = hostile
        return build

    return register
