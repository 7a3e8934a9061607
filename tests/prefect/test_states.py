"""What verdicts and mistakes end a run as."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import pytest
from prefect import State, flow

from lastgood.errors import (
    FormatError,
    LastgoodError,
    LedgerError,
    StorePermanentError,
    StoreTransientError,
    UsageError,
)
from lastgood.verdict import Check, CheckState, Finding, Outcome, Reason, Rung, Tier, Verdict, judge
from lastgood_prefect.headroom import NoHeadroom
from lastgood_prefect.states import MAXIMUM_MESSAGE_CHARACTERS, final_state, refused, told_plainly


def verdict(outcome: Outcome, *, subject: str = "llm/00000001-0000000000000012", findings: int = 1) -> Verdict:
    found = tuple(
        Finding(reason=Reason.SHARD_MISSING, message="shard missing", offender=f"model/{number}")
        for number in range(findings)
    )
    check = {
        Outcome.PASS: Check(name="sizes", state=CheckState.RAN, detail="all"),
        Outcome.FAIL: Check(name="sizes", state=CheckState.RAN, detail="some", findings=found),
        Outcome.INCONCLUSIVE: Check(name="sizes", state=CheckState.INCONCLUSIVE, detail="cannot read"),
        Outcome.NOT_RUN: Check(name="sizes", state=CheckState.NOT_RUN, detail="no device"),
    }[outcome]
    return judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject=subject, checks=[check], required=["sizes"])


@pytest.mark.parametrize(
    ("outcomes", "kind", "name"),
    [
        ((), "COMPLETED", "Completed"),
        ((Outcome.PASS,), "COMPLETED", "Completed"),
        ((Outcome.NOT_RUN,), "FAILED", "NotRun"),
        ((Outcome.INCONCLUSIVE,), "FAILED", "Inconclusive"),
        ((Outcome.FAIL,), "FAILED", "Failed"),
        ((Outcome.PASS, Outcome.NOT_RUN), "FAILED", "NotRun"),
        ((Outcome.NOT_RUN, Outcome.INCONCLUSIVE, Outcome.PASS), "FAILED", "Inconclusive"),
        ((Outcome.INCONCLUSIVE, Outcome.FAIL, Outcome.PASS), "FAILED", "Failed"),
    ],
)
def test_the_worst_verdict_decides(outcomes: Sequence[Outcome], kind: str, name: str) -> None:
    """What was not proven is never green, and a fail is never hidden behind what could not be told."""
    state = final_state([verdict(outcome) for outcome in outcomes])
    assert (state.type.value, state.name) == (kind, name)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (UsageError("family not configured"), "Failed"),
        (FormatError("record malformed"), "Failed"),
        (StoreTransientError("no answer"), "Inconclusive"),
        (StorePermanentError("denied"), "Inconclusive"),
        (LedgerError("locked"), "Inconclusive"),
        (NoHeadroom("no headroom"), "Inconclusive"),
    ],
)
def test_an_error_of_the_store_tells_nothing_of_a_checkpoint(error: LastgoodError, name: str) -> None:
    """Trouble of the store is "could not tell"; a mistake in the configuration is for people to mend."""
    assert (refused(error).type.value, refused(error).name) == ("FAILED", name)
    assert final_state([verdict(Outcome.FAIL)], errors=[error]).name == "Failed"


def test_the_message_names_reasons_offenders_and_the_rest() -> None:
    """The state is what a notification shows; it must say what is broken, and not the whole of it."""
    state = final_state([verdict(Outcome.PASS), verdict(Outcome.FAIL, findings=9)], remarks=["1 skipped"])
    assert state.message == (
        "llm/00000001-0000000000000012: fail: shard_missing (model/0), shard_missing (model/1), "
        "shard_missing (model/2), 6 more findings; llm/00000001-0000000000000012: pass; 1 skipped"
    )


def test_what_could_not_be_checked_is_named() -> None:
    """An inconclusive verdict has no finding; its checks say what stood in the way."""
    assert str(final_state([verdict(Outcome.INCONCLUSIVE)]).message).endswith("inconclusive: sizes: cannot read")


def test_many_passes_are_counted() -> None:
    """A batch of a thousand saves must not bury the one that failed."""
    state = final_state([*(verdict(Outcome.PASS) for _ in range(1000)), verdict(Outcome.FAIL)])
    assert str(state.message).endswith("shard_missing (model/0); 1000 passed")


def test_a_huge_message_is_cut_and_printable() -> None:
    """A checkpoint may hold anything; the state is stored, sent and printed."""
    state = final_state([verdict(Outcome.FAIL, subject="\x1b[31m\u202e" * 5000)])
    assert len(str(state.message)) <= MAXIMUM_MESSAGE_CHARACTERS
    assert "\x1b" not in str(state.message)
    assert "\u202e" not in str(state.message)


def test_a_hint_goes_with_its_error() -> None:
    """Whoever made a mistake is told how to mend it."""
    assert refused(UsageError("not configured", hint="add it")).message == "not configured (hint: add it)"


def test_a_flow_keeps_its_parameters_under_the_decorator() -> None:
    """The form of the UI is made of them."""

    @flow
    @told_plainly
    def gate(family: str, depth: int = 3) -> State:
        """Say.

        Args:
            family: Its name.
        """
        raise UsageError(f"not configured: {family}")

    assert list(inspect.signature(gate.fn).parameters) == ["family", "depth"]
    assert gate.parameters.properties["family"]["description"] == "Its name."
    assert gate.fn("x").message == "not configured: x"


def test_a_defect_of_ours_keeps_its_traceback() -> None:
    """Only what is raised on purpose is told in one line."""

    @told_plainly
    def broken() -> State:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
