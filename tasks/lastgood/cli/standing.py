"""How a checkpoint stands in the family that its directory is: as which generation, and what is on record against it.

Decides in which words a refusal is told. Leaves what is refused to `protocol`. Rule: whatever files look like, what was
barred, fenced or quarantined is refused, and that is said before anything else.
"""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.cli.refusals import refusal_lines
from lastgood.family import Family
from lastgood.formats.givenup import GivenUp
from lastgood.formats.source import Source
from lastgood.identity import GenerationId
from lastgood.location import Location, Place
from lastgood.protocol import Survey

__all__ = ["UNSEALED", "Standing", "Standings", "state_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is on record of a checkpoint.

    Args:
        generation: As which it was sealed or published; None: neither.
        state: In one word; None where no family of ours lies there.
        refused: Why it is refused whatever its files say; empty: nothing is on record against it.
        is_published: A job publishes into the family by itself, which keeps no seal then.
    """

    generation: GenerationId | None = None
    state: str | None = None
    refused: tuple[str, ...] = ()
    is_published: bool = False

    @property
    def sealed(self) -> str | None:
        """As which generation, and how that stands; None: nobody sealed it."""
        return f"as {self.generation}, {self.state}" if self.generation is not None else None


UNSEALED = Standing()


class Standings:
    """Those of many checkpoints: each family is asked once.

    Args:
        place: Whatever is asked about lies in its store.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._families: dict[str, _Family | None] = {}

    def of(self, source: Source) -> Standing:
        """How a checkpoint stands.

        Raises:
            FormatError: A document of ours that decides is not lawful.
            StoreError: The store could not tell.
            UsageError: Its evidence is found by another path than the one that was named.
        """
        if source.parent not in self._families:
            self._families[source.parent] = self._family(source.parent)
        family = self._families[source.parent]
        if family is None:
            return UNSEALED
        survey = family.survey
        # After a rollback a name may have been sealed again, and the newer lies there.
        known = (one for one in (*survey.candidates, *survey.fenced) if one.directory == source.name)
        generation = max(known, default=None)
        is_given_up = False
        if generation is None or (generation.name and generation in survey.fenced):
            # Of a name that was written anew since the cut nothing is on record: nobody sealed it.
            is_given_up = family.given_up.holds(source.name)
            generation = generation if is_given_up else None
        state = state_of(survey, generation) if generation is not None else None
        return Standing(
            generation=generation,
            state="fenced" if is_given_up else state,
            refused=tuple(_refused(family.location, survey, generation, is_given_up=is_given_up)),
            is_published=bool(survey.cut.decided_by) and not survey.cut.rollback,
        )

    def _family(self, directory: str) -> _Family | None:
        place = Place(store=self._place.store, key=directory, stores=self._place.stores)
        location = place.family_of_children
        if location is None or not location.store.names(location.keys.ours).directories:
            return None
        survey = Family(location).survey()
        return _Family(location=location, survey=survey, given_up=GivenUp(location, survey))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What is asked once of a family."""

    location: Location
    survey: Survey
    given_up: GivenUp


def state_of(survey: Survey, generation: GenerationId) -> str:
    """How a generation stands, in one word."""
    if generation in survey.fenced:
        return "fenced"
    if generation in survey.barred:
        return "barred"
    if generation not in survey.candidates:
        return "uncommitted"
    return "proven" if generation in survey.proven else "committed"


def _refused(location: Location, survey: Survey, generation: GenerationId | None, *, is_given_up: bool) -> list[str]:
    if is_given_up or (generation is not None and generation in survey.fenced):
        return [f"fenced: incarnation {survey.cut.decided_by} does not keep it"]
    if generation is not None and generation in survey.barred:
        return [f"barred: {line}" for line in refusal_lines(location, survey.barred[generation])]
    if survey.quarantine and (generation is None or generation not in survey.proven):
        lines = refusal_lines(location, survey.quarantine)
        return [f"family quarantined, and this one is not proven: {line}" for line in lines]
    return []
