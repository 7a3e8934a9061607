"""One captured state: everything a save needs, detached from training, ready to be written by any thread.

Decides which file of a save this rank writes. Rules: all collectives lie in `capture`; `Snapshot.write` does file work
only, in one pass, and writes each snapshot once; what is equal on all ranks is saved once, and a save on which ranks
disagree about it is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastgood import documents
from lastgood.documents import canonical_bytes
from lastgood.errors import UsageError
from lastgood.manifest import AbsentComponent, Component, ExplainedKey
from lastgood.publish import StagedArtifact
from lastgood.state import codec
from lastgood.state.observation import Observation
from lastgood.state.parts import DocumentPart, Scope, StateDocument
from lastgood.state.ranks import RankIdentity, Ranks
from lastgood.state.storage import ShardCapture

__all__ = ["DocumentCapture", "Snapshot", "WrittenArtifact", "capture_documents"]


WrittenArtifact = StagedArtifact
"""What a snapshot wrote is what `Run.publish` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCapture:
    """The bytes of one document file that this rank writes."""

    artifact: WrittenArtifact
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A rank's captured state.

    Args:
        step: Completed optimizer steps.
        identity: The rank.
        observation: What the live objects said just before.
        components: Present in the save, in the order of the vocabulary.
        absent: Declared absent, with reasons.
        explained: Keys that a strict load accepts, with reasons.
        asynchronous: Whether the tensors are private copies; if not, training must wait for `write`.
    """

    step: int
    identity: RankIdentity
    observation: Observation
    components: tuple[Component, ...]
    absent: tuple[AbsentComponent, ...]
    explained: tuple[ExplainedKey, ...]
    asynchronous: bool
    shards: tuple[ShardCapture, ...]
    files: tuple[DocumentCapture, ...]
    _written: threading.Event = field(default_factory=threading.Event)

    @property
    def artifacts(self) -> tuple[WrittenArtifact, ...]:
        """What `write` writes, in that order."""
        rank = self.identity.rank
        shards = (WrittenArtifact(path=one.path, component=one.component, rank=rank) for one in self.shards)
        return (*shards, *(file.artifact for file in self.files))

    def write(self, payload: Path) -> tuple[WrittenArtifact, ...]:
        """Write this rank's files under the payload directory; nothing is fsynced, publishing does that.

        Raises:
            UsageError: This snapshot was written already.
            FileExistsError: Another save wrote there.
            OSError: The file system refused; the payload is not to be published.
        """
        if self._written.is_set():
            raise UsageError(f"snapshot written twice: step {self.step}, rank {self.identity.rank}")
        self._written.set()
        try:
            for shard in self.shards:
                shard.write(payload)
            for file in self.files:
                target = payload / file.artifact.path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as stream:
                    stream.write(file.data)
        finally:
            self.release()
        return self.artifacts

    def release(self) -> None:
        """Give private host memory back; for a snapshot that will not be written."""
        self._written.set()
        for shard in self.shards:
            shard.release()


def capture_documents(
    parts: Sequence[DocumentPart], *, step: int, identity: RankIdentity, ranks: Ranks
) -> tuple[DocumentCapture, ...]:
    """Collect all ranks' documents, and keep the files that this rank writes.

    Raises:
        UsageError: Ranks disagree about what must be equal.
        LastgoodError: Some rank could not save a part.
    """
    mine: dict[str, Any] = {}

    def shared() -> dict[str, Any]:
        mine.update({part.name: codec.encode(part.save(), part.name) for part in parts})
        return {part.name: mine[part.name] for part in parts if part.scope is not Scope.PER_RANK}

    everyone = ranks.gather(shared)
    for part in parts:
        if part.scope is Scope.REPLICATED:
            _check_agreement(part.name, [states[part.name] for states in everyone])
    captures = []
    for path in dict.fromkeys(part.file for part in parts):
        inside = [part for part in parts if part.file == path]
        per_rank = inside[0].scope is Scope.PER_RANK
        if not per_rank and identity.rank != 0:
            continue
        states = {
            part.name: [states[part.name] for states in everyone] if part.scope is Scope.GATHERED else mine[part.name]
            for part in inside
        }
        document = StateDocument(
            version=1,
            world_size=identity.world_size,
            rank=identity.rank if per_rank else None,
            coordinates=dict(identity.coordinates) if per_rank else {},
            step=step,
            states=states,
        )
        kinds = {part.component for part in inside}
        component = kinds.pop() if len(kinds) == 1 else Component.CONFIG
        artifact = WrittenArtifact(path=path, component=component, rank=document.rank)
        data = canonical_bytes(document)
        documents.parse(StateDocument, data, path)  # what no strict reader would take must not be published
        captures.append(DocumentCapture(artifact=artifact, data=data))
    return tuple(captures)


def _check_agreement(name: str, states: Sequence[Mapping[str, Any]]) -> None:
    for rank, state in enumerate(states):
        if repr(state) != repr(states[0]):
            raise UsageError(
                f"ranks disagree: {name}: rank {rank} holds other values than rank 0, and only one copy is saved",
                hint="all ranks must step it together; state that belongs to a rank is registered as such",
            )
