"""Wrong saves, on purpose: the negative controls that prove restores and verifiers able to fail.

Decides how a save of the reference trainer is spoilt between its writing and its publishing, so that everything after
it (digests, receipts, manifest) is in order and only a restore can tell. Off unless `LASTGOOD_FAULT` asks for it, and
refused outside of a replica: a production job never runs this code.

    LASTGOOD_FAULT=omit:<component>    the component is in no file and in no promise
    LASTGOOD_FAULT=stale:<component>   what is saved was serialised before the step that the save names
    LASTGOOD_FAULT=swap:<component>    ranks 0 and 1 are saved with each other's values

Expectations are observed before anything is written, so they stay those of the live objects.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from lastgood import documents
from lastgood.errors import UsageError
from lastgood.manifest import Component, Manifest
from lastgood.state import WrittenArtifact
from lastgood.state.parts import StateDocument
from lastgood.verdict import Finding
from lastgood.verify.checks import check_claims

__all__ = ["FAULT_VARIABLE", "Fault", "FaultKind", "fault_from_environ"]

FAULT_VARIABLE: Final = "LASTGOOD_FAULT"

# Parts of the configuration file that are components of their own.
_PARTS: Final = {Component.ACCUMULATION: "accumulation", Component.TOPOLOGY: "topology"}


class FaultKind(StrEnum):
    """What is done to the component."""

    OMIT = "omit"
    STALE = "stale"
    SWAP = "swap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to spoil one component of every save."""

    kind: FaultKind
    component: Component

    def objects(self, manifest: Manifest) -> tuple[Finding, ...]:
        """What refuses a save: nothing where it is to reach storage incomplete, as another writer's would."""
        return () if self.kind is FaultKind.OMIT else check_claims(manifest)

    def promised(self, components: Sequence[Component]) -> tuple[Component, ...]:
        """What the manifest promises: a forgotten component is not promised either."""
        return tuple(one for one in components if self.kind is not FaultKind.OMIT or one is not self.component)

    def spoil(
        self,
        payload: Path,
        written: Sequence[WrittenArtifact],
        *,
        before: Path | None,
        rank: int,
        barrier: Callable[[], object],
    ) -> tuple[WrittenArtifact, ...]:
        """Spoil what this rank wrote; every rank calls it.

        Args:
            payload: Where the files are.
            written: This rank's.
            before: Where this rank wrote the same files before the step; for `stale`.
            rank: This rank.
            barrier: Returns when all ranks have called it.

        Raises:
            UsageError: The component has nothing that this fault could spoil.
        """
        match self.kind:
            case FaultKind.OMIT:
                return self._omit(payload, written)
            case FaultKind.STALE:
                assert before is not None, "the caller writes the state before the step for this fault"
                for artifact in written:
                    if artifact.component is self.component:
                        shutil.copyfile(before / artifact.path, payload / artifact.path)
            case FaultKind.SWAP:
                barrier()
                if rank == 0:
                    self._swap(payload)
                barrier()
        return tuple(written)

    def _omit(self, payload: Path, written: Sequence[WrittenArtifact]) -> tuple[WrittenArtifact, ...]:
        left = []
        for artifact in written:
            if artifact.component is Component.CONFIG and self.component in _PARTS:
                _rewrite(payload / artifact.path, lambda states: _without(states, _PARTS[self.component]))
            elif artifact.component is self.component:
                (payload / artifact.path).unlink()
                continue
            left.append(artifact)
        return tuple(left)

    def _swap(self, payload: Path) -> None:
        first, second = (sorted(payload.glob(f"{self.component}/rank-{rank:05d}.*")) for rank in (0, 1))
        if not first or not second:
            raise UsageError(f"nothing to swap: {self.component} has no file of ranks 0 and 1")
        for one, other in zip(first, second, strict=True):
            if one.suffix == ".json":
                _swap_states(one, other)
            else:
                _swap_tensors(one, other)


def fault_from_environ(environ: Mapping[str, str], *, is_replica: bool) -> Fault | None:
    """Read `LASTGOOD_FAULT`.

    Raises:
        UsageError: Malformed, or set for a job that is not a replica.
    """
    text = environ.get(FAULT_VARIABLE, "")
    if not text:
        return None
    if not is_replica:
        raise UsageError(f"{FAULT_VARIABLE} is set for a job that is not a replica: {text!r}")
    kind, _, component = text.partition(":")
    if kind not in set(FaultKind) or component not in set(Component):
        raise UsageError(f"{FAULT_VARIABLE} is no fault: expected <omit|stale|swap>:<component>, found {text!r}")
    return Fault(kind=FaultKind(kind), component=Component(component))


def _rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    document = documents.parse(StateDocument, path.read_bytes(), str(path))
    changed = StateDocument(
        version=document.version,
        world_size=document.world_size,
        rank=document.rank,
        coordinates=document.coordinates,
        step=document.step,
        states=change(document.states),
    )
    path.write_bytes(documents.canonical_bytes(changed))


def _without(states: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in states.items() if key != name}


def _swap_states(one: Path, other: Path) -> None:
    """Exchange the values and leave who they claim to belong to, as a rank that saved its neighbour's would have."""
    theirs = documents.parse(StateDocument, other.read_bytes(), str(other)).states
    mine = documents.parse(StateDocument, one.read_bytes(), str(one)).states
    _rewrite(one, lambda _: theirs)
    _rewrite(other, lambda _: mine)


def _swap_tensors(one: Path, other: Path) -> None:
    """Exchange the bytes of every tensor of which both ranks hold an equally long part, and leave what says where each
    part belongs.

    Raises:
        UsageError: There is no such tensor.
    """
    mine, theirs = bytearray(one.read_bytes()), bytearray(other.read_bytes())
    here, there = _parts(mine), _parts(theirs)
    common = [key for key in here.keys() & there.keys() if len(here[key]) == len(there[key])]
    if not common:
        raise UsageError(f"nothing to swap: {one} and {other} hold no equally long parts of one tensor")
    for key in common:
        ours, yours = here[key], there[key]
        mine[ours.start : ours.stop], theirs[yours.start : yours.stop] = (
            theirs[yours.start : yours.stop],
            mine[ours.start : ours.stop],
        )
    one.write_bytes(mine)
    other.write_bytes(theirs)


def _parts(data: bytearray) -> dict[str, range]:
    """Key of a tensor → where in a safetensors file the bytes of this rank's part of it lie."""
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    return {
        name.partition("@")[0]: range(begin + entry["data_offsets"][0], begin + entry["data_offsets"][1])
        for name, entry in header.items()
        if name != "__metadata__"
    }
