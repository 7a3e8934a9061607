"""Verdicts as JUnit XML, for the test viewers that continuous integration already has.

Decides how a verdict maps to test cases: a check is a case; its findings are one failure; a check that could not run
is an error; one that nobody asked for is skipped. Rules: what is not proven is never green, so a required check that
did not run is an error and a verdict other than pass has at least one case that is not green; text from a checkpoint
is escaped to what XML 1.0 can hold.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from lastgood.text import printable
from lastgood.verdict import Check, Outcome, Verdict

__all__ = ["render_junit"]

MAXIMUM_FINDINGS = 100
"""Findings of one check that are spelled out; the record holds all of them."""


def render_junit(
    verdicts: Sequence[Verdict], *, started_at: datetime | None = None, seconds: float | None = None
) -> bytes:
    """Verdicts as one document, a suite for each.

    Args:
        verdicts: Of any tier.
        started_at: When the gates began, aware; None: leave it out.
        seconds: What they took together; None: not measured, and left out.
    """
    root = Element("testsuites", name="lastgood")
    for verdict in verdicts:
        suite = SubElement(root, "testsuite", name=f"tier {int(verdict.tier)}: {printable(verdict.subject)}")
        if started_at is not None:
            suite.set("timestamp", started_at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds"))
        suite.extend(_cases(verdict))
        if verdict.notes:
            notes = SubElement(suite, "system-out")
            notes.text = "\n".join(f"{note.reason}: {printable(note.message)}" for note in verdict.notes)
        _count(suite)
    _count(root)
    if seconds is not None:
        root.set("time", f"{seconds:.3f}")
    ElementTree.indent(root)
    document = io.BytesIO()
    ElementTree.ElementTree(root).write(document, encoding="utf-8", xml_declaration=True)
    return document.getvalue() + b"\n"


def _cases(verdict: Verdict) -> Iterator[Element]:
    green = True
    for check in verdict.checks:
        case = _case(verdict, check.name)
        _answer(case, check, required=check.name in verdict.required)
        green &= case.find("failure") is None and case.find("error") is None
        yield case
    made = {check.name for check in verdict.checks}
    for name in verdict.required:
        if name not in made:
            green = False
            yield _unproven(_case(verdict, name), Outcome.NOT_RUN, "required, and never asked")
    if green and verdict.outcome is not Outcome.PASS:
        yield _unproven(_case(verdict, "verdict"), verdict.outcome, "nothing was asked that could prove it")


def _case(verdict: Verdict, name: str) -> Element:
    return Element("testcase", classname=printable(verdict.subject), name=f"{printable(name)} ({verdict.rung})")


def _answer(case: Element, check: Check, *, required: bool) -> None:
    detail = printable(check.detail)
    if check.outcome is Outcome.FAIL:
        first, more = check.findings[0], len(check.findings) - 1
        message = printable(first.message) + (f" (and {more} more)" if more else "")
        failure = SubElement(case, "failure", type=first.reason.value, message=message)
        failure.text = "\n".join(_spelled(check))
    elif check.outcome is Outcome.INCONCLUSIVE:
        _unproven(case, check.outcome, detail)
    elif check.outcome is Outcome.NOT_RUN and required:
        _unproven(case, check.outcome, f"required, and did not run: {detail}")
    elif check.outcome is Outcome.NOT_RUN:
        SubElement(case, "skipped", message=detail)
    else:
        SubElement(case, "system-out").text = detail


def _unproven(case: Element, outcome: Outcome, message: str) -> Element:
    SubElement(case, "error", type=outcome.value, message=message)
    return case


def _spelled(check: Check) -> Iterator[str]:
    for finding in check.findings[:MAXIMUM_FINDINGS]:
        yield f"{finding.reason}: {printable(finding.message)}"
    if len(check.findings) > MAXIMUM_FINDINGS:
        yield f"and {len(check.findings) - MAXIMUM_FINDINGS} more findings"
    for reason in dict.fromkeys(finding.reason for finding in check.findings):
        yield f"hint: {reason.hint}"


def _count(element: Element) -> None:
    cases = list(element.iter("testcase"))
    element.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
