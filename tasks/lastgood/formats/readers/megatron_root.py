"""Which checkpoint Megatron-LM itself would resume: the one that its tracker names.

Source: Megatron-LM's `read_metadata` and `load_checkpoint`.
"""

from __future__ import annotations

import dataclasses
import re

from lastgood.formats.readers.pointers import choose_by_pointer, uncommitted
from lastgood.formats.root import Choice, Root

__all__ = ["TRACKER", "choose_megatron"]

TRACKER = "latest_checkpointed_iteration.txt"
_ITERATION = re.compile(r"iter_(\d{7,18})")
_OTHERS = re.compile(r"(global_step|checkpoint|step)[-_]?\d+")


def _target(text: str) -> str | None:
    if text == "release":
        return text
    return f"iter_{int(text):07d}" if text.isascii() and text.isdecimal() and len(text) < 19 else None


def choose_megatron(root: Root) -> Choice | None:
    """The tracker's choice; None where nothing there is named as by Megatron."""
    if not any(_ITERATION.fullmatch(name) or name == "release" for name in root.names.directories) and (
        # Others use the same tracker over directories of their own names.
        TRACKER not in root.names.files or any(_OTHERS.fullmatch(name) for name in root.names.directories)
    ):
        return None
    choice = choose_by_pointer(
        root,
        pointer=TRACKER,
        pattern=_ITERATION,
        rule=f"the iteration that {TRACKER} names",
        without_pointer="says so in its log and trains from random weights, unless --exit-on-missing-checkpoint",
        target_of=_target,
    )
    if choice is None or choice.picked is None or choice.findings:
        return choice
    names = root.store.names(f"{root.prefix}/{choice.picked}" if root.prefix else choice.picked)
    if "metadata.json" in names.files or any(name.startswith("mp_rank_") for name in names.directories):
        return choice
    finding = uncommitted(TRACKER, choice.picked, "neither metadata.json nor mp_rank directories lie there")
    return dataclasses.replace(choice, findings=(finding,))
