"""Outcomes, reasons, findings, notes, checks and verdicts: how lastgood says what it saw.

Decides how a verdict follows from checks; leaves making the checks to `verify`, `restore` and `drill`. Rules
(docs/architecture.md): a check answers two questions, did it run and did the checkpoint hold; a verdict is computed,
nothing starts as pass; a finding refuses, a note does not; any fail dominates, then inconclusive, then not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import Annotated

from msgspec import Meta

from lastgood.documents import Document
from lastgood.reasons import NoteReason, Reason
from lastgood.text import counted

__all__ = [
    "WORST_FIRST",
    "Check",
    "FamilyState",
    "Finding",
    "Note",
    "NoteReason",
    "Outcome",
    "Reason",
    "Rung",
    "Slice",
    "Tier",
    "Verdict",
    "judge",
    "undecided",
    "waive",
    "worst_exit_code",
]


class Outcome(StrEnum):
    """What a verdict says; `judge` is the only way to reach one."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not_run"

    @property
    def exit_code(self) -> int:
        return {"pass": 0, "fail": 1, "inconclusive": 2, "not_run": 2}[self.value]

    @property
    def is_conclusive(self) -> bool:
        return self in (Outcome.PASS, Outcome.FAIL)


WORST_FIRST = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.NOT_RUN, Outcome.PASS)
"""Of several outcomes the first of these decides."""


def worst_exit_code(codes: Iterable[int]) -> int:
    """Of several answers the one that a command exits with: a fail, else the highest; 0 where there is none."""
    told = set(codes)
    return Outcome.FAIL.exit_code if Outcome.FAIL.exit_code in told else max(told, default=0)


class FamilyState(StrEnum):
    """What a family may offer."""

    READY = "ready"
    QUARANTINED = "quarantined"
    """Whatever it offers was proven, or was released by a person."""
    NOTHING_TO_RESUME = "nothing to resume"
    COULD_NOT_TELL = "could not tell"
    """Its store did not answer; whatever else is said of it was known before."""


class Tier(IntEnum):
    """1: manifest check on every save; 2: isolated restore on a sample; 3: kill drill on a cadence."""

    MANIFEST = 1
    RESTORE = 2
    DRILL = 3


class Rung(StrEnum):
    """How far up its tier a verdict climbed; only `full` may prove a generation."""

    FULL = "full"
    ROTATING = "rotating"
    """Of tier 1, where a store's settings ask for no more: all but the payload, and of that the next slices."""
    METADATA_ONLY = "metadata_only"
    STRUCTURAL = "structural"
    """Without a manifest: by what another framework wrote, and the checksums inside its files."""
    UNWITNESSED = "unwitnessed"
    """A sealed checkpoint restored with nothing that agrees with it: no expectations, and no live run that went on
    alike. It loads, trains and saves; whether it goes on where it stopped, nobody saw.
    """
    LOAD_ONLY = "load_only"
    TOPOLOGY_CHANGE = "topology_change"

    @property
    def is_asked(self) -> bool:
        """Whether it is all that its gate is asked for; what climbed less far shows nothing above itself."""
        return self in (Rung.FULL, Rung.ROTATING)


class Finding(Document, frozen=True, kw_only=True):
    """Something about the checkpoint that refuses it.

    Args:
        reason: The permanent code.
        message: A lowercase fact: where, expected against found.
        offender: The artifact, key, component or document at fault, relative to the family or generation.
        expected: What was expected there, if it is one value.
        found: What was found instead.
    """

    reason: Reason
    message: str
    offender: str
    expected: str | None = None
    found: str | None = None

    @property
    def hint(self) -> str:
        return self.reason.hint


class Note(Document, frozen=True, kw_only=True):
    """Something worth saying that refuses nothing."""

    reason: NoteReason
    message: str
    offender: str


class CheckState(StrEnum):
    """Whether a check ran: `ran`, could not (`inconclusive`), or was not asked to (`not_run`)."""

    RAN = "ran"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not_run"


class Check(Document, frozen=True, kw_only=True):
    """One question put to a checkpoint.

    Args:
        name: snake_case, stable.
        state: Whether it ran.
        findings: Everything it found; empty means that the checkpoint held, if the check ran.
        detail: What was looked at ("52 of 52 artifacts"), or why it did not run.
    """

    name: str
    state: CheckState
    detail: str
    findings: tuple[Finding, ...] = ()

    @property
    def outcome(self) -> Outcome:
        if self.findings:
            return Outcome.FAIL
        if self.state is CheckState.RAN:
            return Outcome.PASS
        return Outcome.INCONCLUSIVE if self.state is CheckState.INCONCLUSIVE else Outcome.NOT_RUN


class Slice(Document, frozen=True, kw_only=True):
    """What a rotating verdict read of the payload: the next slices after those of the verdict before it.

    Law: of verdicts with one `rotation`, each `first` is where the one before ended, so what they read can be counted.

    Args:
        first: The first slice that was read, from 0.
        count: How many were read, from that one on; after the last slice comes the first.
        rotation: Into how many the payload is cut (`verify.shares`).
        done: How many were read in succession up to here; all bytes were, once it reaches `rotation`.
        saves: For how many saves slices were read up to here, the generation's own included.
    """

    first: Annotated[int, Meta(ge=0)]
    count: Annotated[int, Meta(ge=1)]
    rotation: Annotated[int, Meta(ge=2)]
    done: Annotated[int, Meta(ge=1)]
    saves: Annotated[int, Meta(ge=1)]

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple((self.first + offset) % self.rotation for offset in range(self.count))

    @property
    def covers(self) -> bool:
        """Whether every byte has been read, by this verdict and those before it."""
        return self.done >= self.rotation


class Verdict(Document, frozen=True, kw_only=True):
    """What one gate says of one subject.

    Args:
        tier: The gate.
        rung: How far it climbed.
        subject: `<family>/<generation>` (or `<family>`).
        outcome: Computed by `judge`.
        checks: In the order they were made.
        required: Names of the checks without which it could not have passed.
        notes: What refuses nothing.
        slice: What was read of the payload, on the rotating rung alone.
    """

    tier: Tier
    rung: Rung
    subject: str
    outcome: Outcome
    checks: tuple[Check, ...]
    required: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    slice: Slice | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for check in self.checks for finding in check.findings)

    @property
    def is_weaker_pass(self) -> bool:
        """Whether it passed below what its gate is asked for: it replaces no verdict that did not.

        A fail counts on every rung.
        """
        return self.outcome is Outcome.PASS and not self.rung.is_asked


def judge(
    *,
    tier: Tier,
    rung: Rung,
    subject: str,
    checks: Iterable[Check],
    notes: Iterable[Note] = (),
    required: Iterable[str],
    slice: Slice | None = None,  # noqa: A002 - the verdict's own word for it
) -> Verdict:
    """Compute a verdict from checks.

    Any fail dominates. Otherwise every check named in `required` must be present and have held; a check outside
    `required` that did not run (and says so) does not stand in the way of a pass, but one that could not run makes it
    inconclusive. No check that held is `not_run`, never pass, whatever was waived.

    Args:
        tier: The gate.
        rung: How far it climbed.
        subject: What was judged.
        checks: Everything that was asked.
        notes: What refuses nothing.
        required: Names of the checks without which nothing passes.
        slice: What was read of the payload, on the rotating rung.
    """
    made, needed = tuple(checks), tuple(required)
    outcomes = [check.outcome for check in made]
    held = {check.name for check in made if check.outcome is Outcome.PASS}
    if Outcome.FAIL in outcomes:
        outcome = Outcome.FAIL
    elif Outcome.INCONCLUSIVE in outcomes:
        outcome = Outcome.INCONCLUSIVE
    elif held and held.issuperset(needed):
        outcome = Outcome.PASS
    else:
        outcome = Outcome.NOT_RUN
    return Verdict(
        tier=tier,
        rung=rung,
        subject=subject,
        outcome=outcome,
        checks=made,
        required=needed,
        notes=tuple(notes),
        slice=slice,
    )


def undecided(*, tier: Tier, subject: str, check: str, why: str, rung: Rung = Rung.FULL) -> Verdict:
    """The verdict of a gate that something else than its subject kept from an answer.

    Args:
        tier: The gate.
        subject: What it was about.
        check: The name under which that is said.
        why: What kept it, for people.
        rung: How far it would have climbed.
    """
    stopped = Check(name=check, state=CheckState.INCONCLUSIVE, detail=why)
    return judge(tier=tier, rung=rung, subject=subject, checks=(stopped,), required=(check,))


def waive(verdict: Verdict, ignored: Mapping[str, str]) -> Verdict:
    """Judge again without some checks, each waived for a written reason that the verdict then carries.

    Args:
        verdict: What was found.
        ignored: Check → why its findings are accepted. A name that this verdict's gate never asks changes nothing.
    """
    checks, notes = [], list(verdict.notes)
    for check in verdict.checks:
        if check.name in ignored and check.outcome is not Outcome.PASS:
            detail = f"ignored: {ignored[check.name]}"
            message = f"{check.name} ignored with {counted(len(check.findings), 'finding')}: {ignored[check.name]}"
            notes.append(Note(reason=NoteReason.CHECK_IGNORED, message=message, offender=check.name))
            checks.append(Check(name=check.name, state=CheckState.NOT_RUN, detail=detail))
        else:
            checks.append(check)
    return judge(
        tier=verdict.tier,
        rung=verdict.rung,
        subject=verdict.subject,
        checks=checks,
        notes=notes,
        required=[name for name in verdict.required if name not in ignored],
        slice=verdict.slice,
    )
