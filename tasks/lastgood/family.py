"""A family as people and launch scripts ask about it: what may be resumed, what is wrong, and the operator's acts.

Decides nothing by itself: `protocol` decides, this drives it over a store and gives the answers names. Shared by the
command line and the flows.
"""

from __future__ import annotations

import getpass
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath

from lastgood.errors import (
    FormatError,
    ResumeRefused,
    StoreError,
    StorePermanentError,
    StoreTransientError,
    UsageError,
)
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.manifest import Manifest
from lastgood.markers import Commit, Refusal, Release
from lastgood.protocol import (
    Choice,
    Policy,
    Skipped,
    Survey,
    choose,
    perform,
    refresh_caches,
    refuse,
    release,
    rollback,
)
from lastgood.protocol.survey import RefusalName
from lastgood.records import Kept, Measurements, Record, keep_verdict, newest_first, newest_records
from lastgood.redaction import redact
from lastgood.standing import Standings
from lastgood.stores.port import Progress
from lastgood.text import counted
from lastgood.unsealed import unsealed
from lastgood.verdict import FamilyState, Finding, Note, NoteReason, Outcome, Reason, Slice, Tier, Verdict, waive
from lastgood.verify import Depth, Inspection, Read, read_whole, verify_generation
from lastgood.verify.reading import read_commit_marker

__all__ = ["Family", "Judged", "Offer", "family_state", "operator"]

MAXIMUM_REASON_CHARACTERS = 4096
"""What the documents hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The answer of `latest`.

    Args:
        generation: What may be resumed, or None.
        uri: Its URI, or None.
        manifest: Its manifest, or None.
        findings: Why there is nothing, when there is nothing.
        skipped: Newer or fenced generations that were passed over, and why.
        notes: What is worth saying about the offer.
        lineage_is_empty: No commit that counts stands in the lineage, so a fresh start would lose nothing.
    """

    generation: GenerationId | None
    uri: str | None
    manifest: Manifest | None
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[Note, ...]
    lineage_is_empty: bool

    @property
    def hint(self) -> str:
        """The way on from an offer of nothing."""
        if not self.lineage_is_empty:
            return Reason.NOTHING_TO_RESUME.hint
        if any(finding.reason is Reason.GENERATION_FENCED for one in self.skipped for finding in one.findings):
            return (
                "`lastgood inspect FAMILY` lists what is not kept, and `lastgood rollback FAMILY GENERATION --reason "
                "...` goes back to it; --allow-fresh gives it up"
            )
        return "is the name spelled right? --allow-fresh is for the very first start of a family"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict of tier 1 that is not on record yet, with what `Family.keep` wants to know of it.

    Args:
        verdict: What was found.
        started_at: When the gate began, aware.
        measurements: What it took.
        may_be_repeated: It is inconclusive, and of all that stood in its way the store said that it may be gone when
            asked again.
    """

    verdict: Verdict
    started_at: datetime
    measurements: Measurements
    may_be_repeated: bool = False


class Family(Standings):
    """One family in a store.

    Args:
        location: From `location.locate`.
        ignored: Check → the written reason for which its findings are accepted (`verdict.waive`).
        now: The clock, aware UTC.
    """

    def __init__(
        self,
        location: Location,
        *,
        ignored: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(location, now=now)
        self._ignored = dict(ignored or {})

    def latest(self, *, policy: Policy = Policy.VERIFIED, deep: bool = False) -> Offer:
        """The newest generation that may be resumed; by commit, manifest, existence, sizes and records.

        Args:
            policy: Which generations may be offered.
            deep: Also read every byte of each candidate until one holds.

        Raises:
            FormatError: A document that decides is not lawful.
            StoreError: The store could not tell; never an older generation instead.
        """
        inspection = Inspection(self._store, self._keys)

        def inspect(generation: GenerationId, commit: Commit) -> tuple[Finding, ...]:
            findings = inspection(generation, commit)
            return findings if findings or not deep else read_whole(self._store, self._keys, generation)

        choice = perform(self._store, choose(self._keys, policy=policy), inspect=inspect)
        if choice.generation is None:
            return Offer(
                generation=None,
                uri=None,
                manifest=None,
                findings=(self._nothing(choice),),
                skipped=choice.skipped,
                notes=self._unpublished(choice.survey),
                lineage_is_empty=not choice.survey.candidates or choice.all_burned,
            )
        return Offer(
            generation=choice.generation,
            uri=self.location.generation_uri(choice.generation),
            manifest=inspection.manifests[choice.generation],
            findings=(),
            skipped=choice.skipped,
            notes=self._notes(choice.generation, choice.survey),
            lineage_is_empty=False,
        )

    def _nothing(self, choice: Choice) -> Finding:
        family = self._keys.family
        if choice.survey.candidates and not choice.all_burned:
            commits = counted(len(choice.survey.candidates), "commit")
            message = f"nothing may be resumed: {family}: of {commits} none may be offered"
        else:
            message = f"nothing to resume: {family} holds no commit that counts: {choice.survey.uncounted}"
        return Finding(reason=Reason.NOTHING_TO_RESUME, message=message, offender=family)

    def _notes(self, generation: GenerationId, survey: Survey) -> tuple[Note, ...]:
        notes = []
        if survey.quarantine:
            message = f"family quarantined by {', '.join(survey.quarantine)}; offering a proven generation"
            notes.append(Note(reason=NoteReason.QUARANTINE_IN_FORCE, message=message, offender=self._keys.family))
        notes += self._unread(generation)
        if generation.name:
            notes += self._unsealed_beside(generation, survey)
        return tuple(notes)

    def _unpublished(self, survey: Survey) -> tuple[Note, ...]:
        """What lies in the family's directory and was never published: perhaps another framework's checkpoints."""
        names = self._store.names(self._keys.family)
        return self._never_published((*names.directories, *names.files), survey)

    def _unsealed_beside(self, generation: GenerationId, survey: Survey) -> tuple[Note, ...]:
        """What lies beside a sealed checkpoint and is like it: whatever seals may have stopped doing so."""
        names = self._store.names(self._keys.family)
        suffix = PurePath(generation.name).suffix
        alike = [name for name in names.files if PurePath(name).suffix == suffix]
        return self._never_published(alike if generation.name in names.files else names.directories, survey)

    def _never_published(self, names: Sequence[str], survey: Survey) -> tuple[Note, ...]:
        known = {generation.directory for generation in (*survey.candidates, *survey.fenced)} | {".lastgood"}
        strange = [name for name in names if name not in known]
        if not strange:
            return ()
        shown = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
        message = f"lie in {self._keys.family} and were never published or sealed, so they are not offered: {shown}"
        return (Note(reason=NoteReason.UNPUBLISHED_CONTENT, message=message, offender=strange[0]),)

    def _unread(self, generation: GenerationId) -> tuple[Note, ...]:
        partly: Slice | None = None
        try:
            for record in newest_first(self._store, self._keys, generation, Tier.MANIFEST):
                verdict = record.verdict
                if verdict.outcome is Outcome.PASS and not verdict.is_weaker_pass:
                    if verdict.slice is None or verdict.slice.covers:
                        return ()
                    partly = partly or verdict.slice
        except FormatError:
            pass  # a spoiled record is no evidence, and no reason to offer nothing
        if partly is None:
            message = f"no tier 1 pass on record: {generation}: sizes were compared, bytes were not read"
            return (Note(reason=NoteReason.COMMITTED_UNVERIFIED, message=message, offender=str(generation)),)
        message = f"partly read: {generation}: {partly.done} of {partly.rotation} slices so far"
        return (Note(reason=NoteReason.PARTLY_READ, message=message, offender=str(generation)),)

    def verify(
        self, generation: GenerationId, *, depth: Depth = Depth.FULL, progress: Progress | None = None
    ) -> Verdict:
        """Tier 1 of one generation, with its evidence kept: `judge`, then `keep`."""
        judged = self.judge(generation, depth=depth, progress=progress)
        self.keep(judged.verdict, generation, judged.started_at, judged.measurements)
        return judged.verdict

    def judge(
        self,
        generation: GenerationId,
        *,
        depth: Depth = Depth.FULL,
        read_all: bool = False,
        progress: Progress | None = None,
        read: Read | None = None,
    ) -> Judged:
        """Tier 1 of one generation; nothing is written.

        Args:
            generation: Which.
            depth: How far to look; `full` reads the next slices where the settings of the store ask for no more.
            read_all: Read every byte, whatever the settings say.
            progress: Told how many bytes have been read so far.
            read: As of `verify_generation`.

        Raises:
            UsageError: Nothing of that name was ever published.
        """
        begin, clock, read_bytes = self._now(), time.monotonic(), 0

        def count(done_bytes: int) -> None:
            nonlocal read_bytes
            read_bytes = done_bytes
            if progress is not None:
                progress(done_bytes)

        met: list[StoreError] = []
        turn = None if read_all or depth is not Depth.FULL else self.turn(generation)
        found = verify_generation(
            self._store,
            self._keys,
            generation,
            depth=depth,
            part=turn.slice if turn is not None else None,
            progress=count,
            trouble=met.append,
            read=read,
        )
        verdict = waive(found, self._ignored)
        transient = bool(met) and all(isinstance(error, StoreTransientError) for error in met)
        return Judged(
            verdict=verdict,
            started_at=begin,
            measurements=Measurements(seconds=time.monotonic() - clock, read_bytes=read_bytes),
            may_be_repeated=transient and verdict.outcome is Outcome.INCONCLUSIVE,
        )

    def keep(
        self,
        verdict: Verdict,
        generation: GenerationId,
        started_at: datetime,
        measurements: Measurements,
        *,
        attempt: int | None = None,
        origin: str | None = None,
    ) -> Kept:
        """Record a verdict of any tier about a generation of this family, and let it take effect.

        Args:
            verdict: What was found.
            generation: What was judged.
            started_at: When the gate began, aware.
            measurements: What it took.
            attempt: From `due_attempt`; None: the next free one.
            origin: The orchestrator's run that judged, as a link or an id.

        Raises:
            StoreError: The store failed, or the manifest of what passed is no longer there.
        """
        manifest = self.digest_of(generation)
        if manifest is None and verdict.outcome is Outcome.PASS:
            raise StoreTransientError(
                f"went away while it was judged: {self._keys.family}/{generation}",
                hint="is the file system mounted?",
            )
        return keep_verdict(
            self._store,
            self._keys,
            verdict,
            generation=generation,
            manifest=manifest,
            started_at=started_at,
            measurements=measurements,
            attempt=attempt,
            origin=origin,
            store_grade=self._store.grade(),
            now=self._now,
        )

    def newest_evidence(self) -> Mapping[Tier, Record]:
        """Per tier, the newest record of the newest candidate that has one: what was cut proves nothing any more."""
        return newest_records(self._store, self._keys, among=self.survey().candidates)

    def rollback(self, target: GenerationId, *, reason: str) -> int:
        """Go back to a generation on purpose; returns the incarnation number that decided it.

        Raises:
            UsageError: The generation cannot be gone back to (one that is not whole would leave nothing to resume), or
                no reason was given.
            ResumeRefused: The decision stands, but another seal of that step, which came meanwhile, is offered first.
        """
        self._require(reason)
        self._require_whole(target)
        told = redact(reason)
        steps = rollback(
            self._keys,
            target,
            nonce=secrets.token_hex(16),
            host=socket.gethostname(),
            reason=told,
            unsealed=unsealed(self._store, self._keys),
        )
        number = perform(self._store, steps)
        self._refresh_caches(f"rolled back (incarnation {number})")
        self._refuse_late_twin(target, number)
        return number

    def _refuse_late_twin(self, target: GenerationId, number: int) -> None:
        """A seal of the same step may have come between the look and the decision, which keeps it, too."""
        other = self.survey().newer_twin(target)
        if other is not None:
            raise ResumeRefused(
                f"rolled back (incarnation {number}), but {other} was sealed meanwhile: it is of the same step, kept "
                f"with {target} and offered before it",
                hint=f"bar it: `lastgood quarantine {self.location.family_uri} {other} --reason ...`, then `release`",
            )

    def _require_whole(self, target: GenerationId) -> None:
        stored = read_commit_marker(self._store, self._keys, target)
        if stored.marker is None or stored.marker.burned or target in self.survey().barred:
            return  # the protocol refuses it, in its own words
        findings = Inspection(self._store, self._keys)(target, stored.marker)
        if findings:
            raise UsageError(
                f"cannot roll back to {target}: {findings[0].reason}: {findings[0].message}",
                hint="`lastgood verify --all` says which generations hold",
            )

    def quarantine(self, *, reason: str, generation: GenerationId | None = None) -> RefusalName:
        """Quarantine the family by an operator's word; with a generation, bar that too.

        Raises:
            UsageError: No reason, or no such generation.
        """
        self._require(reason)
        if generation is not None and self._store.stat(self._keys.commit(generation)) is None:
            raise UsageError(f"not a commit of {self._keys.family}: {generation}")
        name = RefusalName(source="operator", tag=secrets.token_hex(8), generation=generation)
        refusal = Refusal(
            source="operator",
            generation=str(generation) if generation else None,
            reason=redact(reason),
            findings=(),
            created_at=self._now(),
            by=operator(),
        )
        perform(self._store, refuse(self._keys, name, refusal))
        self._refresh_caches(f"quarantined ({name})")
        return name

    def release(self, *, reason: str) -> tuple[str, ...]:
        """Lift the family's quarantine; generations with a fail on record stay barred. Returns what was lifted.

        Raises:
            UsageError: No reason, or no such family.
        """
        self._require(reason)
        told = Release(reason=redact(reason), created_at=self._now(), by=operator())
        lifted = perform(self._store, release(self._keys, told))
        self._refresh_caches(f"lifted {len(lifted)} refusals")
        return lifted

    def _refresh_caches(self, done: str) -> None:
        try:
            perform(self._store, refresh_caches(self._keys))
        except StoreError as error:
            # The act itself is durable, and whoever acts in a hurry must not be told that nothing happened.
            raise type(error)(
                f"{done}, but a cache for people could not be written: {error.message}",
                hint="it stands: no decision reads the cache; `lastgood verify FAMILY --repair` rewrites it",
            ) from error

    def exists(self) -> bool:
        """Whether lastgood ever wrote into this family.

        Raises:
            StorePermanentError: The root itself is not there.
        """
        if not self._store.is_root():
            raise StorePermanentError(
                f"root is not a directory: {self._store.uri}",
                hint="is the file system mounted, the path spelled right?",
            )
        names = self._store.names(self._keys.ours)
        return bool(names.directories or names.files)

    def _require(self, reason: str) -> None:
        if not reason.strip():
            raise UsageError("a reason is required: expected a sentence for whoever reads the audit")
        if len(reason) > MAXIMUM_REASON_CHARACTERS or not _is_text(reason):
            raise UsageError(
                f"not a reason: expected at most {MAXIMUM_REASON_CHARACTERS} characters of UTF-8 text, "
                f"found {len(reason)}"
            )
        if not self.exists():
            raise UsageError(f"not a lastgood family: {self.location.family_uri}")


def family_state(survey: Survey, offer: Offer) -> FamilyState:
    """What a family may offer, in one word; a quarantine is said first, for it needs a person."""
    if survey.quarantine:
        return FamilyState.QUARANTINED
    return FamilyState.READY if offer.generation is not None else FamilyState.NOTHING_TO_RESUME


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def operator() -> str:
    """Who acts, for documents: a person and a host."""
    try:
        person = getpass.getuser()
    except (KeyError, OSError):
        # A container may run a uid that no password file knows.
        person = "uid"
    return f"{person}@{socket.gethostname()}"
