"""The demo's assertions, tried on sabotaged outcomes: a demo that cannot fail shows nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.demo.checks import check_drill, check_nothing_left, check_refusals, check_restore, check_saves
from lastgood.demo.story import DAMAGES
from lastgood.identity import GenerationId
from lastgood.reasons import Reason
from lastgood.testing.build import BuiltFamily, build_family
from lastgood.testing.damage import CATALOGUE, Scene
from lastgood.verdict import Check, CheckState, Rung, Tier, Verdict, judge
from lastgood.verify import verify_family, verify_generation

G10, G20 = GenerationId(1, 10), GenerationId(1, 20)


def verdict(state: CheckState = CheckState.RAN, *, tier: Tier = Tier.RESTORE, rung: Rung = Rung.FULL) -> Verdict:
    check = Check(name="held", state=state, detail="made up")
    return judge(tier=tier, rung=rung, subject="demo", checks=[check], required=["held"])


@pytest.fixture
def family(tmp_path: Path) -> BuiltFamily:
    return build_family(tmp_path, "demo")


def test_saves_pass_only_when_every_expected_one_was_verified() -> None:
    """A save that never appeared, or was never conclusive, must fail the demo."""
    assert check_saves([10, 20], {G10: verdict(), G20: verdict()}) == ()
    assert check_saves([10, 20], {G10: verdict()})
    assert check_saves([10], {G10: verdict(CheckState.INCONCLUSIVE)})
    assert check_saves([10], {})


def test_a_restore_passes_only_in_full_and_when_it_moved_last_good() -> None:
    """A weaker rung, an inconclusive restore or a pointer that stayed must fail the demo."""
    assert check_restore(verdict(), last_good=G10, generation=G10) == ()
    assert check_restore(verdict(rung=Rung.LOAD_ONLY), last_good=G10, generation=G10)
    assert check_restore(verdict(CheckState.INCONCLUSIVE), last_good=G10, generation=G10)
    assert check_restore(verdict(), last_good=None, generation=G10)
    assert check_restore(verdict(), last_good=G20, generation=G10)


def test_a_drill_passes_only_when_its_phases_add_up() -> None:
    """A recovery time that nobody can account for, or none at all, must fail the demo."""
    assert check_drill(verdict(), {"import": 2.0, "unaccounted": 0.5}, rto_seconds=2.5) == ()
    assert check_drill(verdict(), {"import": 2.0}, rto_seconds=2.5)
    assert check_drill(verdict(), {}, rto_seconds=None)
    assert check_drill(verdict(CheckState.NOT_RUN), {"import": 2.5}, rto_seconds=2.5)


def test_a_healthy_copy_offered_as_damaged_fails_the_demo(family: BuiltFamily) -> None:
    """If the gate slept, or saw something else than the damage, the demo must say so."""
    healthy = verify_generation(family.store, family.keys, family.newest)
    assert check_refusals({"byte_flipped": Reason.DIGEST_MISMATCH}, {"byte_flipped": healthy})
    assert check_refusals({"byte_flipped": Reason.DIGEST_MISMATCH}, {})
    scene = Scene(root=family.root, family="demo", generation=family.newest, stranger="demo")
    CATALOGUE["shard_deleted"].apply(scene)
    damaged = verify_generation(family.store, family.keys, family.newest)
    assert check_refusals({"shard_deleted": Reason.SHARD_MISSING}, {"shard_deleted": damaged}) == ()
    assert check_refusals({"shard_deleted": Reason.DIGEST_MISMATCH}, {"shard_deleted": damaged})


def test_a_process_left_running_fails_the_demo() -> None:
    """The demo promises to leave nothing running."""
    assert check_nothing_left([]) == ()
    assert check_nothing_left(["4711"]) == ("still running: 4711",)


@pytest.mark.parametrize("name", DAMAGES)
def test_the_demo_s_damages_need_no_stranger(name: str, family: BuiltFamily) -> None:
    """The demo copies one family alone, so its damages must work there and raise what they say."""
    damage = CATALOGUE[name]
    scene = Scene(root=family.root, family="demo", generation=family.newest, stranger="demo")
    damage.apply(scene)
    judged = (
        verify_family(scene.store, scene.keys)
        if damage.judge == "family"
        else verify_generation(scene.store, scene.keys, scene.generation)
    )
    assert {finding.reason for finding in judged.findings} == {damage.reason}
