"""Generations of our own, described in the words that foreign checkpoints are described in.

Decides only what the manifest says. Leaves judging them to tier 1 (`verify`), which holds digests against bytes: here
files are looked for and lengths compared, so that a whole tree can be described by one code. Rules: COMMIT makes a
generation, so without it the save is unfinished; the documents lie in the family, however deep that lies in a tree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from lastgood.documents import parse
from lastgood.errors import FormatError
from lastgood.formats.description import Certainty, Description, Framework, HeldComponent, Layout, NeverSaved
from lastgood.formats.readers.wording import (
    file_missing,
    irregular_files,
    save_unfinished,
    shard_missing,
    wrong_length,
)
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, Component, Manifest, parse_manifest
from lastgood.markers import Commit
from lastgood.protocol.requests import MAXIMUM_PROTOCOL_DOCUMENT_BYTES
from lastgood.verdict import Finding, Reason
from lastgood.verify.checks import check_purpose

__all__ = ["NativeReader"]


class NativeReader:
    """`<incarnation>-<step>` below a family, with its manifest and COMMIT in `.lastgood/`."""

    def recognises(self, source: Source) -> bool:
        documents = _documents(source)
        if documents is None:
            return False
        return any(source.store.stat(key) is not None for key in (documents.manifest, documents.commit))

    def describe(self, source: Source) -> Description:
        documents = _documents(source)
        if documents is None:
            raise AssertionError(f"not recognised before it was described: {source.name}")
        manifest, wrong = _manifest(source, documents)
        unfinished = _unfinished(source, documents)
        compared = () if manifest is None else (*_compare(source, manifest), *check_purpose(manifest))
        topology = None if manifest is None else manifest.job.topology
        return Description(
            framework=Framework.LASTGOOD,
            version=None if manifest is None else manifest.job.environment.lastgood,
            layout_name="generation",
            step=documents.generation.step,
            counters=() if manifest is None else manifest.job.counters,
            layout=Layout(
                world_size=None if topology is None else topology.world_size,
                certainty=Certainty.UNKNOWN if topology is None else Certainty.STATED,
                why="the manifest" if topology is not None else "the manifest cannot be read",
                axes={} if topology is None else dict(topology.layout),
            ),
            components=() if manifest is None else _components(manifest),
            never_saved=()
            if manifest is None
            else tuple(NeverSaved(component=one.component, reason=one.reason) for one in manifest.job.absent),
            marker=documents.commit,
            is_complete=not unfinished,
            findings=(*unfinished, *wrong, *irregular_files(source), *compared),
            unknowable=(
                "whether its bytes are those that were saved: `lastgood verify` compares them with the manifest",
            ),
        )

    def choose(self, root: Root) -> Choice | None:
        return None  # `latest` decides


@dataclass(frozen=True, slots=True, kw_only=True)
class _Documents:
    """Where what is ours of a generation lies, from the top of the store that it is looked at through."""

    generation: GenerationId
    manifest: str
    commit: str


def _documents(source: Source) -> _Documents | None:
    """None where the name is none of a generation that was published."""
    generation = GenerationId.find(source.name)
    if generation is None or generation.name or source.is_file:
        return None
    above, _, family = source.parent.rpartition("/")
    try:
        keys = FamilyKeys(family)
    except FormatError:
        return None
    start = f"{above}/" if above else ""
    manifest, commit = keys.manifest(generation), keys.commit(generation)
    return _Documents(generation=generation, manifest=f"{start}{manifest}", commit=f"{start}{commit}")


def _manifest(source: Source, documents: _Documents) -> tuple[Manifest | None, tuple[Finding, ...]]:
    key = documents.manifest
    try:
        data = source.store.get(key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
        if data is not None:
            return parse_manifest(data, key), ()
    except FormatError as error:
        return None, (Finding(reason=Reason.MANIFEST_MALFORMED, message=error.message, offender=key),)
    message = f"manifest missing: {key}: found no such file"
    return None, (Finding(reason=Reason.MANIFEST_MISSING, message=message, offender=key),)


def _unfinished(source: Source, documents: _Documents) -> tuple[Finding, ...]:
    """Why nobody may load it yet, or ever: it was not committed, or its slot was given up."""
    key = documents.commit
    try:
        data = source.store.get(key, limit_bytes=MAXIMUM_PROTOCOL_DOCUMENT_BYTES)
        if data is None:
            return (save_unfinished(key, "COMMIT is written when everything is durable"),)
        if parse(Commit, data, key).burned:
            message = f"save unfinished: {key}: its slot was given up, so it will never be finished"
            return (Finding(reason=Reason.SAVE_UNFINISHED, message=message, offender=key),)
    except FormatError as error:
        return (Finding(reason=Reason.COMMIT_MALFORMED, message=error.message, offender=key),)
    return ()


def _compare(source: Source, manifest: Manifest) -> Iterator[Finding]:
    for artifact in manifest.artifacts:
        found = source.files.get(artifact.path)
        why = f"the manifest lists {artifact.bytes} bytes"
        if found is None:
            yield (file_missing if artifact.rank is None else shard_missing)(artifact.path, why)
        elif source.holds(artifact.path) and found.bytes != artifact.bytes:
            yield wrong_length(artifact.path, "the manifest", expected=artifact.bytes, found=found.bytes)


def _components(manifest: Manifest) -> tuple[HeldComponent, ...]:
    """What the manifest calls present; of what lies in another component's file it does not say which file that is."""
    paths: dict[Component, list[str]] = defaultdict(list)
    for artifact in manifest.artifacts:
        paths[artifact.component].append(artifact.path)
    return tuple(HeldComponent(component=one, paths=tuple(sorted(paths[one]))) for one in manifest.present)
