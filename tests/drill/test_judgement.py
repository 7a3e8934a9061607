from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from lastgood.checks import DRILL_CHECKS
from lastgood.config import Objectives
from lastgood.drill import Fault, FaultKind
from lastgood.drill.faults import Shot
from lastgood.drill.judgement import Observed, judge_drill, loss_steps
from lastgood.drill.timeline import DrillPhase, PhaseTime, Recovery
from lastgood.drill.watch import Life
from lastgood.identity import GenerationId
from lastgood.replica.processes import ProcessIdentity
from lastgood.replica.trace import Discovered, Mark, Saved, Step
from lastgood.restore.evidence import read_rank
from lastgood.verdict import Check, CheckState, Finding, NoteReason, Outcome, Reason, Rung, Tier, Verdict, judge

AT = Mark(monotonic_ns=1, wall=datetime(2026, 1, 1, tzinfo=UTC))
TEN, TWENTY = GenerationId(1, 10), GenerationId(1, 20)


def life(incarnation: int, resumed: GenerationId | None, steps: range, saves: tuple[GenerationId, ...] = ()) -> Life:
    records = [
        Discovered(
            at=AT, spans=(), generation=str(resumed) if resumed else None, step=resumed.step if resumed else None
        ),
        *(Step(at=AT, spans=(), step=one, loss=1.0, grad_norm=None, learning_rates={}) for one in steps),
        *(Saved(at=AT, spans=(), generation=str(one), step=one.step) for one in saves),
    ]
    return Life(incarnation=incarnation, ranks={rank: read_rank(rank, records) for rank in (0, 1)})


def tier_1(*findings: Finding, state: CheckState = CheckState.RAN) -> Verdict:
    check = Check(name="digests", state=state, detail="", findings=findings)
    return judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject="drill/2", checks=(check,), required=("digests",))


def recovery(*, unaccounted_ns: int = 0, trouble: str | None = None) -> Recovery:
    phase = PhaseTime(phase=DrillPhase.STOP, begin_ns=0, end_ns=10**9 - unaccounted_ns)
    return Recovery(kill_ns=0, end_ns=10**9, rank=0, phases=() if trouble else (phase,), trouble=trouble)


GOOD = Observed(
    subject="drill",
    fault=Fault(kind=FaultKind.RANK, rank=1, steps_after_save=3),
    shot=Shot(kill_ns=0, incarnation=1, step=25, publishing=None, victims=(ProcessIdentity(7, 1),)),
    killed=life(1, None, range(1, 26), (TEN, TWENTY)),
    recovered=life(2, TWENTY, range(21, 31), (GenerationId(2, 30),)),
    recovery=recovery(),
    attempts=1,
    offered=TWENTY,
    saved=tier_1(),
)
OBJECTIVES = Objectives(rpo_steps=50, rto_seconds=1.0)


def test_a_good_drill_passes_every_check() -> None:
    """The judge must be able to say yes, with each required check made and no finding."""
    verdict = judge_drill(GOOD, OBJECTIVES)
    assert verdict.outcome is Outcome.PASS
    assert verdict.tier is Tier.DRILL
    assert tuple(check.name for check in verdict.checks) == DRILL_CHECKS
    assert (verdict.findings, verdict.notes) == ((), ())


def test_nothing_starts_as_a_pass() -> None:
    """A drill of which nothing is known has shown nothing."""
    verdict = judge_drill(Observed(subject="drill", fault=GOOD.fault), OBJECTIVES)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert Outcome.PASS not in {check.outcome for check in verdict.checks}


FAILURES: list[tuple[dict[str, Any], str, Reason]] = [
    ({"recovered": None, "recovery": None, "failure": "too late"}, "recovered", Reason.DRILL_NOT_RECOVERED),
    ({"recovered": life(2, TEN, range(11, 20))}, "resumed_newest", Reason.RECOVERED_FROM_WRONG_GENERATION),
    ({"recovered": life(2, None, range(1, 9))}, "resumed_newest", Reason.RECOVERED_FROM_WRONG_GENERATION),
    ({"offered": GenerationId(1, 25)}, "resumed_newest", Reason.RECOVERED_FROM_WRONG_GENERATION),
    (
        {"killed": life(1, None, range(1, 26), (TEN, TWENTY, GenerationId(1, 24)))},
        "resumed_newest",
        Reason.RECOVERED_FROM_WRONG_GENERATION,
    ),
    ({"killed": life(1, None, range(1, 72), (TEN, TWENTY))}, "rpo", Reason.RPO_EXCEEDED),
    ({"saved": None}, "save_after_resume", Reason.SAVE_AFTER_RESUME_FAILED),
    (
        {"saved": tier_1(Finding(reason=Reason.DIGEST_MISMATCH, message="digest mismatch", offender="a"))},
        "save_after_resume",
        Reason.SAVE_AFTER_RESUME_FAILED,
    ),
    ({"survivors": (ProcessIdentity(8, 1),)}, "no_orphans", Reason.ORPHANS_SURVIVED),
    ({"leftovers": (ProcessIdentity(8, 1),)}, "no_orphans", Reason.ORPHANS_SURVIVED),
]


@pytest.mark.parametrize(
    ("change", "failed", "reason"), FAILURES, ids=[f"{one[1]}-{number}" for number, one in enumerate(FAILURES)]
)
def test_one_thing_wrong_is_one_finding(change: dict[str, Any], failed: str, reason: Reason) -> None:
    """Each failure is seen by its own check, under its own reason, and blames nothing else."""
    verdict = judge_drill(replace(GOOD, **change), OBJECTIVES)
    assert verdict.outcome is Outcome.FAIL
    assert {finding.reason for finding in verdict.findings} == {reason}
    assert [check.name for check in verdict.checks if check.outcome is Outcome.FAIL] == [failed]


def test_a_recovery_slower_than_its_objective_fails() -> None:
    """The objective is fixed before the drill; one millisecond over it is over it."""
    verdict = judge_drill(GOOD, Objectives(rto_seconds=0.999))
    assert [finding.reason for finding in verdict.findings] == [Reason.RTO_EXCEEDED]
    assert judge_drill(GOOD, Objectives(rto_seconds=1.0)).outcome is Outcome.PASS


def test_without_objectives_figures_are_only_reported() -> None:
    """A family that demands nothing still learns what it lost."""
    observed = replace(GOOD, killed=life(1, None, range(1, 1000), (TEN, TWENTY)))
    verdict = judge_drill(observed, Objectives())
    assert verdict.outcome is Outcome.PASS
    assert "979 steps lost of 999" in next(check.detail for check in verdict.checks if check.name == "rpo")


def test_ranks_that_disagree_about_what_they_resumed_are_refused() -> None:
    """A job whose ranks stand at different steps has not recovered, whatever rank 0 says."""
    one, other = life(2, TWENTY, range(21, 31)), life(2, TEN, range(21, 31))
    split = Life(incarnation=2, ranks={0: one.ranks[0], 1: other.ranks[1]})
    verdict = judge_drill(replace(GOOD, recovered=split), OBJECTIVES)
    assert {finding.reason for finding in verdict.findings} == {Reason.RECOVERED_FROM_WRONG_GENERATION}


def test_what_could_not_be_measured_is_inconclusive() -> None:
    """Contradicting marks and an unreadable save are trouble of ours, neither a pass nor a fail."""
    troubled = judge_drill(replace(GOOD, recovery=recovery(trouble="phases overlap")), OBJECTIVES)
    assert troubled.outcome is Outcome.INCONCLUSIVE
    unread = judge_drill(replace(GOOD, saved=tier_1(state=CheckState.INCONCLUSIVE)), OBJECTIVES)
    assert unread.outcome is Outcome.INCONCLUSIVE


def test_much_unaccounted_time_is_noted() -> None:
    """Up to a fiftieth of a recovery may lie between marks; more is said."""
    assert judge_drill(replace(GOOD, recovery=recovery(unaccounted_ns=20_000_000)), OBJECTIVES).notes == ()
    (note,) = judge_drill(replace(GOOD, recovery=recovery(unaccounted_ns=21_000_000)), OBJECTIVES).notes
    assert note.reason is NoteReason.PHASES_UNACCOUNTED


def test_a_copy_that_was_refused_fails_the_drill() -> None:
    """What tier 1 finds in the generation that the replica would have begun with stands in the verdict."""
    finding = Finding(reason=Reason.DIGEST_MISMATCH, message="digest mismatch", offender="a")
    check = Check(name="digests", state=CheckState.RAN, detail="", findings=(finding,))
    verdict = judge_drill(Observed(subject="drill", fault=GOOD.fault, missed="not whole"), OBJECTIVES, checks=(check,))
    assert (verdict.outcome, verdict.findings) == (Outcome.FAIL, (finding,))


def test_the_loss_is_counted_from_the_traces() -> None:
    """Steps that the killed life completed and the recovered one does not stand on; a late trace never makes a gain."""
    recovered = life(2, TWENTY, range(21, 22))
    assert loss_steps(life(1, None, range(1, 26)), recovered) == 5
    assert loss_steps(life(1, None, range(1, 20)), recovered) == 0
    assert loss_steps(life(1, TWENTY, range(0)), recovered) == 0
    assert loss_steps(life(1, None, range(1, 26)), life(2, None, range(1, 2))) == 25
