"""The situations that the model explores: who acts, on what history, and what may go wrong with their requests."""

from __future__ import annotations

import random
from typing import Any

from lastgood.protocol import Policy
from tests.protocol.actors import (
    dead_claim,
    gate,
    generation,
    go_back,
    late_gate,
    late_rollback,
    life,
    lift,
    orphan,
    quarantine,
    reader,
    reconcile,
    slow_publisher,
    start,
    sweeper,
    unlucky,
    zombie,
)
from tests.protocol.engine import Actor, Objects, Space
from tests.protocol.invariants import (
    KEYS,
    check_caches,
    check_finished,
    check_state,
    check_store,
    haunt,
    is_replaced,
    settled,
)
from tests.protocol.simulation import alone

ONE, TWO, THREE = (generation(1, step) for step in (1, 2, 3))

EMPTY: Objects = {}
# Life 1 published one, two, three generations.
SAVED_ONE, SAVED_TWO, SAVED_THREE = (alone({}, start(life("1"), saves, allow_fresh=True)) for saves in (1, 2, 3))
# …and of those, the first was restored in full.
PROVEN_ONE, PROVEN_TWO, PROVEN_THREE = (
    alone(saved, gate("x", ONE, "pass")) for saved in (SAVED_ONE, SAVED_TWO, SAVED_THREE)
)
# A life that claimed and died, then one that decided and died before its first save.
DEAD_STARTS = alone({}, dead_claim(life("d")), start(life("2"), 0, allow_fresh=True))
# Life 2 went on from there and published two more.
TWO_LIVES = alone(SAVED_TWO, start(life("2"), 2))
PROVEN_LIVES = alone(TWO_LIVES, gate("x", TWO, "pass"))
QUARANTINED_LIVES = alone(PROVEN_LIVES, quarantine())
# Nothing but a generation whose bytes do not hold.
BARRED_ONE = alone(SAVED_ONE, gate("x", ONE, "fail", tier=1))
# The family is quarantined by an operator who bars nothing.
QUARANTINED, QUARANTINED_ONE = alone(PROVEN_THREE, quarantine()), alone(PROVEN_ONE, quarantine())
# Life 1 gave up its second step, and the third failed.
PASSED_OVER = alone(alone(SAVED_ONE, orphan(1, life("1"), 3)), gate("x", THREE, "fail", tier=1))
# The newest failed: life 2 must resume from the first, and keep the second.
FAILED_TWO = alone(PROVEN_TWO, gate("y", TWO, "fail"))

# What stays as it is where only lives act, where nobody judges, and where only gates act.
STARTS = (KEYS.proven, KEYS.releases, KEYS.refusals, KEYS.last_good, KEYS.quarantine)
NO_GATES = (KEYS.proven, KEYS.releases, KEYS.refusals)
GATES = (KEYS.commits, KEYS.incarnations)


def space(name: str, objects: Objects, *actors: Actor, **options: Any) -> Space:
    return Space(
        name=name,
        objects=settled(objects),
        actors=actors,
        replaced=is_replaced,
        haunt=haunt,
        check_store=check_store,
        check_state=check_state,
        **{"check_end": check_caches, **options},
    )


A, B, C = (start(life(letter), 1) for letter in "abc")
FRESH_A, FRESH_B = (start(life(letter), 1, allow_fresh=True) for letter in "ab")
RESTART_ONLY = start(life("a"), 0)
ORPHAN = orphan(1, life("1"), 2)
ORPHAN_TWICE = orphan(1, life("1"), 2, 3)
READER = reader("reader")
PROVEN_READER = reader("reader", Policy.PROVEN)
PASS_TWO, FAIL_TWO = gate("p", TWO, "pass"), gate("f", TWO, "fail")

LONE = space("a first start, alone", EMPTY, *unlucky(2, FRESH_A), still=STARTS, check_end=check_finished)
FIRST_STARTS = space("two first starts", EMPTY, *unlucky(1, FRESH_A, FRESH_B), still=STARTS)
ORPHAN_RESTART = space("an orphan and a restart", SAVED_ONE, *unlucky(1, ORPHAN, A), still=STARTS)
RESTARTS = space("two restarts", SAVED_ONE, *unlucky(1, A, B), still=STARTS)
SUPERSEDED = space(
    "two restarts that look before they act",
    SAVED_ONE,
    start(life("a"), 1, asks_first=True),
    start(life("b"), 1, asks_first=True),
    still=STARTS,
)
ORPHAN_READER = space("an orphan, a restart, a reader", SAVED_ONE, ORPHAN, A, READER, still=STARTS)
ORPHAN_RESTARTS = space("an orphan with two saves, two restarts", SAVED_ONE, ORPHAN_TWICE, A, B, still=STARTS)
ORPHAN_OF_DEAD = orphan(2, life("2"), 1)
DEAD_CHAIN = space("dead starts, an orphan, two restarts", DEAD_STARTS, ORPHAN_OF_DEAD, FRESH_A, FRESH_B, still=STARTS)
HINTED = space("a stale hint", SAVED_TWO, start(life("a"), 1, hint=ONE), still=STARTS)
FRESH_BARRED = space("fresh beside a barred generation", BARRED_ONE, FRESH_A, still=STARTS)
UNDER_QUARANTINE = space("a restart under quarantine", FAILED_TWO, A, still=STARTS)
THIRD_LIFE = space("a third life", TWO_LIVES, A, still=STARTS)
ZOMBIE = space(
    "a COMMIT that times out and lands late",
    SAVED_ONE,
    *unlucky(5, ORPHAN_TWICE),
    zombie(TWO, life("1")),
    RESTART_ONLY,
    still=STARTS,
)
BACK_TO_ONE = go_back(ONE)
ROLLBACK = space("a rollback, a restart, an orphan", SAVED_TWO, BACK_TO_ONE, A, orphan(1, life("1"), 3), still=NO_GATES)
ROLLBACK_LOST = space("a rollback, a restart, lost replies", SAVED_TWO, *unlucky(1, BACK_TO_ONE, A), still=NO_GATES)
ROLLBACK_LIFE = space("a rollback to the second life", TWO_LIVES, go_back(generation(2, 3)), still=NO_GATES)
ROLLBACK_PASS = space("a rollback and a pass", PROVEN_TWO, BACK_TO_ONE, PASS_TWO)
DISAGREE = space("a pass and a fail of one generation", PROVEN_THREE, PASS_TWO, FAIL_TWO, still=GATES)
DISAGREE_READER = space("a pass, a fail, a reader", SAVED_TWO, PASS_TWO, FAIL_TWO, PROVEN_READER, still=GATES)
# Below, the releaser leaves the caches to others, so their end is not judged.
RELEASE = lift(refreshes=False)
SAME_NAME = space(
    "two fails under one name and a release",
    PROVEN_THREE,
    gate("e", TWO, "fail"),
    FAIL_TWO,
    RELEASE,
    still=GATES,
    check_end=check_state,
)
RELEASED = space(
    "a fail, a release, a reader",
    QUARANTINED,
    gate("f", THREE, "fail"),
    RELEASE,
    READER,
    still=GATES,
    check_end=check_state,
)
RELEASED_LATE = space(
    "an orphan, a restart, a release, a reader", QUARANTINED_ONE, ORPHAN, RESTART_ONLY, RELEASE, READER
)
SWEPT = space(
    "a slow publisher, a restart and a sweeper",
    SAVED_ONE,
    *unlucky(1, slow_publisher(TWO, life("1")), sweeper(TWO)),
    RESTART_ONLY,
    still=STARTS,
)
SWEPT_BETWEEN = space(
    "a restart and a sweeper of a step that was passed over", PASSED_OVER, sweeper(TWO), RESTART_ONLY, still=STARTS
)
SWEPT_LATE = space(
    "a COMMIT that lands late, a restart and a sweeper of what came after it",
    SAVED_ONE,
    zombie(TWO, life("1")),
    sweeper(THREE),
    RESTART_ONLY,
    still=STARTS,
)

SMALL = tuple(value for value in list(globals().values()) if isinstance(value, Space))

LATER_ORPHAN = orphan(1, life("1"), 3)
LARGE = (
    space("an orphan and three restarts", SAVED_ONE, ORPHAN, A, B, C, still=STARTS),
    space(
        "an orphan with two saves, two restarts, lost replies", SAVED_ONE, *unlucky(1, ORPHAN_TWICE, A, B), still=STARTS
    ),
    space("an orphan, two restarts, pages", SAVED_ONE, ORPHAN, A, B, paged=True, still=STARTS),
    space("an orphan with two saves, two restarts, a reader", SAVED_ONE, ORPHAN_TWICE, A, B, READER, still=STARTS),
    space("dead starts, lost replies", DEAD_STARTS, *unlucky(1, ORPHAN_OF_DEAD, FRESH_A, FRESH_B), still=STARTS),
    space("three first starts", EMPTY, *(start(life(x), 1, allow_fresh=True) for x in "abc"), still=STARTS),
    space("a rollback, two restarts, lost replies", SAVED_TWO, *unlucky(1, BACK_TO_ONE, A, B), still=NO_GATES),
    space(
        "a rollback, a restart, an orphan, a reader", SAVED_TWO, BACK_TO_ONE, A, LATER_ORPHAN, READER, still=NO_GATES
    ),
    space(
        "an orphan, two restarts, a reader, pages",
        SAVED_ONE,
        ORPHAN,
        RESTART_ONLY,
        B,
        READER,
        paged=True,
        still=STARTS,
    ),
    space(
        "a rollback, two restarts, a reader, pages",
        SAVED_TWO,
        BACK_TO_ONE,
        RESTART_ONLY,
        start(life("b"), 0),
        READER,
        paged=True,
        still=NO_GATES,
    ),
    space(
        "an orphan, a restart, a release, a reader, pages",
        QUARANTINED_ONE,
        ORPHAN,
        RESTART_ONLY,
        RELEASE,
        READER,
        paged=True,
    ),
    space("a pass, a fail, a reader, pages", SAVED_TWO, PASS_TWO, FAIL_TWO, PROVEN_READER, paged=True, still=GATES),
    space("two rollbacks and a restart", SAVED_THREE, BACK_TO_ONE, go_back(TWO), A, still=NO_GATES),
    space("a pass, a fail, a release, a reader", PROVEN_THREE, PASS_TWO, FAIL_TWO, lift(), READER, still=GATES),
    space(
        "a pass, a fail, a release, lost replies", PROVEN_THREE, *unlucky(1, PASS_TWO, FAIL_TWO, lift()), still=GATES
    ),
    space("a pass, a fail, a rollback", PROVEN_THREE, PASS_TWO, FAIL_TWO, BACK_TO_ONE),
    space("an orphan, a restart, a fail, a reader", PROVEN_TWO, LATER_ORPHAN, A, FAIL_TWO, READER),
)


def crowd(chance: random.Random) -> Space:
    """A random crowd over a random history: up to 13 actors, on a store that can or cannot compare and swap."""
    actors: list[Actor] = [orphan(2, life("2"), 5, 6, 7), start(life("a"), 2), start(life("b"), 2), READER]
    if chance.random() < 0.5:
        actors.append(start(life("c"), 1))
    if chance.random() < 0.4:
        actors.append(late_rollback(chance.randrange(3)))
    if chance.random() < 0.3:
        actors.append(dead_claim(life("d")))
    for number in range(chance.randrange(4)):
        outcome = chance.choice(("pass", "pass", "fail"))
        actors.append(late_gate(f"gate{number}", chance.randrange(3), outcome, chance.choice((1, 2, 2))))
    if chance.random() < 0.3:
        actors.append(lift())
    if chance.random() < 0.5:
        actors.append(reconcile("reconcile"))
    actors.append(reader("prover", Policy.PROVEN))
    history = chance.choice((TWO_LIVES, PROVEN_LIVES, QUARANTINED_LIVES))
    swaps = chance.random() < 0.5
    afterwards = (reconcile("afterwards"),)
    return space("a crowd", history, *unlucky(swaps * 3, *actors), swaps=swaps, afterwards=afterwards)
