"""The manifest: what one checkpoint claims to be, and the receipts from which it is put together.

Decides which manifests are lawful. Leaves what is stated of the job to `description`, and comparing with what storage
holds to `verify`. Rules: required fields are never empty or "unknown"; paths are relative, cannot escape and have no
case or Unicode twins; expectations come from live objects before anything is serialised; only a sealed checkpoint may
leave out what its writer did not state.
Source: docs/format.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from lastgood import documents
from lastgood.description import (
    MAXIMUM_RANKS,
    REQUIRED_COMPONENTS,
    AbsentComponent,
    Component,
    ComponentPromise,
    Count,
    Counter,
    CounterMeaning,
    Determinism,
    Environment,
    ExplainedKey,
    Identity,
    JobDescription,
    Purpose,
    Text,
    Topology,
    WorldSize,
)
from lastgood.digest import Algorithm, Digest, hash_bytes
from lastgood.documents import AwareTime, Document
from lastgood.errors import FormatError
from lastgood.identity import (
    MAXIMUM_INCARNATION,
    MAXIMUM_STEP,
    FamilyKeys,
    GenerationId,
    check_family_name,
    check_paths,
)
from lastgood.reasons import Reason
from lastgood.seal import Seal

__all__ = [
    "FORMAT_VERSION",
    "REQUIRED_COMPONENTS",
    "AbsentComponent",
    "Artifact",
    "Component",
    "ComponentPromise",
    "Counter",
    "CounterMeaning",
    "Determinism",
    "Environment",
    "Expectations",
    "ExplainedKey",
    "Identity",
    "JobDescription",
    "Manifest",
    "Purpose",
    "RankExpectations",
    "Receipt",
    "SampleIds",
    "Topology",
    "manifest_bytes",
    "manifest_digest",
    "parse_manifest",
]

FORMAT_VERSION = 1
MAXIMUM_ARTIFACTS = 1_000_000
MAXIMUM_MANIFEST_BYTES = documents.MAXIMUM_DOCUMENT_BYTES

Step = Annotated[int, Meta(ge=0, le=MAXIMUM_STEP)]
Rank = Annotated[int, Meta(ge=0, lt=MAXIMUM_RANKS)]
IncarnationNumber = Annotated[int, Meta(ge=0, le=MAXIMUM_INCARNATION)]
# `$` alone would let a trailing newline through.
GenerationText = Annotated[str, Meta(pattern=r"^[0-9]{8}-[0-9]{16}(~.+)?$(?!\n)", max_length=300)]
# A value that says that nobody knows is worse than a field left out: it would pass for knowledge.
_UNKNOWN = frozenset({"unknown", "none", "null", "n/a", "na", "todo", "tbd", "?"})


class Artifact(Document, frozen=True, kw_only=True):
    """One stored object.

    Args:
        path: Relative to the generation's directory.
        component: The kind of state it holds.
        rank: The rank that owns it (a shard), or null for the whole job's. What one rank owns, every rank owns: a
            component with a shard of some ranks only is incomplete.
        bytes: Length in bytes.
        digests: One or more, each with its algorithm.
    """

    path: Text
    component: Component
    rank: Rank | None
    bytes: Count
    digests: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=8)]


class SampleIds(Document, frozen=True, kw_only=True):
    """The next sample ids, or the reason why only the live trace can tell.

    Args:
        ids: In the order in which this rank will consume them; empty only with `from_trace`.
        from_trace: Why the source cannot be peeked.
    """

    ids: tuple[str | int, ...] = ()
    from_trace: Text | None = None


class RankExpectations(Document, frozen=True, kw_only=True):
    """What one rank's live objects said just before they were serialised.

    Args:
        rank: Which.
        sample_ids: The next ids of this rank.
        rng_draws: Stream → the next draws, peeked and not consumed.
        tensor_digests: Key → digest text of this rank's local tensor (sampled).
    """

    rank: Rank
    sample_ids: SampleIds
    rng_draws: dict[str, tuple[float | int, ...]]
    tensor_digests: dict[str, str]


class Expectations(Document, frozen=True, kw_only=True):
    """What must come back, computed by the same code at the save and after a load.

    Args:
        learning_rates: Group name → the rate that the next update will use.
        optimizer_steps: Optimizer (or parameter group) name → completed updates.
        scalars: Other values that must come back exactly, e.g. the gradient scale; finite.
        ranks: One entry a rank, in order.
    """

    learning_rates: dict[str, float]
    optimizer_steps: dict[str, Count]
    scalars: dict[str, float | int]
    ranks: tuple[RankExpectations, ...]


class Manifest(Document, frozen=True, kw_only=True, omit_defaults=True):
    """What one checkpoint claims to be. `job` is the description, the rest is what this save adds; `seal` is there, and
    only then, of a foreign checkpoint that was adopted where it lies.
    """

    format_version: Annotated[int, Meta(ge=1)]
    family: Text
    generation: GenerationText
    incarnation: IncarnationNumber
    step: Step
    staging: Text
    created_at: AwareTime
    job: JobDescription
    artifacts: Annotated[tuple[Artifact, ...], Meta(min_length=1, max_length=MAXIMUM_ARTIFACTS)]
    expectations: Expectations | None
    seal: Seal | None = None

    @property
    def id(self) -> GenerationId:
        return GenerationId.parse(self.generation)

    @property
    def is_single_file(self) -> bool:
        """Whether the generation is a file and no directory: a sealed one whose only artifact bears its name."""
        return len(self.artifacts) == 1 and self.artifacts[0].path == self.id.name

    def prefix(self, keys: FamilyKeys) -> str:
        """Key of the directory that the artifacts' paths are relative to: of a single file the family's."""
        return keys.family if self.is_single_file else keys.artifacts(self.id)

    @property
    def total_bytes(self) -> int:
        return sum(artifact.bytes for artifact in self.artifacts)

    @property
    def present(self) -> tuple[Component, ...]:
        """Components that have at least one artifact or promise, in canonical order."""
        named = {artifact.component for artifact in self.artifacts} | {p.component for p in self.job.promises}
        return tuple(component for component in Component if component in named)


class Receipt(Document, frozen=True, kw_only=True):
    """One rank's word that its artifacts are durable and were read back.

    Args:
        staging: The staging id that it belongs to.
        rank: Who.
        world_size: Of how many.
        artifacts: What this rank wrote.
        expectations: What its live objects said, with one entry in `ranks` (null for a weights-only export).
        failure: Why this rank cannot vouch; then nothing else counts.
    """

    staging: Text
    rank: Rank
    world_size: WorldSize
    artifacts: tuple[Artifact, ...] = ()
    expectations: Expectations | None = None
    failure: Text | None = None


def manifest_bytes(manifest: Manifest) -> bytes:
    """The canonical bytes of a lawful manifest.

    Raises:
        FormatError: The manifest breaks a rule; nothing is encoded.
    """
    check_manifest(manifest, "manifest")
    data = documents.canonical_bytes(manifest)
    # Structs check their fields only when they are read, so what no reader would accept is found here, not at a resume.
    documents.parse(Manifest, data, "manifest", limit_bytes=MAXIMUM_MANIFEST_BYTES)
    return data


def manifest_digest(data: bytes) -> str:
    """The digest text that a COMMIT carries: BLAKE3 over the manifest's bytes."""
    return str(hash_bytes(data, Algorithm.BLAKE3))


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest strictly.

    Raises:
        FormatError: Not a lawful manifest; `reason` is `format_version_unsupported` when another version wrote it.
    """
    _check_version(data, where)
    try:
        manifest = documents.parse(Manifest, data, where, limit_bytes=MAXIMUM_MANIFEST_BYTES)
        check_manifest(manifest, where)
    except FormatError as error:
        error.reason = error.reason or Reason.MANIFEST_MALFORMED
        raise
    return manifest


class _Versioned(msgspec.Struct):
    format_version: int


def _check_version(data: bytes, where: str) -> None:
    # Read alone and first: another version's unknown keys must not be reported as damage.
    try:
        version = msgspec.json.decode(data, type=_Versioned).format_version
    except (msgspec.DecodeError, RecursionError):
        return
    if version != FORMAT_VERSION:
        raise FormatError(
            f"format version unsupported: {where}: expected {FORMAT_VERSION}, found {version}",
            reason=Reason.FORMAT_VERSION_UNSUPPORTED,
        )


def check_manifest(manifest: Manifest, where: str) -> None:
    """Refuse what the types alone cannot: identities that disagree, twins, absurd or missing content.

    Raises:
        FormatError: Naming the first broken rule and its place.
    """
    check_family_name(manifest.family)
    generation = manifest.id
    if (generation.incarnation, generation.step) != (manifest.incarnation, manifest.step):
        raise FormatError(
            f"manifest contradicts itself: {where}: generation {manifest.generation}, "
            f"incarnation {manifest.incarnation}, step {manifest.step}"
        )
    _check_stated(manifest, where)
    _check_known(manifest.job, where)
    _check_digests(manifest.artifacts, where)
    check_paths((artifact.path for artifact in manifest.artifacts), where)
    _check_topology(manifest, where)
    _check_components(manifest, where)


def _check_stated(manifest: Manifest, where: str) -> None:
    if (manifest.seal is not None) != bool(manifest.id.name):
        what = "without a seal" if manifest.seal is None else "with a seal"
        raise FormatError(f"manifest contradicts itself: {where}: generation {manifest.generation} {what}")
    job = manifest.job
    stated = {"code": job.code, "configuration": job.configuration, "model": job.model, "dataset": job.dataset}
    missing = [
        name for name, value in {**stated, "environment.python": job.environment.python}.items() if value is None
    ]
    if missing and manifest.seal is None:
        raise FormatError(f"required field says nothing: {where}: job.{missing[0]} is null")


def _check_known(job: JobDescription, where: str) -> None:
    for place, text in _texts(job, "job"):
        if not text.strip() or text.strip().lower() in _UNKNOWN:
            raise FormatError(f"required field says nothing: {where}: {place} is {text!r}")


def _texts(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Every free text in a document, with its place; words of a closed vocabulary are no free text."""
    if isinstance(value, str) and not isinstance(value, StrEnum):
        yield place, value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _texts(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{place}[{index}]")


def _check_digests(artifacts: Iterable[Artifact], where: str) -> None:
    for artifact in artifacts:
        if len(artifact.digests) > 1:
            kinds = [(digest.algorithm, digest.part_bytes) for digest in artifact.digests]
            if len(set(kinds)) != len(kinds):
                raise FormatError(f"digest given twice: {where}: {artifact.path}")


def _check_topology(manifest: Manifest, where: str) -> None:
    topology = manifest.job.topology
    product = 1
    for size in topology.layout.values():
        product *= size
    if topology.layout and product != topology.world_size:
        raise FormatError(
            f"layout contradicts world size: {where}: {topology.layout} multiplies to {product}, "
            f"world_size is {topology.world_size}"
        )
    for artifact in manifest.artifacts:
        if artifact.rank is not None and artifact.rank >= topology.world_size:
            raise FormatError(
                f"rank outside the world: {where}: {artifact.path} belongs to rank {artifact.rank} "
                f"of {topology.world_size}",
                reason=Reason.WORLD_SIZE_MISMATCH,
            )
    if manifest.expectations is not None:
        ranks = [entry.rank for entry in manifest.expectations.ranks]
        if ranks != list(range(topology.world_size)):
            raise FormatError(
                f"expectations do not cover the ranks: {where}: expected 0..{topology.world_size - 1}, "
                f"found {ranks[:20]}"
            )


def _check_components(manifest: Manifest, where: str) -> None:
    job = manifest.job
    promised = [promise.component for promise in job.promises]
    absent = [entry.component for entry in job.absent]
    for name, values in (("promises", promised), ("absent", absent)):
        twice = {value for value in values if values.count(value) > 1 and value is not Component.OTHER}
        if twice:
            raise FormatError(f"component named twice: {where}: {name}: {sorted(twice)}")
    both = sorted(set(manifest.present) & set(absent))
    if both:
        raise FormatError(f"component both present and absent: {where}: {both}")
    for promise in job.promises:
        if (promise.determinism is Determinism.TOLERANCE) != (promise.tolerance is not None):
            raise FormatError(f"tolerance and promise disagree: {where}: {promise.component}")
        if promise.determinism is not Determinism.EXACT and not promise.reason:
            raise FormatError(f"promise below exact without a reason: {where}: {promise.component}")
