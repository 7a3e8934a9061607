"""Requests of the protocol, and the loop that performs them over a store.

Decides how a lost reply is told from a refusal: a conditional create answers `created`, `exists` or `unknown`, and
`create_ours` re-sends the same bytes until it knows. Leaves every other decision to its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from lastgood.errors import StoreLimitError, StoreTransientError
from lastgood.identity import GenerationId
from lastgood.markers import Commit
from lastgood.stores.port import DocumentStore
from lastgood.verdict import Finding

__all__ = [
    "Create",
    "Created",
    "Get",
    "Inspect",
    "List",
    "Replace",
    "Request",
    "Steps",
    "Swap",
    "create_ours",
    "perform",
]

MAXIMUM_SENDS = 5
MAXIMUM_PROTOCOL_DOCUMENT_BYTES = 16 * 2**20

T = TypeVar("T")


class Created(Enum):
    """What a conditional create answered; UNKNOWN: the reply was lost, the object may or may not exist."""

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class List:
    """The sorted names of the objects directly under a prefix → tuple[str, ...]."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Get:
    """The bytes of an object → bytes | None."""

    key: str


@dataclass(frozen=True, slots=True)
class Create:
    """Create unless it exists → Created."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Replace:
    """Create or replace atomically → None."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Swap:
    """Replace if the present bytes are `expected` (None: absent) → bool; StoreLimitError is thrown in where the store
    cannot, and nothing was sent.
    """

    key: str
    data: bytes
    expected: bytes | None


@dataclass(frozen=True, slots=True)
class Inspect:
    """Manifest, existence and sizes of one committed generation → tuple[Finding, ...]."""

    generation: GenerationId
    commit: Commit


Request = List | Get | Create | Replace | Swap | Inspect
Steps = Generator[Request, Any, T]
Inspector = Callable[[GenerationId, Commit], tuple[Finding, ...]]


def create_ours(key: str, data: bytes) -> Steps[bool]:
    """Create an object whose bytes are ours alone (they carry a nonce); True if it is ours now, False if another's.

    Raises:
        StoreTransientError: The outcome is still unknown after five sends.
    """
    for _ in range(MAXIMUM_SENDS):
        reply = yield Create(key, data)
        if reply is Created.CREATED:
            return True
        if reply is Created.EXISTS:
            # The same bytes mean that an earlier reply of ours was lost.
            stored: bytes | None = yield Get(key)
            return stored == data
    raise StoreTransientError(f"outcome unknown: create {key}: no reply to {MAXIMUM_SENDS} sends")


def perform(store: DocumentStore, steps: Steps[T], *, inspect: Inspector | None = None) -> T:
    """Drive a step generator over a store and return its result.

    Args:
        store: Where the documents are.
        steps: A generator of this package.
        inspect: Answers `Inspect`; without it every generation is taken to be whole.
    """
    try:
        request = next(steps)
        while True:
            try:
                answer = _answer(store, request, inspect)
            except StoreLimitError as limit:
                # Known without being sent, so the steps may go another way.
                request = steps.throw(limit)
            else:
                request = steps.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # a generator's return value is untyped in StopIteration


def _answer(store: DocumentStore, request: Request, inspect: Inspector | None) -> object:
    match request:
        case List(prefix):
            return store.names(prefix).files
        case Get(key):
            return store.get(key, limit_bytes=MAXIMUM_PROTOCOL_DOCUMENT_BYTES)
        case Create(key, data):
            try:
                return Created.CREATED if store.create(key, data) else Created.EXISTS
            except StoreTransientError:
                return Created.UNKNOWN
        case Replace(key, data):
            store.replace(key, data)
            return None
        case Swap(key, data, expected):
            return store.compare_and_swap(key, data, expected=expected)
        case Inspect(generation, commit):
            return inspect(generation, commit) if inspect else ()
