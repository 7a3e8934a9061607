"""Starting and going back: who owns a number, what is kept, and what is refused."""

from __future__ import annotations

import pytest

from lastgood import documents
from lastgood.errors import Fenced, ResumeRefused, StoreTransientError, UsageError
from lastgood.identity import GenerationId
from lastgood.markers import Claim, ResumeRecord
from lastgood.protocol import CommitOutcome, Create, Created, claims, commits
from lastgood.verdict import Reason
from tests.protocol.family import MemoryFamily, finish, marker, nonce, until


def resume_record(family: MemoryFamily, number: int) -> ResumeRecord:
    key = family.keys.resume(number)
    return documents.parse(ResumeRecord, family.objects[key], key)


def reasons(refused: ResumeRefused) -> list[Reason]:
    return [finding.reason for finding in refused.findings]


def test_numbers_rise_from_one_and_are_never_reused() -> None:
    """A claim is forever: a start that died keeps its number, and the next takes a higher one."""
    family = MemoryFamily()
    assert [family.claim(letter) for letter in "abc"] == [1, 2, 3]


def test_a_lost_reply_is_recognised_by_the_nonce() -> None:
    """The store applied our create and the reply was lost: sending it again finds our own bytes."""
    family = MemoryFamily()
    steps = claims.claim(family.keys, nonce=nonce("a"), host="h")
    request = next(steps)
    request = steps.send(())
    assert isinstance(request, Create)
    family.store.create(request.key, request.data)
    again = steps.send(Created.UNKNOWN)
    assert again == request
    assert finish(steps, family, again) == 1


def test_another_life_under_the_number_means_the_next_one() -> None:
    """Two starts saw the same newest claim: the one that lost the create lists again."""
    family = MemoryFamily()
    steps = claims.claim(family.keys, nonce=nonce("a"), host="h")
    next(steps)
    request = steps.send(())
    assert family.claim("b") == 1
    assert finish(steps, family, request) == 2


def test_a_store_that_never_answers_is_an_error_and_no_guess() -> None:
    """Five sends without a reply: the outcome is unknown, and nobody may act as if it were known."""
    steps = claims.claim(MemoryFamily().keys, nonce=nonce("a"), host="h")
    next(steps)
    steps.send(())
    for _ in range(4):
        steps.send(Created.UNKNOWN)
    with pytest.raises(StoreTransientError, match="outcome unknown"):
        steps.send(Created.UNKNOWN)


def test_keeps_is_everything_seen_barred_or_not() -> None:
    """A restart that resumes an older generation, for the newest is barred, must not cut what others published."""
    family = MemoryFamily()
    family.live("a", 1, 2, allow_fresh=True)
    family.refuse(GenerationId(1, 2), source="tier1")
    number = family.claim("b")
    decision = family.decide(number, "b")
    assert decision.generation == GenerationId(1, 1)
    assert resume_record(family, number).keeps == {"1": 2}


def test_keeps_is_flattened_over_all_lives() -> None:
    """Readers look at the newest decision alone, so it must speak for every older life."""
    family = MemoryFamily()
    family.live("a", 1, 2, allow_fresh=True)
    family.live("b", 3)
    family.live("c", 4)
    assert resume_record(family, 3).keeps == {"1": 2, "2": 3}
    assert family.survey().candidates == (
        GenerationId(3, 4),
        GenerationId(2, 3),
        GenerationId(1, 2),
        GenerationId(1, 1),
    )


def test_a_start_below_a_newer_claim_stops() -> None:
    """Of two racing restarts the older one must not train in parallel until its first save is refused."""
    family = MemoryFamily()
    family.live("a", 1, allow_fresh=True)
    assert (family.claim("b"), family.claim("c")) == (2, 3)
    with pytest.raises(Fenced, match="incarnation 3"):
        family.decide(2, "b")
    assert family.decide(3, "c").generation == GenerationId(1, 1)


def test_a_number_is_decided_once() -> None:
    """A second life under the same number would make two truths of one decision."""
    family = MemoryFamily()
    family.live("a", 1, allow_fresh=True)
    family.claim("b")
    family.decide(2, "b")
    with pytest.raises(Fenced, match="another life decided"):
        family.decide(2, "c")


def test_a_stale_hint_is_refused_by_name() -> None:
    """Launchers run old arguments again; resuming them would throw away every later step in silence."""
    family = MemoryFamily()
    family.live("a", 1, 2, allow_fresh=True)
    number = family.claim("b")
    with pytest.raises(ResumeRefused, match=r"asked for .*1, the newest candidate is .*2") as refused:
        family.decide(number, "b", hint=GenerationId(1, 1))
    assert reasons(refused.value) == [Reason.RESUME_SUPERSEDED]
    assert family.decide(number, "b", hint=GenerationId(1, 2)).generation == GenerationId(1, 2)


def test_step_zero_needs_permission_and_an_empty_lineage() -> None:
    """Nothing falls back to step zero: not without being told to, and not beside commits that are merely barred."""
    family = MemoryFamily()
    number = family.claim("a")
    with pytest.raises(ResumeRefused, match="nothing to resume") as refused:
        family.decide(number, "a")
    assert reasons(refused.value) == [Reason.NOTHING_TO_RESUME]
    assert family.decide(number, "a", allow_fresh=True).generation is None
    family.commit(number, 1, "a")
    family.refuse(GenerationId(1, 1), source="tier1")
    number = family.claim("b")
    with pytest.raises(ResumeRefused, match="of 1 commit none may be offered") as refused:
        family.decide(number, "b", allow_fresh=True)
    assert reasons(refused.value) == [Reason.GENERATION_BARRED, Reason.FRESH_REFUSED]


def test_a_burned_slot_is_no_commit() -> None:
    """A family whose only publish was abandoned may still start at step zero."""
    family = MemoryFamily()
    family.live("a", allow_fresh=True)
    family.perform(commits.burn(family.keys, GenerationId(1, 1), nonce("a")))
    assert family.decide(family.claim("b"), "b", allow_fresh=True).generation is None


def test_a_rollback_cuts_and_leaves_the_branch_as_audit() -> None:
    """After it nothing newer than the target is offered, and everything is still there to be read."""
    family = MemoryFamily()
    family.live("a", 1, 2, allow_fresh=True)
    family.live("b", 3)
    before = dict(family.objects)
    assert family.rollback(GenerationId(1, 1)) == 3
    assert family.latest == GenerationId(1, 1)
    assert family.survey().fenced == (GenerationId(2, 3), GenerationId(1, 2))
    assert before.items() <= family.objects.items()


def test_a_rollback_into_a_later_life_keeps_what_that_life_kept() -> None:
    """The target's own lineage remains, so that a bar on the target still leaves something older to offer."""
    family = MemoryFamily()
    family.live("a", 1, 2, allow_fresh=True)
    family.live("b", 3, 4)
    family.rollback(GenerationId(2, 3))
    assert family.survey().candidates == (GenerationId(2, 3), GenerationId(1, 2), GenerationId(1, 1))


def test_a_rolled_back_life_is_fenced_and_a_new_one_continues() -> None:
    """The job that ran during the rollback is told to stop; the next start resumes the target under a higher number."""
    family = MemoryFamily()
    family.live("a", 1, 2, allow_fresh=True)
    family.rollback(GenerationId(1, 1))
    assert family.commit(1, 3, "a") is CommitOutcome.FENCED
    assert family.live("b", 2) == 3
    assert family.latest == GenerationId(3, 2)


def test_a_rollback_of_foreign_generations_names_the_target() -> None:
    """Generations that were sealed where they lie belong to no life; going back among them works all the same."""
    family = MemoryFamily()
    for step, name in ((500, "checkpoint-500"), (1000, "checkpoint-1000-ü")):
        foreign = GenerationId(0, step, name)
        family.objects[family.keys.commit(foreign)] = marker(foreign, nonce("f"))
    assert family.latest == GenerationId(0, 1000, "checkpoint-1000-ü")
    family.rollback(GenerationId(0, 500, "checkpoint-500"))
    assert family.latest == GenerationId(0, 500, "checkpoint-500")


def test_what_cannot_be_gone_back_to_is_a_usage_error() -> None:
    """Absent, barred and burned targets are refused before anything is claimed."""
    family = MemoryFamily()
    family.live("a", 1, 2, allow_fresh=True)
    family.perform(commits.burn(family.keys, GenerationId(1, 3), nonce("a")))
    family.refuse(GenerationId(1, 2))
    for target, message in ((4, "not a commit"), (2, "fail on record"), (3, "burned")):
        with pytest.raises(UsageError, match=message):
            family.rollback(GenerationId(1, target))
    assert family.survey().claims.claims == (1,)


def test_a_rollback_that_loses_its_number_lists_again() -> None:
    """A start claimed the number first: the rollback takes the next, so that it fences that start too."""
    family = MemoryFamily()
    family.live("a", 1, 2, allow_fresh=True)
    steps = claims.rollback(family.keys, GenerationId(1, 1), nonce=nonce("0"), host="h", reason="spike")
    request = until(steps, family, Create)
    family.live("b", 3)
    assert finish(steps, family, request) == 3
    assert family.latest == GenerationId(1, 1)


def test_a_claim_says_who_and_where() -> None:
    """People read claims when they look for the job that took over."""
    family = MemoryFamily()
    steps = claims.claim(family.keys, nonce=nonce("a"), host="node7", launcher={"SLURM_JOB_ID": "42"})
    family.perform(steps)
    claim = documents.parse(Claim, family.objects[family.keys.claim(1)], "claim")
    assert (claim.host, claim.launcher, claim.rollback) == ("node7", {"SLURM_JOB_ID": "42"}, None)
