"""What a verdict changes: records, refusals, releases, passes, and the caches that follow them."""

from __future__ import annotations

import json
from typing import Any

from lastgood import documents
from lastgood.errors import StoreLimitError
from lastgood.identity import GenerationId
from lastgood.markers import GenerationPointer, QuarantineNotice, Refusal, Release
from lastgood.protocol import Create, Replace, Swap, evidence
from lastgood.protocol.survey import RefusalName
from lastgood.stores.memory import MemoryStore
from tests.protocol.family import MOMENT, MemoryFamily, finish, until

ONE, TWO = GenerationId(1, 1), GenerationId(1, 2)


def saved() -> MemoryFamily:
    family = MemoryFamily()
    family.live("a", 1, 2, allow_fresh=True)
    return family


def store_verdict(family: MemoryFamily, outcome: str, *, attempt: int | None = None, stem: str = "tier2") -> int:
    steps = evidence.record(
        family.keys,
        f"{family.keys.records}/{TWO}/{stem}",
        encode=lambda number: json.dumps({"outcome": outcome, "attempt": number}).encode(),
        agrees=lambda stored: json.loads(stored)["outcome"] == outcome,
        attempt=attempt,
    )
    return family.perform(steps)


def last_good(family: MemoryFamily) -> GenerationPointer:
    return documents.parse(GenerationPointer, family.objects[family.keys.last_good], "LAST_GOOD")


def quarantine(family: MemoryFamily) -> QuarantineNotice:
    return documents.parse(QuarantineNotice, family.objects[family.keys.quarantine], "QUARANTINE")


def test_verdicts_that_disagree_are_both_kept() -> None:
    """Two gates ran the same attempt: whoever comes second goes under the next one, so no fail is ever dropped."""
    family = saved()
    assert store_verdict(family, "pass", attempt=1) == 1
    assert store_verdict(family, "fail", attempt=1) == 2
    assert store_verdict(family, "fail", attempt=1) == 2
    assert store_verdict(family, "pass", attempt=1) == 1


def test_a_new_attempt_comes_after_the_newest() -> None:
    """Attempts are read from the names, so a gap or another gate's longer name does not mislead the count."""
    family = saved()
    assert store_verdict(family, "pass", attempt=7) == 7
    assert store_verdict(family, "pass", attempt=1, stem="tier2-deep") == 1
    assert store_verdict(family, "fail") == 8


def test_a_second_fail_under_a_released_name_still_quarantines() -> None:
    """Regression: a refusal that found its name taken counted as stored, and the name had been released already."""
    family = saved()
    first = family.refuse(TWO, by="gate one")
    family.release()
    second = family.refuse(TWO, by="gate two")
    assert second != first
    assert RefusalName.parse(str(second)) == second
    assert family.survey().quarantine == (str(second),)


def test_the_same_refusal_may_be_sent_again() -> None:
    """A retry after a lost reply must not quarantine the family twice."""
    family = saved()
    assert family.refuse(TWO) == family.refuse(TWO)
    assert len(family.survey().quarantine) == 1


def test_a_release_names_only_what_it_saw() -> None:
    """A fail that lands while an operator releases the family is not lifted by that release."""
    family = saved()
    seen = family.refuse(None, source="operator", tag="aaaa")
    steps = evidence.release(family.keys, Release(reason="disk replaced", created_at=MOMENT, by="h"))
    request = until(steps, family, Create)
    late = family.refuse(TWO)
    assert finish(steps, family, request) == (str(seen),)
    assert family.survey().quarantine == (str(late),)
    assert family.release() == (str(late),)
    assert family.release() == ()


def test_a_fail_refuses_before_it_is_recorded_and_a_pass_is_recorded_before_it_permits() -> None:
    """Whatever a crash leaves, no fail is on record without its bar, and nothing is proven without its evidence."""
    family = saved()
    refusal = Refusal(source="tier2", generation=str(TWO), reason="r", findings=(), created_at=MOMENT, by="g")
    name = RefusalName(source="tier2", tag="0001", generation=TWO)
    store = Watched()
    family.store = store
    conclude(family, "fail", refusal=(name, refusal))
    conclude(family, "pass", passed=(ONE, b"{}"))
    assert store.created == ["refusals", "records", "records", "proven"]


class Watched(MemoryStore):
    """Notes under which prefix each object is created."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[str] = []

    def create(self, key: str, data: bytes) -> bool:
        self.created.append(key.split("/")[2])
        return super().create(key, data)


def conclude(family: MemoryFamily, outcome: str, **effect: Any) -> None:
    steps = evidence.conclude(
        family.keys,
        f"{family.keys.records}/{outcome}/tier2",
        encode=lambda number: json.dumps({"outcome": outcome, "attempt": number}).encode(),
        agrees=lambda stored: json.loads(stored)["outcome"] == outcome,
        **effect,
    )
    family.perform(steps)


def test_the_caches_follow_the_records() -> None:
    """LAST_GOOD moves back when its generation fails, and QUARANTINE says why."""
    family = saved()
    for generation in (ONE, TWO):
        family.prove(generation)
    family.perform(evidence.refresh_caches(family.keys))
    assert (last_good(family).generation, quarantine(family).quarantined) == (str(TWO), False)
    name = family.refuse(TWO)
    family.perform(evidence.refresh_caches(family.keys))
    assert last_good(family).generation == str(ONE)
    assert quarantine(family).refusals == (str(name),)


def test_a_slower_writer_with_older_records_loses() -> None:
    """It read the pointer before another swapped it: its swap fails, and it reads the records again."""
    family = saved()
    family.prove(ONE)
    slow = evidence.refresh_caches(family.keys)
    request = until(slow, family, Swap)
    family.prove(TWO)
    family.perform(evidence.refresh_caches(family.keys))
    finish(slow, family, request)
    assert last_good(family).generation == str(TWO)
    assert last_good(family).revision == 2


class Swapless(MemoryStore):
    """A store that can create under a condition, and not replace."""

    def compare_and_swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        if expected is not None:
            raise StoreLimitError("cannot swap: no conditional_replace")
        return self.create(key, data)


def swapless() -> MemoryFamily:
    family = saved()
    store = Swapless()
    store.objects = family.objects
    family.store = store
    return family


def test_the_caches_follow_the_records_where_nothing_can_be_swapped() -> None:
    """A gate must not fail for want of a conditional replacement that only answers for people need."""
    family = swapless()
    for generation in (ONE, TWO):
        family.prove(generation)
        family.perform(evidence.refresh_caches(family.keys))
        assert last_good(family).generation == str(generation)
    name = family.refuse(TWO)
    family.perform(evidence.refresh_caches(family.keys))
    assert last_good(family).generation == str(ONE)
    assert quarantine(family).refusals == (str(name),)
    before = (last_good(family), quarantine(family))
    family.perform(evidence.refresh_caches(family.keys))
    assert (last_good(family), quarantine(family)) == before, "nothing is written that is right already"


def test_a_slower_writer_that_overwrote_newer_caches_finds_out() -> None:
    """It cannot be kept from overwriting; so it reads the records again afterwards, and writes what they say then."""
    family = swapless()
    family.perform(evidence.refresh_caches(family.keys))
    family.prove(ONE)
    slow = evidence._replace_caches(family.keys)
    request = until(slow, family, Replace)
    family.prove(TWO)
    family.perform(evidence.refresh_caches(family.keys))
    assert last_good(family).generation == str(TWO)
    finish(slow, family, request)
    assert last_good(family).generation == str(TWO)


def test_a_torn_cache_is_rebuilt() -> None:
    """No decision reads it, so nothing is lost with it."""
    family = saved()
    family.prove(ONE)
    family.objects[family.keys.last_good] = b'{"gener'
    family.perform(evidence.refresh_caches(family.keys))
    assert last_good(family).generation == str(ONE)
