"""Where things are, as people write it: `<root>/<family>` and `<root>/<family>/<generation>`.

Decides how one URI splits into a store, a family and perhaps a generation. Rule: the last component is a generation
when it is spelled like one, or when the directory above it holds `.lastgood`; otherwise it is the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lastgood.errors import FormatError, UsageError
from lastgood.identity import FamilyKeys, GenerationId, check_family_name
from lastgood.stores import Store, StoreSettings, local_path, open_store, settings_of

__all__ = ["Location", "locate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A family, or one generation of it, in an open store."""

    store: Store
    keys: FamilyKeys
    generation: GenerationId | None

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
        return Location(store=self.store, keys=self.keys, generation=generation)

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


def locate(uri: str, stores: Mapping[str, StoreSettings] | None = None) -> Location:
    """Open what a URI names; whether it exists is found when it is read.

    Args:
        uri: `<root>/<family>` or `<root>/<family>/<generation>`.
        stores: Root → how its store is spoken to; for whatever lies under none of them the store's own client knows.

    Raises:
        UsageError: Not a lawful URI.
    """
    # Decoded as a whole and once: the family is a part of the path as much as its root.
    text = (str(local_path(uri)) if uri.startswith("file:") else uri).rstrip("/")
    settings = settings_of(text, stores or {})
    above, _, last = text.rpartition("/")
    if not last or above.endswith(":/"):  # a bucket alone is a root
        raise UsageError(f"not a family or generation: {uri!r}: expected <root>/<family>[/<generation>]")
    root, _, middle = above.rpartition("/")
    generation = _generation(last)
    if generation is None and middle and not root.endswith(":/"):
        store = open_store(root or "/", settings)
        if _is_family(store, middle):
            generation = _foreign(store, middle, last)
    try:
        if generation is not None:
            return Location(store=open_store(root or "/", settings), keys=FamilyKeys(middle), generation=generation)
        return Location(
            store=open_store(above or ("/" if text.startswith("/") else "."), settings),
            keys=FamilyKeys(last),
            generation=None,
        )
    except FormatError as error:
        raise UsageError(f"not a family: {uri}: {error.message}") from error


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
    return store.is_root() and bool(store.names(keys.ours).directories)


def _foreign(store: Store, family: str, name: str) -> GenerationId:
    """The sealed foreign generation that lies in a directory of that name."""
    keys = FamilyKeys(family)
    for commit in store.names(keys.commits).files:
        generation = _generation(commit)
        if generation is not None and generation.name == name:
            return generation
    raise UsageError(
        f"not a generation of {store.uri}/{family}: {name}: "
        "expected <incarnation>-<step>, or the directory of a sealed one",
        hint=f"`lastgood inspect {store.uri}/{family}` lists them",
    )
