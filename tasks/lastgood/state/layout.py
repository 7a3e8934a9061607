"""Topology as a document part: how the run was spread over ranks, and what a change of it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from lastgood.errors import RegistrationError
from lastgood.manifest import Component
from lastgood.state.counters import CONFIGURATION_FILE
from lastgood.state.parts import DocumentPart, Scope
from lastgood.state.ranks import RankIdentity
from lastgood.verdict import Finding, Note, NoteReason

__all__ = ["topology_part"]


def topology_part(strategy: str, layout: Mapping[str, int], identity: RankIdentity) -> DocumentPart:
    """Saves strategy, layout and every rank's coordinates; loading changes nothing, a difference is said.

    Raises:
        RegistrationError: The layout does not multiply to the world size.
    """
    if prod(layout.values()) != identity.world_size:
        raise RegistrationError(
            f"layout contradicts world size: {dict(layout)} multiplies to {prod(layout.values())}, "
            f"found {identity.world_size} ranks"
        )

    def save() -> dict[str, Any]:
        return {"strategy": strategy, "layout": dict(layout), "coordinates": dict(identity.coordinates)}

    def validate(saved: Any) -> Iterator[str | Finding | Note]:
        well_formed = isinstance(saved, list) and all(
            isinstance(one, dict) and one.keys() == save().keys() for one in saved
        )
        if not well_formed:
            yield "expected strategy, layout and coordinates of every rank"
        elif len(saved) == identity.world_size and saved[identity.rank] != save():
            mine = saved[identity.rank]
            changed = [f"{key} was {mine[key]}, is {value}" for key, value in save().items() if mine[key] != value]
            yield Note(
                reason=NoteReason.TOPOLOGY_CHANGED,
                message=f"topology changed: rank {identity.rank}: {'; '.join(changed)}",
                offender="topology",
            )

    return DocumentPart(
        component=Component.TOPOLOGY,
        name="topology",
        file=CONFIGURATION_FILE,
        scope=Scope.GATHERED,
        save=save,
        validate=validate,
        load=lambda _: None,
        compares=False,
    )
