"""The checker of histories finds what it is for: each thing that must not happen is put into a healthy history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lastgood.identity import GenerationId
from lastgood.protocol import refresh_caches
from lastgood.stores.memory import MemoryStore
from tests.buckets.history import (
    Acknowledged,
    Began,
    Belief,
    Decided,
    Event,
    Offered,
    Wrote,
    check,
    commit_digest,
    final,
)
from tests.protocol.family import MemoryFamily
from tests.protocol.invariants import KEYS

FIRST, SECOND, THIRD = GenerationId(1, 10), GenerationId(1, 20), GenerationId(2, 30)


class Journaled(MemoryStore):
    """A store that notes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def create(self, key: str, data: bytes) -> bool:
        created = super().create(key, data)
        if created:
            self.events.append(Wrote(key=key, data=data, creates=True))
        return created

    def replace(self, key: str, data: bytes) -> None:
        super().replace(key, data)
        self.events.append(Wrote(key=key, data=data, creates=False))

    def compare_and_swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        swapped = super().compare_and_swap(key, data, expected=expected)
        if swapped:
            self.events.append(Wrote(key=key, data=data, creates=expected is None))
        return swapped


def healthy() -> tuple[Journaled, list[Belief]]:
    """Two lives, three saves, a proven generation, and a reader who is told of each newest one."""
    store = Journaled()
    family = MemoryFamily(store)

    def read() -> None:
        store.events.append(Began(reader="r"))
        store.events.append(Offered(reader="r", generation=family.latest))

    family.live("1", 10, 20, allow_fresh=True)
    read()
    for generation in (FIRST, SECOND):
        store.create(f"{KEYS.records}/{generation}/tier2-0001", b'{"verdict": {"outcome": "pass"}}')
        family.prove(generation)
        family.perform(refresh_caches(KEYS))
    family.live("2", 30)
    read()
    beliefs: list[Belief] = [
        Decided(who="one", incarnation=1, source=FIRST),
        Decided(who="two", incarnation=2, source=SECOND),
    ]
    beliefs += [
        Acknowledged(generation=one, commit=commit_digest(store.objects[KEYS.commit(one)]))
        for one in (FIRST, SECOND, THIRD)
    ]
    return store, beliefs


def test_a_healthy_history_is_lawful() -> None:
    """Whoever cries at everything is not heard."""
    store, beliefs = healthy()
    assert list(check({}, store.events, beliefs)) == []
    assert list(final(dict(store.objects), store.events, beliefs)) == []


def wrote(store: Journaled, key: str, number: int = -1) -> Wrote:
    return [event for event in store.events if isinstance(event, Wrote) and event.key == key][number]


def twice(store: Journaled, beliefs: list[Belief]) -> None:
    store.events.append(wrote(store, KEYS.commit(FIRST)))


def other_commit(store: Journaled, beliefs: list[Belief]) -> None:
    store.events.append(
        replace(wrote(store, KEYS.commit(FIRST)), data=store.objects[KEYS.commit(SECOND)], creates=False)
    )


def active_back(store: Journaled, beliefs: list[Belief]) -> None:
    store.events.append(wrote(store, KEYS.active(1), 0))


def last_good_back(store: Journaled, beliefs: list[Belief]) -> None:
    store.events.append(wrote(store, KEYS.last_good, 0))


def fenced_offered(store: Journaled, beliefs: list[Belief]) -> None:
    """An orphan's save after the takeover, which a reader is given."""
    MemoryFamily(store).commit(1, 40, "1")
    late = GenerationId(1, 40)
    store.create(
        KEYS.commit(late), store.objects[KEYS.commit(SECOND)].replace(str(SECOND).encode(), str(late).encode())
    )
    store.events += [Began(reader="late"), Offered(reader="late", generation=late)]


def acknowledged_without_commit(store: Journaled, beliefs: list[Belief]) -> None:
    beliefs.append(Acknowledged(generation=GenerationId(2, 50), commit="blake3:absent"))


def acknowledged_by_another(store: Journaled, beliefs: list[Belief]) -> None:
    beliefs.append(Acknowledged(generation=THIRD, commit=commit_digest(store.objects[KEYS.commit(FIRST)])))


def two_owners(store: Journaled, beliefs: list[Belief]) -> None:
    beliefs.append(Decided(who="three", incarnation=2, source=SECOND))


def undecided(store: Journaled, beliefs: list[Belief]) -> None:
    beliefs.append(Decided(who="three", incarnation=3, source=SECOND))


def deleted(store: Journaled, beliefs: list[Belief]) -> None:
    store.events.append(Wrote(key=KEYS.manifest(FIRST), data=b"{}", creates=True))
    store.events.append(Wrote(key=KEYS.manifest(FIRST), data=None, creates=False))


WRONG: dict[str, tuple[Callable[[Journaled, list[Belief]], None], str]] = {
    "two commits a generation": (twice, "created, though it was there"),
    "another commit": (other_commit, "overwritten"),
    "an active pointer goes back": (active_back, f"went back from {SECOND} to {FIRST}"),
    "LAST_GOOD goes back": (last_good_back, f"went back from {SECOND} to {FIRST}"),
    "what is fenced is offered": (fenced_offered, "at no moment of its reading"),
    "acknowledged without a marker": (acknowledged_without_commit, "its COMMIT is another's or absent"),
    "acknowledged by another marker": (acknowledged_by_another, "its COMMIT is another's or absent"),
    "two owners": (two_owners, "two lives own incarnation 2"),
    "a decision that is not there": (undecided, "there is no such decision"),
    "a document is deleted": (deleted, "deleted, though the audit must remain"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_must_not_happen_is_found(wrong: str) -> None:
    """A checker that could not fail would pass any crowd."""
    damage, said = WRONG[wrong]
    store, beliefs = healthy()
    damage(store, beliefs)
    found = list(check({}, store.events, beliefs))
    assert any(said in one for one in found), found


def test_without_an_order_two_creations_are_found_all_the_same() -> None:
    """Where documents race one another at the server, counting is what is left."""
    store, beliefs = healthy()
    twice(store, beliefs)
    assert list(final(dict(store.objects), store.events, beliefs)) == [f"{KEYS.commit(FIRST)}: created 2 times"]
