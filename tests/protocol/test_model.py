"""The protocol's own steps, interleaved in every way that matters, with crashes, lost replies and torn listings.

`make test` visits half a million states and tries every mutant; `make test-slow` visits the large spaces to their end,
or to a million states each; `make proof` to five million. A violation prints its shortest trace.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.protocol import scenarios
from tests.protocol.engine import Explored, Space, explore
from tests.protocol.mutants import MUTANTS, Mutant
from tests.protocol.scenarios import LARGE, SMALL, crowd
from tests.protocol.simulation import simulate

PROOF = bool(os.environ.get("LASTGOOD_PROOF"))
Record = Callable[[str, object], None]


def explored(space: Space, *, limit: int | None = None) -> Explored:
    """Explore a space in which nothing may be found."""
    result = explore(space, limit=limit)
    assert result.violation is None, f"{space.name}: {result}"
    return result


def test_half_a_million_states_hold(record_property: Record) -> None:
    """The small spaces to their end and the large ones near their beginning: no invariant breaks in any state."""
    small = [explored(space) for space in SMALL]
    assert all(result.complete for result in small)
    states = sum(result.states for result in (*small, *(explored(space, limit=30_000) for space in LARGE)))
    record_property("states", states)
    assert states >= 500_000


@pytest.mark.slow
@pytest.mark.parametrize("space", LARGE, ids=lambda space: space.name)
def test_a_large_space_holds_as_far_as_it_is_explored(space: Space, record_property: Record) -> None:
    """What needs many actors or many lost replies to go wrong does not go wrong either."""
    result = explored(space, limit=5_000_000 if PROOF else 1_000_000)
    record_property("states", f"{result.states}, {'complete' if result.complete else 'stopped'}")


def crowds(seeds: range) -> int:
    """Random histories from seeds; returns the number of steps."""
    steps = 0
    for seed in seeds:
        chance = random.Random(seed)
        result = simulate(crowd(chance), chance)
        assert result.violation is None, f"seed {seed}: {result}"
        steps += result.states
    return steps


def test_random_crowds_hold(record_property: Record) -> None:
    """Up to 13 actors that may die, with and without compare-and-swap; afterwards `reconcile` puts the caches right."""
    record_property("steps of 100 histories", crowds(range(100)))


@pytest.mark.slow
def test_many_random_crowds_hold(record_property: Record) -> None:
    """The same, from other seeds, for as long as there is patience."""
    histories = 50_000 if PROOF else 1_500
    record_property(f"steps of {histories} histories", crowds(range(1_000, 1_000 + histories)))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_protocol_without_one_rule_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule is needed: without it the model finds a violation, in the space where the rule itself holds."""
    mutant.apply(monkeypatch)
    result = explore(mutant.space)
    sys.stdout.write(f"without rule {mutant.rule}, {mutant.name}: {result}\n")
    assert result.violation is not None


def test_every_rule_of_the_page_has_a_mutant() -> None:
    """docs/protocol.md numbers the rules of the model from 1; a rule that nothing guards is a wish."""
    assert {mutant.rule for mutant in MUTANTS} == set(range(1, 24))


@pytest.mark.parametrize(
    "space",
    [scenarios.RESTARTS, scenarios.ORPHAN_READER, scenarios.DISAGREE, scenarios.SWEPT],
    ids=lambda space: space.name,
)
def test_the_reductions_lose_nothing(space: Space) -> None:
    """Reads that are performed at once save most of the states and none of the ends."""
    plain = replace(space, still=(), replaced=lambda key: True)
    whole, reduced = explored(plain), explored(space)
    assert reduced.states <= whole.states
    assert reduced.ends == whole.ends


def test_a_listing_in_two_pages_shows_more_than_a_whole_one() -> None:
    """The engine's pages are worth something: they reach ends that atomic listings do not, or at least as many."""
    space = scenarios.RESTARTS
    assert explored(replace(space, paged=True)).ends >= explored(space).ends
