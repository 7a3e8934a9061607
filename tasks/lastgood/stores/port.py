"""The store port: the few operations on which publishing, reading and evidence stand.

Decides what a store must promise, and of each operation what may be repeated. Keys are relative to the store's root,
`/`-separated, and lawful by `identity.check_key`. Every failure is a `StoreTransientError` or a `StorePermanentError`:
the store classifies, nobody else guesses. "Durable" means that the bytes and the name survive power loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from lastgood.digest import Algorithm, Digest, HashRequest
from lastgood.stores.grading import KeptGrade, Probe, StoreGrade

__all__ = [
    "DocumentStore",
    "Hashed",
    "Names",
    "ObjectKind",
    "ObjectReader",
    "Progress",
    "Recorded",
    "Store",
    "StoredObject",
    "Trouble",
]


class ObjectKind(StrEnum):
    """What lies under a name; only `file` may be an artifact."""

    FILE = "file"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One stored object, as a listing or `stat` tells it.

    Args:
        key: Relative to the root.
        bytes: Length in bytes.
        kind: `file` unless somebody put a link, a pipe or a device there.
        written_at: When its bytes were written last, aware; a change of name, owner or mode alone does not move it. No
            part of what makes two equal.
    """

    key: str
    bytes: int
    kind: ObjectKind = ObjectKind.FILE
    written_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The direct children of a prefix, sorted; our own temporary names are left out."""

    files: tuple[str, ...]
    directories: tuple[str, ...]


class Trouble(StrEnum):
    """Why an artifact could not be hashed. The first four are about the artifact, `unreadable` about the medium."""

    MISSING = "missing"
    NOT_REGULAR = "not_regular"
    SIZE = "size"
    CHANGED = "changed"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashed:
    """What hashing one artifact gave: length and digests, or why there are none.

    Args:
        path: As asked.
        bytes: Length found, in bytes; None when nothing was opened.
        digests: In the order asked; empty when there is trouble.
        trouble: What kept it from being hashed.
        message: A lowercase fact, with `trouble`.
        composite: Of what was sent to a store that keeps a checksum which counts: that checksum, as a digest over the
            digests of its parts.
    """

    path: str
    bytes: int | None
    digests: tuple[Digest, ...] = ()
    trouble: Trouble | None = None
    message: str = ""
    composite: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a publisher recorded of the checksum that the store must keep of one artifact.

    Args:
        path: Relative to a prefix.
        bytes: Length in bytes.
        composite: Over the digests of the parts in which it was sent.
    """

    path: str
    bytes: int
    composite: Digest


class Progress(Protocol):
    """Told now and then, in the caller's own thread, how many bytes of a long work are done so far."""

    def __call__(self, done_bytes: int, /) -> None: ...


class ObjectReader(Protocol):
    """Any part of one version of one object, in any order; several threads may read at once."""

    @property
    def size_bytes(self) -> int:
        """Length of the object, in bytes."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly these bytes. May be repeated after a transient error.

        Raises:
            ValueError: They do not lie within the object; whoever follows a stranger's offsets asks `size_bytes` first.
            StoreTransientError: The store could not tell, or another object lies there by now.
        """


class DocumentStore(Protocol):
    """The half of the port that the protocol needs. All operations may be repeated after a transient error."""

    def names(self, prefix: str) -> Names:
        """List the direct children of a prefix (empty: of the root); an absent prefix has none. Not atomic: what is
        created or deleted meanwhile may or may not appear.
        """

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        """The whole of a small object, or None when absent.

        Raises:
            StorePermanentError: Longer than the limit, or not a regular file.
        """

    def create(self, key: str, data: bytes) -> bool:
        """Create an object unless the key exists; exactly one of racing callers gets True. When it returns, the key is
        durable whoever made it. After an error the object may or may not exist: read it before repeating.
        """

    def replace(self, key: str, data: bytes) -> None:
        """Create or replace atomically: a reader sees the old bytes or the new ones. Durable on return."""

    def compare_and_swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        """Replace only if the present bytes are `expected` (None: absent); False if they are not.

        Raises:
            StoreLimitError: This store cannot replace under a condition; nothing was sent.
        """


class Store(DocumentStore, Protocol):
    """The whole port; see the module docstring."""

    @property
    def uri(self) -> str:
        """The root, as people write it."""

    def is_root(self) -> bool:
        """Whether the root exists and is the kind of thing a root must be."""

    def probe(self) -> Iterator[Probe]:
        """Ask whatever lies behind the store for everything that publishing relies on, on objects of its own; they are
        removed at the end.
        """

    def grade(self) -> StoreGrade | None:
        """The kept grade, as far as it is known here; None where nobody asked, or where grades are not kept."""

    def keep_grade(self, grade: KeptGrade) -> str | None:
        """Keep what probing found where all that use the root find it; returns where, or None where grades are not
        kept, or this one says more of our rights than of the store.
        """

    def local_directory(self, prefix: str) -> Path | None:
        """Where a prefix can be read as a local directory; None where it cannot."""

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        """Every object below a prefix, in the order of the store's own listing, page by page. Not atomic. What lies
        under a name that is no lawful key is shown once, as it is (a directory as `other`), and not entered.
        """

    def stat(self, key: str) -> StoredObject | None:
        """What lies under a key, or None."""

    def last_changed(self, prefix: str) -> datetime | None:
        """When a key, or anything below it, changed last, by the store's own clock; None when nothing is there. For
        what may be swept and for the age of evidence; nothing orders by it.
        """

    def delete(self, key: str) -> None:
        """Remove an object; absent is fine."""

    def prepare(self, prefixes: Iterable[str]) -> None:
        """Make prefixes exist durably, where the store has directories at all: the start of publishing. May be
        repeated.

        Raises:
            StoreLimitError: The store's grade forbids publishing.
        """

    def payload(self, staging: str, final: str) -> str:
        """The prefix under which the artifacts of a publish are persisted: in its staging, from where `install` renames
        them, or where nothing can be renamed under their final name at once.
        """

    def staging_path(self, prefix: str) -> Path:
        """A local directory (created) into which this rank writes artifacts that belong under a prefix."""

    def persist(
        self, prefix: str, paths: Sequence[str], algorithms: tuple[Algorithm, ...], progress: Progress | None = None
    ) -> tuple[Hashed, ...]:
        """Make staged artifacts durable, then read each back from the medium (not from a cache, where that can be
        asked for) and hash what was read. Never repeated by the store after a failed flush. What is persisted may be
        gone from the local directory.
        """

    def install(self, source: str, target: str) -> bool:
        """Give a whole payload, a directory or a single file, its final name, durably; False if the name is taken."""

    def clock(self, prefix: str) -> datetime:
        """The moment, aware, on the clock that `last_changed` counts by, which may not be this machine's; the prefix
        must be writable.
        """

    def discard(self, prefix: str) -> None:
        """Remove everything below a prefix; renamed away first, so that a half-removed tree has no lawful name."""

    def sweep(self, prefix: str, *, before: datetime) -> tuple[str, ...]:
        """Remove what interrupted operations left directly under a prefix under names of the store's own, unless it
        changed at or after that moment; returns those names. May run beside operations under way and beside itself.
        """

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        """Hash artifacts whose paths are relative to the prefix, in order, failures beside results, over every core."""

    def open(self, prefix: str, path: str) -> AbstractContextManager[ObjectReader]:
        """Read one artifact part by part; no link below the prefix is followed.

        Raises:
            StorePermanentError: Nothing lies there, or not a regular file.
        """

    def compare_checksums(self, prefix: str, recorded: Sequence[Recorded]) -> Iterator[bool | None]:
        """In order, whether the checksum that the store itself keeps is the recorded one; reads no payload. None where
        none is kept, or over other parts, or by a store that was not seen to refuse wrong ones: it says nothing then.
        """

    def fetch(self, prefix: str, request: HashRequest, destination: Path) -> Hashed:
        """Copy one artifact to a new private local file and hash exactly the bytes that were written there."""
