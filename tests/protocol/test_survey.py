"""What may be offered: the cut, bars, quarantine, policies, malformed names and documents, and what it costs."""

from __future__ import annotations

import pytest

from lastgood import documents
from lastgood.errors import FormatError, StorePermanentError
from lastgood.identity import GenerationId
from lastgood.markers import Claim, Commit, ResumeRecord
from lastgood.protocol import List, Policy, Request, perform, survey
from lastgood.protocol.survey import RefusalName
from lastgood.stores.memory import MemoryStore
from lastgood.verdict import Finding, Reason
from tests.protocol.family import DIGEST, MemoryFamily, finish, marker, nonce, until

ONE, TWO, THREE = (GenerationId(1, step) for step in (1, 2, 3))


def saved(*steps: int) -> MemoryFamily:
    family = MemoryFamily()
    family.live("a", *steps, allow_fresh=True)
    return family


def skipped(choice: survey.Choice) -> dict[GenerationId, list[Reason]]:
    return {skip.generation: [finding.reason for finding in skip.findings] for skip in choice.skipped}


def test_an_empty_family_offers_nothing() -> None:
    """No commit, no offer, and no reason to call it all burned away."""
    choice = MemoryFamily().choose()
    assert (choice.generation, choice.skipped, choice.all_burned) == (None, (), True)


def test_generations_order_by_life_then_step() -> None:
    """After a restart from an older step the newest save is the new life's, though its step is lower."""
    family = saved(1, 2)
    family.rollback(ONE)
    family.live("b", 2)
    assert family.latest == GenerationId(3, 2)


def test_a_bare_claim_cuts_nothing() -> None:
    """A start that died between claim and decision must not hide what others published."""
    family = saved(1, 2)
    family.claim("b")
    assert family.latest == TWO


def test_what_a_takeover_did_not_see_is_fenced_and_reported() -> None:
    """A late commit of an orphan lies in the store for ever; it is never offered, and never silently ignored."""
    family = saved(1)
    family.live("b")
    family.objects[family.keys.commit(TWO)] = marker(TWO, nonce("a"))
    choice = family.choose()
    assert choice.generation == ONE
    assert skipped(choice) == {TWO: [Reason.GENERATION_FENCED]}


def test_a_tier_1_fail_bars_and_a_tier_2_fail_quarantines() -> None:
    """The first speaks of one generation's bytes, the second casts doubt on all that nobody restored."""
    family = saved(1, 2, 3)
    family.refuse(THREE, source="tier1")
    assert family.latest == TWO
    family.refuse(TWO, source="tier2")
    choice = family.choose()
    assert choice.generation is None
    assert skipped(choice)[ONE] == [Reason.FAMILY_QUARANTINED]
    family.prove(ONE)
    assert family.latest == ONE


def test_policy_proven_offers_only_what_was_restored() -> None:
    """The newest restored generation, even where newer ones are merely unverified."""
    family = saved(1, 2)
    assert family.choose(Policy.PROVEN).generation is None
    family.prove(ONE)
    choice = family.choose(Policy.PROVEN)
    assert choice.generation == ONE
    assert skipped(choice) == {TWO: [Reason.GENERATION_NOT_PROVEN]}
    assert family.latest == TWO


def test_any_fail_dominates_a_pass() -> None:
    """Two restores disagreed: the generation is not offered and is not the newest proven one."""
    family = saved(1, 2)
    for generation in (ONE, TWO):
        family.prove(generation)
    family.refuse(TWO, source="tier2")
    assert family.survey().newest_proven == ONE
    assert family.choose(Policy.PROVEN).generation == ONE


def test_a_release_lifts_the_family_and_not_the_generation() -> None:
    """The operator found the cause; the generation that failed stays barred for ever."""
    family = saved(1, 2, 3)
    name = family.refuse(TWO, source="tier2")
    assert family.latest is None
    assert family.release() == (str(name),)
    assert family.latest == THREE
    assert TWO in family.survey().barred


def test_a_release_cannot_bring_back_what_a_takeover_fenced() -> None:
    """Regression: releases were listed after the incarnations. A reader that missed the takeover and saw the later
    release offered an orphan's unproven commit, which at no moment might be offered.
    """
    family = saved(1)
    family.prove(ONE)
    family.refuse(None, source="operator", tag="aaaa")
    second = family.claim("b")
    # The takeover has listed commits; then the orphan's save lands and a reader looks at the incarnations.
    decision = survey.choose(family.keys, below=second)
    resume: Request = until(decision, family, List(family.keys.refusals))
    family.objects[family.keys.commit(TWO)] = marker(TWO, nonce("a"))
    reading = survey.choose(family.keys)
    until(reading, family, List(family.keys.incarnations))
    request = reading.send(family.store.names(family.keys.incarnations).files)
    assert finish(decision, family, resume).generation == ONE
    record = ResumeRecord(nonce=nonce("b"), from_generation=str(ONE), from_commit=None, keeps={"1": 1})
    family.objects[family.keys.resume(second)] = documents.canonical_bytes(record)
    family.release()
    assert finish(reading, family, request).generation == ONE
    assert family.latest == ONE


def test_a_burned_slot_is_passed_over() -> None:
    """An abandoned generation has a marker, and is nothing to resume."""
    family = saved(1)
    burned = Commit(generation=str(TWO), manifest=None, previous=None, nonce=nonce("a"), burned=True)
    family.objects[family.keys.commit(TWO)] = documents.canonical_bytes(burned)
    choice = family.choose()
    assert choice.generation == ONE
    assert skipped(choice) == {TWO: [Reason.GENERATION_BURNED]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.COMMIT_MALFORMED),
        (b'{"generation":', Reason.COMMIT_MALFORMED),
        (marker(ONE, nonce("a")), Reason.COMMIT_MISMATCH),
        (
            documents.canonical_bytes(
                Commit(generation=str(TWO), manifest=DIGEST, previous=None, nonce=nonce("a"), burned=True)
            ),
            Reason.COMMIT_MALFORMED,
        ),
    ],
    ids=["empty", "torn", "another generation's", "burned with a manifest"],
)
def test_a_marker_that_is_not_lawful_is_a_finding(data: bytes, reason: Reason) -> None:
    """The generation cannot be trusted and is reported; the one before it still can."""
    family = saved(1, 2)
    family.objects[family.keys.commit(TWO)] = data
    choice = family.choose()
    assert choice.generation == ONE
    assert skipped(choice) == {TWO: [reason]}


def test_a_marker_that_cannot_be_read_is_never_skipped() -> None:
    """The store failed, not the checkpoint: an older generation instead would lose the newest steps in silence."""

    class Denied(MemoryStore):
        def get(self, key: str, *, limit_bytes: int) -> bytes | None:
            if key == family.keys.commit(TWO):
                raise StorePermanentError(f"denied: {key}")
            return super().get(key, limit_bytes=limit_bytes)

    family = MemoryFamily(Denied())
    family.live("a", 1, 2, allow_fresh=True)
    with pytest.raises(StorePermanentError, match="denied"):
        family.choose()


def test_what_inspection_finds_is_passed_over_and_reported() -> None:
    """Manifest, existence and sizes come last; their findings travel with the answer."""
    family = saved(1, 2)
    found = Finding(reason=Reason.SHARD_MISSING, message="shard missing", offender="model/rank-00000.safetensors")
    choice = perform(family.store, survey.choose(family.keys), inspect=lambda g, _: (found,) if g == TWO else ())
    assert choice.generation == ONE
    assert skipped(choice) == {TWO: [Reason.SHARD_MISSING]}


def test_only_the_chosen_generation_is_inspected() -> None:
    """Inspection lists a whole generation; asking it of ten thousand would take an hour."""
    family = saved(1, 2, 3)
    asked: list[GenerationId] = []

    def inspect(generation: GenerationId, commit: Commit) -> tuple[Finding, ...]:
        asked.append(generation)
        return ()

    perform(family.store, survey.choose(family.keys), inspect=inspect)
    assert asked == [THREE]


@pytest.mark.parametrize(
    ("key", "data"),
    [
        ("incarnations/00000002.resume", b'{"nonce":'),
        ("incarnations/00000002", b"{}"),
        (
            "incarnations/00000002",
            documents.canonical_bytes(Claim(kind="rollback", nonce=nonce("b"), host="h")),
        ),
        *(
            (
                "incarnations/00000002.resume",
                documents.canonical_bytes(
                    ResumeRecord(nonce=nonce("b"), from_generation=None, from_commit=None, keeps={name: 1})
                ),
            )
            for name in ("one", "01", "-1", "١", "2", "3", "")
        ),
    ],
)
def test_a_decision_that_is_not_lawful_stops_the_answer(key: str, data: bytes) -> None:
    """Passing over a decision could offer what it cut; the error names the document."""
    family = saved(1)
    family.claim("b")
    family.objects[f"{family.keys.ours}/{key}"] = data
    with pytest.raises(FormatError, match=key):
        family.choose()


def test_a_decision_whose_claim_is_gone_still_cuts() -> None:
    """Somebody deleted a claim by hand: what that life had fenced must not come back, nor its number be reused."""
    family = saved(1)
    family.live("b")
    family.objects[family.keys.commit(TWO)] = marker(TWO, nonce("a"))
    del family.objects[family.keys.claim(2)]
    assert family.latest == ONE
    assert family.claim("c") == 3


def test_a_decision_that_vanishes_between_list_and_get_is_an_error() -> None:
    """Decisions are never deleted; one that is gone cannot be guessed past."""
    family = saved(1)
    family.live("b")
    steps = survey.choose(family.keys)
    until(steps, family, List(family.keys.incarnations))
    request = steps.send(family.store.names(family.keys.incarnations).files)
    del family.objects[family.keys.resume(2)]
    with pytest.raises(FormatError, match=r"vanished: .*00000002\.resume"):
        finish(steps, family, request)


def test_names_that_are_not_lawful_are_reported_and_decide_nothing() -> None:
    """Stray files and other spellings lie under every prefix sooner or later."""
    family = saved(1)
    stray = {
        "commits": ["1-2", "00000001-2", "00000001-0000000000000002.tmp", "00000001-0000000000000002~", ".nfs01"],
        "incarnations": ["2", "00000000", "00000002.resumed", "٠٠٠٠٠٠٠٢"],
        "proven": ["latest", "00000000-0000000000000002"],
        "refusals": ["tier2_0001", "tier9-0001", "tier2-01", "tier2-0001_1-2", "note.txt"],
    }
    names = [f"{prefix}/{name}" for prefix, listed in stray.items() for name in listed]
    for name in names:
        family.objects[f"{family.keys.ours}/{name}"] = b"?"
    seen = family.survey()
    assert set(seen.malformed) == set(names)
    assert (family.latest, seen.quarantine, seen.claims.newest) == (ONE, (), 1)


@pytest.mark.parametrize("name", ["checkpoint-500", "épochs_2", "step 7", "検査点", "a~b", "x" * 200])
def test_foreign_names_travel_through_every_prefix(name: str) -> None:
    """Unicode, spaces and our own separators in a foreign name change no marker and no refusal that names it."""
    family = MemoryFamily()
    foreign = GenerationId(0, 5, name)
    family.objects[family.keys.commit(foreign)] = marker(foreign, nonce("f"))
    assert family.latest == foreign
    refused = family.refuse(foreign, source="tier1")
    assert RefusalName.parse(str(refused)) == refused
    assert len(f"{refused}".encode()) <= 255
    assert family.latest is None


@pytest.mark.parametrize("name", ["a/b", ".hidden", "x" * 201, "a\nb", ""])
def test_foreign_names_that_no_prefix_can_carry_are_refused(name: str) -> None:
    """A name with a slash would put its marker where no listing looks."""
    with pytest.raises(FormatError):
        GenerationId(0, 5, name)


def test_latest_over_ten_thousand_generations_makes_few_requests() -> None:
    """Every restart asks; the price must not grow with the run's age (listing pages apart)."""
    family = MemoryFamily()
    for life in range(1, 21):
        family.live("abcdef0123456789"[life % 16], allow_fresh=life == 1)
        for step in range(life * 500, life * 500 + 500):
            generation = GenerationId(life, step)
            family.objects[family.keys.commit(generation)] = marker(generation, nonce("a"))
            if step % 100 == 0:
                family.prove(generation)
    family.refuse(GenerationId(20, 10_499), source="tier1")
    family.store.requests = 0
    choice = family.choose()
    assert choice.generation == GenerationId(20, 10_498)
    assert len(choice.survey.candidates) == 10_000
    # Five listings, the newest decision, one COMMIT; inspection adds the manifest and a listing of artifacts.
    assert family.store.requests == 7
