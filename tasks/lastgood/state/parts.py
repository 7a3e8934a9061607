"""What a registered component is to the registry: a part that holds tensors, or a part that holds one document.

Decides the two shapes that every kind of state takes. Leaves what each kind saves and how it is validated to `modules`,
`counters`, `rng` and `data`. Rule: a part without save, load *and* validate cannot be built.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol

import torch
from msgspec import Meta

from lastgood.documents import Document
from lastgood.manifest import Component
from lastgood.verdict import Finding, Note, Reason

__all__ = ["DocumentPart", "Scope", "StateDocument", "TensorPart", "invalid"]


class Scope(StrEnum):
    """Whose state a document is.

    `replicated`: equal on all ranks, saved once, and a save on which ranks disagree is refused. `per_rank`: a file a
    rank. `gathered`: every rank's in one file.
    """

    REPLICATED = "replicated"
    PER_RANK = "per_rank"
    GATHERED = "gathered"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPart:
    """State that is a few plain values.

    Args:
        component: The kind.
        name: Unique in the registry, e.g. `scheduler`, `data.train`.
        file: Relative to the payload; parts with one file share it. `{rank}` is replaced for `per_rank`.
        scope: Whose it is.
        save: The live values; only what `codec` can spell.
        validate: What is wrong with saved values, before any live object is touched; one sentence each.
        load: Puts saved values into the live object; only called when nothing was found wrong anywhere.
        owns: Live objects that this part saves, for the audit.
        compares: Whether the values must read back equal after a load (a position that a load derives need not).
        keys_vary: Whether hosts may lawfully differ in the keys; those that were saved and are live read back equal.
    """

    component: Component
    name: str
    file: str
    scope: Scope
    save: Callable[[], Any]
    validate: Callable[[Any], Iterable[str | Finding | Note]]
    load: Callable[[Any], None]
    owns: tuple[object, ...] = ()
    compares: bool = True
    keys_vary: bool = False


class TensorPart(Protocol):
    """State that is mostly tensors, sharded and resharded by DCP."""

    component: Component
    name: str
    """Also the directory of its files."""
    owns: tuple[object, ...]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The live tensors by key; the same memory that training uses."""

    def unsynchronised(self) -> Collection[str]:
        """Keys whose copies on several ranks may differ; the lowest rank's are saved."""

    def objects(self) -> Any:
        """The values that are no tensors, as plain JSON."""

    def prepare(self, stored: Mapping[str, tuple[tuple[int, ...], torch.dtype]], objects: Mapping[int, Any]) -> None:
        """Create live tensors that only a first step would create, as the stored ones ask (key → shape, dtype)."""

    def discard(self) -> None:
        """Undo `prepare`: the checkpoint was refused, and a refused checkpoint changes nothing."""

    def validate(
        self, objects: Mapping[int, Any], keys: Collection[str], scalars: Mapping[str, torch.Tensor]
    ) -> Iterable[Finding | Note]:
        """What is wrong with the saved objects (saving rank → objects), stored keys and stored 0-d tensors."""

    def load(self, objects: Mapping[int, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Put the saved objects into the live ones, after `tensors` (what `tensors()` gave) were read in place."""

    def unrestored(self, objects: Mapping[int, Any]) -> Iterable[str]:
        """Which saved values the live object does not hold after `load`."""


class StateDocument(Document, frozen=True, kw_only=True):
    """The bytes of a document part's file.

    Args:
        version: Of this document.
        world_size: How many ranks saved.
        rank: Whose it is, or null for the whole job's.
        coordinates: Of that rank.
        step: Completed optimizer steps.
        states: Part name → its values (for `gathered`, a list with one entry a rank), spelled by `codec`.
    """

    version: Literal[1]
    world_size: Annotated[int, Meta(ge=1)]
    rank: Annotated[int, Meta(ge=0)] | None
    coordinates: dict[str, int]
    step: Annotated[int, Meta(ge=0)]
    states: dict[str, Any]


def invalid(place: str, fact: str) -> Finding:
    """The finding that a saved value cannot be what the component needs."""
    return Finding(reason=Reason.STATE_INVALID, message=f"state invalid: {place}: {fact}", offender=place)
