"""Adopting a foreign checkpoint where it lies: a manifest of what is there, and a COMMIT, both beside it.

Decides which checkpoints may be adopted and what their manifest says. Leaves what a checkpoint is to the readers, and
the fence to `protocol.commit`. Rules: nothing is sealed that is damaged, unfinished, or being written while it is
hashed; a name is sealed once a branch; what a rollback cut does not come back under another number; the manifest states
what the checkpoint states and nothing that was made up; of any number of seals at once one COMMIT remains. The
checkpoint itself is only read. Source: docs/protocol.md, ADR 0011.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import lastgood
from lastgood import documents
from lastgood.digest import Algorithm, HashRequest
from lastgood.errors import Fenced, FormatError, ReadLimitError, SealRefused, StoreTransientError, UsageError
from lastgood.family import operator
from lastgood.formats.description import Certainty, Description, Framework, Restorability
from lastgood.formats.examination import Examination, examine, open_place
from lastgood.formats.recognition import recognise
from lastgood.formats.source import Source
from lastgood.formats.trees import is_one_checkpoint
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.location import Location, Place
from lastgood.manifest import (
    FORMAT_VERSION,
    MAXIMUM_MANIFEST_BYTES,
    REQUIRED_COMPONENTS,
    AbsentComponent,
    Artifact,
    Component,
    ComponentPromise,
    Counter,
    CounterMeaning,
    Determinism,
    Environment,
    JobDescription,
    Manifest,
    Purpose,
    Topology,
    manifest_bytes,
    manifest_digest,
    parse_manifest,
)
from lastgood.markers import Claim, Commit
from lastgood.protocol import CommitOutcome, Survey, commit, perform, take_survey
from lastgood.redaction import redact
from lastgood.seal import Seal
from lastgood.stores.port import ObjectKind, Progress, Store
from lastgood.unsealed import is_given_up, listing_digest
from lastgood.verdict import Finding, Reason
from lastgood.verify import Depth
from lastgood.verify.checks import is_stray
from lastgood.verify.reading import read_commit_marker, read_document, read_stored_manifest

__all__ = ["Sealed", "Wish", "is_numbered_by_accelerate", "seal"]

NOTHING_PROMISED = "the framework that saved it promises nothing: the checkpoint was sealed, not published"
_NUMBERED = re.compile(r"checkpoint_\d+$", re.ASCII)
NOT_HELD = "the checkpoint holds none, and its reader found nothing amiss without it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What whoever seals says of the checkpoint.

    Args:
        step: Completed optimizer steps, where the files do not tell.
        world_size: Ranks that saved, where the files do not tell.
        as_of: When it was saved, aware; None: when the store says that it last changed.
        reason: For the audit.
        weights_only: Seal an export that no training can resume, as what it is.
        life: Nonce of the life that saved it and by which its trace is found; None where whoever seals is another.
    """

    step: int | None = None
    world_size: int | None = None
    as_of: datetime | None = None
    reason: str | None = None
    weights_only: bool = False
    life: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A sealed checkpoint.

    Args:
        location: The generation that it is from now on.
        manifest: What is on record of it.
        is_new: Whether this call sealed it; False: it was sealed before, or by somebody else meanwhile.
    """

    location: Location
    manifest: Manifest
    is_new: bool


def is_numbered_by_accelerate(place: Place, description: Description) -> bool:
    """Whether a seal would break the job: Accelerate numbers every entry of the directory that it names itself, and
    stops at one without a number.
    """
    above = place.key.rpartition("/")[0]
    is_its_own = above == "checkpoints" and _NUMBERED.match(place.name) is not None
    return is_its_own and description.framework is Framework.ACCELERATE


def seal(place: Place, wish: Wish | None = None, *, progress: Progress | None = None) -> Sealed:
    """Adopt the checkpoint at a place, after which every tier works on it. May be repeated.

    Args:
        place: The checkpoint; the directory above it becomes its family.
        wish: What the files do not tell.
        progress: Told how many bytes have been read so far, of twice as many as there are.

    Raises:
        SealRefused: It must not be adopted as it lies there.
        ReadLimitError: It holds more than is read here.
        Fenced: A start or a rollback came in between.
        UsageError: Nothing lies there, or the files leave open what `wish` does not say.
        StoreError: A store could not tell, or did not take it; may be repeated.
    """
    family = place.family
    if family is None:
        raise UsageError(f"no directory above it: {place.uri}: expected <root>/<family>/<checkpoint>")
    return _Sealing(family, place, wish or Wish(), progress).run()


class _Sealing:
    """One call of `seal`."""

    def __init__(self, family: Location, place: Place, wish: Wish, progress: Progress | None) -> None:
        self._family = family
        self._store: Store = family.store
        self._keys: FamilyKeys = family.keys
        self._place = place
        self._wish = wish
        self._progress = progress

    def run(self) -> Sealed:
        # Ahead of the listing that is judged and hashed: a file that comes after that must make a difference.
        before = listing_digest(self._store, self._place.key)
        source = open_place(self._place)
        if GenerationId.find(self._place.name) is not None:
            raise UsageError(
                f"a generation of ours: {self._place.uri}", hint="it was published, with a COMMIT of its own"
            )
        if recognise(source) is not None and not is_one_checkpoint(source):
            raise UsageError(f"holds checkpoints of its own: {self._place.uri}", hint="seal one of those")
        survey = perform(self._store, take_survey(self._keys))
        number = self._number(survey)
        known = self._known(survey)
        if known is None:
            self._refuse_unkept(survey, number)
        elif known.seal is not None and known.seal.listing == before:
            return Sealed(location=self._family.of(known.id), manifest=known, is_new=False)
        examined = examine(source, depth=Depth.FULL, progress=self._progress)
        if examined.integrity.unread:
            raise StoreTransientError(f"cannot read {self._place.uri}: {examined.integrity.unread[0]}")
        purpose = self._purpose(examined)
        generation = self._generation(number, examined.description)
        artifacts = self._hash(source, examined)
        if known is not None:
            if artifacts != known.artifacts:
                self._refuse_other(known, survey)
            return Sealed(location=self._family.of(known.id), manifest=known, is_new=False)
        manifest = self._manifest(generation, artifacts, examined, purpose, before)
        self._refuse_cut(survey, manifest)
        if listing_digest(self._store, self._place.key) != before:
            raise SealRefused(
                f"changed while it was read: {self._place.uri}",
                hint="it is still being written: seal it when its save is done",
            )
        return self._commit(generation, manifest)

    # Whether it may be sealed at all.

    def _number(self, survey: Survey) -> int:
        """The number that a seal carries now: of the newest decision, if that is a rollback."""
        number = survey.cut.decided_by
        if number and not survey.cut.rollback:
            raise SealRefused(
                f"a job publishes here by itself: {self._family.family_uri}: incarnation {number} keeps no later seal",
                hint=self._way_back(survey),
            )
        return number

    def _way_back(self, survey: Survey) -> str:
        """How a seal is offered all the same, where a job publishes: none, or no rollback to any, is of this family."""
        if any(one.name for one in (*survey.candidates, *survey.fenced)):
            return "`lastgood rollback FAMILY GENERATION --reason ...` makes a seal the newest again"
        return "copy the checkpoint to a directory to which no job publishes, and seal it there"

    def _refuse_unkept(self, survey: Survey, number: int) -> None:
        """What no decision would keep is refused before it is read: terabytes are hashed for nothing otherwise."""
        if survey.claims.newest > number:
            raise SealRefused(
                f"claimed and not decided: {self._keys.claim(survey.claims.newest)}: a start that is under way keeps "
                f"no seal that comes after it",
                hint=f"where that start died, `lastgood rollback {self._family.family_uri} GENERATION --reason ...` "
                f"decides in its place",
            )
        if number == 0:
            return
        key = self._keys.claim(number)
        claim = documents.parse(Claim, read_document(self._store, key) or b"", key)
        newest = claim.rollback.unsealed.get(self._place.name) if claim.rollback is not None else None
        if newest is not None and is_given_up(self._store, self._place.key, newest):
            raise SealRefused(
                f"cut by a rollback: {self._place.uri}: it lay there when incarnation {number} was decided, and holds "
                f"files that were written no later than {newest.isoformat()}",
                hint="it belongs to the branch that was given up; with all of its files written anew it can be sealed",
            )

    def _known(self, survey: Survey) -> Manifest | None:
        """What is on record under this name, on the branch that is kept."""
        generation = next((one for one in survey.candidates if one.name == self._place.name), None)
        if generation is None:
            return None
        marker = read_commit_marker(self._store, self._keys, generation)
        stored = read_stored_manifest(self._store, self._keys, generation, marker.marker)
        if marker.marker is None or stored.trusted is None:
            findings = (*marker.findings, *stored.findings, *stored.identity)
            raise SealRefused(f"sealed before, and its documents are wrong: {generation}", findings=findings)
        return stored.trusted

    def _refuse_other(self, known: Manifest, survey: Survey) -> None:
        hint = "a name is sealed once: seal the checkpoint whose name stays its own, and let this one be"
        if known.id in survey.barred:
            hint = (
                f"a fail on record bars it: `lastgood rollback {self._family.family_uri} GENERATION --reason ...` to "
                f"an older one gives it up, and what is saved under its name after that can be sealed"
            )
        raise SealRefused(
            f"sealed as something else: {self._place.uri}: as {known.generation}, of which files differ", hint=hint
        )

    def _purpose(self, examined: Examination) -> Purpose:
        self._refuse_numbered(examined.description)
        match examined.restorability:
            case Restorability.RESUMABLE:
                return Purpose.RESUMABLE
            case Restorability.WEIGHTS_ONLY if self._wish.weights_only:
                return Purpose.WEIGHTS_ONLY
        if examined.could_not_tell:
            raise ReadLimitError(
                f"could not tell: {self._place.uri}: {'; '.join(examined.classification.reasons)}",
                hint="nothing is known to be wrong with it, and nothing is sealed unseen",
            )
        wanted = examined.restorability is Restorability.WEIGHTS_ONLY
        raise SealRefused(
            f"not sealed: {self._place.uri} is {examined.restorability}: {'; '.join(examined.classification.reasons)}",
            findings=examined.findings,
            hint="--weights-only seals it as an export, which nothing resumes"
            if wanted
            else f"`lastgood inspect {self._place.uri}` shows all of it",
        )

    def _refuse_numbered(self, description: Description) -> None:
        if is_numbered_by_accelerate(self._place, description):
            raise SealRefused(
                f"not sealed: {self._place.uri}: Accelerate fails on .lastgood in a directory that it numbers itself",
                hint="give save_state a directory of your own, seal a copy elsewhere, or resume by --policy structural",
            )

    def _refuse_cut(self, survey: Survey, manifest: Manifest) -> None:
        """The very bytes that a rollback cut do not come back as something new."""
        for generation in survey.fenced:
            if generation.name != self._place.name:
                continue
            key = self._keys.manifest(generation)
            data = self._store.get(key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
            if data is not None and parse_manifest(data, key).artifacts == manifest.artifacts:
                finding = Finding(
                    reason=Reason.GENERATION_FENCED,
                    message=f"cut by a rollback: {generation} holds these very bytes",
                    offender=str(generation),
                )
                raise SealRefused(f"not sealed: {self._place.uri}: {finding.message}", findings=(finding,))

    # What is on record of it.

    def _generation(self, number: int, description: Description) -> GenerationId:
        step = _told("step", description.step, self._wish.step, stated=True)
        if step is None:
            raise UsageError(f"step not told: {self._place.uri}: the files do not say it", hint="say it: --step N")
        try:
            return GenerationId(number, step, self._place.name)
        except FormatError as error:
            raise SealRefused(f"not sealed: {self._place.uri}: {error.message}") from error

    def _hash(self, source: Source, examined: Examination) -> tuple[Artifact, ...]:
        """Every file that belongs to it, with its digest; a file that no loader reads is left out, as tier 1 does."""
        main = _main_components(examined.description)
        paths = [path for path in source.files if path in main or not is_stray(path)]
        irregular = [path for path in paths if source.files[path].kind is not ObjectKind.FILE]
        if irregular:
            raise SealRefused(
                f"not a regular file: {irregular[0]} in {self._place.uri}: links and pipes are not sealed"
            )
        if not source.is_file and paths == [source.name]:
            raise SealRefused(
                f"a directory that holds a file of its own name alone: {self._place.uri}",
                hint="seal the file where it lies: its directory is then its family",
            )
        requests = [HashRequest(path=path, algorithms=(Algorithm.BLAKE3,), size_bytes=None) for path in paths]
        artifacts = []
        for path, found in zip(paths, self._store.hash(source.prefix, requests, self._hashed(examined)), strict=True):
            if found.trouble is not None or found.bytes is None:
                raise StoreTransientError(f"cannot read {path} of {self._place.uri}: {found.message}")
            component = main.get(path, Component.OTHER)
            artifacts.append(
                Artifact(path=path, component=component, rank=None, bytes=found.bytes, digests=found.digests)
            )
        return tuple(sorted(artifacts, key=lambda artifact: artifact.path))

    def _hashed(self, examined: Examination) -> Progress | None:
        progress, before = self._progress, examined.total_bytes
        return None if progress is None else lambda done_bytes: progress(before + done_bytes)

    def _manifest(
        self,
        generation: GenerationId,
        artifacts: Sequence[Artifact],
        examined: Examination,
        purpose: Purpose,
        listing: str,
    ) -> Manifest:
        now, description = datetime.now(UTC), examined.description
        layout = description.layout
        world_size = _told("world size", layout.world_size, self._wish.world_size, stated=_is_stated(description))
        if world_size is None:
            raise UsageError(
                f"world size not told: {self._place.uri}: {layout.why}", hint="say how many ranks saved: --world-size N"
            )
        stated = layout.why if layout.world_size == world_size else "said by whoever sealed it"
        return Manifest(
            format_version=FORMAT_VERSION,
            family=self._keys.family,
            generation=str(generation),
            incarnation=generation.incarnation,
            step=generation.step,
            staging="sealed where it lies",
            created_at=self._wish.as_of or self._store.last_changed(self._place.key) or now,
            job=_job(self._keys.family, generation.step, world_size, description, purpose),
            artifacts=tuple(artifacts),
            expectations=None,
            seal=Seal(
                framework=description.framework.value,
                version=description.version,
                layout=description.layout_name,
                step_from="what the checkpoint holds" if description.step is not None else "said by whoever sealed it",
                world_size_from=f"{layout.certainty}: {stated}" if layout.world_size == world_size else stated,
                listing=listing,
                unknowable=examined.unknowable,
                reason=redact(self._wish.reason) if self._wish.reason else None,
                sealed_at=now,
                by=operator(),
            ),
        )

    # Putting it there.

    def _commit(self, generation: GenerationId, manifest: Manifest) -> Sealed:
        store, keys = self._store, self._keys
        store.prepare((keys.incarnations, keys.manifests, keys.commits))
        try:
            data = manifest_bytes(manifest)
        except FormatError as error:
            raise SealRefused(f"not sealed: {self._place.uri}: {error.message}") from error
        key = keys.manifest(generation)
        self._refuse_twin(generation)
        if not store.create(key, data):
            # Of a seal beside this one, or of one that was interrupted; its times and its reason stand.
            data = store.get(key, limit_bytes=MAXIMUM_MANIFEST_BYTES) or b""
            other = parse_manifest(data, key)
            if (other.artifacts, other.job) != (manifest.artifacts, manifest.job):
                raise SealRefused(
                    f"another seal is on record: {key}",
                    hint="the checkpoint changed since; if its COMMIT was never written, remove that manifest",
                )
            manifest = other
        # Of seals at once that say different steps whichever looks later sees the other, so at most one is committed.
        self._refuse_twin(generation)
        digest = manifest_digest(data)
        life = self._wish.life or secrets.token_hex(16)
        marker = Commit(generation=str(generation), manifest=digest, previous=None, nonce=life)
        outcome = perform(store, commit(keys, generation, documents.canonical_bytes(marker)))
        if outcome is CommitOutcome.FENCED:
            raise Fenced(
                f"fenced: {self._place.uri}: a start or a rollback came in between; it may or may not have been kept",
                hint="seal it again: what the newest decision says of it is said then",
            )
        if outcome is CommitOutcome.TAKEN:
            there = read_commit_marker(store, keys, generation)
            if there.marker is None or there.marker.manifest != digest:
                raise SealRefused(f"commit slot is taken: {keys.commit(generation)}", findings=there.findings)
        is_new = outcome is CommitOutcome.ACKNOWLEDGED
        return Sealed(location=self._family.of(generation), manifest=manifest, is_new=is_new)

    def _refuse_twin(self, generation: GenerationId) -> None:
        """A name is sealed once a branch, whatever step is said of it."""
        for file in self._store.names(self._keys.manifests).files:
            other = GenerationId.find(file.removesuffix(".json"))
            if other is None or other == generation:
                continue
            if (other.incarnation, other.name) == (generation.incarnation, generation.name):
                raise SealRefused(
                    f"another seal is on record: {self._keys.manifest(other)}: of step {other.step}, "
                    f"not {generation.step}",
                    hint="which step is it? if that one's COMMIT was never written and nobody is sealing it, "
                    "remove that manifest",
                )


def _told(what: str, found: int | None, said: int | None, *, stated: bool) -> int | None:
    """What the files tell, or what the operator says; one that contradicts what is written there is refused."""
    if found is not None and said is not None and found != said and stated:
        raise UsageError(f"{what} contradicted: the checkpoint says {found}, --{what.replace(' ', '-')} says {said}")
    return said if said is not None else found


def _is_stated(description: Description) -> bool:
    return description.layout.certainty is Certainty.STATED


def _main_components(description: Description) -> dict[str, Component]:
    """Path → the first of the components that it holds, in canonical order; the others are in the promises."""
    main: dict[str, Component] = {}
    for component in Component:
        for path in description.paths_of(component):
            main.setdefault(path, component)
    return main


def _job(family: str, step: int, world_size: int, description: Description, purpose: Purpose) -> JobDescription:
    held = [component for component in Component if description.paths_of(component)]
    never: Mapping[Component, str] = {entry.component: entry.reason for entry in description.never_saved}
    absent = [component for component in REQUIRED_COMPONENTS if component not in held]
    axes, product = dict(description.layout.axes), 1
    for size in axes.values():
        product *= size
    counted = {counter.name for counter in description.counters}
    completed = Counter(name="optimizer_step", value=step, names=CounterMeaning.COMPLETED)
    return JobDescription(
        run=family,
        counters=(*(() if completed.name in counted else (completed,)), *description.counters),
        code=None,
        configuration=None,
        environment=Environment(python=None, lastgood=lastgood.__version__),
        topology=Topology(
            world_size=world_size,
            strategy=description.framework.value,
            layout=axes if product == world_size else {},
        ),
        model=None,
        tokenizer=None,
        dataset=None,
        purpose=purpose,
        promises=tuple(
            ComponentPromise(component=component, determinism=Determinism.NONE, reason=NOTHING_PROMISED)
            for component in held
        ),
        absent=tuple(
            AbsentComponent(component=component, reason=never.get(component, NOT_HELD)) for component in absent
        ),
    )
