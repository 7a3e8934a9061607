"""The files of one foreign checkpoint behind the store port: a directory, or a single file.

Decides what belongs to a checkpoint and how a reader gets at it. Leaves what the files mean to the readers. Rules: a
name from a file is looked up in the listing before anything is opened, so nothing outside the checkpoint is ever
reached; a listing has a limit; text and JSON are read whole only up to a limit of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from lastgood.errors import FormatError, ReadLimitError, StorePermanentError
from lastgood.stores.port import ObjectKind, ObjectReader, Store, StoredObject

if TYPE_CHECKING:
    from lastgood.formats.containers.pickles import PickleMemory

__all__ = ["MAXIMUM_FILES", "MAXIMUM_TEXT_BYTES", "Source", "open_source"]

MAXIMUM_FILES = 1_000_000
MAXIMUM_TEXT_BYTES = 64 * 2**20
"""Of an index or a trainer's state, which grows with the log it carries."""
_OURS = ".lastgood"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One checkpoint.

    Args:
        store: Where.
        prefix: Key of the directory that its files lie in.
        name: Of the checkpoint: the last component of its key.
        files: Path relative to `prefix` → what lies there (links and pipes too), sorted by path; a checkpoint that is
            a single file has one, under its own name.
        is_file: Whether it is a single file.
        refused: Files that made no sense when they were read, by key, and why. It grows as they are read: recognising,
            describing and checking ask for the same ones, and what a stranger made costly to refuse is refused once.
        memory: Of what was made of the files, while all of that is asked at once.
    """

    store: Store
    prefix: str
    name: str
    files: Mapping[str, StoredObject]
    is_file: bool = False
    refused: dict[str, FormatError] = field(default_factory=dict, compare=False, repr=False)
    memory: PickleMemory | None = field(default=None, compare=False, repr=False)

    @property
    def parent(self) -> str:
        """Key of the directory that the checkpoint and its siblings lie in."""
        return self.prefix if self.is_file else self.prefix.rpartition("/")[0]

    def holds(self, path: str) -> bool:
        """Whether a regular file lies there."""
        found = self.files.get(path)
        return found is not None and found.kind is ObjectKind.FILE

    def matching(self, *, prefix: str = "", suffix: str = "") -> tuple[str, ...]:
        """The paths of regular files that begin and end so, sorted."""
        return tuple(
            path
            for path, found in self.files.items()
            if found.kind is ObjectKind.FILE and path.startswith(prefix) and path.endswith(suffix)
        )

    def open(self, path: str) -> AbstractContextManager[ObjectReader]:
        """Read a file part by part.

        Raises:
            FormatError: No regular file of this checkpoint.
            StoreError: The store could not tell.
        """
        self._check(path)
        return self.store.open(self.prefix, path)

    def read(self, path: str, *, limit_bytes: int = MAXIMUM_TEXT_BYTES) -> bytes:
        """The whole of a small file.

        Raises:
            FormatError: No regular file of this checkpoint.
        ReadLimitError: Longer than the limit.
            StoreError: The store could not tell.
        """
        found = self._check(path)
        if found.bytes > limit_bytes:
            raise ReadLimitError(f"file too large: {path}: expected at most {limit_bytes} bytes, found {found.bytes}")
        data = self.store.get(f"{self.prefix}/{path}" if self.prefix else path, limit_bytes=limit_bytes)
        if data is None:
            raise StorePermanentError(f"file vanished: {path}: listed, then not found")
        return data

    def _check(self, path: str) -> StoredObject:
        found = self.files.get(path)
        if found is None or found.kind is not ObjectKind.FILE:
            what = "nothing" if found is None else found.kind.value
            raise FormatError(f"no file of this checkpoint: {path}: expected a regular file, found {what}", where=path)
        return found

    def below(self, directory: str) -> Source:
        """A directory of this checkpoint as a checkpoint of its own, e.g. the DeepSpeed part of another framework's."""
        start = f"{directory}/"
        files = {path.removeprefix(start): found for path, found in self.files.items() if path.startswith(start)}
        name = directory.rpartition("/")[2]
        prefix = f"{self.prefix}/{directory}"
        return replace(self, prefix=prefix, name=name, files=files, is_file=False)


def open_source(store: Store, key: str) -> Source | None:
    """List one checkpoint; None where nothing lies.

    Args:
        store: Where.
        key: Of its directory, or of the single file that it is.

    Raises:
        ReadLimitError: More files than any checkpoint has.
        StoreError: The store could not tell.
    """
    top = store.stat(key)
    parent, _, name = key.rpartition("/")
    if top is not None and top.kind is not ObjectKind.OTHER:
        return Source(store=store, prefix=parent, name=name, files={name: top}, is_file=True)
    start = len(key) + 1
    listed = list(islice(_foreign(store, key), MAXIMUM_FILES + 1))
    if len(listed) > MAXIMUM_FILES:
        raise ReadLimitError(f"too many files: {key}: expected at most {MAXIMUM_FILES}")
    if not listed and top is None:
        return None
    return Source(store=store, prefix=key, name=name, files={found.key[start:]: found for found in listed})


def _foreign(store: Store, key: str) -> Iterator[StoredObject]:
    ours = f"{key}/{_OURS}/"
    return (found for found in store.walk(key) if not found.key.startswith(ours))
