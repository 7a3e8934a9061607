"""Hints without any notification: the names of commits, listed again and again."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from lastgood.errors import StoreTransientError
from lastgood_prefect.relay.listing import ListingHints
from tests.pipeline.memory import Clock, GrowingFamily

NOTHING: frozenset[str] = frozenset()
FAMILY = frozenset({"llm-7b"})


def test_new_names_are_a_hint_and_old_ones_are_none(
    growing: GrowingFamily, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing names costs one request; looking at a family costs several, so it is done when there is a reason to."""
    growing.save()
    location = growing.configured.location
    source = ListingHints(
        {"llm-7b": location}, threading.Event(), poll=timedelta(seconds=2), tick=timedelta(0), clock=clock
    )
    assert source.wait() == (FAMILY, NOTHING), "nothing was known"
    growing.save()
    assert source.wait() == (NOTHING, NOTHING), "not yet"
    clock.seconds += 2
    assert source.wait() == (FAMILY, NOTHING)
    clock.seconds += 2
    assert source.wait() == (NOTHING, NOTHING)

    def fails(prefix: str) -> object:
        raise StoreTransientError("no answer")

    with monkeypatch.context() as silent:
        silent.setattr(location.store, "names", fails)
        clock.seconds += 2
        assert source.wait() == (FAMILY, NOTHING), "the look says what is wrong"
    source.acknowledge({})
    source.close()


def test_it_waits_no_longer_than_it_is_told(growing: GrowingFamily) -> None:
    """Whoever ends the relay must not wait for the next listing."""
    stop = threading.Event()
    source = ListingHints({"llm-7b": growing.configured.location}, stop, poll=timedelta(days=1), tick=timedelta(days=1))
    source.wait()
    stop.set()
    assert source.wait() == (NOTHING, NOTHING)
