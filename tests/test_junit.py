"""JUnit XML of a verdict: well formed whatever a checkpoint's strings hold, and never greener than the verdict."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from lastgood.junit import MAXIMUM_FINDINGS, render_junit
from lastgood.verdict import (
    Check,
    CheckState,
    Finding,
    Note,
    NoteReason,
    Outcome,
    Reason,
    Rung,
    Tier,
    Verdict,
    judge,
)

HOSTILE = "a\x00\x1b[2J<b attr='\">&]]>\u202e\ud800\ufffe\n#"


def verdict(*checks: Check, required: tuple[str, ...] = ("sizes",), subject: str = "llm-7b/00000001-1") -> Verdict:
    return judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject=subject, checks=checks, required=required)


def check(state: CheckState = CheckState.RAN, *findings: Finding, name: str = "sizes", detail: str = "2 of 2") -> Check:
    return Check(name=name, state=state, detail=detail, findings=findings)


def finding(text: str) -> Finding:
    return Finding(reason=Reason.SIZE_MISMATCH, message=f"size mismatch: {text}", offender=text)


def parsed(*verdicts: Verdict) -> Element:
    return ElementTree.fromstring(render_junit(verdicts))


def not_green(root: Element) -> int:
    return int(root.attrib["failures"]) + int(root.attrib["errors"])


def test_a_pass_is_green_and_says_what_was_looked_at() -> None:
    """A viewer shows the detail of a green case, which is how one tells two artifacts from two thousand."""
    root = parsed(verdict(check(), check(CheckState.NOT_RUN, name="digests")))
    assert (root.attrib["tests"], not_green(root), root.attrib["skipped"]) == ("2", 0, "1")
    assert root.findtext(".//system-out") == "2 of 2"


def test_a_fail_names_its_reason_its_findings_and_the_hint() -> None:
    """Who reads the build's page at 3 a.m. must not have to find another page."""
    failure = parsed(verdict(check(CheckState.RAN, finding("a"), finding("b")))).find(".//failure")
    assert failure is not None
    assert failure.attrib == {"type": "size_mismatch", "message": "size mismatch: a (and 1 more)"}
    assert (failure.text or "").splitlines() == [
        "size_mismatch: size mismatch: a",
        "size_mismatch: size mismatch: b",
        f"hint: {Reason.SIZE_MISMATCH.hint}",
    ]


@pytest.mark.parametrize(
    "unproven",
    [
        verdict(check(CheckState.INCONCLUSIVE)),
        verdict(check(CheckState.NOT_RUN)),
        verdict(check(name="other")),
        verdict(),
        verdict(required=()),
    ],
    ids=["could not run", "required and not run", "required and absent", "no checks", "nothing asked at all"],
)
def test_what_is_not_proven_is_never_green(unproven: Verdict) -> None:
    """A pipeline that goes on after a green report must not go on after a gate that proved nothing."""
    assert unproven.outcome is not Outcome.PASS
    assert not_green(parsed(unproven)) == 1


def test_text_from_a_checkpoint_cannot_break_the_document() -> None:
    """A name may hold what XML 1.0 cannot, and a viewer that fails to parse shows no failure at all."""
    hostile = judge(
        tier=Tier.RESTORE,
        rung=Rung.FULL,
        subject=HOSTILE,
        checks=[check(CheckState.RAN, finding(HOSTILE), detail=HOSTILE), check(name=HOSTILE, detail=HOSTILE)],
        notes=[Note(reason=NoteReason.CHECK_IGNORED, message=HOSTILE, offender=HOSTILE)],
        required=(),
    )
    data = render_junit([hostile])
    root = ElementTree.fromstring(data)
    texts = [*root.itertext(), *(value for element in root.iter() for value in element.attrib.values())]
    assert all(character.isprintable() or character == "\n" for text in texts for character in text)
    assert any("<b attr='\">&]]>" in text for text in texts)
    assert b"<b attr" not in data


def test_suites_are_counted_and_dated() -> None:
    """A sweep over many generations is one document, whose totals a build's badge shows."""
    failed, passed = verdict(check(CheckState.RAN, finding("a"))), verdict(check())
    data = render_junit([failed, passed], started_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), seconds=1.5)
    root = ElementTree.fromstring(data)
    assert root.attrib == {
        "name": "lastgood", "tests": "2", "failures": "1", "errors": "0", "skipped": "0", "time": "1.500"
    }  # fmt: skip
    assert [suite.attrib["failures"] for suite in root] == ["1", "0"]
    assert {suite.attrib["timestamp"] for suite in root} == {"2026-01-02T03:04:05"}


def test_thousands_of_findings_are_counted_not_listed() -> None:
    """A viewer that holds every report of a year must not be filled by one broken copy."""
    failure = parsed(verdict(check(CheckState.RAN, *(finding(str(number)) for number in range(4096))))).find(
        ".//failure"
    )
    assert failure is not None
    assert f"and {4096 - MAXIMUM_FINDINGS} more findings" in (failure.text or "")
