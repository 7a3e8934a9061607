"""How a verdict follows from checks: nothing starts as pass, and any fail dominates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lastgood import documents
from lastgood.reasons import NoteReason, Reason
from lastgood.verdict import (
    Check,
    CheckState,
    Finding,
    Outcome,
    Rung,
    Tier,
    Verdict,
    judge,
    undecided,
    waive,
    worst_exit_code,
)

NAMES = ("a", "b", "c")

findings = st.lists(
    st.builds(Finding, reason=st.sampled_from(list(Reason)), message=st.just("fact"), offender=st.just("x")), max_size=2
).map(tuple)
checks = st.lists(
    st.builds(
        Check,
        name=st.sampled_from(NAMES),
        state=st.sampled_from(list(CheckState)),
        detail=st.just("looked"),
        findings=findings,
    ),
    max_size=3,
    unique_by=lambda check: check.name,
)


def judged(made: list[Check], required: tuple[str, ...] = NAMES) -> Verdict:
    return judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject="llm-7b", checks=made, required=required)


def check(name: str, state: CheckState, *reasons: Reason) -> Check:
    found = tuple(Finding(reason=reason, message="fact", offender="x") for reason in reasons)
    return Check(name=name, state=state, detail="looked", findings=found)


@given(checks)
def test_a_pass_needs_every_required_check_to_have_run_and_held(made: list[Check]) -> None:
    """Pass is reached, never assumed: one required check left out, not run or failed is enough to lose it."""
    held = {c.name for c in made if c.state is CheckState.RAN and not c.findings}
    verdict = judged(made)
    assert (verdict.outcome is Outcome.PASS) == (held == set(NAMES))


@given(checks)
def test_any_finding_fails_the_verdict(made: list[Check]) -> None:
    """A finding counts even if its check could not be finished."""
    assert (judged(made).outcome is Outcome.FAIL) == any(c.findings for c in made)


@given(checks)
def test_trouble_without_findings_is_inconclusive(made: list[Check]) -> None:
    """What could not be told is neither good nor bad, required or not."""
    trouble = any(c.state is CheckState.INCONCLUSIVE for c in made) and not any(c.findings for c in made)
    assert (judged(made).outcome is Outcome.INCONCLUSIVE) == trouble


def test_no_checks_at_all_are_not_run() -> None:
    """A gate that looked at nothing must not be taken for one that found nothing."""
    assert judged([]).outcome is Outcome.NOT_RUN
    assert judged([], required=()).outcome is Outcome.NOT_RUN


def test_an_optional_check_that_was_not_asked_for_does_not_stand_in_the_way() -> None:
    """A comparison that had nothing to compare with is named, and the rest may pass."""
    made = [check(name, CheckState.RAN) for name in NAMES] + [check("trace", CheckState.NOT_RUN)]
    assert judged(made).outcome is Outcome.PASS
    assert judged(made, required=(*NAMES, "trace")).outcome is Outcome.NOT_RUN


@given(checks)
def test_verdicts_survive_storage(made: list[Check]) -> None:
    """A record holds the verdict as it was judged."""
    verdict = judged(made)
    assert documents.parse(Verdict, documents.canonical_bytes(verdict), "verdict") == verdict


def test_exit_codes_tell_the_four_outcomes_apart_for_scripts() -> None:
    """A script must be able to tell a damaged checkpoint from a store that did not answer."""
    assert {outcome: outcome.exit_code for outcome in Outcome} == {
        Outcome.PASS: 0,
        Outcome.FAIL: 1,
        Outcome.INCONCLUSIVE: 2,
        Outcome.NOT_RUN: 2,
    }


def test_reason_codes_are_permanent(golden) -> None:  # type: ignore[no-untyped-def]
    """Alerts and dashboards match codes: one may be added, never renamed, reused or dropped in silence."""
    codes = sorted(reason.value for reason in Reason)
    notes = sorted(reason.value for reason in NoteReason)
    golden("reasons.txt", "\n".join(["# findings", *codes, "# notes", *notes, ""]).encode())


def test_every_reason_explains_itself() -> None:
    """A code without advice leaves the reader at 3 a.m. where they were."""
    for reason in (*Reason, *NoteReason):
        assert reason.hint
        assert "\n" not in reason.hint
        assert not reason.hint.endswith(".")


def test_a_waived_check_no_longer_fails_and_says_why() -> None:
    """An ignored check needs its written reason in the verdict, and only that check is waived."""
    finding = Finding(reason=Reason.SHARD_MISSING, message="gone", offender="model/rank-00000.safetensors")
    bad = Check(name="chain", state=CheckState.RAN, detail="", findings=(finding,))
    good = Check(name="sizes", state=CheckState.RAN, detail="")
    failed = judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject="f/g", checks=[bad, good], required=["chain", "sizes"])
    waived = waive(failed, {"chain": "copied from an archive"})
    assert (failed.outcome, waived.outcome) == (Outcome.FAIL, Outcome.PASS)
    assert waived.notes[0].reason is NoteReason.CHECK_IGNORED
    assert "copied from an archive" in waived.notes[0].message
    assert waive(failed, {"sizes": "whatever"}).outcome is Outcome.FAIL


def test_nothing_passes_by_waiving_alone() -> None:
    """A gate of which every question was waived has shown nothing."""
    finding = Finding(reason=Reason.SHARD_MISSING, message="gone", offender="model/rank-00000.safetensors")
    bad = Check(name="chain", state=CheckState.RAN, detail="", findings=(finding,))
    failed = judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject="f/g", checks=[bad], required=["chain"])
    stopped = undecided(tier=Tier.RESTORE, subject="f/g", check="cancelled", why="asked to end")
    for verdict in (failed, stopped):
        assert waive(verdict, {"chain": "an archive", "cancelled": "why not"}).outcome is Outcome.NOT_RUN


def test_two_checks_of_one_name_cannot_hide_each_other() -> None:
    """A later pass under the same name must not cover an earlier fail."""
    finding = Finding(reason=Reason.SHARD_MISSING, message="gone", offender="x")
    twins = [
        Check(name="sizes", state=CheckState.RAN, detail="", findings=(finding,)),
        Check(name="sizes", state=CheckState.RAN, detail=""),
    ]
    assert judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject="f", checks=twins, required=[]).outcome is Outcome.FAIL


def test_of_several_exit_codes_a_fail_decides() -> None:
    """Of a family that failed and a store that could not tell, the first is known and does not go away."""
    assert worst_exit_code([]) == worst_exit_code([0, 0]) == 0
    assert worst_exit_code([2, 1, 0]) == worst_exit_code([1, 64]) == 1
    assert worst_exit_code([0, 2]) == 2
    assert worst_exit_code([2, 64]) == 64
