"""One history at a time: random crowds that are too large to explore, and the quiet past that a space begins with."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from lastgood.protocol import Created, List
from tests.protocol.engine import (
    Actor,
    Explored,
    Fact,
    Facts,
    Objects,
    Rest,
    Space,
    Step,
    Then,
    listed,
    outcomes,
    render,
)


class _Live:
    """An actor in a simulation: one generator, driven once."""

    def __init__(self, actor: Actor) -> None:
        self.name = actor.name
        self.facts: set[Fact] = set()
        self.request: Step | None = None
        self.may_lose = actor.losses
        self._steps = actor.stage(*actor.arguments)
        self.answer(None)

    def answer(self, reply: object) -> None:
        self.may_lose -= reply is Created.UNKNOWN
        while True:
            try:
                request = self._steps.send(reply)
                while isinstance(request, Fact):
                    self.facts.add(request)
                    request = self._steps.send(None)
                self.request = request
                return
            except StopIteration as stop:
                then: Then | None = stop.value
                if then is None:
                    self.request = None
                    return
                self._steps, reply = then.stage(*then.arguments), None


def simulate(space: Space, chance: random.Random, *, crash_ratio: float = 0.01) -> Explored:
    """One random history: bursts, pauses, two pages a listing, lost replies, actors that die."""
    begun = time.monotonic()
    objects: Objects = space.objects
    actors = [_Live(actor) for actor in space.actors]
    log: list[str] = []
    violation: str | None = None
    pace = {actor.name: chance.choice((1, 1, 3, 10)) for actor in actors}
    while violation is None and (alive := [actor for actor in actors if actor.request is not None]):
        actor = chance.choices(alive, [pace[actor.name] for actor in alive])[0]
        if chance.random() < crash_ratio:
            log.append(f"{actor.name}: dies")
            actor.request = None
            continue
        for _ in range(chance.choice((1, 1, 2, 5, 30))):
            if actor.request is None or violation is not None:
                break
            objects, violation = _one_step(space, objects, actors, actor, chance, log)
    if violation is None:
        violation = space.check_end(alone(objects, *space.afterwards), _told(actors))
    return Explored(
        states=len(log), complete=True, violation=violation, trace=tuple(log), seconds=time.monotonic() - begun
    )


def _told(actors: Sequence[_Live]) -> Facts:
    return frozenset().union(*(actor.facts for actor in actors))


def _one_step(
    space: Space, objects: Objects, actors: Sequence[_Live], actor: _Live, chance: random.Random, log: list[str]
) -> tuple[Objects, str | None]:
    request = actor.request
    assert request is not None
    if isinstance(request, List) and chance.random() < 0.2:
        actor.request = Rest(request.prefix, listed(objects, request.prefix))
        return objects, None
    may_lose = actor.may_lose > 0 and chance.random() < 0.3
    after, reply = chance.choice(list(outcomes(space, objects, request, may_lose=may_lose)))
    told = set(actor.facts)
    actor.answer(reply)
    log.append(render(actor.name, request, reply, frozenset(actor.facts - told)))
    if after is None and actor.facts == told:
        return objects, None
    objects = objects if after is None else after
    return objects, space.check_store(objects) or space.check_state(objects, _told(actors))


def alone(objects: Objects, *actors: Actor) -> Objects:
    """The store after these actors, one after the other and undisturbed."""
    space = Space(name="alone", objects=objects, actors=actors)
    for actor in map(_Live, actors):
        while actor.request is not None:
            after, reply = next(outcomes(space, objects, actor.request, may_lose=False))
            objects = objects if after is None else after
            actor.answer(reply)
    return objects
