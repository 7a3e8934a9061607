"""The family's verdict: six criteria over the newest evidence, and nothing held that was not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.criteria import CRITERION_OF, CheckLine, Criterion, Evidence, Held, judge_family
from lastgood.records.record import read_record
from lastgood.testing.evidence import Past, fabricate_documents
from lastgood.verdict import Outcome, Rung, Tier
from tests.report.healthy import NOW

LIBRARY = Path(__file__).resolve().parent.parent / "tasks" / "lastgood"


def records(tier: Tier) -> Evidence:
    """The evidence of a healthy family's newest record of a tier."""
    stored = [
        read_record(document.data, document.key)
        for document in fabricate_documents("llm-7b", Past(until=NOW, saves=8))
        if f"-tier{int(tier)}-" in document.key and "/records/" in document.key
    ]
    return Evidence.of(stored[-1].verdict)


VERIFIED = records(Tier.MANIFEST)
RESTORED = records(Tier.RESTORE)


def changed(evidence: Evidence, name: str, outcome: Outcome, *, verdict: Outcome, detail: str = "so it is") -> Evidence:
    """The same record with one check answered otherwise."""
    lines = [
        CheckLine(name=name, outcome=outcome, detail=detail) if line.name == name else line for line in evidence.checks
    ]
    assert name in {line.name for line in lines}
    return Evidence(outcome=verdict, rung=evidence.rung, checks=tuple(lines))


def held(verified: Evidence | None, restored: Evidence | None) -> dict[Criterion, Held]:
    return {one.criterion: one.held for one in judge_family(verified, restored).standings}


def test_a_family_with_passed_evidence_passes() -> None:
    """All six criteria are held by healthy records, so that a pass can be reached at all."""
    judged = judge_family(VERIFIED, RESTORED)
    assert judged.outcome is Outcome.PASS
    assert [standing.held for standing in judged.standings] == [Held.HELD] * 6
    assert judged.why == ""


def test_nothing_is_held_without_evidence() -> None:
    """A family that nobody looked at has shown nothing, whichever of the two tiers is missing."""
    assert set(held(None, None).values()) == {Held.NOT_SHOWN}
    assert judge_family(None, None).outcome is Outcome.NOT_RUN
    assert held(None, RESTORED)[Criterion.ARTIFACTS_VERIFY] is Held.NOT_SHOWN
    assert judge_family(None, RESTORED).outcome is Outcome.NOT_RUN
    only_verified = held(VERIFIED, None)
    assert [one for one, state in only_verified.items() if state is Held.HELD] == [Criterion.ARTIFACTS_VERIFY]


@pytest.mark.parametrize("name", [line.name for line in RESTORED.checks])
def test_any_failed_check_of_a_restore_fails_its_criterion(name: str) -> None:
    """A check that belonged to no criterion could fail while the family passes."""
    judged = judge_family(VERIFIED, changed(RESTORED, name, Outcome.FAIL, verdict=Outcome.FAIL, detail="found worse"))
    failed = [standing for standing in judged.standings if standing.held is Held.FAILED]
    assert judged.outcome is Outcome.FAIL
    assert [(one.criterion, one.check, one.detail) for one in failed] == [
        (CRITERION_OF.get(name, Criterion.SMOKE_STEP), name, "found worse")
    ]
    assert "found worse" in judged.why


@pytest.mark.parametrize("name", [line.name for line in VERIFIED.checks])
def test_any_failed_check_of_tier_1_fails_the_first_criterion(name: str) -> None:
    """Whatever tier 1 found, the artifacts do not verify."""
    judged = judge_family(changed(VERIFIED, name, Outcome.FAIL, verdict=Outcome.FAIL), RESTORED)
    assert judged.outcome is Outcome.FAIL
    assert judged.standings[0].held is Held.FAILED


def test_what_a_restore_found_in_its_copy_fails_the_artifacts_without_a_record_of_tier_1() -> None:
    """A family that fails must name the fail, not the gate that has not run yet."""
    rotten = Evidence(
        outcome=Outcome.FAIL,
        rung=Rung.FULL,
        checks=(*RESTORED.checks, CheckLine(name="digests", outcome=Outcome.FAIL, detail="digest mismatch")),
    )
    judged = judge_family(None, rotten)
    assert judged.standings[0].held is Held.FAILED
    assert judged.why.endswith("digest mismatch")


@pytest.mark.parametrize(
    ("name", "criterion"),
    [
        ("strict_load", Criterion.STRICT_LOAD),
        ("sample_ids", Criterion.NEXT_DATA),
        ("optimizer_steps", Criterion.COUNTERS),
        ("rng_draws", Criterion.RNG),
        ("smoke_steps", Criterion.SMOKE_STEP),
    ],
)
def test_a_check_that_could_not_run_shows_nothing(name: str, criterion: Criterion) -> None:
    """Trouble is no fact about the checkpoint, so the criterion is neither held nor failed."""
    spoiled = changed(RESTORED, name, Outcome.INCONCLUSIVE, verdict=Outcome.INCONCLUSIVE)
    assert held(VERIFIED, spoiled)[criterion] is Held.NOT_SHOWN
    assert judge_family(VERIFIED, spoiled).outcome is Outcome.INCONCLUSIVE


def test_what_a_passed_record_left_out_on_purpose_is_named_and_stands_in_no_way() -> None:
    """Random streams are asked for where determinism is promised; the reason why they were not must be readable."""
    without = changed(RESTORED, "rng_draws", Outcome.NOT_RUN, verdict=Outcome.PASS, detail="absent on purpose")
    judged = judge_family(VERIFIED, without)
    assert judged.outcome is Outcome.PASS
    standing = next(one for one in judged.standings if one.criterion is Criterion.RNG)
    assert (standing.held, standing.detail) == (Held.HELD, "absent on purpose")


def test_what_did_not_run_in_a_record_that_did_not_pass_is_not_excused() -> None:
    """Only a passed record says that a check was not required; in any other it is simply missing."""
    partial = changed(RESTORED, "rng_draws", Outcome.NOT_RUN, verdict=Outcome.NOT_RUN)
    assert held(VERIFIED, partial)[Criterion.RNG] is Held.NOT_SHOWN
    assert judge_family(VERIFIED, partial).outcome is Outcome.NOT_RUN


def test_ids_that_cannot_be_peeked_are_answered_by_the_live_run() -> None:
    """A source without a peek is proven by its trace, which is evidence as good."""
    peekless = changed(RESTORED, "sample_ids", Outcome.NOT_RUN, verdict=Outcome.NOT_RUN)
    assert held(VERIFIED, peekless)[Criterion.NEXT_DATA] is Held.HELD


def test_a_weaker_rung_shows_nothing_above_it() -> None:
    """A load without a step says nothing of the step, and sizes say nothing of bytes."""
    steps = ("smoke_steps", "loss_finite", "optimizer_advanced_once", "accumulation_window")
    loaded = Evidence(
        outcome=Outcome.PASS,
        rung=Rung.LOAD_ONLY,
        checks=tuple(line for line in RESTORED.checks if line.name not in steps),
    )
    assert held(VERIFIED, loaded)[Criterion.STRICT_LOAD] is Held.HELD
    assert held(VERIFIED, loaded)[Criterion.SMOKE_STEP] is Held.NOT_SHOWN
    skipped = changed(VERIFIED, "digests", Outcome.NOT_RUN, verdict=Outcome.PASS)
    weak = Evidence(outcome=Outcome.PASS, rung=Rung.METADATA_ONLY, checks=skipped.checks)
    assert held(weak, RESTORED)[Criterion.ARTIFACTS_VERIFY] is Held.NOT_SHOWN


def test_a_record_of_no_checks_shows_nothing() -> None:
    """A record that passed and asked nothing must not be mistaken for one that asked everything."""
    empty = Evidence(outcome=Outcome.PASS, rung=Rung.FULL, checks=())
    assert set(held(empty, empty).values()) == {Held.NOT_SHOWN}


def test_a_quarantined_family_fails() -> None:
    """One failed restore quarantines; newer passes do not heal what nobody has released."""
    judged = judge_family(VERIFIED, RESTORED, quarantine=("tier2-0001_00000001-0000000000000300",))
    assert judged.outcome is Outcome.FAIL
    assert "tier2-0001" in judged.why


def test_every_named_check_is_one_that_a_gate_makes() -> None:
    """A check renamed in a gate would leave its criterion waiting for ever, and every family without a verdict."""
    rooms = ("verify", "restore")
    made = "".join(path.read_text(encoding="utf-8") for room in rooms for path in (LIBRARY / room).glob("*.py"))
    assert [name for name in CRITERION_OF if f'"{name}"' not in made] == []
