"""Loading registered state: check everything on every rank, then change everything, then read it back.

Decides in which order components are checked and loaded, and what a change of topology means. Rules: a checkpoint that
is refused anywhere changes nothing on any rank; all offences are reported, by every rank alike; after the load each
component is saved again and must say what was loaded (`state_dict(load(x)) == x`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lastgood import documents
from lastgood.errors import FormatError, StorePermanentError
from lastgood.manifest import Component
from lastgood.state import codec
from lastgood.state.parts import DocumentPart, Scope, StateDocument, TensorPart, invalid
from lastgood.state.ranks import RankIdentity, Ranks
from lastgood.state.reading import ShardedTensors
from lastgood.state.rng import Stream, derive_streams
from lastgood.verdict import Finding, Note, NoteReason, Reason

__all__ = ["LoadReport", "restore"]

_FIRST_STREAMS = "rng/rank-00000.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a load did on this rank, and what was wrong on any.

    Args:
        findings: Why it was refused, over all ranks; none means that all state is in place and was read back.
        notes: What is worth knowing, over all ranks.
        keys: Component → how many keys this rank loaded.
        step: Completed optimizer steps of the checkpoint; None if no file said it.
        world_size: How many ranks saved; None if no file said it.
        changed: Whether live state was touched.
    """

    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    keys: Mapping[Component, int]
    step: int | None
    world_size: int | None
    changed: bool

    @property
    def loaded(self) -> bool:
        """Whether the run may go on from here."""
        return self.changed and not self.findings


def restore(
    directory: Path,
    tensor_parts: tuple[TensorPart, ...],
    document_parts: tuple[DocumentPart, ...],
    *,
    streams: Mapping[str, Stream],
    identity: RankIdentity,
    ranks: Ranks,
    explained: Mapping[str, str],
    allow_topology_change: bool,
) -> LoadReport:
    """Load all parts from a directory; see `Registry.load`."""
    load = _Load(directory, tensor_parts, document_parts, identity, explained, allow_topology_change)
    try:
        keys = ranks.gather(load.examine)
        anywhere = {part.name: frozenset[str]().union(*(one[part.name] for one in keys)) for part in tensor_parts}
        agreed = _agree(ranks.gather(lambda: load.compare(anywhere)))
        if any(isinstance(one, Finding) for one in agreed):
            load.discard()
            return load.report(agreed, changed=False)
        agreed = _agree(ranks.gather(lambda: load.apply(streams)))
        return load.report(agreed, changed=True)
    finally:
        load.close()


class _Load:
    """One load on one rank: `examine` and `compare` touch nothing that training would see, `apply` does."""

    def __init__(
        self,
        directory: Path,
        tensor_parts: tuple[TensorPart, ...],
        document_parts: tuple[DocumentPart, ...],
        identity: RankIdentity,
        explained: Mapping[str, str],
        allow_topology_change: bool,
    ) -> None:
        self._directory = directory
        self._tensor_parts = tensor_parts
        self._document_parts = document_parts
        self._identity = identity
        self._explained = explained
        self._allow_topology_change = allow_topology_change
        self._said: list[Finding | Note] = []
        self._shards: dict[str, ShardedTensors] = {}
        self._documents: dict[str, StateDocument] = {}
        self._opened: set[str] = set()
        self._prepared: set[str] = set()
        self._live: dict[str, dict[str, torch.Tensor]] = {}
        self._keys: dict[Component, int] = {}

    def examine(self) -> dict[str, frozenset[str]]:
        """Open and validate all files; return the keys that this rank wants of each tensor part."""
        keys = {}
        for part in self._tensor_parts:
            shards = ShardedTensors(self._directory / part.name, component=part.component, name=part.name)
            self._shards[part.name] = shards
            self._said.extend(shards.findings)
            if not shards.findings:
                self._said.extend(self._validate_tensors(part, shards))
            self._live[part.name] = part.tensors()
            keys[part.name] = frozenset(self._live[part.name])
        # A rank's own files come last: whether there are any depends on the saving world size.
        for document_part in sorted(self._document_parts, key=lambda one: one.scope is Scope.PER_RANK):
            if document_part.file not in self._opened:
                self._opened.add(document_part.file)
                self._open_document(document_part.file)
        self._check_topology()
        return keys

    def compare(self, anywhere: Mapping[str, frozenset[str]]) -> list[Finding | Note]:
        """Compare stored with live tensors, and return everything said so far."""
        for part in self._tensor_parts:
            shards, live = self._shards[part.name], self._live[part.name]
            if part.name in self._prepared:  # otherwise all its keys would be reported for the one fault before
                self._said.extend(shards.compare(live, anywhere[part.name], self._explainer(part.name)))
                self._keys[part.component] = self._keys.get(part.component, 0) + len(live)
        return self._said

    def apply(self, streams: Mapping[str, Stream]) -> list[Finding | Note]:
        """Change the live state, read it back, and return everything said."""
        for part in self._tensor_parts:
            shards = self._shards[part.name]
            self._said.extend(shards.read_into(self._live[part.name]))
            part.load(_objects(shards), self._live[part.name])
        for document_part, saved in self._states():
            document_part.load(codec.decode(saved))
        # Streams are restored with the documents; whatever was derived for another topology comes last.
        if self._resharded:
            self._derive(streams)
        for part in self._tensor_parts:
            self._said.extend(self._read_back_tensors(part))
        for document_part, saved in self._states():
            self._said.extend(self._read_back_document(document_part, saved))
        return self._said

    def discard(self) -> None:
        for part in self._tensor_parts:
            part.discard()

    def close(self) -> None:
        for shards in self._shards.values():
            shards.close()

    def report(self, said: tuple[Finding | Note, ...], *, changed: bool) -> LoadReport:
        sources = list(self._sources().values())
        return LoadReport(
            findings=tuple(one for one in said if isinstance(one, Finding)),
            notes=tuple(one for one in said if isinstance(one, Note)),
            keys=dict(self._keys) if changed else {},
            step=sources[0][1] if sources else None,
            world_size=sources[0][0] if sources else None,
            changed=changed,
        )

    # Tensors

    def _validate_tensors(self, part: TensorPart, shards: ShardedTensors) -> Iterator[Finding | Note]:
        try:
            said = list(part.validate(_objects(shards), shards.tensors.keys(), shards.scalars()))
        except (KeyError, TypeError, ValueError, AttributeError, FormatError) as error:
            # Untrusted values may be of any shape; a validator that trips over one has found it unlawful.
            said = [invalid(part.name, f"its values are malformed: {error}")]
        yield from said
        if not any(isinstance(one, Finding) for one in said):
            self._prepared.add(part.name)
            part.prepare({key: (one.shape, one.dtype) for key, one in shards.tensors.items()}, _objects(shards))

    def _explainer(self, name: str) -> Callable[[str], bool]:
        def explained(key: str) -> bool:
            full = f"{name}.{key}"
            if full not in self._explained:
                return False
            message = f"key explained: {full}: {self._explained[full]}"
            self._said.append(Note(reason=NoteReason.KEY_EXPLAINED, message=message, offender=full))
            return True

        return explained

    def _read_back_tensors(self, part: TensorPart) -> Iterator[Finding]:
        shards, live = self._shards[part.name], part.tensors()
        for key in shards.differing(live):
            yield _not_restored(f"{part.name}.{key}", "the live tensor differs from the stored one")
        for fact in part.unrestored(_objects(shards)):
            yield _not_restored(part.name, fact)

    # Documents

    def _open_document(self, path: str) -> None:
        parts = [part for part in self._document_parts if part.file == path]
        if self._resharded and parts[0].scope is Scope.PER_RANK:
            return
        try:
            data = read_document(self._directory / path, path)
            document = documents.parse(StateDocument, data, path)
        except FileNotFoundError:
            for part in parts:
                message = f"component missing: {part.name}: {path} is not there"
                self._said.append(Finding(reason=Reason.COMPONENT_MISSING, message=message, offender=part.name))
            return
        except FormatError as error:
            self._said.append(Finding(reason=Reason.STATE_INVALID, message=error.message, offender=path))
            return
        self._documents[path] = document
        self._said.extend(self._check_owner(path, document, parts[0].scope))
        for name in sorted(document.states.keys() - {part.name for part in parts}):
            message = f"state unexpected: {path} holds {name!r}, which nobody registered"
            self._said.append(Finding(reason=Reason.KEY_UNEXPECTED, message=message, offender=name))
        for part in parts:
            self._said.extend(self._validate_document(part, document))

    def _check_owner(self, path: str, document: StateDocument, scope: Scope) -> Iterator[Finding]:
        mine = self._identity.rank if scope is Scope.PER_RANK else None
        if document.rank != mine:
            message = f"file of another rank: {path}: expected rank {mine}, found {document.rank}"
            yield Finding(reason=Reason.RANK_DUPLICATED, message=message, offender=path)
        elif scope is Scope.PER_RANK and document.coordinates != dict(self._identity.coordinates):
            yield Finding(
                reason=Reason.TOPOLOGY_UNSUPPORTED,
                message=f"rank identity changed: {path}: rank {mine} was at {document.coordinates}, "
                f"is at {dict(self._identity.coordinates)}",
                offender=path,
            )

    def _validate_document(self, part: DocumentPart, document: StateDocument) -> Iterator[Finding | Note]:
        if part.name not in document.states:
            message = f"component missing: {part.name}: {part.file} does not hold it"
            yield Finding(reason=Reason.COMPONENT_MISSING, message=message, offender=part.name)
            return
        if part.scope is Scope.GATHERED:
            ranks = document.states[part.name]
            if not isinstance(ranks, list) or len(ranks) != document.world_size:
                yield invalid(part.name, f"expected {document.world_size} ranks' states")
                return
        if self._resharded and part.component is Component.TOPOLOGY:
            return  # said by `_check_topology`
        try:
            for said in part.validate(codec.decode(document.states[part.name], part.name)):
                yield invalid(part.name, said) if isinstance(said, str) else said
        except (KeyError, TypeError, ValueError, AttributeError, FormatError) as error:
            yield invalid(part.name, f"its values are malformed: {type(error).__name__}: {error}")

    def _states(self) -> Iterator[tuple[DocumentPart, Any]]:
        for part in self._document_parts:
            if part.file in self._documents:
                yield part, self._documents[part.file].states[part.name]

    def _read_back_document(self, part: DocumentPart, saved: Any) -> Iterator[Finding]:
        if not part.compares:
            return
        expected = saved[self._identity.rank if not self._resharded else 0] if part.scope is Scope.GATHERED else saved
        found = codec.encode(part.save(), part.name)
        if part.keys_vary:
            shared = expected.keys() & found.keys()
            expected, found = ({key: values[key] for key in shared} for values in (expected, found))
        if repr(_ordered(found)) != repr(_ordered(expected)):
            yield _not_restored(part.name, "saving it again gives other values than were loaded")

    # Topology

    @property
    def _saved_world_size(self) -> int:
        sizes = [shards.world_size for shards in self._shards.values() if shards.world_size]
        sizes.extend(document.world_size for document in self._documents.values())
        return sizes[0] if sizes else self._identity.world_size

    def _sources(self) -> dict[str, tuple[int, int]]:
        """What each lawful file says of its save: (ranks, step)."""
        sources = {
            f"{name}/rank-{rank:05d}": (index.world_size, index.step)
            for name, shards in self._shards.items()
            for rank, index in shards.indices.items()
        }
        return {**sources, **{path: (one.world_size, one.step) for path, one in self._documents.items()}}

    @property
    def _resharded(self) -> bool:
        return self._saved_world_size != self._identity.world_size

    def _check_topology(self) -> None:
        sources = self._sources()
        ranks, step = next(iter(sources.values()), (0, 0))
        for path, found in sources.items():
            if found != (ranks, step):
                reason = Reason.WORLD_SIZE_MISMATCH if found[0] != ranks else Reason.FOREIGN_GENERATION_FILE
                fact = f"{path} says {found[0]} ranks at step {found[1]}, other files {ranks} at {step}"
                message = f"files of different saves: {fact}"
                self._said.append(Finding(reason=reason, message=message, offender=path))
        if not self._resharded:
            return
        fact = f"saved by {self._saved_world_size} ranks, loaded by {self._identity.world_size}"
        if not self._allow_topology_change:
            message = f"topology changed: {fact}: not asked for"
            self._said.append(Finding(reason=Reason.TOPOLOGY_UNSUPPORTED, message=message, offender="topology"))
            return
        message = f"topology changed: {fact}: tensors are resharded, random streams begin anew"
        self._said.append(Note(reason=NoteReason.TOPOLOGY_CHANGED, message=message, offender="topology"))
        for part in self._document_parts:
            if part.scope is Scope.PER_RANK and part.component is not Component.RNG:
                message = f"topology unsupported: {part.name} belongs to ranks: {fact}"
                self._said.append(Finding(reason=Reason.TOPOLOGY_UNSUPPORTED, message=message, offender=part.name))

    def _derive(self, streams: Mapping[str, Stream]) -> None:
        if streams:
            data = read_document(self._directory / _FIRST_STREAMS, _FIRST_STREAMS)
            derive_streams(streams, data, self._identity)


def read_document(path: Path, where: str) -> bytes:
    """The bytes of a small regular file.

    Raises:
        FileNotFoundError: There is none.
        FormatError: It is no regular file, or larger than any document.
        StorePermanentError: It cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > documents.MAXIMUM_DOCUMENT_BYTES:
                raise FormatError(f"not a document: {where}: expected a regular file of lawful size")
            return file.read(documents.MAXIMUM_DOCUMENT_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorePermanentError(f"cannot read: {where}: {error.strerror}") from error


def _objects(shards: ShardedTensors) -> dict[int, Any]:
    return {rank: index.objects for rank, index in sorted(shards.indices.items())}


def _agree(everyone: list[list[Finding | Note]]) -> tuple[Finding | Note, ...]:
    """What all ranks said, each thing once, so that every rank reports alike."""
    return tuple(dict.fromkeys(one for said in everyone for one in said))


def _not_restored(place: str, fact: str) -> Finding:
    return Finding(reason=Reason.STATE_NOT_RESTORED, message=f"state not restored: {place}: {fact}", offender=place)


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value
