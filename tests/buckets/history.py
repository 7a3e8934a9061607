"""What happened to a family in a bucket, in the order in which it did, and whether it may have.

`History` stands behind a `FaultProxy` and lets documents through one at a time, so that their order is known; what is
only read, and artifacts, pass beside it. `check` plays the writes again, one by one, and asks the invariants of the
protocol's model after each of them (tests/protocol/invariants.py); they compute what must hold from documents alone.
"""

from __future__ import annotations

import html
import json
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from urllib.parse import urlsplit

from lastgood.identity import GenerationId
from lastgood.protocol import Policy
from lastgood.protocol.commits import commit_digest
from tests.buckets.faults import Request
from tests.protocol.engine import Fact
from tests.protocol.invariants import GHOST, KEYS, check_caches, check_state, check_store, haunt, see

__all__ = [
    "Acknowledged",
    "Began",
    "Decided",
    "History",
    "Offered",
    "Wrote",
    "check",
    "final",
    "kind_of",
    "publisher_of",
]

KEPT = (
    *(f"{prefix}/" for prefix in (KEYS.incarnations, KEYS.manifests, KEYS.commits, KEYS.refusals, KEYS.releases)),
    *(f"{prefix}/" for prefix in (KEYS.proven, KEYS.records)),
    KEYS.last_good,
    KEYS.quarantine,
)
"""Documents whose order matters; stagings and artifacts are one publish's own."""
_DOOMED = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote:
    """The server accepted a document, or took one away (None); `creates`: on the condition that there was none."""

    key: str
    data: bytes | None
    creates: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A reader began to ask what may be resumed."""

    reader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """It was told this."""

    reader: str
    generation: GenerationId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A publisher says that it owns an incarnation and resumes this."""

    who: str
    incarnation: int
    source: GenerationId


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A publisher was told that its save counts, by a COMMIT of this digest."""

    generation: GenerationId
    commit: str


Event = Wrote | Began | Offered
Belief = Decided | Acknowledged


class History:
    """A journal of a proxy; see the module.

    Args:
        ordered: Whether documents pass one at a time. Without it the server's own races are met, and of the order
            nothing is known.
    """

    def __init__(self, *, ordered: bool = True) -> None:
        self._lock = threading.RLock()
        self._ordered = ordered
        self.events: list[Event] = []

    def wants(self, request: Request) -> bool:
        if request.method == "POST" and "delete" in request.query:
            return True
        return request.method in ("PUT", "DELETE") and request.key.startswith(KEPT)

    def turn(self) -> AbstractContextManager[object]:
        return self._lock if self._ordered else nullcontext()

    def wrote(self, request: Request, body: bytes) -> None:
        if request.method == "POST":
            keys = (html.unescape(key.decode()) for key in _DOOMED.findall(body))
            self.note(*(Wrote(key=key, data=None, creates=False) for key in keys if key.startswith(KEPT)))
        else:
            data = body if request.method == "PUT" else None
            self.note(Wrote(key=request.key, data=data, creates="if-none-match" in request.headers))

    def note(self, *events: Event) -> None:
        with self._lock:
            self.events += events

    @property
    def acknowledged(self) -> int:
        """Saves that were acknowledged so far, or whose publisher died a moment before it heard of it."""
        with self._lock:
            return sum(isinstance(event, Wrote) and event.key.endswith(".active") for event in self.events)


def publisher_of(request: Request) -> str | None:
    """Which publisher sent it, by its User-Agent (`lives`)."""
    words = request.headers.get("user-agent", "").split()
    return next((word[4:] for word in words if word.startswith("app/life-")), None)


def kind_of(request: Request) -> str:
    """A request in words that leave out whose it is: method, and what it is about."""
    place = request.query.get("prefix", request.key) or "bucket"
    if place.startswith(f"{KEYS.ours}/"):
        first, _, rest = place.removeprefix(f"{KEYS.ours}/").partition("/")
        what = rest.rpartition(".")[2] if first == "incarnations" and "." in rest else ""
        if first == "staging":
            what = rest.partition("/")[2].partition("/")[0]
        place = f"{first} {what}".strip()
    elif place.startswith(f"{KEYS.family}/"):
        place = "artifacts"
    method = "LIST" if request.is_list else request.method
    query = urlsplit(request.target).query
    return f"{method} {place}" + (" (many)" if method == "POST" and "delete" in query else "")


def check(objects: dict[str, bytes], events: Iterable[Event], beliefs: Iterable[Belief]) -> Iterator[str]:
    """Everything that happened and should not have, in order.

    Args:
        objects: What lay there at the beginning.
        events: Of a history that was ordered.
        beliefs: Of everybody who published.
    """
    told = _Told(beliefs)
    for event in events:
        match event:
            case Began(reader=reader):
                objects = _haunted(objects, {**objects, f"{GHOST}/reading/{reader}": Policy.VERIFIED.value.encode()})
            case Offered(reader=reader, generation=generation):
                if f"{GHOST}/lawful-for-{reader}/{generation}" not in objects:
                    yield f"{reader} was offered {generation}, which at no moment of its reading might be offered"
                over = (f"{GHOST}/reading/{reader}", f"{GHOST}/lawful-for-{reader}/")
                objects = {key: data for key, data in objects.items() if not key.startswith(over)}
            case Wrote():
                before, objects = objects, _haunted(objects, _after(objects, event))
                yield from _unlawful(before, objects, event)
                facts = told.by(event.key, objects)
                # What was acknowledged stays so unless somebody decides anew.
                decides = event.key.endswith(".resume")
                if problem := check_store(objects) or check_state(objects, told.all(objects) if decides else facts):
                    yield f"{event.key}: {problem}"
    yield from _at_the_end(objects, told)


def _at_the_end(objects: dict[str, bytes], told: _Told) -> Iterator[str]:
    if problem := check_store(objects) or check_caches(objects, told.all(objects, at_the_end=True)):
        yield f"at the end: {problem}"
    for belief in told.beliefs:
        if isinstance(belief, Decided) and KEYS.resume(belief.incarnation) not in objects:
            yield f"{belief.who} believes that it decided {belief.incarnation}, and there is no such decision"


def final(objects: dict[str, bytes], events: Iterable[Event], beliefs: Iterable[Belief]) -> Iterator[str]:
    """What can be told without an order: of the documents that lie there at the end, and of what was created."""
    created: dict[str, int] = {}
    for event in events:
        if isinstance(event, Wrote) and event.creates:
            created[event.key] = created.get(event.key, 0) + 1
    yield from (f"{key}: created {count} times" for key, count in created.items() if count > 1)
    yield from _at_the_end({key: _told_data(key, data) for key, data in objects.items()}, _Told(beliefs))


def _after(objects: dict[str, bytes], event: Wrote) -> dict[str, bytes]:
    after = dict(objects)
    if event.data is None:
        after.pop(event.key, None)
    else:
        after[event.key] = _told_data(event.key, event.data)
    return after


def _told_data(key: str, data: bytes) -> bytes:
    """A document as the model knows it: of a record it asks the outcome alone."""
    if not key.startswith(f"{KEYS.records}/"):
        return data
    return json.dumps({"outcome": json.loads(data)["verdict"]["outcome"]}).encode()


def _haunted(before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, bytes]:
    haunt(before, after)
    return after


def _unlawful(before: dict[str, bytes], after: dict[str, bytes], event: Wrote) -> Iterator[str]:
    """What the model cannot see, since its store would not do it: a condition that did not hold, a pointer that went
    back.
    """
    if event.creates and event.key in before:
        yield f"{event.key}: created, though it was there"
    if event.data is None or event.key not in before:
        return
    if event.key.endswith(".active") or event.key == KEYS.last_good:
        old, new = (_generation(objects[event.key]) for objects in (before, after))
        if old is None or (new is not None and new >= old):
            return
        seen = see(after)
        # LAST_GOOD goes back when what it named was cut or barred; nothing else does.
        if event.key != KEYS.last_good or old in seen.candidates & seen.proven - seen.barred:
            yield f"{event.key}: went back from {old} to {new}"


def _generation(pointer: bytes) -> GenerationId | None:
    named = json.loads(pointer)["generation"]
    return GenerationId.parse(named) if named else None


class _Told:
    """What publishers believed, as facts of the model."""

    def __init__(self, beliefs: Iterable[Belief]) -> None:
        self.beliefs = tuple(beliefs)
        self._by_pointer = {
            (KEYS.active(one.generation.incarnation), one.generation): one
            for one in self.beliefs
            if isinstance(one, Acknowledged)
        }

    def all(self, objects: dict[str, bytes], *, at_the_end: bool = False) -> frozenset[Fact]:
        """Everything that may be believed by now; at the end, everything."""
        return frozenset(
            self._fact(belief, objects) for belief in self.beliefs if at_the_end or self._is_due(belief, objects)
        )

    def by(self, key: str, objects: dict[str, bytes]) -> frozenset[Fact]:
        """What is believed from the writing of one document on: of a save, that of its pointer."""
        if not key.endswith(".active"):
            return frozenset()
        named = _generation(objects[key])
        belief = self._by_pointer.get((key, named)) if named is not None else None
        return frozenset({self._fact(belief, objects)} if belief is not None else ())

    def _is_due(self, belief: Belief, objects: dict[str, bytes]) -> bool:
        if isinstance(belief, Decided):
            return KEYS.resume(belief.incarnation) in objects
        pointer = objects.get(KEYS.active(belief.generation.incarnation))
        named = _generation(pointer) if pointer is not None else None
        return named is not None and named >= belief.generation

    def _fact(self, belief: Belief, objects: dict[str, bytes]) -> Fact:
        match belief:
            case Decided(who=who, incarnation=incarnation):
                return Fact("owns", (incarnation, who))
            case Acknowledged(generation=generation, commit=digest):
                stored = objects.get(KEYS.commit(generation), b"")
                own = stored != b"" and commit_digest(stored) == digest
                return Fact("acknowledged", (generation, json.loads(stored)["nonce"] if own else "of another COMMIT"))
