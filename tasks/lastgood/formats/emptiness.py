"""Whether a directory holds anything but checkpoints that could be one, so that a fresh start might lose it.

Decides which names are known to be none. Leaves checkpoints to the readers and commits to the survey. Rule: what is
neither known to be none nor known to be one counts as one, for whoever starts at step zero over it loses a run, and
whoever must move a file aside loses a minute. Source: docs/protocol.md, docs/operations.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from lastgood.formats.source import open_source
from lastgood.stores.port import Names, Store

__all__ = ["is_no_checkpoint", "may_be_checkpoints"]

_ENDINGS = (
    *(".txt", ".md", ".log", ".out", ".err", ".csv", ".tsv"),  # words and logs
    *(".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".cfg"),  # configuration: no state of training by itself
    *(".py", ".sh", ".sbatch", ".ipynb", ".patch", ".diff"),  # what was run
    *(".png", ".svg", ".html", ".wandb"),  # what was drawn and tracked
)
_EVENTS = "events.out.tfevents."
"""TensorBoard's files, whose names end in a host's name."""
_POINTERS = ("latest_checkpoint", "last_checkpoint")
"""Texts by ending, but their being there says that a save was finished once."""


def is_no_checkpoint(path: str) -> bool:
    """Whether a file is known to be no checkpoint, nor the state in one, by its name."""
    name = path.rpartition("/")[2]
    if name.startswith(_POINTERS):
        return False
    return name.startswith((".", _EVENTS)) or name.lower().endswith(_ENDINGS)


def may_be_checkpoints(store: Store, key: str, names: Names, known: Set[str]) -> Iterator[str]:
    """What in a directory may be a checkpoint although nobody judged it: of each child the first path that says so.

    Args:
        store: Where.
        key: Of the directory.
        names: Its direct children.
        known: Those that were judged.

    Raises:
        StoreError: The store could not tell.
    """
    for name in names.files:
        if name not in known and not is_no_checkpoint(name):
            yield name
    for name in names.directories:
        if name in known or name.startswith("."):
            continue
        source = open_source(store, f"{key}/{name}")
        first = (
            next((path for path in source.files if not is_no_checkpoint(path)), None) if source is not None else None
        )
        if first is not None:
            yield f"{name}/{first}"
