"""One look at one foreign checkpoint: what it is, whether its bytes hold, what training can do with it.

Decides in which order that is asked, and which findings belong to which check of a verdict. Leaves recognising to the
readers, bytes to `integrity` and the class to `classify`. Rule: every command that says something about a foreign
checkpoint says it from here, so that no two of them differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lastgood.errors import UsageError
from lastgood.formats.classify import Classification, classify
from lastgood.formats.containers.pickles import PickleMemory
from lastgood.formats.description import Description, Restorability
from lastgood.formats.integrity import Integrity, check_integrity
from lastgood.formats.recognition import describe
from lastgood.formats.source import Source, open_source
from lastgood.location import Place
from lastgood.stores.port import Progress
from lastgood.verdict import Finding, Note
from lastgood.verify import Depth

__all__ = ["Examination", "examine", "open_place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found of one checkpoint.

    Args:
        source: Its files.
        description: By its reader.
        integrity: Of its bytes, as far as its files can tell.
        classification: What training can do with it, and why.
    """

    source: Source
    description: Description
    integrity: Integrity
    classification: Classification

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of the description first, then of the bytes."""
        return (*self.description.findings, *self.integrity.findings)

    @property
    def notes(self) -> tuple[Note, ...]:
        return (*self.description.notes, *self.integrity.notes)

    @property
    def unknowable(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.description.unknowable, *self.integrity.unknowable)))

    @property
    def restorability(self) -> Restorability:
        return self.classification.restorability

    @property
    def is_resumable(self) -> bool:
        """Whether training can resume from it, and nothing is left that the store could not read."""
        return self.restorability is Restorability.RESUMABLE and not self.integrity.unread

    @property
    def could_not_tell(self) -> bool:
        """Whether there is a reader for it, and more in it than is read: nothing may be concluded, nor passed over."""
        return self.restorability is Restorability.UNKNOWN and self.description.framework.is_judged

    @property
    def step(self) -> int | None:
        return self.description.step

    @property
    def total_bytes(self) -> int:
        return sum(found.bytes for found in self.source.files.values())


def open_place(place: Place) -> Source:
    """The files of the checkpoint at a place.

    Raises:
        UsageError: Nothing lies there.
        StoreError: The store could not tell.
    """
    source = open_source(place.store, place.key)
    if source is None:
        raise UsageError(f"no checkpoint: {place.uri}: nothing lies there", hint="is the path spelled right?")
    return source


def examine(source: Source, *, depth: Depth = Depth.METADATA, progress: Progress | None = None) -> Examination:
    """Look at one checkpoint.

    Args:
        source: Its files.
        depth: How far.
        progress: Told how many bytes of payload have been read so far.

    Raises:
        StoreError: The store could not tell.
    """
    # For the time of this call alone: of a tree, thousands are looked at, and what their files hold is not kept.
    at_hand = replace(source, memory=PickleMemory())
    description = describe(at_hand)
    integrity = check_integrity(at_hand, depth=depth, description=description, progress=progress)
    return Examination(
        source=source,
        description=description,
        integrity=integrity,
        classification=classify(description, integrity.findings, integrity.untold, is_empty=not source.files),
    )
