"""Verdicts as text and JSON: complete, and harmless whatever a checkpoint's strings hold."""

from __future__ import annotations

import json

from lastgood import documents
from lastgood.testing.damage import CATALOGUE, Scene
from lastgood.verdict import Check, CheckState, Finding, Reason, Rung, Tier, Verdict, judge
from lastgood.verify import render_verdict, to_json, verify_generation
from lastgood.verify.rendering import MAXIMUM_FINDINGS_SHOWN

HOSTILE = "a\x1b[2Jb\u202ec\nd\u2028e\x07"


def verdict_with(findings: tuple[Finding, ...]) -> Verdict:
    check = Check(name="sizes", state=CheckState.RAN, detail=HOSTILE, findings=findings)
    return judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject=HOSTILE, checks=(check,), required=("sizes",))


def finding(offender: str) -> Finding:
    return Finding(reason=Reason.SIZE_MISMATCH, message=f"size mismatch: {offender}", offender=offender)


def test_nothing_from_a_checkpoint_moves_the_cursor() -> None:
    """A tensor's name must not clear the screen, reverse a line or forge one."""
    text = render_verdict(verdict_with((finding(HOSTILE),)))
    assert all(character.isprintable() or character == "\n" for character in text)
    assert len(text.splitlines()) == 5
    assert text.splitlines()[2].startswith("        | d"), "a line of a stranger's is marked as one"
    assert to_json(verdict_with((finding(HOSTILE),))).isascii()


def test_text_names_outcome_checks_findings_and_hint(scene: Scene) -> None:
    """At 3 a.m. one look must tell what is wrong, where, and what to do."""
    offender = CATALOGUE["byte_flipped"].apply(scene)
    text = render_verdict(verify_generation(scene.store, scene.keys, scene.generation))
    assert text.startswith(f"FAIL: llm-7b/{scene.generation}, tier 1 (full)")
    assert f"digest_mismatch: digest mismatch: {offender}" in text
    assert f"hint: {Reason.DIGEST_MISMATCH.hint}" in text
    assert "  ok    completeness" in text


def test_what_a_replica_printed_is_quoted_line_by_line() -> None:
    """A traceback on one line is unreadable, and no line of it may look like a check of ours."""
    said = "exit status 1 after 3.2 s; its log ends:\nTraceback (most recent call last):\n  ok    forged  \x1b[2J"
    check = Check(name="replica_ended", state=CheckState.INCONCLUSIVE, detail=said)
    verdict = judge(tier=Tier.RESTORE, rung=Rung.FULL, subject="llm/1", checks=(check,), required=())
    assert render_verdict(verdict).splitlines()[1:] == [
        "  ?     replica_ended  exit status 1 after 3.2 s; its log ends:",
        "        | Traceback (most recent call last):",
        "        |   ok    forged  \\x1b[2J",
    ]


def test_thousands_of_findings_are_counted_not_printed() -> None:
    """A terminal is no place for 4,096 lines, and nothing may be dropped without a word."""
    text = render_verdict(verdict_with(tuple(finding(f"shard-{number}") for number in range(4096))))
    assert f"and {4096 - MAXIMUM_FINDINGS_SHOWN} more findings" in text
    assert text.count("hint:") == 1


def test_json_is_the_stored_document() -> None:
    """What a program reads from the command line is what a record holds."""
    verdict = verdict_with((finding("a"),))
    assert json.loads(to_json(verdict)) == json.loads(documents.canonical_bytes(verdict))
