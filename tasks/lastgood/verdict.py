"""Outcomes, reasons, findings, notes, checks and verdicts: how lastgood says what it saw.

Decides how a verdict follows from checks; leaves making the checks to `verify`, `restore` and `drill`. Rules (DESIGN.md
§7): a check answers two questions, did it run and did the checkpoint hold; a verdict is computed, nothing starts as
pass; a finding refuses, a note does not; any fail dominates, then inconclusive, then not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum

from lastgood.documents import Document
from lastgood.reasons import NoteReason, Reason

__all__ = ["Check", "Finding", "Note", "NoteReason", "Outcome", "Reason", "Rung", "Tier", "Verdict", "judge"]


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


class Tier(IntEnum):
    """1: manifest check on every save; 2: isolated restore on a sample; 3: kill drill on a cadence."""

    MANIFEST = 1
    RESTORE = 2
    DRILL = 3


class Rung(StrEnum):
    """How far up its tier a verdict climbed; only `full` may prove a generation."""

    FULL = "full"
    METADATA_ONLY = "metadata_only"
    LOAD_ONLY = "load_only"
    TOPOLOGY_CHANGE = "topology_change"


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


class Verdict(Document, frozen=True, kw_only=True):
    """What one gate says of one subject.

    Args:
        tier: The gate.
        rung: How far it climbed.
        subject: `<family>/<generation>` (or `<family>`).
        outcome: Computed by `judge`.
        checks: In the order they were made.
        notes: What refuses nothing.
    """

    tier: Tier
    rung: Rung
    subject: str
    outcome: Outcome
    checks: tuple[Check, ...]
    notes: tuple[Note, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for check in self.checks for finding in check.findings)


def judge(
    *,
    tier: Tier,
    rung: Rung,
    subject: str,
    checks: Iterable[Check],
    notes: Iterable[Note] = (),
    required: Iterable[str],
) -> Verdict:
    """Compute a verdict from checks.

    Any fail dominates. Otherwise every check named in `required` must be present and have held; a check outside
    `required` that did not run (and says so) does not stand in the way of a pass, but one that could not run makes it
    inconclusive. No checks at all is `not_run`, never pass.

    Args:
        tier: The gate.
        rung: How far it climbed.
        subject: What was judged.
        checks: Everything that was asked.
        notes: What refuses nothing.
        required: Names of the checks without which nothing passes.
    """
    made = tuple(checks)
    outcomes = {check.name: check.outcome for check in made}
    if Outcome.FAIL in outcomes.values():
        outcome = Outcome.FAIL
    elif Outcome.INCONCLUSIVE in outcomes.values():
        outcome = Outcome.INCONCLUSIVE
    elif made and all(outcomes.get(name) is Outcome.PASS for name in required):
        outcome = Outcome.PASS
    else:
        outcome = Outcome.NOT_RUN
    return Verdict(tier=tier, rung=rung, subject=subject, outcome=outcome, checks=made, notes=tuple(notes))
