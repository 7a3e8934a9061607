"""A small model checker that drives the protocol's own generators, interleaved request by request.

An actor is a stage: a function that makes a generator of `Request`s. One request is one step; after every step the
invariants are asked, so that every prefix is also a crash of everybody. What cannot be told apart is merged: equal
stores are one store, an actor is what it was answered since its last stage began, and a stage ends with `Then` to say
that nothing before it matters any more. Three reductions, each lossless: a read whose answer can never change again
(a created document that nobody replaces, a prefix declared `still`) commutes with every other step and is
performed at once; `Fact`s take no step; the store's transitions are computed once.

`explore` visits every reachable state breadth-first, so the first violation has a shortest trace. Random histories of
larger crowds are run by `simulation`.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from lastgood.protocol import Create, Created, Get, Inspect, List, Replace, Request, Swap

Objects = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Fact:
    """Yielded by an actor: something that it now knows. Takes no step."""

    name: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Then:
    """Returned by a stage: go on with this one and forget everything else."""

    stage: Callable[..., Steps]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove an object: for sweepers, and for mutants that delete what must stay."""

    key: str


@dataclass(frozen=True, slots=True)
class Rest:
    """The second page of a listing that is not atomic: what appeared meanwhile may be seen or not."""

    prefix: str
    seen: tuple[str, ...]


Step = Request | Delete | Rest
Steps = Generator[Any, Any, Then | None]
Facts = frozenset[Fact]


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Somebody who acts; of its conditional creates, up to `losses` replies may be lost."""

    name: str
    stage: Callable[..., Steps]
    arguments: tuple[Any, ...] = ()
    losses: int = 0


def _nothing(before: Objects, after: dict[str, bytes]) -> None:
    pass


def _holds(*_: object) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is explored.

    Args:
        name: For traces.
        objects: The store at the beginning.
        actors: Who acts.
        paged: Whether listings are seen in two pages.
        swaps: Whether the store can compare and swap; otherwise a swap always replaces.
        afterwards: Who acts alone when a simulation is over, before its end is judged.
        still: Prefixes that nobody writes here; checked.
        replaced: Whether a key may change once it is there, so that reading it is a step.
        haunt: Told of every change (before, after); may add keys under `ghost/` that no actor reads.
        check_store: Store → a violation or None.
        check_state: Store and everybody's facts → a violation or None.
        check_end: The same, where nobody can go on.
    """

    name: str
    objects: Objects
    actors: tuple[Actor, ...]
    paged: bool = False
    swaps: bool = True
    afterwards: tuple[Actor, ...] = ()
    still: tuple[str, ...] = ()
    replaced: Callable[[str], bool] = lambda key: True
    haunt: Callable[[Objects, dict[str, bytes]], None] = _nothing
    check_store: Callable[[Objects], str | None] = _holds
    check_state: Callable[[Objects, Facts], str | None] = _holds
    check_end: Callable[[Objects, Facts], str | None] = _holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """What was found; `ends` holds the stores and facts with which everybody may stop."""

    states: int
    complete: bool
    violation: str | None
    trace: tuple[str, ...]
    seconds: float
    ends: frozenset[tuple[frozenset[tuple[str, bytes]], Facts]] = frozenset()

    def __str__(self) -> str:
        how = "complete" if self.complete else "stopped"
        lines = [f"{self.states} states in {self.seconds:.1f} s, {how}: {self.violation or 'no violation'}"]
        return "\n".join([*lines, *(f"  {number:2d}. {line}" for number, line in enumerate(self.trace, 1))])


def listed(objects: Objects, prefix: str) -> tuple[str, ...]:
    """Names directly under a prefix; the model spends a third of its time here."""
    below = f"{prefix}/"
    start = len(below)
    return tuple(sorted([key[start:] for key in objects if key.startswith(below) and key.find("/", start) < 0]))


def outcomes(
    space: Space, objects: Objects, request: Step, *, may_lose: bool
) -> Iterator[tuple[dict[str, bytes] | None, object]]:
    """Every (changed store or None, reply) that a request may have."""
    match request:
        case List(prefix):
            yield None, listed(objects, prefix)
        case Rest(prefix, seen):
            fresh = [name for name in listed(objects, prefix) if name not in seen]
            for size in range(len(fresh) + 1):
                for some in combinations(fresh, size):
                    yield None, tuple(sorted((*seen, *some)))
        case Get(key):
            yield None, objects.get(key)
        case Inspect():
            yield None, ()
        case Create(key, data) if key in objects:
            yield None, Created.EXISTS
            if may_lose:
                yield None, Created.UNKNOWN
        case Create(key, data):
            after = _changed(space, objects, key, data)
            yield after, Created.CREATED
            if may_lose:
                yield after, Created.UNKNOWN
                yield None, Created.UNKNOWN
        case Swap(key, data, expected):
            if objects.get(key) == expected or not space.swaps:
                yield _changed(space, objects, key, data), True
            else:
                yield None, False
        case Replace(key, data):
            yield _changed(space, objects, key, data), None
        case Delete(key):
            yield (_changed(space, objects, key, None) if key in objects else None), None
        case _:
            raise AssertionError(f"not a request: {request}")


def _changed(space: Space, objects: Objects, key: str, data: bytes | None) -> dict[str, bytes]:
    if key.startswith(space.still):
        raise AssertionError(f"{space.name} declares {key} still, and it is written")
    after = dict(objects)
    if data is None:
        del after[key]
    else:
        after[key] = data
    space.haunt(objects, after)
    return after


class _Node:
    """An actor after a history of replies: its next request, and what it has told."""

    __slots__ = ("actor", "children", "facts", "live", "losses", "number", "parent", "replies", "request", "root")

    def __init__(self, actor: int, number: int) -> None:
        self.actor = actor
        self.number = number
        self.root: Then | None = None
        self.replies: tuple[object, ...] = ()
        self.request: Step | None = None
        self.facts: Facts = frozenset()
        self.losses = 0
        self.live: Steps | None = None
        self.parent: _Node | None = None
        self.children: dict[object, _Node] = {}


class _Forest:
    """Nodes of all actors; a generator is replayed only for the second and later replies to one request."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.nodes: list[_Node] = []
        self._roots: dict[object, _Node] = {}

    def plant(self, actor: int, then: Then | None, facts: Facts, losses: int) -> _Node:
        key = (actor, then, facts, losses)
        if key not in self._roots:
            node = self._new(actor)
            node.root, node.facts, node.losses = then, facts, losses
            if then is None:
                self._roots[key] = node
            else:
                self._roots[key] = self._advance(node, then.stage(*then.arguments), None)
        return self._roots[key]

    def follow(self, node: _Node, reply: object) -> _Node:
        child = node.children.get(reply)
        if child is None:
            child = node.children[reply] = self._grow(node, reply)
        return child

    def half(self, node: _Node, seen: tuple[str, ...]) -> _Node:
        key = ("half", seen)
        if key not in node.children:
            assert isinstance(node.request, List)
            child = self._new(node.actor)
            child.request, child.parent = Rest(node.request.prefix, seen), node
            child.facts, child.losses = node.facts, node.losses
            node.children[key] = child
        return node.children[key]

    def _grow(self, node: _Node, reply: object) -> _Node:
        if node.parent is not None:
            return self.follow(node.parent, reply)
        assert node.root is not None
        child = self._new(node.actor)
        child.root, child.replies = node.root, (*node.replies, reply)
        child.facts, child.losses = node.facts, node.losses + (reply is Created.UNKNOWN)
        if node.live is not None:
            steps, node.live = node.live, None
        else:
            steps = node.root.stage(*node.root.arguments)
            _skip_facts(steps, next(steps))
            for former in node.replies:
                _skip_facts(steps, steps.send(former))
        return self._advance(child, steps, reply)

    def _advance(self, node: _Node, steps: Steps, reply: object) -> _Node:
        try:
            request = steps.send(reply)
            while isinstance(request, Fact):
                node.facts |= {request}
                request = steps.send(None)
        except StopIteration as stop:
            return self.plant(node.actor, stop.value, node.facts, node.losses)
        node.request, node.live = request, steps
        return node

    def _new(self, actor: int) -> _Node:
        node = _Node(actor, len(self.nodes))
        self.nodes.append(node)
        return node


def _skip_facts(steps: Steps, request: object) -> None:
    while isinstance(request, Fact):
        request = steps.send(None)


State = tuple[int, ...]


class _Stores:
    """Stores by number; equal ones are one."""

    def __init__(self) -> None:
        self.all: list[Objects] = []
        self._numbers: dict[frozenset[tuple[str, bytes]], int] = {}

    def number(self, objects: Objects) -> int:
        key = frozenset(objects.items())
        if key not in self._numbers:
            self._numbers[key] = len(self.all)
            self.all.append(objects)
        return self._numbers[key]


@dataclass(slots=True)
class _Search:
    space: Space
    forest: _Forest
    stores: _Stores = field(default_factory=_Stores)
    moves: dict[tuple[int, int], tuple[tuple[int, int, object], ...]] = field(default_factory=dict)
    checked_stores: dict[int, str | None] = field(default_factory=dict)
    checked_states: dict[object, str | None] = field(default_factory=dict)

    def successors(self, store: int, number: int) -> tuple[tuple[int, int, object], ...]:
        """(store, node, reply) after one step of one actor, and after the reads that need no step."""
        key = (store, number)
        found = self.moves.get(key)
        if found is None:
            found = self.moves[key] = tuple(self._moves(store, self.forest.nodes[number]))
        return found

    def _moves(self, store: int, node: _Node) -> Iterator[tuple[int, int, object]]:
        if node.request is None:
            return
        objects = self.stores.all[store]
        if self.space.paged and isinstance(node.request, List):
            seen = listed(objects, node.request.prefix)
            yield store, self.forest.half(node, seen).number, "first page"
            return
        may_lose = node.losses < self.space.actors[node.actor].losses
        for after, reply in outcomes(self.space, objects, node.request, may_lose=may_lose):
            reached = store if after is None else self.stores.number(after)
            yield reached, self.settle(reached, self.forest.follow(node, reply)).number, reply

    def settle(self, store: int, node: _Node) -> _Node:
        objects = self.stores.all[store]
        while True:
            match node.request:
                case Inspect():
                    reply: object = ()
                case Get(key) if key in objects and not self.space.replaced(key):
                    reply = objects[key]
                case List(prefix) if prefix in self.space.still:
                    reply = listed(objects, prefix)
                case _:
                    return node
            node = self.forest.follow(node, reply)

    def judge(self, state: State, *, ended: bool) -> str | None:
        store, *numbers = state
        if store not in self.checked_stores:
            self.checked_stores[store] = self.space.check_store(self.stores.all[store])
        if self.checked_stores[store]:
            return self.checked_stores[store]
        told = tuple(self.forest.nodes[number].facts for number in numbers)
        key = (store, ended, told)
        if key not in self.checked_states:
            facts: Facts = frozenset().union(*told)
            check = self.space.check_end if ended else self.space.check_state
            self.checked_states[key] = check(self.stores.all[store], facts)
        return self.checked_states[key]


def explore(space: Space, *, limit: int | None = None) -> Explored:
    """Visit every reachable state, nearest first, until one violates an invariant or `limit` states were visited."""
    begun = time.monotonic()
    forest = _Forest(space)
    search = _Search(space, forest)
    store = search.stores.number(space.objects)
    nodes = [
        search.settle(store, forest.plant(number, Then(actor.stage, actor.arguments), frozenset(), 0)).number
        for number, actor in enumerate(space.actors)
    ]
    start: State = (store, *nodes)
    came: dict[State, State | None] = {start: None}
    queue = deque([start])
    violation, last, visited = None, start, 0
    ends = set()
    while queue and violation is None and (limit is None or visited < limit):
        state = last = queue.popleft()
        visited += 1
        violation = search.judge(state, ended=False)
        moved = False
        for place in range(1, len(state)):
            for reached, number, _ in search.successors(state[0], state[place]):
                moved = True
                after = (reached, *state[1:place], number, *state[place + 1 :])
                if after not in came:
                    came[after] = state
                    queue.append(after)
        if not moved and violation is None:
            violation = search.judge(state, ended=True)
            told = frozenset().union(*(forest.nodes[number].facts for number in state[1:]))
            ends.add((frozenset(search.stores.all[state[0]].items()), told))
    return Explored(
        states=visited,
        complete=not queue and violation is None,
        violation=violation,
        trace=tuple(_trace(search, came, last)) if violation else (),
        seconds=time.monotonic() - begun,
        ends=frozenset(ends),
    )


def _trace(search: _Search, came: Mapping[State, State | None], state: State) -> list[str]:
    lines = []
    while (before := came[state]) is not None:
        lines.append(_label(search, before, state))
        state = before
    return lines[::-1]


def _label(search: _Search, before: State, after: State) -> str:
    for place in range(1, len(before)):
        for reached, number, reply in search.successors(before[0], before[place]):
            if (reached, *before[1:place], number, *before[place + 1 :]) == after:
                request = search.forest.nodes[before[place]].request
                told = search.forest.nodes[number].facts - search.forest.nodes[before[place]].facts
                return render(search.space.actors[place - 1].name, request, reply, told)
    raise AssertionError("a state without the step that led to it")


def render(actor: str, request: Step | None, reply: object, told: Facts = frozenset()) -> str:
    """One line of a trace, with numbers shortened: `1-2` is generation 00000001-0000000000000002."""
    where = getattr(request, "key", None) or getattr(request, "prefix", None) or ""
    match reply:
        case Created():
            answer = reply.value
        case bool():
            answer = "swapped" if reply else "changed meanwhile"
        case tuple():
            answer = " ".join(reply) or "nothing"
        case bytes():
            answer = reply.decode().strip()[:100]
        case _:
            answer = "absent" if isinstance(request, Get) else "done"
    line = f"{actor}: {type(request).__name__} {where.rpartition('/.lastgood/')[2]} → {answer}"
    facts = "; ".join(f"{fact.name} {' '.join(map(str, fact.values))}" for fact in sorted(told, key=str))
    return re.sub(r"\b0+(?=\d)", "", line + (f"   [{facts}]" if facts else ""))
