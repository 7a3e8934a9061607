"""Where things are, as people write it: `<root>/<family>` and `<root>/<family>/<generation>`.

Decides how one URI splits into a store, a family and perhaps a generation, and of what is none of ours into a store and
a key. Rule: the last component is a generation when it is spelled like one, or when the directory above it holds
`.lastgood`; otherwise it is the family.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lastgood.errors import FormatError, UsageError
from lastgood.identity import FamilyKeys, GenerationId, check_family_name, check_key
from lastgood.stores import Access, Store, StoreSettings, VerifySettings, access_to, is_path, local_path, tree_of

__all__ = ["Location", "Place", "locate", "locate_ours", "locate_place"]

READ_ALL = VerifySettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A family, or one generation of it, in an open store, and how much tier 1 reads there."""

    store: Store
    keys: FamilyKeys
    generation: GenerationId | None
    verify: VerifySettings = READ_ALL

    @property
    def family_uri(self) -> str:
        return f"{self.store.uri}/{self.keys.family}"

    @property
    def uri(self) -> str:
        return self.generation_uri(self.generation) if self.generation else self.family_uri

    def generation_uri(self, generation: GenerationId) -> str:
        """The URI of another generation of the same family."""
        return f"{self.family_uri}/{generation.directory}"

    def of(self, generation: GenerationId) -> Location:
        """One generation of the same family."""
        return replace(self, generation=generation)

    @property
    def local_family(self) -> Path:
        """The family's directory.

        Raises:
            UsageError: It is not on a file system of this machine.
        """
        family = self.store.local_directory(self.keys.family)
        if family is None:
            raise UsageError(f"not on this machine: {self.family_uri}: expected a family on a file system")
        return family

    def require_generation(self) -> GenerationId:
        """The generation that the URI names.

        Raises:
            UsageError: It names a family.
        """
        if self.generation is None:
            raise UsageError(f"names a family, not a generation: {self.uri}", hint="add /<generation>")
        return self.generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A key in an open store, whoever wrote what lies there: a checkpoint, or a directory of them.

    Args:
        store: Where.
        key: Of one or two components.
        stores: Root → how its store is spoken to, and where evidence of what lies below it does.
    """

    store: Store
    key: str
    stores: Mapping[str, StoreSettings]

    @property
    def uri(self) -> str:
        return f"{self.store.uri.rstrip('/')}/{self.key}"

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def is_file(self) -> bool:
        """Whether nothing can be listed below it."""
        return _is_file(self.store, self.key)

    @property
    def family(self) -> Location | None:
        """The family that a checkpoint of this place belongs to once it is sealed: the directory that it lies in; None
        where there is none, or none under a name of a family.
        """
        return _family(self.store, self.key.rpartition("/")[0])

    @property
    def family_of_children(self) -> Location | None:
        """The family that a directory of checkpoints is once one of them is sealed; None where it could be none.

        Raises:
            UsageError: As of `access_to`.
        """
        above, _, name = self.key.rpartition("/")
        # By its own path: in a walk over many trees the evidence of each may lie somewhere else.
        root = f"{self.store.uri.rstrip('/')}/{above}".rstrip("/")
        return _family(access_to(self.uri, self.stores).open(root or "/"), name)


def locate_place(uri: str, stores: Mapping[str, StoreSettings] | None = None) -> Place:
    """Open what a URI names, whoever wrote it.

    Args:
        uri: A path, `file:///…` or `s3://bucket/…`; in the store its key has two components where the URI has as many,
            so that the directory above it is within reach.
        stores: As in `locate`.

    Raises:
        UsageError: Not a lawful URI, or the root of a store.
    """
    if uri.startswith("s3://"):
        whole = uri.rstrip("/")
        parts, start = whole.removeprefix("s3://").split("/"), "s3://"
        fewest = 1  # the bucket
    else:
        # Made absolute, not resolved: what is a link stays one, and is named as that.
        whole = os.path.abspath(Path(uri) if is_path(uri) else local_path(uri))
        parts, start, fewest = whole.split("/")[1:], "/", 0
    named = _generation(parts[-1])
    if named is not None and named.name:
        parts[-1] = named.name  # as every verdict spells a sealed one; what lies there bears its own name
    cut = max(len(parts) - 2, fewest)
    key = "/".join(parts[cut:])
    try:
        check_key(key)
    except FormatError as error:
        raise UsageError(f"not a checkpoint or a directory of them: {uri!r}: {error.message}") from error
    known = stores or {}
    return Place(store=_access(whole, known).open(start + "/".join(parts[:cut])), key=key, stores=known)


def _family(store: Store, name: str) -> Location | None:
    try:
        return Location(store=store, keys=FamilyKeys(name), generation=None)
    except FormatError:
        return None


def locate_ours(uri: str, stores: Mapping[str, StoreSettings] | None = None) -> Location | None:
    """As `locate`, but None where nothing of ours lies there: no family, or a checkpoint that nobody sealed.

    Raises:
        UsageError: Not a lawful URI.
        StoreError: The store could not tell.
    """
    location = _locate(uri, stores)
    if location is None or not location.store.is_root():
        return location
    if _is_file(location.store, location.keys.family):
        return None
    return location if _is_family(location.store, location.keys.family) else None


def locate(uri: str, stores: Mapping[str, StoreSettings] | None = None) -> Location:
    """Open what a URI names; whether it exists is found when it is read.

    Args:
        uri: `<root>/<family>` or `<root>/<family>/<generation>`.
        stores: Root → how its store is spoken to; for whatever lies under none of them the store's own client knows.

    Raises:
        UsageError: Not a lawful URI, or a file lies where the family would.
    """
    location = _locate(uri, stores)
    if location is None:
        above, _, name = uri.rstrip("/").rpartition("/")
        above = above or "."
        raise UsageError(
            f"not a generation of {above}: {name}: expected <incarnation>-<step>, or the directory of a sealed one",
            hint=f"`lastgood inspect {above}` lists them, and `lastgood seal {uri}` adopts it",
        )
    if location.generation is None and _is_file(location.store, location.keys.family):
        raise UsageError(
            f"not a family: {uri}: expected a directory, found a file", hint=f"`lastgood inspect {uri}` says what it is"
        )
    return location


def _locate(uri: str, stores: Mapping[str, StoreSettings] | None) -> Location | None:
    """As `locate`; None for a name in a family that is no generation of it."""
    # Decoded as a whole and once: the family is a part of the path as much as its root.
    text = (str(local_path(uri)) if uri.startswith("file:") else uri).rstrip("/")
    if text and "://" not in text:
        # Made absolute, not resolved: how a path is spelled must not decide which directories above it are looked at.
        text = os.path.abspath(text)
    access = _access(text if text.startswith("s3://") else str(local_path(text or "/")), stores or {})
    verify = access.settings.verify if access.settings is not None else READ_ALL
    above, _, last = text.rpartition("/")
    if not last or above.endswith(":/"):  # a bucket alone is a root
        raise UsageError(f"not a family or generation: {uri!r}: expected <root>/<family>[/<generation>]")
    root, _, middle = above.rpartition("/")
    generation = _generation(last)
    if generation is None and middle and not root.endswith(":/"):
        store = access.open(root or "/")
        if _is_family(store, middle):
            generation = _sealed(store, middle, last)
            if generation is None:
                return None
    try:
        if generation is not None:
            store, keys = access.open(root or "/"), FamilyKeys(middle)
            return Location(store=store, keys=keys, generation=generation, verify=verify)
        return Location(
            store=access.open(above or "/"),
            keys=FamilyKeys(last),
            generation=None,
            verify=verify,
        )
    except FormatError as error:
        raise UsageError(f"not a family: {uri}: {error.message}") from error


def _access(uri: str, stores: Mapping[str, StoreSettings]) -> Access:
    """As `access_to`, but not for evidence: what it is of would seem to be missing there, and be barred for good."""
    tree = tree_of(uri, stores)
    if tree is not None:
        raise UsageError(f"evidence, and nothing else: {uri}: it is of {tree}", hint="name it by that path")
    return access_to(uri, stores)


def _generation(text: str) -> GenerationId | None:
    try:
        return GenerationId.parse(text)
    except FormatError:
        return None


def _is_family(store: Store, name: str) -> bool:
    try:
        keys = FamilyKeys(check_family_name(name))
    except FormatError:
        return False
    if not store.is_root() or _is_file(store, name):
        return False
    # A trace alone is of a job of another framework that has sealed nothing so far: what lies there is judged without.
    return any(f"{keys.ours}/{one}" != keys.traces for one in store.names(keys.ours).directories)


def _is_file(store: Store, key: str) -> bool:
    """Whether anything but a directory, or a link to one, lies there: a file system lists nothing below it, a bucket
    does.
    """
    directory = store.local_directory(key)
    return directory is not None and os.path.lexists(directory) and not os.path.isdir(directory)


def _sealed(store: Store, family: str, name: str) -> GenerationId | None:
    """The generation that lies under that name; after a rollback a name may have been sealed again, and the newer lies.

    Raises:
        StoreError: The store could not tell.
    """
    found = (_generation(commit) for commit in store.names(FamilyKeys(family).commits).files)
    return max((one for one in found if one is not None and one.name == name), default=None)
