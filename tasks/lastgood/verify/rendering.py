"""Verdicts as plain text for people and as JSON for programs.

Decides only how a verdict looks. Pure functions. Rule: a checkpoint is a stranger's input, so nothing that came from
one reaches a terminal as anything but visible characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec

from lastgood.text import printable
from lastgood.verdict import Check, Outcome, Verdict

__all__ = ["render_verdict", "to_json"]

MAXIMUM_FINDINGS_SHOWN = 20
"""Findings of one check that are shown as text; JSON holds all of them."""

_MARKS = {Outcome.PASS: "ok", Outcome.FAIL: "FAIL", Outcome.INCONCLUSIVE: "?", Outcome.NOT_RUN: "-"}


def render_verdict(verdict: Verdict) -> str:
    """A verdict as lines of plain text: the outcome, each check, its findings with their hints, and the notes."""
    return "\n".join(_lines(verdict))


def _lines(verdict: Verdict) -> Iterator[str]:
    tier = f"tier {int(verdict.tier)} ({verdict.rung})"
    yield f"{verdict.outcome.value.replace('_', ' ').upper()}: {printable(verdict.subject)}, {tier}"
    width = max((len(check.name) for check in verdict.checks), default=0)
    for check in verdict.checks:
        yield from _check_lines(check, width)
    for note in verdict.notes:
        yield f"  note  {note.reason}: {printable(note.message)}"


def _check_lines(check: Check, width: int) -> Iterator[str]:
    detail, *quoted = check.detail.split("\n")
    yield f"  {_MARKS[check.outcome]:<4}  {check.name:<{width}}  {printable(detail)}".rstrip()
    # Several lines are what a replica printed; the bar keeps any of them from looking like one of ours.
    yield from (f"        | {printable(line)}".rstrip() for line in quoted)
    for finding in check.findings[:MAXIMUM_FINDINGS_SHOWN]:
        yield f"        {finding.reason}: {printable(finding.message)}"
    if len(check.findings) > MAXIMUM_FINDINGS_SHOWN:
        yield f"        and {len(check.findings) - MAXIMUM_FINDINGS_SHOWN} more findings"
    for reason in dict.fromkeys(finding.reason for finding in check.findings):
        yield f"        hint: {reason.hint}"


def to_json(verdict: Verdict) -> str:
    """A verdict as indented JSON in plain ASCII, with everything in it."""
    return json.dumps(msgspec.to_builtins(verdict), ensure_ascii=True, indent=2)
