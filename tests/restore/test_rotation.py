"""The rotation of sampled restores: everything gets its turn, what was never restored first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lastgood.errors import UsageError
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.records import keep_verdict
from lastgood.restore.rotation import choose_next, last_tried, next_generation, take_turns
from lastgood.testing.build import BuiltFamily, build_family
from lastgood.verdict import Check, CheckState, Finding, Reason, Rung, Tier, Verdict, judge

START = datetime(2026, 1, 1, tzinfo=UTC)
GENERATIONS = tuple(GenerationId(1, step) for step in (10, 20, 30))


def verdict(*, fails: bool = False, runs: bool = True, rung: Rung = Rung.FULL) -> Verdict:
    findings = (Finding(reason=Reason.RNG_DIVERGED, message="rng diverged: rank 1", offender="rng"),) if fails else ()
    state = CheckState.RAN if runs else CheckState.INCONCLUSIVE
    check = Check(name="rng_draws", state=state, detail="", findings=findings)
    return judge(tier=Tier.RESTORE, rung=rung, subject="fam", checks=(check,), required=("rng_draws",))


def location_of(built: BuiltFamily) -> Location:
    return Location(store=built.store, keys=built.keys, generation=None)


def keep(built: BuiltFamily, generation: GenerationId, kept: Verdict, day: int) -> None:
    keep_verdict(built.store, built.keys, kept, generation=generation, now=lambda: START + timedelta(days=day))


def test_never_restored_generations_come_first_the_newest_of_them_before_all() -> None:
    """The next interruption will want the newest, so its first restore must not wait behind old ones."""
    assert choose_next(GENERATIONS, {}) == GENERATIONS[2]
    assert choose_next(GENERATIONS, {GENERATIONS[2]: START}) == GENERATIONS[1]


def test_then_comes_what_was_restored_longest_ago() -> None:
    """Evidence rots with the disk; the oldest evidence is renewed first."""
    restored = {generation: START - timedelta(days=age) for generation, age in zip(GENERATIONS, (1, 3, 2), strict=True)}
    assert choose_next(GENERATIONS, restored) == GENERATIONS[1]


def test_equal_evidence_gives_one_answer() -> None:
    """Two machines that ask at once must not disagree by chance."""
    restored = dict.fromkeys(GENERATIONS, START)
    assert {choose_next(order, restored) for order in (GENERATIONS, GENERATIONS[::-1])} == {GENERATIONS[0]}
    assert choose_next((), {}) is None


def test_a_rotation_over_real_records_takes_every_generation_once_before_any_twice(tmp_path: Path) -> None:
    """A generation that is never sampled is one whose failure nobody will know before it is needed."""
    built = build_family(tmp_path, "fam", steps=(10, 20, 30))
    taken = []
    for day in range(4):
        generation = next_generation(location_of(built))
        taken.append(generation.step)
        keep(built, generation, verdict(), day)
    assert taken == [30, 20, 10, 30]


def test_an_inconclusive_restore_does_not_use_up_the_turn(tmp_path: Path) -> None:
    """A full scratch disk proved nothing, so the generation is still the one that was never restored."""
    built = build_family(tmp_path, "fam", steps=(10, 20))
    keep(built, built.newest, verdict(runs=False), 0)
    assert next_generation(location_of(built)) == built.newest


def test_a_weaker_rung_does_not_use_up_the_turn(tmp_path: Path) -> None:
    """A load without a step proves no generation, so its full restore is due as before."""
    built = build_family(tmp_path, "fam", steps=(10, 20))
    keep(built, built.newest, verdict(rung=Rung.LOAD_ONLY), 0)
    assert next_generation(location_of(built)) == built.newest


def test_a_failed_generation_is_not_sampled_again(tmp_path: Path) -> None:
    """Its fail stands and it is never offered; the turn belongs to those that may be."""
    built = build_family(tmp_path, "fam", steps=(10, 20))
    keep(built, built.newest, verdict(fails=True), 0)
    assert next_generation(location_of(built)).step == 10


def test_a_family_with_nothing_to_restore_says_so(tmp_path: Path) -> None:
    """An empty sample must not look like a passed one."""
    built = build_family(tmp_path, "fam", steps=(10,))
    keep(built, built.newest, verdict(fails=True), 0)
    with pytest.raises(UsageError, match="nothing to restore"):
        next_generation(location_of(built))


def test_the_family_that_waited_longest_comes_first() -> None:
    """One nightly restore serves many families; none may wait for ever behind a busier one."""
    assert take_turns({}) == ()
    assert take_turns({"b": None, "c": START, "a": None}) == ("a", "b", "c")
    assert take_turns({"a": START + timedelta(days=1), "c": START, "b": START}) == ("b", "c", "a")


def test_a_try_of_any_outcome_passes_the_turn_to_the_next_family(tmp_path: Path) -> None:
    """A family whose gate never reaches a verdict must not keep all others from theirs; tiers do not mix."""
    built = build_family(tmp_path, "fam", steps=(10, 20))
    assert last_tried(location_of(built), Tier.RESTORE) is None
    keep(built, GenerationId(1, 10), verdict(), 3)
    keep(built, built.newest, verdict(runs=False), 5)
    assert last_tried(location_of(built), Tier.RESTORE) == START + timedelta(days=5)
    assert last_tried(location_of(built), Tier.DRILL) is None
    for generation in (GenerationId(1, 10), built.newest):
        keep(built, generation, verdict(fails=True), 6)
    with pytest.raises(UsageError, match="nothing to restore"):
        last_tried(location_of(built), Tier.RESTORE)
