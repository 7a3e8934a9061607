"""The checker is proven able to fail: every damage raises exactly its reason, and nothing healthy raises any."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lastgood.errors import FormatError, StorePermanentError
from lastgood.protocol import choose, perform
from lastgood.reasons import Reason
from lastgood.testing.damage import CATALOGUE, Damage, Judge, Scene
from lastgood.verdict import Outcome, Verdict
from lastgood.verify import inspector, verify_family, verify_generation

AT_ONCE = timedelta(0)

# What only a choice between generations, a restore or a drill can raise; their own tests raise each of them.
RAISED_BY_STARTS = frozenset(
    {
        Reason.GENERATION_NOT_PROVEN,
        Reason.FAMILY_QUARANTINED,
        Reason.RESUME_SUPERSEDED,
        Reason.FRESH_REFUSED,
        Reason.NOTHING_TO_RESUME,
    }
)
RAISED_WITHOUT_A_MANIFEST = frozenset(
    {
        Reason.SAVE_UNFINISHED,
        Reason.CONTAINER_MALFORMED,
        Reason.RECORD_CORRUPT,
        Reason.GLOBAL_NOT_ALLOWED,
        Reason.INDEX_MISMATCH,
        Reason.GENERATIONS_MIXED,
        Reason.COUNTERS_DISAGREE,
    }
)
"""By tests/formats, on checkpoints that nobody here wrote."""
RAISED_BY_RESTORES = frozenset(
    {
        Reason.KEY_MISSING,
        Reason.KEY_UNEXPECTED,
        Reason.SHAPE_MISMATCH,
        Reason.DTYPE_MISMATCH,
        Reason.TENSOR_INCOMPLETE,
        Reason.STATE_INVALID,
        Reason.STATE_NOT_RESTORED,
        Reason.MODEL_IDENTITY_CHANGED,
        Reason.TOKENIZER_IDENTITY_CHANGED,
        Reason.DATASET_IDENTITY_CHANGED,
        Reason.WORKER_COUNT_CHANGED,
        Reason.TOPOLOGY_UNSUPPORTED,
        Reason.LEARNING_RATE_DIVERGED,
        Reason.OPTIMIZER_STEP_DIVERGED,
        Reason.SAMPLE_IDS_DIVERGED,
        Reason.RNG_DIVERGED,
        Reason.TENSOR_DIGEST_DIVERGED,
        Reason.COUNTER_DIVERGED,
        Reason.ACCUMULATION_DIVERGED,
        Reason.LOSS_NOT_FINITE,
        Reason.GRADIENT_NOT_FINITE,
        Reason.OPTIMIZER_NOT_STEPPED,
        Reason.TRACE_DIVERGED,
        Reason.SAVE_AFTER_RESUME_FAILED,
        Reason.RESTORE_CRASHED,
        Reason.RESTORE_TIMED_OUT,
        Reason.TRACE_MISSING,
    }
)
RAISED_BY_DRILLS = frozenset(
    {
        Reason.DRILL_NOT_RECOVERED,
        Reason.RECOVERED_FROM_WRONG_GENERATION,
        Reason.RPO_EXCEEDED,
        Reason.RTO_EXCEEDED,
        Reason.ORPHANS_SURVIVED,
    }
)

# What lies in the bytes alone, or in a marker that is not this generation's own: a look that reads no payload is blind
# to it by design (`latest --deep` and tier 1 are not).
NEEDS_READING = frozenset(
    {
        Reason.DIGEST_MISMATCH,
        Reason.ARTIFACT_SWAPPED,
        Reason.FOREIGN_GENERATION_FILE,
        Reason.FOREIGN_RUN_FILE,
        Reason.COMMIT_CHAIN_BROKEN,
    }
)


def judge(scene: Scene, damage: Damage) -> Verdict:
    if damage.judge is Judge.FAMILY:
        return verify_family(scene.store, scene.keys, settle=AT_ONCE)
    return verify_generation(scene.store, scene.keys, scene.generation)


def test_the_undamaged_scene_raises_nothing(scene: Scene) -> None:
    """Whatever a damaged copy raises comes from its damage only if the undamaged one raises nothing at all."""
    for generation in (scene.generation, scene.older(), scene.older(2)):
        verdict = verify_generation(scene.store, scene.keys, generation)
        assert (verdict.outcome, verdict.findings, verdict.notes) == (Outcome.PASS, (), ())
    verdict = verify_family(scene.store, scene.keys, settle=AT_ONCE)
    assert (verdict.outcome, verdict.findings, verdict.notes) == (Outcome.PASS, (), ())
    assert perform(scene.store, choose(scene.keys), inspect=inspector(scene.store, scene.keys)).skipped == ()


@pytest.mark.parametrize("damage", CATALOGUE.values(), ids=lambda damage: damage.name)
def test_a_damage_raises_exactly_its_reason_and_names_the_offender(scene: Scene, damage: Damage) -> None:
    """One fault gives one reason: more would bury it, another would send people to the wrong place."""
    offender = damage.apply(scene)
    verdict = judge(scene, damage)
    assert {finding.reason for finding in verdict.findings} == {damage.reason}
    assert offender in {finding.offender for finding in verdict.findings}
    assert verdict.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "damage",
    [d for d in CATALOGUE.values() if d.judge is Judge.GENERATION and d.reason not in NEEDS_READING],
    ids=lambda damage: damage.name,
)
def test_a_damage_that_shows_without_reading_is_never_offered(scene: Scene, damage: Damage) -> None:
    """`latest` reads no payload; what documents and sizes give away it passes over, for the same reason as tier 1."""
    older = scene.older()
    damage.apply(scene)
    steps = choose(scene.keys)
    if damage.name == "commit_is_a_link":
        with pytest.raises(StorePermanentError):
            perform(scene.store, steps, inspect=inspector(scene.store, scene.keys))
        return
    choice = perform(scene.store, steps, inspect=inspector(scene.store, scene.keys))
    assert choice.generation == older
    reasons = {f.reason for s in choice.skipped if s.generation == scene.generation for f in s.findings}
    assert reasons == (set() if damage.reason is Reason.COMMIT_MISSING else {damage.reason})


@pytest.mark.parametrize(
    "damage",
    [d for d in CATALOGUE.values() if d.judge is Judge.FAMILY and d.reason is not Reason.POINTER_UNCOMMITTED],
    ids=lambda damage: damage.name,
)
def test_no_decision_reads_a_pointer(scene: Scene, damage: Damage) -> None:
    """A damaged cache must not change the answer; a damaged decision must not be guessed past."""
    damage.apply(scene)
    if damage.reason is Reason.DECISION_MALFORMED:
        with pytest.raises(FormatError):
            perform(scene.store, choose(scene.keys))
    else:
        assert perform(scene.store, choose(scene.keys)).generation == scene.generation


def test_every_reason_is_raised_by_some_damage_or_belongs_to_another_gate() -> None:
    """A reason that nothing raises is untested advice; each is raised here, or by the tests of the gate named above."""
    here = {damage.reason for damage in CATALOGUE.values()}
    elsewhere = RAISED_BY_STARTS | RAISED_WITHOUT_A_MANIFEST | RAISED_BY_RESTORES | RAISED_BY_DRILLS
    assert here | elsewhere == set(Reason)
    assert here & elsewhere == set()
    assert len(here) >= 25


def test_the_seeds_boundary_faults_are_in_the_catalogue() -> None:
    """There are four boundary faults that must be refused loudly, whatever else is added or renamed."""
    seed = {
        "shard_deleted": Reason.SHARD_MISSING,
        "byte_flipped": Reason.DIGEST_MISMATCH,
        "active_pointer_lags": Reason.POINTER_STALE,
        "format_version_newer": Reason.FORMAT_VERSION_UNSUPPORTED,
    }
    assert {name: CATALOGUE[name].reason for name in seed} == seed
