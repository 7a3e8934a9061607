"""Where things are, as people write it: `<root>/<family>` and `<root>/<family>/<generation>`.

Decides how one URI splits into a store, a family and perhaps a generation. Rule: the last component is a generation
when it is spelled like one, or when the directory above it holds `.lastgood`; otherwise it is the family.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lastgood.errors import FormatError, UsageError
from lastgood.identity import FamilyKeys, GenerationId, check_family_name
from lastgood.stores import Store, local_path, open_store

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


def locate(uri: str) -> Location:
    """Open what a URI names; whether it exists is found when it is read.

    Raises:
        UsageError: Not a lawful URI.
    """
    # Decoded as a whole and once: the family is a part of the path as much as its root.
    text = (str(local_path(uri)) if uri.startswith("file:") else uri).rstrip("/")
    above, _, last = text.rpartition("/")
    if not last:
        raise UsageError(f"not a family or generation: {uri!r}: expected <root>/<family>[/<generation>]")
    root, _, middle = above.rpartition("/")
    generation = _generation(last)
    if generation is None and middle and _is_family(root or "/", middle):
        generation = _foreign(root or "/", middle, last)
    try:
        if generation is not None:
            return Location(store=open_store(root or "/"), keys=FamilyKeys(middle), generation=generation)
        return Location(
            store=open_store(above or ("/" if text.startswith("/") else ".")), keys=FamilyKeys(last), generation=None
        )
    except FormatError as error:
        raise UsageError(f"not a family: {uri}: {error.message}") from error


def _generation(text: str) -> GenerationId | None:
    try:
        return GenerationId.parse(text)
    except FormatError:
        return None


def _is_family(root: str, name: str) -> bool:
    try:
        keys = FamilyKeys(check_family_name(name))
    except FormatError:
        return False
    store = open_store(root)
    return store.is_root() and bool(store.names(keys.ours).directories)


def _foreign(root: str, family: str, name: str) -> GenerationId:
    """The sealed foreign generation that lies in a directory of that name."""
    keys = FamilyKeys(family)
    for commit in open_store(root).names(keys.commits).files:
        generation = _generation(commit)
        if generation is not None and generation.name == name:
            return generation
    raise UsageError(
        f"not a generation of {root}/{family}: {name}: expected <incarnation>-<step>, or the directory of a sealed one",
        hint=f"`lastgood inspect {root}/{family}` lists them",
    )
