"""The small documents around manifests: claims, decisions, commit markers, refusals, releases, and the caches.

Decides their shape; `protocol` decides when they are written and what they mean. Source: docs/format.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from lastgood.description import Text
from lastgood.documents import AwareTime, Document
from lastgood.manifest import GenerationText, Step
from lastgood.verdict import Finding

__all__ = [
    "ActivePointer",
    "Claim",
    "Commit",
    "GenerationPointer",
    "Passed",
    "QuarantineNotice",
    "Refusal",
    "Release",
    "ResumeRecord",
    "Rollback",
]

# The length bounds are not idle: `$` alone would let a trailing newline through.
Nonce = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$", max_length=32)]
DigestText = Annotated[str, Meta(pattern=r"^(blake3|sha256):[0-9a-f]{64}$", max_length=71)]


class Rollback(Document, frozen=True, kw_only=True):
    """The operator's decision inside a rollback claim.

    Args:
        from_generation: What is gone back to.
        from_commit: Digest of that COMMIT.
        keeps: Incarnation number (decimal) → last step kept; none listed means none kept.
        reason: The operator's.
        unsealed: Of whatever lay there that is no generation of ours, name → when the newest of its files was written:
            where no kept seal vouches for it, it belongs to the branch that is cut.
    """

    from_generation: GenerationText
    from_commit: DigestText
    keeps: dict[str, Step]
    reason: Text
    unsealed: dict[str, AwareTime] = {}


class Claim(Document, frozen=True, kw_only=True):
    """`incarnations/<n>`: who owns this life of the run; with `rollback` it also decides."""

    kind: Literal["start", "rollback"]
    nonce: Nonce
    host: Text
    launcher: dict[str, str] = {}
    rollback: Rollback | None = None


class ResumeRecord(Document, frozen=True, kw_only=True):
    """`incarnations/<n>.resume`: what this life loaded and which older commits remain candidates.

    Args:
        nonce: The life that decided.
        from_generation: What it loads, or null for a fresh start.
        from_commit: Digest of that COMMIT, or null.
        keeps: Incarnation number (decimal) → last step kept, for every older incarnation; none listed means none kept.
    """

    nonce: Nonce
    from_generation: GenerationText | None
    from_commit: DigestText | None
    keeps: dict[str, Step]


class Commit(Document, frozen=True, kw_only=True):
    """`commits/<id>`: the marker, written last.

    Args:
        generation: Which.
        manifest: Digest of the manifest's bytes, or null when the slot is burned.
        previous: Digest of the previous COMMIT's bytes of the same incarnation (or of `from`), or null.
        nonce: The life that wrote it.
        burned: The slot was abandoned; it is never offered.
    """

    generation: GenerationText
    manifest: DigestText | None
    previous: DigestText | None
    nonce: Nonce
    burned: bool = False


class GenerationPointer(Document, frozen=True, kw_only=True):
    """LAST_GOOD: a cache of an answer, for people and shells.

    Args:
        generation: The newest proven candidate, or null.
        commit: Digest of its COMMIT, or null.
        revision: Rises with every write, so that a compare-and-swap never mistakes an older value for its own.
    """

    generation: GenerationText | None
    commit: DigestText | None
    revision: Annotated[int, Meta(ge=0)]


class ActivePointer(Document, frozen=True, kw_only=True):
    """`incarnations/<n>.active`: newest commit of this incarnation, for people and the stale-pointer check."""

    generation: GenerationText
    commit: DigestText


class QuarantineNotice(Document, frozen=True, kw_only=True):
    """QUARANTINE: a cache of an answer, for people and shells; see `GenerationPointer` for `revision`."""

    quarantined: bool
    refusals: tuple[Text, ...]
    revision: Annotated[int, Meta(ge=0)]


class Refusal(Document, frozen=True, kw_only=True):
    """`refusals/<source>-<tag>[_<generation>]`: a fail on record, or an operator's quarantine.

    Args:
        source: `tier1`, `tier2`, `tier3` or `operator`.
        generation: What failed, or null for a family-wide quarantine.
        reason: One sentence for people.
        findings: What was found; empty for an operator's.
        created_at: When.
        by: Host or person.
    """

    source: Literal["tier1", "tier2", "tier3", "operator"]
    generation: GenerationText | None
    reason: Text
    findings: tuple[Finding, ...]
    created_at: AwareTime
    by: Text


class Release(Document, frozen=True, kw_only=True):
    """`releases/<name of the refusal>`: it no longer quarantines the family; its generation stays barred."""

    reason: Text
    created_at: AwareTime
    by: Text


class Passed(Document, frozen=True, kw_only=True):
    """`proven/<generation>`: a full tier 2 restore passed; `record` is the key of the evidence without its attempt."""

    generation: GenerationText
    record: Text
    created_at: AwareTime
