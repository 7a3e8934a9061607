"""What the family says of one generation: whom its commit marker follows, and whether a decision or a refusal stands
against it.

Decides nothing about bytes. Rules (docs/protocol.md): a marker names the one before it in its incarnation, burned slots
apart, or the one that its life resumed; a seal names none; a copy of a family keeps the marker of one that it left out
under `omitted/`; what the newest decision does not keep is fenced; what a fail on record names is barred, released or
not.
"""

from __future__ import annotations

from dataclasses import dataclass

from lastgood import documents
from lastgood.errors import FormatError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import Commit, ResumeRecord
from lastgood.protocol import Survey
from lastgood.protocol.commits import commit_digest
from lastgood.stores.port import Store
from lastgood.verdict import Finding, Reason
from lastgood.verify.reading import StoredCommit, read_commit_marker, read_document

__all__ = ["Predecessor", "check_chain", "check_standing", "commit_before", "find_predecessor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """The commit that a marker must name.

    Args:
        name: In words.
        digest: Digest text of its marker; None where there is none.
    """

    name: str
    digest: str | None


def find_predecessor(store: Store, keys: FamilyKeys, generation: GenerationId) -> Predecessor:
    """The commit before this one in its incarnation, or the one that its life resumed.

    Raises:
        StoreError: The store could not tell.
    """
    if generation.name:
        # Checkpoints are sealed in any order, by whoever comes, and a name is sealed once: there is nothing to follow.
        return Predecessor(name="nothing, as every seal", digest=None)
    before = commit_before(store, keys, generation)
    if before is None:
        return _resumed(store, keys, generation)
    other, stored = before
    digest = commit_digest(stored.data) if stored.data is not None else None
    return Predecessor(name=str(other), digest=digest)


def commit_before(store: Store, keys: FamilyKeys, generation: GenerationId) -> tuple[GenerationId, StoredCommit] | None:
    """The commit before this one in its incarnation, burned slots apart; None where this one is the first, or a seal.

    Raises:
        StoreError: The store could not tell.
    """
    if generation.name:
        return None
    here = _older(store, keys.commits, generation)
    omitted = _older(store, keys.omitted, generation) - here
    for other in sorted(here | omitted, reverse=True):
        stored = read_commit_marker(store, keys, other, omitted=other in omitted)
        if stored.marker is None or not stored.marker.burned:
            return other, stored
    return None


def _older(store: Store, prefix: str, generation: GenerationId) -> set[GenerationId]:
    # The family's verification reports names that are not lawful.
    named = {GenerationId.find(name) for name in store.names(prefix).files}
    return {one for one in named if one and one.incarnation == generation.incarnation and one.step < generation.step}


def _resumed(store: Store, keys: FamilyKeys, generation: GenerationId) -> Predecessor:
    key = keys.resume(generation.incarnation)
    try:
        data = read_document(store, key)
        if data is None:
            return Predecessor(name="nothing (no resume record)", digest=None)
        record = documents.parse(ResumeRecord, data, key)
    except FormatError as error:
        return Predecessor(name=f"nothing ({error.message})", digest=None)
    return Predecessor(name=record.from_generation or "a fresh start", digest=record.from_commit)


def check_chain(marker: Commit, predecessor: Predecessor, key: str) -> tuple[Finding, ...]:
    """The marker names its predecessor by the digest that the predecessor has."""
    if marker.previous == predecessor.digest:
        return ()
    message = (
        f"commit chain broken: {key}: expected to follow {predecessor.name} ({predecessor.digest}), "
        f"names {marker.previous}"
    )
    return (
        Finding(
            reason=Reason.COMMIT_CHAIN_BROKEN,
            message=message,
            offender=key,
            expected=predecessor.digest,
            found=marker.previous,
        ),
    )


def check_standing(keys: FamilyKeys, generation: GenerationId, survey: Survey) -> tuple[Finding, ...]:
    """The newest decision keeps the generation, and no fail on record names it."""
    subject = f"{keys.family}/{generation}"
    findings = []
    if generation in survey.fenced:
        what = "rollback" if survey.cut.rollback else "takeover"
        message = f"fenced: {subject}: not kept by the {what} of incarnation {survey.cut.decided_by}"
        findings.append(Finding(reason=Reason.GENERATION_FENCED, message=message, offender=str(generation)))
    if generation in survey.barred:
        message = f"barred: {subject}: a fail is on record: {', '.join(survey.barred[generation])}"
        findings.append(Finding(reason=Reason.GENERATION_BARRED, message=message, offender=str(generation)))
    return tuple(findings)
