"""Starting a life of the run, and going back on purpose.

Decides who owns an incarnation, what it loads and which older commits it keeps. Rules (docs/protocol.md): claim first,
then list, then decide; the same nonce under a taken number means a lost reply; `keeps` of a restart is every commit
seen, barred or not, and only a rollback cuts; a hint that is not the newest candidate is refused; step zero is lawful
only in a lineage without any commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from lastgood import documents
from lastgood.errors import Fenced, FormatError, ResumeRefused, StoreTransientError, UsageError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import Claim, Commit, ResumeRecord, Rollback
from lastgood.protocol.commits import commit_digest
from lastgood.protocol.requests import Get, List, Steps, create_ours
from lastgood.protocol.survey import (
    Choice,
    ClaimNames,
    Policy,
    Survey,
    check_claimed,
    choose,
    find_cut,
    read_claim_names,
    read_commit,
    take_survey,
)
from lastgood.text import counted
from lastgood.verdict import Finding, Reason

__all__ = ["Decision", "claim", "decide", "rollback"]

MAXIMUM_RACES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a start decided: the incarnation, what it loads (None: step zero), and what was passed over."""

    incarnation: int
    generation: GenerationId | None
    commit: Commit | None
    commit_digest: str | None
    choice: Choice


def claim(keys: FamilyKeys, *, nonce: str, host: str, launcher: Mapping[str, str] | None = None) -> Steps[int]:
    """Take the next free incarnation number; ours alone from then on.

    Args:
        keys: The family.
        nonce: 32 lowercase hex digits drawn for this life and no other.
        host: Where it runs.
        launcher: Ids of the launcher (job id, restart count), for people.
    """
    data = documents.canonical_bytes(Claim(kind="start", nonce=nonce, host=host, launcher=dict(launcher or {})))
    for _ in range(MAXIMUM_RACES):
        names = read_claim_names((yield List(keys.incarnations)))
        number = names.newest + 1
        if (yield from create_ours(keys.claim(number), data)):
            return number
    raise StoreTransientError(f"cannot claim an incarnation of {keys.family}: lost {MAXIMUM_RACES} races")


def decide(
    keys: FamilyKeys,
    incarnation: int,
    *,
    nonce: str,
    hint: GenerationId | None = None,
    allow_fresh: bool = False,
    policy: Policy = Policy.VERIFIED,
) -> Steps[Decision]:
    """List commits after the claim, choose what to load, and write it down; the takeover is that record.

    Raises:
        Fenced: A newer claim appeared: that start decides, not this one.
        ResumeRefused: Nothing may be resumed, the hint is superseded, or step zero is not lawful here.
    """
    choice = yield from choose(keys, policy=policy, below=incarnation)
    if choice.survey.claims.newest > incarnation:
        raise Fenced(
            f"superseded while starting: incarnation {choice.survey.claims.newest} claimed after {incarnation}"
        )
    # A life that is about to decide has committed nothing yet.
    check_claimed(keys, (*choice.survey.candidates, *choice.survey.fenced), incarnation - 1)
    _check_hint(hint, choice)
    if choice.generation is None:
        _check_fresh(keys, choice, allow_fresh)
    digest = commit_digest(choice.commit_bytes) if choice.commit_bytes is not None else None
    record = ResumeRecord(
        nonce=nonce,
        from_generation=str(choice.generation) if choice.generation else None,
        from_commit=digest,
        keeps=_kept(choice.survey),
    )
    if not (yield from create_ours(keys.resume(incarnation), documents.canonical_bytes(record))):
        raise Fenced(f"another life decided incarnation {incarnation} of {keys.family}")
    return Decision(
        incarnation=incarnation,
        generation=choice.generation,
        commit=choice.commit,
        commit_digest=digest,
        choice=choice,
    )


def _kept(survey: Survey) -> dict[str, int]:
    keeps: dict[str, int] = {}
    for generation in survey.candidates:
        number = str(generation.incarnation)
        keeps[number] = max(generation.step, keeps.get(number, 0))
    return keeps


def _check_hint(hint: GenerationId | None, choice: Choice) -> None:
    if hint is None or hint == choice.generation:
        return
    newest = choice.generation or "nothing"
    message = f"resume superseded: asked for {hint}, the newest candidate is {newest}"
    finding = Finding(
        reason=Reason.RESUME_SUPERSEDED, message=message, offender=str(hint), expected=str(newest), found=str(hint)
    )
    raise ResumeRefused(message, findings=(finding,), hint=Reason.RESUME_SUPERSEDED.hint)


def _check_fresh(keys: FamilyKeys, choice: Choice, allow_fresh: bool) -> None:
    findings = tuple(finding for skipped in choice.skipped for finding in skipped.findings)
    if choice.survey.candidates and not choice.all_burned:
        commits = counted(len(choice.survey.candidates), "commit")
        message = f"nothing may be resumed: {keys.family}: of {commits} none may be offered"
        refused = Finding(reason=Reason.FRESH_REFUSED, message=message, offender=keys.family)
        raise ResumeRefused(message, findings=(*findings, refused), hint=Reason.FRESH_REFUSED.hint)
    if not allow_fresh:
        message = f"nothing to resume: {keys.family} holds no commit that counts: {choice.survey.uncounted}"
        missing = Finding(reason=Reason.NOTHING_TO_RESUME, message=message, offender=keys.family)
        raise ResumeRefused(message, findings=(*findings, missing), hint=Reason.NOTHING_TO_RESUME.hint)


def rollback(
    keys: FamilyKeys,
    target: GenerationId,
    *,
    nonce: str,
    host: str,
    reason: str,
    unsealed: Mapping[str, datetime] | None = None,
) -> Steps[int]:
    """Go back to a generation: one conditional create that claims the next number and decides.

    Args:
        keys: The family.
        target: Committed, and neither burned nor barred.
        nonce: Drawn for this rollback and no other.
        host: Where it was asked for.
        reason: A sentence for the audit.
        unsealed: What lies there that is no generation of ours, name → when the newest of its files was written.

    Raises:
        UsageError: The generation is not committed, burned, barred by a fail on record, or not the one that would be
            offered then: another seal of its step is newer by name.
    """
    survey = yield from take_survey(keys)
    if target not in (*survey.candidates, *survey.fenced):
        raise UsageError(f"not a commit of {keys.family}: {target}", hint="`lastgood status` lists the generations")
    if target in survey.barred:
        raise UsageError(f"cannot roll back to a generation with a fail on record: {target}")
    data = yield Get(keys.commit(target))
    try:
        marker = read_commit(data, target, keys.commit(target))
    except FormatError as error:
        raise UsageError(f"cannot roll back: {error.message}") from error
    if marker.burned or data is None:
        raise UsageError(f"cannot roll back to a burned slot: {target}")
    _refuse_twin(target, survey)
    for _ in range(MAXIMUM_RACES):
        names = read_claim_names((yield List(keys.incarnations)))
        keeps = yield from _lineage(keys, names, target)
        record = Rollback(
            from_generation=str(target),
            from_commit=commit_digest(data),
            keeps=keeps,
            reason=reason,
            unsealed=dict(unsealed or {}),
        )
        claimed = Claim(kind="rollback", nonce=nonce, host=host, rollback=record)
        number = names.newest + 1
        if (yield from create_ours(keys.claim(number), documents.canonical_bytes(claimed))):
            return number
    raise StoreTransientError(f"cannot claim a rollback of {keys.family}: lost {MAXIMUM_RACES} races")


def _refuse_twin(target: GenerationId, survey: Survey) -> None:
    """A decision keeps steps, so of several seals of one step it keeps all, and the newest by name is offered."""
    other = survey.newer_twin(target)
    if other is not None:
        raise UsageError(
            f"cannot roll back to {target} alone: {other} is of the same step, would be kept with it and offered "
            f"before it",
            hint=f"go back to {other} or to another step, or bar it first with `lastgood quarantine`",
        )


def _lineage(keys: FamilyKeys, names: ClaimNames, target: GenerationId) -> Steps[dict[str, int]]:
    """What the life that wrote the target had kept, and of that life everything up to the target."""
    keeps: dict[str, int] = {}
    if target.incarnation > 0:
        cut = yield from find_cut(keys, names, below=target.incarnation + 1)
        if cut.decided_by == target.incarnation:
            keeps = {str(number): step for number, step in cut.keeps.items() if step is not None}
    keeps[str(target.incarnation)] = target.step
    return keeps
