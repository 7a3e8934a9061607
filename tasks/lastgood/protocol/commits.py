"""The commit marker: writing it under the fence, and burning the slot of a publish that cannot finish.

Decides when a publish is acknowledged, and when one may be given up. Rules (docs/protocol.md): list claims before
COMMIT and again after it, and acknowledge only if none is above our own; `.active` is written only by its own
incarnation; a name serves one COMMIT; a slot is burned only after the newest decision cut its life.
"""

from __future__ import annotations

from enum import StrEnum

from lastgood import documents
from lastgood.digest import Algorithm, hash_bytes
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import ActivePointer, Commit
from lastgood.protocol.requests import Get, List, Replace, Steps, create_ours
from lastgood.protocol.survey import find_cut, read_claim_names, read_commit

__all__ = ["CommitOutcome", "abandon", "burn", "commit", "commit_digest"]


class CommitOutcome(StrEnum):
    """`acknowledged`: durable and discoverable; `fenced`: a newer claim exists, kept or not; `taken`: the slot belongs
    to another COMMIT (burned, or another life's).
    """

    ACKNOWLEDGED = "acknowledged"
    FENCED = "fenced"
    TAKEN = "taken"


def commit_digest(data: bytes) -> str:
    """The digest text by which documents name a COMMIT: BLAKE3 over its bytes."""
    return str(hash_bytes(data, Algorithm.BLAKE3))


def commit(keys: FamilyKeys, generation: GenerationId, data: bytes) -> Steps[CommitOutcome]:
    """Write the marker of a generation whose artifacts and manifest are durable.

    Args:
        keys: The family.
        generation: Its incarnation must be the caller's own.
        data: The canonical bytes of its `Commit`; re-sending the same bytes is safe.

    Raises:
        StoreTransientError: The outcome is unknown; re-send the same bytes, or burn the slot, before the next step.
    """
    before = read_claim_names((yield List(keys.incarnations)))
    if before.newest > generation.incarnation:
        return CommitOutcome.FENCED
    if not (yield from create_ours(keys.commit(generation), data)):
        return CommitOutcome.TAKEN
    # A takeover may have come between the first look and the marker; it lists commits after its claim, so whichever
    # of us came later sees the other.
    after = read_claim_names((yield List(keys.incarnations)))
    if after.newest > generation.incarnation:
        return CommitOutcome.FENCED
    if generation.name:
        return CommitOutcome.ACKNOWLEDGED  # a seal belongs to no life, so there is nobody to keep a pointer for it
    pointer = ActivePointer(generation=str(generation), commit=commit_digest(data))
    yield Replace(keys.active(generation.incarnation), documents.canonical_bytes(pointer))
    return CommitOutcome.ACKNOWLEDGED


def abandon(keys: FamilyKeys, generation: GenerationId, nonce: str) -> Steps[bool]:
    """Burn the slot of a publish that nobody can finish any more, so that what it left may be deleted.

    Only of a life that the newest decision came after. What that decision keeps of it is settled, so a burned slot
    cannot move it; a slot burned between a claim and its decision would be kept as that life's last step, and a COMMIT
    that was sent before it and lands late would come back to life below it.

    Returns:
        True if the slot is burned now (by anyone); False if its life may still publish, or it holds a real COMMIT.

    Raises:
        FormatError: The newest decision is not lawful.
    """
    cut = yield from find_cut(keys, read_claim_names((yield List(keys.incarnations))))
    if generation.incarnation >= cut.decided_by:
        return False
    return (yield from burn(keys, generation, nonce))


def burn(keys: FamilyKeys, generation: GenerationId, nonce: str) -> Steps[bool]:
    """Occupy the slot of an abandoned generation, so that nobody can commit it while it is being deleted.

    Returns:
        True if the slot is burned now (by anyone), False if it holds a real COMMIT.
    """
    marker = Commit(generation=str(generation), manifest=None, previous=None, nonce=nonce, burned=True)
    if (yield from create_ours(keys.commit(generation), documents.canonical_bytes(marker))):
        return True
    data = yield Get(keys.commit(generation))
    return read_commit(data, generation, keys.commit(generation)).burned
