"""A tree that is only read, whose `.lastgood` directories lie under another root.

Decides which of two stores a key belongs to, and nothing else: what has `.lastgood` in its key is ours and lies under
the other root, at the same path; everything else is the tree's. Rules: nothing is ever written into the tree; where
`.lastgood` lies in both places nobody is told either half, for the one that was not looked at may bar what the other
offers (ADR 0011); nor is anybody told what is known of a directory in which nothing lies, for it may not be mounted.
Whoever decides lists first, so every listing looks into the tree anew, also of a process that runs for weeks. A grade
is of the root that is written to, and lies there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from lastgood.digest import Algorithm, HashRequest
from lastgood.errors import StoreError, StorePermanentError
from lastgood.identity import check_key
from lastgood.stores.grading import KeptGrade, Needed, Probe, StoreGrade, graded
from lastgood.stores.port import Hashed, Names, ObjectReader, Progress, Recorded, Store, StoredObject, Trouble

__all__ = ["ApartStore"]

OURS = ".lastgood"
STAGING = f"/{OURS}/staging"
TREE = "tree"
"""The probe that asks whether the tree can be read."""


class ApartStore:
    """A `Store` over two.

    Args:
        tree: What is read; its root may lie above or below `tree_root`.
        evidence: Where whatever is ours lies.
        tree_root: The root that `evidence` takes the place of.
    """

    def __init__(self, tree: Store, evidence: Store, *, tree_root: str) -> None:
        self._tree, self._evidence = tree, evidence
        here, root = tree.uri.rstrip("/"), tree_root.rstrip("/")
        # Keys of the two differ by the way from one root to the other.
        self._above = f"{root.removeprefix(here).strip('/')}/" if root != here and root.startswith(f"{here}/") else ""
        self._below = f"{here.removeprefix(root).strip('/')}/" if here != root and here.startswith(f"{root}/") else ""
        self._looked: set[str] = set()

    @property
    def uri(self) -> str:
        return self._tree.uri

    def _routed(self, key: str, *, anew: bool = False) -> tuple[Store, str]:
        """The store that a key belongs to, and its key there.

        Args:
            key: In this store.
            anew: Look whether evidence lies in the tree by now, also where none did before.

        Raises:
            StorePermanentError: As of `_look`.
        """
        parts = key.split("/")
        if OURS not in parts or not key.startswith(self._above):
            return self._tree, key
        ours = "/".join(parts[: parts.index(OURS) + 1])
        if anew or ours not in self._looked:
            self._look(ours)
            self._looked.add(ours)
        return self._evidence, self._there(key)

    def _there(self, key: str) -> str:
        return f"{self._below}{key.removeprefix(self._above)}"

    def _look(self, ours: str) -> None:
        """Refuse evidence that another half of would have to be known, and evidence of nothing.

        Raises:
            StorePermanentError: Evidence lies in both places, or on a file system nothing of that of which it lies.
        """
        # Directories alone: a bucket's own grade lies in a `.lastgood`, too, as a file.
        if self._tree.names(ours).directories:
            raise StorePermanentError(
                f"evidence in two places: {self.uri.rstrip('/')}/{ours}, and below {self._evidence.uri}",
                hint="bring it together under `evidence` of lastgood.toml, or take that key away",
            )
        if self._tree.local_directory(ours) is None:
            return
        family = ours.removesuffix(OURS).rstrip("/")
        beside = self._tree.names(family)
        # What is not mounted leaves an empty directory: every checkpoint would seem deleted, and be barred for good.
        if not (beside.files or beside.directories) and self._evidence.names(self._there(ours)).directories:
            empty = f"{self.uri.rstrip('/')}/{family}".rstrip("/")
            raise StorePermanentError(
                f"nothing lies there: {empty}, of which evidence lies below {self._evidence.uri}",
                hint="is the file system mounted?",
            )

    def _look_again(self, prefix: str) -> None:
        """Refuse what was read of a family in which nothing lies any more: a mount that drops leaves files missing.

        Raises:
            StorePermanentError: As of `_look`.
        """
        if self._tree.local_directory(prefix) is None:
            return  # a bucket is not mounted
        for ours in self._looked:
            if f"{prefix}/".startswith(ours.removesuffix(OURS)):
                self._look(ours)

    def _written(self, key: str) -> tuple[Store, str]:
        """As `_routed`, for what changes something.

        Raises:
            StorePermanentError: It belongs to the tree.
        """
        store, there = self._routed(check_key(key), anew=True)
        if store is self._tree:
            raise self._only_read(key)
        return store, there

    def _only_read(self, key: str) -> StorePermanentError:
        return StorePermanentError(
            f"only read: {self.uri.rstrip('/')}/{key}: `evidence` of lastgood.toml says that nothing is written there",
            hint="a job publishes, and a copy goes, to a root without `evidence`",
        )

    # Reading.

    def is_root(self) -> bool:
        return self._tree.is_root()

    def probe(self) -> Iterator[Probe]:
        try:
            self._tree.names("")
            seen, held = f"{self.uri}, where nothing is written", self.is_root()
        except StoreError as error:
            seen, held = error.message, False
        yield Probe(name=TREE, held=held, needed=Needed.READING, detail=seen)
        yield from self._evidence.probe()

    def grade(self) -> StoreGrade | None:
        return self._evidence.grade()

    def keep_grade(self, grade: KeptGrade) -> str | None:
        # Whoever finds it there knows nothing of this tree: that it is not mounted must not forbid the other root.
        asked = (probe for probe in grade.probes if probe.name != TREE)
        return self._evidence.keep_grade(graded(asked, now=grade.created_at))

    def local_directory(self, prefix: str) -> Path | None:
        store, there = self._routed(prefix)
        return store.local_directory(there)

    def names(self, prefix: str) -> Names:
        store, there = self._routed(prefix, anew=True)
        return store.names(there)

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        store, there = self._routed(prefix, anew=True)
        for found in store.walk(there):
            yield replace(found, key=f"{prefix}{found.key.removeprefix(there)}")
        if store is self._tree:
            self._look_again(prefix)  # a walk that a mount ends under is as long as it came

    def stat(self, key: str) -> StoredObject | None:
        store, there = self._routed(key)
        found = store.stat(there)
        return replace(found, key=key) if found is not None else None

    def last_changed(self, prefix: str) -> datetime | None:
        store, there = self._routed(prefix)
        return store.last_changed(there)

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        store, there = self._routed(key)
        return store.get(there, limit_bytes=limit_bytes)

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        store, there = self._routed(prefix)
        is_whole = True
        for found in store.hash(there, requests, progress):
            if is_whole and found.trouble is Trouble.MISSING and store is self._tree:
                is_whole = False
                self._look_again(prefix)
            yield found

    def open(self, prefix: str, path: str) -> AbstractContextManager[ObjectReader]:
        store, there = self._routed(prefix)
        return store.open(there, path)

    def compare_checksums(self, prefix: str, recorded: Sequence[Recorded]) -> Iterator[bool | None]:
        store, there = self._routed(prefix)
        return store.compare_checksums(there, recorded)

    def fetch(self, prefix: str, request: HashRequest, destination: Path) -> Hashed:
        store, there = self._routed(prefix)
        return store.fetch(there, request, destination)

    # Writing: documents of ours alone.

    def create(self, key: str, data: bytes) -> bool:
        store, there = self._written(key)
        return store.create(there, data)

    def replace(self, key: str, data: bytes) -> None:
        store, there = self._written(key)
        store.replace(there, data)

    def compare_and_swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        store, there = self._written(key)
        return store.compare_and_swap(there, data, expected=expected)

    def delete(self, key: str) -> None:
        store, there = self._written(key)
        store.delete(there)

    def clock(self, prefix: str) -> datetime:
        store, there = self._written(prefix)
        return store.clock(there)

    def discard(self, prefix: str) -> None:
        store, there = self._written(prefix)
        store.discard(there)

    def sweep(self, prefix: str, *, before: datetime) -> tuple[str, ...]:
        store, there = self._routed(prefix)
        return store.sweep(there, before=before) if store is self._evidence else ()  # nothing of ours is left there

    # Publishing and copying, which would end in the tree: refused before anything is claimed or sent.

    def prepare(self, prefixes: Iterable[str]) -> None:
        written = []
        for prefix in prefixes:
            if prefix.endswith(STAGING):
                raise self._only_read(prefix)
            written.append(self._written(prefix)[1])
        self._evidence.prepare(written)

    def payload(self, staging: str, final: str) -> str:
        raise self._only_read(final)

    def staging_path(self, prefix: str) -> Path:
        raise self._only_read(prefix)

    def persist(
        self, prefix: str, paths: Sequence[str], algorithms: tuple[Algorithm, ...], progress: Progress | None = None
    ) -> tuple[Hashed, ...]:
        raise self._only_read(prefix)

    def install(self, source: str, target: str) -> bool:
        raise self._only_read(target)
