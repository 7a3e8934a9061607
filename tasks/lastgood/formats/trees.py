"""Every checkpoint below a directory, found by one walk.

Decides what is a checkpoint of its own and what is a part of one. Leaves recognising to the readers. Rules: what lies
in a checkpoint belongs to it, but for children that its own framework would take for checkpoints (a trainer's directory
that holds an export beside the checkpoints of its run); `.lastgood` and other hidden directories are never entered; the
cost is linear in the number of files; what cannot be read is told by itself, and takes nothing else along.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from lastgood.errors import FormatError, LastgoodError, ReadLimitError, StoreError
from lastgood.formats import readers
from lastgood.formats.description import Framework
from lastgood.formats.readers import Reader
from lastgood.formats.readers.torch_save import ENDINGS as TORCH_ENDINGS
from lastgood.formats.recognition import describe, recognise
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source
from lastgood.identity import check_key, is_lawful_key
from lastgood.stores.port import Names, ObjectKind, Store, StoredObject

__all__ = [
    "MAXIMUM_TREE_FILES",
    "find_checkpoints",
    "holding_checkpoints",
    "inner_checkpoints",
    "is_checkpoint_file",
    "is_one_checkpoint",
    "saved_around",
]

OnTrouble = Callable[[str, LastgoodError], None]
"""Told the key of what could not be read, and why."""

MAXIMUM_TREE_FILES = 5_000_000
MAXIMUM_BESIDE = 1_000
"""Files beside what may be a part: where more lie, nobody asks whether they are one checkpoint together."""
MAXIMUM_ASKED = 100
"""Directories that are looked into for whoever asked above them."""
_SUFFIXES = (*TORCH_ENDINGS, ".safetensors")
"""Of single files that may be checkpoints: of others nobody asks the readers."""


def is_checkpoint_file(name: str) -> bool:
    """Whether a file of this name may be a checkpoint by itself."""
    return name.endswith(_SUFFIXES) and not name.startswith(".")


def find_checkpoints(
    store: Store, key: str, *, deep: bool = True, on_trouble: OnTrouble | None = None
) -> Iterator[Source]:
    """The checkpoints at and below a key, in the order of their names.

    Args:
        store: Where.
        key: Of a directory.
        deep: Look below its children too.
        on_trouble: Told of each part that could not be read, while the rest is found; None: the first one raises.

    Raises:
        FormatError: More files than anybody's tree has.
        StoreError: The store could not tell.
    """
    tree = _Tree(store, key, on_trouble)
    yield from tree.visit(key, 0, None if deep else 1)
    tree.tell_unlisted()


def inner_checkpoints(source: Source, reader: Reader) -> set[str]:
    """Names in a checkpoint that its own framework would take for checkpoints: then it is an export beside them.

    Raises:
        StoreError: The store could not tell.
    """
    if source.is_file:
        return set()
    choice = reader.choose(Root(store=source.store, prefix=source.prefix, names=_names(source.files)))
    return {candidate.name for candidate in choice.candidates} if choice is not None else set()


def holding_checkpoints(store: Store, key: str) -> Iterator[str]:
    """Names of the directories below a key that hold checkpoints, ours or anybody's: it was asked one level too high.
    A checkpoint itself holds none, whatever its parts look like.

    Raises:
        StoreError: The store could not tell.
    """
    for name in islice(store.names(key).directories, MAXIMUM_ASKED):
        below = f"{key}/{name}"
        if name.startswith(".") or not is_lawful_key(below):
            continue
        found = find_checkpoints(store, below, deep=False, on_trouble=lambda _key, _error: None)
        are_inside = (one.is_file or one.prefix != below for one in found)
        if store.names(f"{below}/.lastgood").directories or any(are_inside):
            yield name


def is_one_checkpoint(source: Source) -> bool:
    """Whether what lies there is one checkpoint, and not a directory of them.

    Raises:
        StoreError: The store could not tell.
    """
    reader = recognise(source)
    return source.is_file or (reader is not None and not inner_checkpoints(source, reader))


def saved_around(source: Source) -> Framework | None:
    """The framework that saved this as a part of what lies around it; None where nothing says so.

    A directory that is a family already was asked when the first of its checkpoints was sealed, and is not again.

    Raises:
        FormatError: Something beside it is not lawful.
        StoreError: The store could not tell.
    """
    store, above, own_name = source.store, source.parent, source.name
    if not above or store.names(f"{above}/.lastgood").directories:
        return None
    names = store.names(above).files
    if len(names) > MAXIMUM_BESIDE:
        return None
    beside = {name: store.stat(f"{above}/{name}") for name in names if is_lawful_key(f"{above}/{name}")}
    files = {name: found for name, found in beside.items() if found is not None and name != own_name}
    others = Source(store=store, prefix=above, name=above.rpartition("/")[2], files=files)
    if source.is_file and recognise(others) is None:
        return None  # a directory that is a checkpoint for this one file's sake is its family
    own = source.files if source.is_file else {f"{own_name}/{path}": found for path, found in source.files.items()}
    whole = replace(others, files=dict(sorted({**files, **own}.items())))
    if recognise(whole) is None:
        return None
    told = describe(whole)
    return told.framework if any(path in own for held in told.components for path in held.paths) else None


class _Tree:
    """One walk."""

    def __init__(self, store: Store, top: str, on_trouble: OnTrouble | None) -> None:
        self._store = store
        self._on_trouble = on_trouble
        self._unlisted: dict[str, StoreError] = {}
        found = store.walk(top) if on_trouble is None else self._walk(top, top)
        listed = list(islice((one for one in found if not _is_hidden(one.key, top)), MAXIMUM_TREE_FILES + 1))
        if len(listed) > MAXIMUM_TREE_FILES:
            raise ReadLimitError(f"too many files: {top}: expected at most {MAXIMUM_TREE_FILES}")
        listed.sort(key=lambda one: one.key)
        self._listed = listed
        self._keys = [one.key for one in listed]

    def _walk(self, key: str, top: str) -> Iterator[StoredObject]:
        """As the store does; a directory that it cannot list is kept for whoever comes by, and left out."""
        try:
            yield from list(islice(self._store.walk(key), MAXIMUM_TREE_FILES + 1))
            return
        except StoreError as error:
            trouble = error
        # Somewhere below: its children are walked one by one, and again those of the one that cannot be.
        try:
            names = self._store.names(key)
        except StoreError:
            if key == top:
                raise
            self._unlisted[key] = trouble
            return
        for name in (*names.directories, *names.files):
            below = f"{key}/{name}"
            if not is_lawful_key(below):
                continue
            if name not in names.directories:
                found = self._store.stat(below)
                yield from () if found is None else (found,)
            elif not name.startswith("."):
                yield from self._walk(below, top)

    def visit(self, key: str, depth: int, limit: int | None, *, is_named: bool = False) -> Iterator[Source]:
        source = self._source(key)
        inner: set[str] | None = None
        own: Source | None = None
        try:
            reader = recognise(source) if source.files else None
            if reader is not None:
                inner = inner_checkpoints(source, reader)
                rest = _without(source, inner)
                own = rest if inner and recognise(rest) is not None else None
        except (FormatError, StoreError) as error:
            self._tell(key, error)
            if is_named:
                return  # what lies in it are its parts
            reader = inner = own = None
        if reader is not None and not inner:
            yield from self._whole(source)
            return
        if own is not None:
            yield own
        if limit is None or depth < limit:
            yield from self._children(key, depth, limit, inner)

    def _whole(self, source: Source) -> Iterator[Source]:
        """The checkpoint, unless a part of it could not be listed: nobody knows then what lies there."""
        unlisted = [key for key in self._unlisted if key.startswith(f"{source.prefix}/")]
        if not unlisted:
            yield source
            return
        self._tell(source.prefix, self._unlisted[unlisted[0]])
        for key in unlisted:
            del self._unlisted[key]

    def tell_unlisted(self) -> None:
        """Tell of directories that belong to no checkpoint that was found."""
        for key, error in self._unlisted.items():
            self._tell(key, error)

    def _children(self, key: str, depth: int, limit: int | None, wanted: set[str] | None) -> Iterator[Source]:
        names = self._store.names(key)
        root = Root(store=self._store, prefix=key, names=names)
        choices = [choice for reader in readers.READERS if (choice := self._choice(reader, root)) is not None]
        named = {candidate.name for choice in choices for candidate in choice.candidates}
        for name in names.directories:
            if name.startswith(".") or (wanted is not None and name not in wanted):
                continue
            yield from self._child(f"{key}/{name}", depth, limit, is_named=name in named)
        for name in names.files:
            if is_checkpoint_file(name) and (wanted is None or name in wanted):
                yield from self._single(key, name)

    def _child(self, key: str, depth: int, limit: int | None, *, is_named: bool) -> Iterator[Source]:
        child = self._source(key)
        if child.files:
            yield from self.visit(key, depth + 1, limit, is_named=is_named)
        elif not is_lawful_key(key):
            self._tell_unlawful(key)
        elif is_named:
            yield child  # an empty directory under the name of a checkpoint is what a loader would trip over

    def _single(self, key: str, name: str) -> Iterator[Source]:
        try:
            single = self._file(key, name)
            if single is not None and recognise(single) is not None:
                yield single
        except (FormatError, StoreError) as error:
            self._tell(f"{key}/{name}", error)

    def _choice(self, reader: Reader, root: Root) -> Choice | None:
        try:
            return reader.choose(root)
        except (FormatError, StoreError) as error:
            self._tell(root.prefix, error)
            return None

    def _tell(self, key: str, error: LastgoodError) -> None:
        if self._on_trouble is None:
            raise error
        self._on_trouble(key, error)

    def _tell_unlawful(self, key: str) -> None:
        """Nothing below such a name was listed; whoever wants only what can be opened is not bothered with it."""
        if self._on_trouble is None:
            return
        try:
            check_key(key)
        except FormatError as error:
            self._on_trouble(key, error)

    def _source(self, key: str) -> Source:
        start, stop = bisect_left(self._keys, f"{key}/"), bisect_left(self._keys, f"{key}0")  # `0` follows `/`
        skip = len(key) + 1
        files = {one.key[skip:]: one for one in self._listed[start:stop]}
        return Source(store=self._store, prefix=key, name=key.rpartition("/")[2], files=files)

    def _file(self, key: str, name: str) -> Source | None:
        at = bisect_left(self._keys, f"{key}/{name}")
        found = self._listed[at] if at < len(self._keys) and self._keys[at] == f"{key}/{name}" else None
        if found is None or found.kind is not ObjectKind.FILE:
            return None
        return Source(store=self._store, prefix=key, name=name, files={name: found}, is_file=True)


def _is_hidden(key: str, top: str) -> bool:
    # Hidden files may belong to a checkpoint (`.metadata`); what lies in a hidden directory does not.
    return any(part.startswith(".") for part in key.removeprefix(f"{top}/").split("/")[:-1])


def _names(files: Mapping[str, StoredObject]) -> Names:
    directories = {path.partition("/")[0] for path in files if "/" in path}
    return Names(files=tuple(sorted(path for path in files if "/" not in path)), directories=tuple(sorted(directories)))


def _without(source: Source, names: set[str]) -> Source:
    files = {path: found for path, found in source.files.items() if path.partition("/")[0] not in names}
    return Source(store=source.store, prefix=source.prefix, name=source.name, files=files)
