"""Which reader a checkpoint belongs to, and what it says of it; that nobody knows it is said too.

Decides nothing beyond the order, which is `readers.READERS`. Rule: what no reader recognises is described as unknown,
with how much lies there, and never guessed at by size or suffix.
"""

from __future__ import annotations

from lastgood.formats import readers
from lastgood.formats.description import Certainty, Description, Framework, Layout
from lastgood.formats.readers import Reader
from lastgood.formats.source import Source
from lastgood.text import counted

__all__ = ["describe", "recognise"]


def recognise(source: Source) -> Reader | None:
    """The first reader that takes the checkpoint for its own; None where none does.

    Raises:
        StoreError: The store could not tell.
    """
    # Looked up when asked, so that a test may put a reader of its own in their place.
    return next((reader for reader in readers.READERS if reader.recognises(source)), None)


def describe(source: Source) -> Description:
    """What its reader states of a checkpoint, or that there is none.

    Raises:
        StoreError: The store could not tell.
    """
    reader = recognise(source)
    return reader.describe(source) if reader is not None else _unknown(source)


def _unknown(source: Source) -> Description:
    files = counted(len(source.files), "file")
    return Description(
        framework=Framework.UNKNOWN,
        layout_name=f"{files}, none of a layout that is known here" if source.files else "an empty directory",
        step=None,
        layout=Layout(world_size=None, certainty=Certainty.UNKNOWN, why="nobody knows the layout"),
        components=(),
        unknowable=("what it is: no reader recognises it, so nothing is said of its health",),
    )
