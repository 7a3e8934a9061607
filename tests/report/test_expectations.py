"""Every objective holds on healthy evidence, and is missed, alone, when just that is broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lastgood.criteria import Criterion
from lastgood.report.expectations import EXPECTATIONS
from lastgood.report.frames import Frames
from lastgood.report.indicators import measure
from lastgood.report.report import Area, Result
from lastgood.report.suite import judge_indicators
from lastgood.verdict import Outcome, Rung
from tests.report.healthy import NOW, Rows, ago, generation, healthy, record, settings

FAMILY = "llm-7b"


def _commit_nothing(rows: Rows) -> None:
    rows.of(FAMILY)["candidates"] = 0


def _abandon_publishes(rows: Rows) -> None:
    rows.of(FAMILY)["publishes_begun"] = 5


def _stop_saving(rows: Rows) -> None:
    rows.of(FAMILY)["newest_save_at"] = ago(hours=3)


def _leave_unjudged(rows: Rows) -> None:
    del rows.verifications[0]


def _read_metadata_only(rows: Rows) -> None:
    rows.verifications[0]["rung"] = "metadata_only"


def _lose_the_store(rows: Rows) -> None:
    rows.of(FAMILY)["state"] = "could not tell"


def _offer_nothing(rows: Rows) -> None:
    rows.of(FAMILY)["state"] = "nothing to resume"


def _spoil_a_document(rows: Rows) -> None:
    rows.of(FAMILY)["malformed"] = 1


def _quarantine(rows: Rows) -> None:
    rows.of(FAMILY).update(state="quarantined", quarantine="operator-4f1a")


def _offer_barred(rows: Rows) -> None:
    rows.saves[-1]["state"] = "barred"


def _fail_a_criterion(rows: Rows) -> None:
    rows.of(FAMILY)["verdict"] = "fail"


def _restore_never(rows: Rows) -> None:
    rows.restores.clear()


def _restore_weakly(rows: Rows) -> None:
    for row in rows.restores:
        row["rung"] = "load_only"


def _fail_newest_restore(rows: Rows) -> None:
    rows.restores.append(record(FAMILY, 300, ago(minutes=5), outcome="fail"))


def _fail_newest_restore_and_load_it(rows: Rows) -> None:
    _fail_newest_restore(rows)
    rows.restores.append(record(FAMILY, 300, ago(minutes=1), rung="load_only"))


def _fail_newest_load(rows: Rows) -> None:
    rows.restores.append(record(FAMILY, 300, ago(minutes=5), outcome="fail", rung="load_only"))


def _restore_long_ago(rows: Rows) -> None:
    for row in rows.restores:
        row["finished_at"] = ago(days=3)


def _restore_long_ago_and_load_now(rows: Rows) -> None:
    _restore_long_ago(rows)
    rows.restores.append(record(FAMILY, 300, ago(minutes=1), rung="topology_change"))


def _prove_one(rows: Rows) -> None:
    rows.of(FAMILY)["proven"] = 1


def _drill_never(rows: Rows) -> None:
    rows.drills.clear()


def _fail_newest_drill(rows: Rows) -> None:
    rows.drills.append(record(FAMILY, 300, ago(minutes=5), outcome="fail"))


def _drill_long_ago(rows: Rows) -> None:
    rows.drills = [row for row in rows.drills if row["finished_at"] < ago(days=15)]


def _lose_steps_now(rows: Rows) -> None:
    rows.drills[-1]["rpo_loss_steps"] = 101


def _lose_steps_before(rows: Rows) -> None:
    for row in rows.drills[:5]:
        row["rpo_loss_steps"] = 101


def _recover_slowly_now(rows: Rows) -> None:
    rows.drills[-1]["rto_seconds"] = 60.5


def _recover_slowly_before(rows: Rows) -> None:
    for row in rows.drills[:5]:
        row["rto_seconds"] = 60.5


def _conclude_nothing(rows: Rows) -> None:
    rows.restores.append(record(FAMILY, 300, ago(minutes=5), outcome="inconclusive"))
    rows.drills.append(record(FAMILY, 300, ago(hours=23.9), outcome="not_run"))
    rows.drills.append(record(FAMILY, 300, ago(days=1.1), outcome="inconclusive"))
    rows.drills[-3]["finished_at"] = ago(days=1.2)


def _conclude_nothing_but_a_load(rows: Rows) -> None:
    rows.restores.append(record(FAMILY, 300, ago(days=1.1), outcome="inconclusive"))
    for row in rows.restores[:2]:
        row["finished_at"] = ago(days=1.2)
    rows.restores.append(record(FAMILY, 300, ago(minutes=1), rung="load_only"))


BREAKS: Mapping[Callable[[Rows], None], str] = {
    _commit_nothing: "generation_committed",
    _abandon_publishes: "creation_ratio",
    _stop_saving: "save_age",
    _leave_unjudged: "generations_judged",
    _read_metadata_only: "generations_judged",
    _lose_the_store: "state_told",
    _offer_nothing: "state_told",
    _spoil_a_document: "documents_lawful",
    _quarantine: "not_quarantined",
    _offer_barred: "barred_not_offered",
    _fail_a_criterion: "family_verdict",
    _restore_never: "restore_passed",
    _restore_weakly: "restore_passed",
    _fail_newest_restore: "newest_restore_passed",
    _fail_newest_restore_and_load_it: "newest_restore_passed",
    _fail_newest_load: "newest_restore_passed",
    _restore_long_ago: "restore_age",
    _restore_long_ago_and_load_now: "restore_age",
    _prove_one: "proven_generations",
    _drill_never: "drill_passed",
    _fail_newest_drill: "newest_drill_passed",
    _drill_long_ago: "drill_age",
    _lose_steps_now: "rpo_newest",
    _lose_steps_before: "rpo_p95",
    _recover_slowly_now: "rto_newest",
    _recover_slowly_before: "rto_p95",
    _conclude_nothing: "gates_conclude",
    _conclude_nothing_but_a_load: "gates_conclude",
}
CASES = {spoil.__name__.strip("_"): spoil for spoil in BREAKS}


def missed(frames: Frames, *families: str) -> list[tuple[str, str]]:
    objectives = judge_indicators(measure(frames, settings(*families), NOW), NOW).objectives
    found = objectives[objectives["result"] == str(Result.MISSED)]
    return list(zip(found["family"], found["objective"], strict=True))


@pytest.fixture(scope="module")
def missed_by_case() -> Mapping[str, list[str]]:
    """One family a case, judged in one run of the suites: each is a row, and rows know nothing of each other."""
    rows = healthy("sound")
    for case, spoil in CASES.items():
        spoiled = healthy(FAMILY)
        spoil(spoiled)
        rows.add(spoiled.renamed(case))
    found = missed(rows.frames(), "sound", *CASES)
    return {case: [objective for family, objective in found if family == case] for case in ("sound", *CASES)}


def test_healthy_evidence_meets_every_objective() -> None:
    """A report that cries wolf over a good family is switched off before the bad one comes."""
    judged = judge_indicators(measure(healthy("a", "b").frames(), settings("a", "b"), NOW), NOW)
    assert judged.outcome is Outcome.PASS
    assert set(judged.objectives["result"]) == {"met"}
    assert len(judged.objectives) == 2 * len(EXPECTATIONS)


@pytest.mark.parametrize("case", CASES)
def test_each_expectation_fails_alone(case: str, missed_by_case: Mapping[str, list[str]]) -> None:
    """An expectation that cannot fail proves nothing, and one that fails with its neighbour says nothing."""
    assert missed_by_case["sound"] == []
    assert missed_by_case[case] == [BREAKS[CASES[case]]]


def test_every_expectation_is_broken_by_some_case() -> None:
    """An expectation added without its own break would be believed without having been seen to fail."""
    assert {one.objective for one in EXPECTATIONS} == set(BREAKS.values())


def test_every_objective_is_documented() -> None:
    """Whoever is told that `gates_conclude` is missed must find out what that means."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    assert [name for one in EXPECTATIONS if f"`{(name := one.objective)}`" not in page] == []
    assert [str(one) for one in Criterion if f"`{one}`" not in page] == []


def test_an_empty_ledger_fails() -> None:
    """A report about nothing looks green in every column, so the absence of families is a failure of its own."""
    judged = judge_indicators(measure(Frames.of(), {}, NOW), NOW)
    assert judged.outcome is Outcome.FAIL


def test_a_family_without_any_evidence_fails() -> None:
    """A family that was configured and never saved, restored or drilled must not hide among the good ones."""
    rows = healthy("sound")
    rows.families.append(
        {"family": "new", "candidates": 0, "proven": 0, "publishes_begun": 0, "committed": 0, "state": "ready"}
    )
    found = missed(rows.frames(), "sound", "new")
    assert {family for family, _ in found} == {"new"}
    assert {"generation_committed", "restore_passed", "drill_passed", "family_verdict"} <= {name for _, name in found}


def test_what_nobody_demands_is_not_called_met() -> None:
    """A recovery time without a budget is neither good nor bad, and a green mark would claim that somebody looked."""
    judged = judge_indicators(measure(healthy(FAMILY).frames(), {}, NOW), NOW)
    results = judged.objectives.set_index("objective")["result"]
    assert results[["rto_newest", "rto_p95", "rpo_newest", "rpo_p95", "save_age"]].tolist() == ["not_set"] * 5


def test_a_store_that_could_not_tell_leaves_the_report_undecided() -> None:
    """Trouble of a store is no fact about checkpoints: exit 2, not 1, unless something else is missed as well."""
    rows = healthy(FAMILY, "sound")
    _lose_the_store(rows)
    indicators = measure(rows.frames(), settings(FAMILY, "sound"), NOW)
    assert judge_indicators(indicators, NOW).outcome is Outcome.INCONCLUSIVE
    rows.of("sound")["proven"] = 1
    indicators = measure(rows.frames(), settings(FAMILY, "sound"), NOW)
    assert judge_indicators(indicators, NOW).outcome is Outcome.FAIL


@pytest.mark.parametrize("rung", [str(rung) for rung in Rung if rung is not Rung.FULL])
def test_a_weaker_rung_that_passed_costs_no_objective(rung: str) -> None:
    """Somebody who looks in on a save between two nights must not turn the morning's report red."""
    rows = healthy(FAMILY)
    rows.restores.append(record(FAMILY, 300, ago(minutes=1), rung=rung))
    rows.verifications.append(record(FAMILY, 400, ago(minutes=1), rung=rung, attempt=2))
    assert missed(rows.frames(), FAMILY) == []


def test_creation_and_recovery_are_judged_apart() -> None:
    """Saves that succeed say nothing of recovery, so no figure and no suite may mix the two."""
    assert {one.area for one in EXPECTATIONS} == set(Area)
    rows = healthy(FAMILY)
    rows.restores.clear()
    rows.drills.clear()
    objectives = judge_indicators(measure(rows.frames(), settings(FAMILY), NOW), NOW).objectives
    by_area = objectives.groupby("area")["result"].apply(set)
    assert by_area["creation"] == {"met"}
    assert "missed" in by_area["recovery"]


def test_a_fenced_generation_owes_no_verdict() -> None:
    """What a newer life cut off is nobody's to verify; calling it overdue would alarm after every takeover."""
    rows = healthy(FAMILY)
    rows.saves[0]["state"] = "fenced"
    rows.verifications = [row for row in rows.verifications if row["generation"] != generation(100)]
    assert missed(rows.frames(), FAMILY) == []
