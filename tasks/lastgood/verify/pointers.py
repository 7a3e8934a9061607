"""The documents of a family that are only caches (`.active`, LAST_GOOD, QUARANTINE), what else lies about, the repair.

Decides whether a cache agrees with the documents that decide; leaves those to `protocol`. Rules: a pointer is judged
only after the commits were listed; one that lags may have been read between a commit and its pointer, so it is looked
at again before it is reported; `.active` is judged only for the incarnation that decided last, since a dead one's
lagging pointer misleads nobody; a family without a commit that counts never passes, for nothing of it was verified.
Source: docs/protocol.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

from lastgood import documents
from lastgood.errors import FormatError, StoreError, StoreLimitError, UsageError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import ActivePointer, GenerationPointer, QuarantineNotice
from lastgood.protocol import Survey, perform, refresh_caches, take_survey
from lastgood.protocol.commits import commit_digest
from lastgood.protocol.survey import RefusalName
from lastgood.stores.port import Store
from lastgood.text import counted
from lastgood.verdict import Check, CheckState, Finding, Note, NoteReason, Reason, Rung, Tier, Verdict, judge
from lastgood.verify.reading import read_commit_marker, read_document

__all__ = ["repair_pointers", "verify_family"]

SETTLE = timedelta(seconds=0.5)
MAXIMUM_LOOKS = 5
REPAIR_ROUNDS = 20
_POINTERS = ("active_pointer", "last_good", "quarantine_notice")
_REQUIRED = ("decisions", "names", *_POINTERS)
_NOTHING_COMMITTED = "nothing_committed"


def verify_family(store: Store, keys: FamilyKeys, *, settle: timedelta = SETTLE) -> Verdict:
    """Verify what a family says of itself: names, decisions and caches; no generation's artifacts.

    Args:
        store: Where.
        keys: The family.
        settle: How long to wait before a lagging pointer is looked at again.

    Raises:
        UsageError: There is no such family.
    """
    verdict = _verify(store, keys)
    lagging = _lagging(verdict)
    for _ in range(MAXIMUM_LOOKS):
        if not lagging:
            break
        # A publisher writes its pointer milliseconds after its marker. A pointer that has moved on meanwhile is alive,
        # even if it was met between the next marker and its pointer; one that says the same as before is stale.
        time.sleep(settle.total_seconds())
        before, verdict = lagging, _verify(store, keys)
        lagging = _lagging(verdict) - before
    return verdict


def _lagging(verdict: Verdict) -> set[tuple[str, str | None]]:
    """What stale pointers were seen, and what they said."""
    return {(f.offender, f.found) for f in verdict.findings if f.reason is Reason.POINTER_STALE}


def repair_pointers(store: Store, keys: FamilyKeys) -> tuple[str, ...]:
    """Rewrite the caches that disagree with the documents that decide.

    Returns:
        The keys that were rewritten or removed; empty when nothing disagreed.

    Raises:
        UsageError: There is no such family.
        StoreError: The store failed; whatever was rewritten is right.
        FormatError: A document that decides is not lawful, so there is nothing to repair by.
    """
    wrong = {finding.offender for finding in verify_family(store, keys).findings}
    repaired = []
    for key in wrong & {keys.last_good, keys.quarantine}:
        _make_way(store, key)
    if {keys.last_good, keys.quarantine} & wrong:
        perform(store, refresh_caches(keys))
        repaired += sorted({keys.last_good, keys.quarantine} & wrong)
    survey = perform(store, take_survey(keys))
    active = keys.active(survey.cut.decided_by)
    if active in wrong and _repair_active(store, keys, active):
        repaired.append(active)
    return tuple(repaired)


def _repair_active(store: Store, keys: FamilyKeys, active: str) -> bool:
    # The incarnation itself may be publishing: whoever sees the newer commit last writes last.
    _make_way(store, active)
    for _ in range(REPAIR_ROUNDS):
        current = read_document(store, active)
        survey = perform(store, take_survey(keys))
        newest = next(_own_commits(store, keys, survey), None)
        if newest is None:
            store.delete(active)
            return True
        pointer = documents.canonical_bytes(ActivePointer(generation=str(newest[0]), commit=newest[1]))
        if current == pointer:
            return True
        try:
            store.compare_and_swap(active, pointer, expected=current)
        except StoreLimitError:
            store.replace(active, pointer)  # as its publisher does
    return False


def _make_way(store: Store, key: str) -> None:
    """Remove what is no document at all (a link, a pipe) from a cache's name; it could be neither read nor swapped."""
    try:
        read_document(store, key)
    except FormatError:
        store.delete(key)


def _verify(store: Store, keys: FamilyKeys) -> Verdict:
    checks: list[Check] = []
    notes: list[Note] = []
    try:
        if not store.names(keys.ours).directories:
            raise UsageError(f"not a lastgood family: {store.uri}/{keys.family}", hint="is the name spelled right?")
        survey = perform(store, take_survey(keys))
    except FormatError as error:
        offender = error.where or keys.incarnations
        finding = Finding(reason=Reason.DECISION_MALFORMED, message=error.message, offender=offender)
        checks.append(_ran("decisions", "a document that decides is not lawful", (finding,)))
        checks += [Check(name=name, state=CheckState.NOT_RUN, detail="nothing decides") for name in _REQUIRED[1:]]
    except StoreError as error:
        checks += [Check(name=name, state=CheckState.INCONCLUSIVE, detail=error.message) for name in _REQUIRED]
    else:
        checks.append(_ran("decisions", f"decided by incarnation {survey.cut.decided_by}"))
        checks += _Family(store, keys, survey).checks(notes)
    required = (*_REQUIRED, *(check.name for check in checks if check.name == _NOTHING_COMMITTED))
    return judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject=keys.family, checks=checks, notes=notes, required=required)


def _ran(name: str, detail: str, findings: tuple[Finding, ...] = ()) -> Check:
    return Check(name=name, state=CheckState.RAN, detail=detail, findings=findings)


class _Family:
    """One look at a family, after its survey."""

    def __init__(self, store: Store, keys: FamilyKeys, survey: Survey) -> None:
        self._store = store
        self._keys = keys
        self._survey = survey

    def checks(self, notes: list[Note]) -> Iterator[Check]:
        """Every check but the survey itself; what is only worth saying is added to `notes`."""
        for name, question in (
            ("names", self._names),
            ("active_pointer", self._active),
            ("last_good", self._last_good),
            ("quarantine_notice", self._quarantine),
        ):
            try:
                findings = tuple(question())
            except StoreError as error:
                yield Check(name=name, state=CheckState.INCONCLUSIVE, detail=error.message)
            else:
                yield _ran(name, counted(len(findings), "finding") if findings else "holds", findings)
        try:
            if not self._holds_a_commit():
                why = f"no commit that counts: {self._survey.uncounted}"
                yield Check(name="nothing_committed", state=CheckState.NOT_RUN, detail=why)
        except StoreError as error:
            yield Check(name="nothing_committed", state=CheckState.INCONCLUSIVE, detail=error.message)
        try:
            notes.extend(self._notes())
        except StoreError as error:
            yield Check(name="leftovers", state=CheckState.INCONCLUSIVE, detail=error.message)

    def _holds_a_commit(self) -> bool:
        """Whether a slot that is kept was not given up; one whose marker is not lawful is there to be judged."""
        markers = (read_commit_marker(self._store, self._keys, one).marker for one in self._survey.candidates)
        return any(marker is None or not marker.burned for marker in markers)

    # Names.

    def _names(self) -> Iterator[Finding]:
        unlawful = [f"{self._keys.ours}/{name}" for name in self._survey.malformed]
        for prefix, lawful in ((self._keys.manifests, _is_manifest_name), (self._keys.releases, _is_refusal_name)):
            unlawful += [f"{prefix}/{name}" for name in self._store.names(prefix).files if not lawful(name)]
        for key in dict.fromkeys(unlawful):
            yield Finding(reason=Reason.NAME_MALFORMED, message=f"not a lawful name: {key}", offender=key)

    # Pointers.

    def _active(self) -> Iterator[Finding]:
        number = self._survey.cut.decided_by
        key = self._keys.active(number)
        newer = _own_commits(self._store, self._keys, self._survey)
        newest = next(newer, None)
        try:
            data = read_document(self._store, key) if number else None
            if data is None:
                if newest is not None and number:
                    yield _stale(key, str(newest[0]), "no pointer")
                return
            pointer = documents.parse(ActivePointer, data, key)
            named = GenerationId.parse(pointer.generation)
        except FormatError as error:
            yield Finding(reason=Reason.POINTER_MALFORMED, message=error.message, offender=key)
            return
        misplaced = self._misplaced(key, named, pointer.commit)
        if misplaced is not None:
            yield misplaced
        # A pointer ahead of what was listed names a commit that came after the listing.
        elif newest is not None and (named < newest[0] or named.incarnation != number):
            second = next(newer, None)
            if second is not None and named == second[0]:
                yield _stale(key, str(newest[0]), str(named))
            else:
                yield Finding(
                    reason=Reason.POINTER_ROLLED_BACK,
                    message=f"pointer rolled back: {key}: names {named}, {newest[0]} is committed",
                    offender=key,
                    expected=str(newest[0]),
                    found=str(named),
                )

    def _last_good(self) -> Iterator[Finding]:
        key, good = self._keys.last_good, self._survey.newest_proven
        expected = str(good) if good else "nothing"
        try:
            data = read_document(self._store, key)
            if data is None:
                if good is not None:
                    yield _stale(key, expected, "no pointer")
                return
            pointer = documents.parse(GenerationPointer, data, key)
            named = GenerationId.parse(pointer.generation) if pointer.generation is not None else None
        except FormatError as error:
            yield Finding(reason=Reason.POINTER_MALFORMED, message=error.message, offender=key)
            return
        misplaced = self._misplaced(key, named, pointer.commit) if named else None
        if misplaced is not None:
            yield misplaced
        elif named != good:
            yield _stale(key, expected, str(named or "nothing"))

    def _quarantine(self) -> Iterator[Finding]:
        key, refusals = self._keys.quarantine, self._survey.quarantine
        try:
            data = read_document(self._store, key)
            if data is None:
                if refusals:
                    yield _stale(key, f"quarantined by {', '.join(refusals)}", "no notice")
                return
            notice = documents.parse(QuarantineNotice, data, key)
        except FormatError as error:
            yield Finding(reason=Reason.POINTER_MALFORMED, message=error.message, offender=key)
            return
        if notice.quarantined != bool(refusals) or set(notice.refusals) != set(refusals):
            yield _stale(key, ", ".join(refusals) or "no refusal", ", ".join(notice.refusals) or "no refusal")

    def _misplaced(self, key: str, named: GenerationId, digest: str | None) -> Finding | None:
        """A pointer at something that is not the committed generation it claims."""
        stored = read_commit_marker(self._store, self._keys, named)
        if stored.data is None:
            lies = self._store.stat(self._keys.manifest(named)) or self._store.stat(self._keys.artifacts(named))
            reason = Reason.POINTER_UNCOMMITTED if lies else Reason.POINTER_DANGLING
            what = "has no commit marker" if lies else "is not there"
            return Finding(reason=reason, message=f"pointer: {key}: {named} {what}", offender=key, found=str(named))
        found = commit_digest(stored.data)
        if found != digest:
            return Finding(
                reason=Reason.POINTER_MISMATCH,
                message=f"pointer of another digest: {key}: {named} has the marker {found}, the pointer says {digest}",
                offender=key,
                expected=found,
                found=digest,
            )
        return None

    # What else lies about.

    def _notes(self) -> Iterator[Note]:
        survey = self._survey
        if survey.quarantine:
            message = f"family quarantined by {', '.join(survey.quarantine)}"
            yield Note(reason=NoteReason.QUARANTINE_IN_FORCE, message=message, offender=self._keys.family)
        for number in survey.claims.claims:
            if number > survey.cut.decided_by and number not in survey.claims.resumes:
                key = self._keys.claim(number)
                message = f"claimed, never decided: {key}"
                yield Note(reason=NoteReason.CLAIM_WITHOUT_DECISION, message=message, offender=key)
        for generation in survey.fenced:
            marker = read_commit_marker(self._store, self._keys, generation).marker
            if marker is not None and marker.burned:
                continue  # given up on purpose: there is nothing that anybody could have kept
            message = f"not kept by the decision of incarnation {survey.cut.decided_by}: {generation}"
            yield Note(reason=NoteReason.COMMIT_NOT_KEPT, message=message, offender=self._keys.commit(generation))
        yield from self._abandoned()

    def _abandoned(self) -> Iterator[Note]:
        committed = {*self._survey.candidates, *self._survey.fenced}
        newest = self._survey.claims.newest
        reached = max((g.step for g in committed if g.incarnation == newest), default=-1)
        for prefix, names in (
            (self._keys.staging, self._store.names(self._keys.staging).directories),
            (self._keys.family, self._store.names(self._keys.family).directories),
        ):
            for name in names:
                generation = _generation(name.partition("~")[0])
                if generation is None or generation in committed:
                    continue
                # The newest life may be publishing this very step.
                if generation.incarnation == newest and generation.step > reached:
                    continue
                key = f"{prefix}/{name}"
                message = f"publish not finished: {key}: it has no commit marker and nobody can still write one"
                yield Note(reason=NoteReason.STAGING_ABANDONED, message=message, offender=key)


def _own_commits(store: Store, keys: FamilyKeys, survey: Survey) -> Iterator[tuple[GenerationId, str]]:
    """Commits of the incarnation that decided last, newest first, with their markers' digests; burned slots and seals,
    which no life keeps a pointer for, are left out.
    """
    for generation in survey.candidates:
        if generation.incarnation == survey.cut.decided_by and not generation.name:
            stored = read_commit_marker(store, keys, generation)
            if stored.data is not None and not (stored.marker and stored.marker.burned):
                yield generation, commit_digest(stored.data)


def _stale(key: str, expected: str, found: str) -> Finding:
    return Finding(
        reason=Reason.POINTER_STALE,
        message=f"pointer stale: {key}: expected {expected}, found {found}",
        offender=key,
        expected=expected,
        found=found,
    )


def _generation(text: str) -> GenerationId | None:
    try:
        return GenerationId.parse(text)
    except FormatError:
        return None


def _is_manifest_name(name: str) -> bool:
    return name.endswith(".json") and _generation(name.removesuffix(".json")) is not None


def _is_refusal_name(name: str) -> bool:
    try:
        RefusalName.parse(name)
    except FormatError:
        return False
    return True
