"""What a family may offer: candidates, fences, bars and quarantine, asked in the order that makes the answer safe.

Decides which generations are candidates and which one is chosen. Rules (docs/protocol.md): what permits is listed
before what refuses (passes, releases, commits, then incarnations, then refusals), so that every answer was right at the
moment when the incarnations were listed; the newest *decision* cuts, bare claims cut nothing; an unreadable COMMIT is
never skipped; nothing here reads ACTIVE, LAST_GOOD or QUARANTINE.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from lastgood import documents
from lastgood.errors import FormatError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import Claim, Commit, ResumeRecord
from lastgood.protocol.requests import Get, Inspect, List, Steps
from lastgood.verdict import Finding, Reason

__all__ = [
    "Choice",
    "ClaimNames",
    "Cut",
    "Policy",
    "RefusalName",
    "Skipped",
    "Survey",
    "check_claimed",
    "choose",
    "find_cut",
    "read_claim_names",
    "take_survey",
]

_NUMBER = re.compile(r"[1-9]\d{0,7}", re.ASCII)
_CLAIM_NAME = re.compile(r"(\d{8})(\.resume|\.active)?", re.ASCII)
_REFUSAL_NAME = re.compile(r"(tier1|tier2|tier3|operator)-([0-9a-z]{4,32})(?:_(.+))?", re.ASCII)


class Policy(StrEnum):
    """`verified`: the newest candidate that is not barred; `proven`: the newest that a full restore passed."""

    VERIFIED = "verified"
    PROVEN = "proven"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNames:
    """The names under `incarnations/`, read once. A decision whose claim is not among them counts as claimed."""

    claims: tuple[int, ...]
    resumes: frozenset[int]
    malformed: tuple[str, ...]

    @property
    def newest(self) -> int:
        return self.claims[-1] if self.claims else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What the newest decision keeps: incarnation → last kept step, None for no limit; others keep nothing."""

    decided_by: int
    keeps: Mapping[int, int | None]
    rollback: bool

    def holds(self, generation: GenerationId) -> bool:
        if generation.incarnation not in self.keeps:
            return False
        limit = self.keeps[generation.incarnation]
        return limit is None or generation.step <= limit


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalName:
    """The name of an object under `refusals/`: who refused, which attempt (or nonce), which generation if one."""

    source: str
    tag: str
    generation: GenerationId | None

    def __str__(self) -> str:
        return f"{self.source}-{self.tag}" + (f"_{self.generation}" if self.generation else "")

    @property
    def quarantines(self) -> bool:
        """A tier 1 fail bars its generation only; every other refusal quarantines the family."""
        return self.source != "tier1"

    @classmethod
    def parse(cls, text: str) -> RefusalName:
        match = _REFUSAL_NAME.fullmatch(text)
        if match is None:
            raise FormatError(f"not a refusal's name: {text!r}")
        return cls(source=match[1], tag=match[2], generation=GenerationId.parse(match[3]) if match[3] else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The state of a family, as one pass over its documents shows it.

    Args:
        claims: Names under `incarnations/`.
        cut: What the newest decision keeps.
        candidates: Commits that the cut keeps, newest first; barred and burned ones are among them.
        fenced: Commits that it does not keep, newest first.
        barred: Generation → names of the refusals that name it.
        quarantine: Family refusals that no release names; empty when the family is not quarantined.
        released: Names of refusals that a release lifts.
        proven: Generations with a full tier 2 pass on record.
        malformed: Names under our prefixes that are not lawful, with their prefix.
    """

    claims: ClaimNames
    cut: Cut
    candidates: tuple[GenerationId, ...]
    fenced: tuple[GenerationId, ...]
    barred: Mapping[GenerationId, tuple[str, ...]]
    quarantine: tuple[str, ...]
    released: frozenset[str]
    proven: frozenset[GenerationId]
    malformed: tuple[str, ...]

    @property
    def newest_proven(self) -> GenerationId | None:
        """The newest candidate with a full tier 2 pass and no fail on record."""
        return next((g for g in self.candidates if g in self.proven and g not in self.barred), None)

    @property
    def uncounted(self) -> str:
        """What a family without a commit that counts holds in its place, in words: every candidate is a burned slot."""
        what = "rollback" if self.cut.rollback else "takeover"
        told = [f"{len(self.candidates)} burned"] if self.candidates else []
        if self.fenced:
            told.append(f"{len(self.fenced)} not kept by the {what} of incarnation {self.cut.decided_by}")
        return ", ".join(told) or "nothing was ever committed"

    def newer_twin(self, target: GenerationId) -> GenerationId | None:
        """Another seal of the target's step, which a decision for it keeps as well and which is offered before it."""
        return next(
            (
                other
                for other in (*self.candidates, *self.fenced)
                if (other.incarnation, other.step) == (target.incarnation, target.step)
                and other > target
                and other not in self.barred
            ),
            None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A generation that was not offered, and why."""

    generation: GenerationId
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What may be resumed, with its COMMIT and that COMMIT's bytes, or nothing; and what was passed over."""

    survey: Survey
    generation: GenerationId | None
    commit: Commit | None
    commit_bytes: bytes | None
    skipped: tuple[Skipped, ...]
    all_burned: bool


def read_claim_names(names: tuple[str, ...]) -> ClaimNames:
    """Sort the names under `incarnations/` into claims and decisions."""
    claims: set[int] = set()
    resumes: set[int] = set()
    malformed: list[str] = []
    for name in names:
        match = _CLAIM_NAME.fullmatch(name)
        if match is None or int(match[1]) == 0:
            malformed.append(f"incarnations/{name}")
        elif match[2] == ".resume":
            resumes.add(int(match[1]))
        elif match[2] is None:
            claims.add(int(match[1]))
    return ClaimNames(claims=tuple(sorted(claims | resumes)), resumes=frozenset(resumes), malformed=tuple(malformed))


def find_cut(keys: FamilyKeys, claims: ClaimNames, *, below: int | None = None) -> Steps[Cut]:
    """Read decisions from the newest down until one decides; normally one Get.

    Args:
        keys: The family.
        claims: Names under `incarnations/`, listed after the commits.
        below: Consider only incarnations under this number (a start looks at what came before it).

    Raises:
        FormatError: A decision is not lawful or has vanished; guessing past it could offer what it cut.
    """
    for number in reversed(claims.claims):
        if below is not None and number >= below:
            continue
        if number in claims.resumes:
            where = keys.resume(number)
            resume = documents.parse(ResumeRecord, (yield from _get_kept(where)), where)
            return Cut(decided_by=number, keeps=_keeps(resume.keeps, number, where), rollback=False)
        where = keys.claim(number)
        claim = documents.parse(Claim, (yield from _get_kept(where)), where)
        if (claim.kind == "rollback") != (claim.rollback is not None):
            raise FormatError(f"claim contradicts itself: {where}: kind {claim.kind} without its record", where=where)
        if claim.rollback is not None:
            return Cut(decided_by=number, keeps=_keeps(claim.rollback.keeps, number, where), rollback=True)
    return Cut(decided_by=0, keeps={0: None}, rollback=False)


def _get_kept(key: str) -> Steps[bytes]:
    data: bytes | None = yield Get(key)
    if data is None:
        raise FormatError(f"document vanished: {key}: claims and decisions are never deleted", where=key)
    return data


def _keeps(stored: Mapping[str, int], own: int, where: str) -> dict[int, int | None]:
    keeps: dict[int, int | None] = {own: None}
    for text, step in stored.items():
        # Foreign generations have number 0. A number that is not older would lift or set a limit on its own decider.
        if (text != "0" and _NUMBER.fullmatch(text) is None) or int(text) >= own:
            raise FormatError(f"not an older incarnation: {where}: keeps {text!r}", where=where)
        keeps[int(text)] = step
    return keeps


def take_survey(keys: FamilyKeys, *, below: int | None = None) -> Steps[Survey]:
    """Ask everything that decides, what permits before what refuses.

    Raises:
        FormatError: See `find_cut`.
    """
    malformed: list[str] = []
    proven = frozenset(_generations((yield List(keys.proven)), "proven", malformed))
    released = frozenset((yield List(keys.releases)))
    commits = _generations((yield List(keys.commits)), "commits", malformed)
    # The moment of which the answer speaks: what permits existed by now, what refuses and is seen below may be newer.
    claims = read_claim_names((yield List(keys.incarnations)))
    cut = yield from find_cut(keys, claims, below=below)
    refused = _refusals((yield List(keys.refusals)), malformed)
    check_claimed(keys, commits, claims.newest)
    barred: dict[GenerationId, tuple[str, ...]] = {}
    for refusal in refused:
        if refusal.generation is not None:
            barred[refusal.generation] = (*barred.get(refusal.generation, ()), str(refusal))
    newest_first = sorted(commits, reverse=True)
    return Survey(
        claims=claims,
        cut=cut,
        candidates=tuple(g for g in newest_first if cut.holds(g)),
        fenced=tuple(g for g in newest_first if not cut.holds(g)),
        barred=barred,
        quarantine=_quarantine(refused, released),
        released=released,
        proven=proven,
        malformed=(*malformed, *claims.malformed),
    )


def check_claimed(keys: FamilyKeys, commits: Iterable[GenerationId], newest: int) -> None:
    """Whoever commits has claimed, and commits are listed first: without the claim, decisions were lost with it.

    The next life would take the same number, cut what it does not see, and call that life's commits its own.

    Raises:
        FormatError: A commit is of an incarnation above the newest one.
    """
    above = max((generation.incarnation for generation in commits), default=0)
    if above > newest:
        where = keys.claim(above)
        raise FormatError(f"document vanished: {where}: {keys.commits} holds commits of that incarnation", where=where)


def _generations(names: tuple[str, ...], prefix: str, malformed: list[str]) -> list[GenerationId]:
    found = []
    for name in names:
        try:
            found.append(GenerationId.parse(name))
        except FormatError:
            malformed.append(f"{prefix}/{name}")
    return found


def _refusals(names: tuple[str, ...], malformed: list[str]) -> list[RefusalName]:
    found = []
    for name in names:
        try:
            found.append(RefusalName.parse(name))
        except FormatError:
            malformed.append(f"refusals/{name}")
    return found


def _quarantine(refused: list[RefusalName], released: frozenset[str]) -> tuple[str, ...]:
    return tuple(str(refusal) for refusal in refused if refusal.quarantines and str(refusal) not in released)


def choose(keys: FamilyKeys, *, policy: Policy = Policy.VERIFIED, below: int | None = None) -> Steps[Choice]:
    """The newest candidate that nothing refuses, with everything that was passed over and why.

    Raises:
        FormatError: See `take_survey`.
        StoreError: A COMMIT could not be read: the answer is "could not tell", never an older generation.
    """
    survey = yield from take_survey(keys, below=below)
    only_proven = policy is Policy.PROVEN or bool(survey.quarantine)
    skipped = [Skipped(generation=g, findings=(_fenced(g, survey.cut),)) for g in survey.fenced]
    all_burned = True
    for generation in survey.candidates:
        barred = _barred(generation, survey, only_proven)
        if barred is not None:
            skipped.append(Skipped(generation=generation, findings=(barred,)))
            all_burned = False
            continue
        data = yield Get(keys.commit(generation))
        try:
            marker = read_commit(data, generation, keys.commit(generation))
        except FormatError as error:
            all_burned = False
            reason = error.reason or Reason.COMMIT_MALFORMED
            finding = Finding(reason=reason, message=error.message, offender=keys.commit(generation))
            skipped.append(Skipped(generation=generation, findings=(finding,)))
            continue
        if marker.burned:
            message = f"slot burned: {generation}: its publish was abandoned"
            finding = Finding(reason=Reason.GENERATION_BURNED, message=message, offender=str(generation))
            skipped.append(Skipped(generation=generation, findings=(finding,)))
            continue
        all_burned = False
        findings = yield Inspect(generation, marker)
        if findings:
            skipped.append(Skipped(generation=generation, findings=findings))
            continue
        return Choice(
            survey=survey,
            generation=generation,
            commit=marker,
            commit_bytes=data,
            skipped=tuple(skipped),
            all_burned=False,
        )
    return Choice(
        survey=survey, generation=None, commit=None, commit_bytes=None, skipped=tuple(skipped), all_burned=all_burned
    )


def read_commit(data: bytes | None, generation: GenerationId, where: str) -> Commit:
    """Read one COMMIT and refuse one that names another generation.

    Raises:
        FormatError: Absent, malformed, or another generation's.
    """
    if data is None:
        raise FormatError(f"commit marker vanished: {where}")
    marker = documents.parse(Commit, data, where, limit_bytes=64 * 1024)
    if marker.generation != str(generation):
        message = f"commit marker of another generation: {where}: expected {generation}, found {marker.generation}"
        raise FormatError(message, reason=Reason.COMMIT_MISMATCH, where=where)
    if marker.burned != (marker.manifest is None):
        message = f"commit marker contradicts itself: {where}: burned is {marker.burned}, manifest {marker.manifest}"
        raise FormatError(message, where=where)
    return marker


def _fenced(generation: GenerationId, cut: Cut) -> Finding:
    what = "rollback" if cut.rollback else "takeover"
    return Finding(
        reason=Reason.GENERATION_FENCED,
        message=f"not kept by the {what} of incarnation {cut.decided_by}: {generation}",
        offender=str(generation),
    )


def _barred(generation: GenerationId, survey: Survey, only_proven: bool) -> Finding | None:
    if generation in survey.barred:
        names = ", ".join(survey.barred[generation])
        return Finding(
            reason=Reason.GENERATION_BARRED,
            message=f"a fail is on record: {generation}: refusals/{names}",
            offender=str(generation),
        )
    if only_proven and generation not in survey.proven:
        reason = Reason.FAMILY_QUARANTINED if survey.quarantine else Reason.GENERATION_NOT_PROVEN
        why = f"family quarantined by {', '.join(survey.quarantine)}" if survey.quarantine else "policy is proven"
        return Finding(reason=reason, message=f"no full restore passed: {generation}: {why}", offender=str(generation))
    return None
