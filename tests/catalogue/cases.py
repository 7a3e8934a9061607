"""What the catalogue is counted over: damages and healthy checkpoints, and the checkpoints that each is tried on.

A case says what must be raised; whether it is, `judging` finds out. A foreign damage is tried on what the framework
itself wrote, and on what was built from its layout, wherever there is either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from lastgood.reasons import NoteReason, Reason
from lastgood.testing.damage import CATALOGUE
from lastgood.testing.foreign import FOREIGN
from tests.corpus import SPECIMENS
from tests.formats.readers import built, layouts

OWN = "lastgood"
"""The one specimen of our own: two ranks, three saves of one life, published in the ordinary way."""
HEALTHY = {OWN: ("oldest", "older", "newest", "family")}
"""What of a specimen is looked at as it is; of every other, both of its checkpoints."""


class Origin(StrEnum):
    """Who made the checkpoint."""

    WRITTEN = "written"
    BUILT = "built"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that is looked at.

    Args:
        entry: Name in one of the two catalogues, `lastgood.<name>` in our own; or `undamaged.<which>`.
        specimen: What it is applied to.
        origin: Who made that.
        expected: What must be raised; None: nothing, for nothing is wrong.
    """

    entry: str
    specimen: str
    origin: Origin
    expected: Reason | NoteReason | None

    @property
    def is_healthy(self) -> bool:
        """Whether anything that is raised would be a false alarm."""
        return not isinstance(self.expected, Reason)

    def __str__(self) -> str:
        return f"{self.entry}-{self.specimen}-{self.origin}"


def origins_of(specimen: str) -> Iterator[Origin]:
    """Where a specimen comes from; one name may come from both."""
    if specimen == OWN or specimen in SPECIMENS:
        yield Origin.WRITTEN
    if specimen in layouts.BUILT or specimen in built.BUILT:
        yield Origin.BUILT


def healthy_cases() -> Iterator[Case]:
    """Every checkpoint as its writer left it."""
    for specimen in dict.fromkeys((OWN, *SPECIMENS, *layouts.BUILT, *built.BUILT)):
        for origin in origins_of(specimen):
            for which in HEALTHY.get(specimen, ("older", "newest")):
                yield Case(entry=f"undamaged.{which}", specimen=specimen, origin=origin, expected=None)


def damaged_cases() -> Iterator[Case]:
    """Every entry of both catalogues, on whatever it can happen to."""
    for own in CATALOGUE.values():
        yield Case(entry=f"{OWN}.{own.name}", specimen=OWN, origin=Origin.WRITTEN, expected=own.reason)
    for foreign in FOREIGN.values():
        for specimen in foreign.specimens:
            for origin in origins_of(specimen):
                yield Case(entry=foreign.name, specimen=specimen, origin=origin, expected=foreign.reason)


def cases() -> tuple[Case, ...]:
    """All of them, the healthy ones first."""
    return (*healthy_cases(), *damaged_cases())
