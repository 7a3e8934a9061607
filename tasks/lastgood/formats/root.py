"""The directory that checkpoints of one run lie in, and which of them a framework itself would resume.

Decides what a framework's own rule is told and how its answer is put. Leaves each rule to its reader, and ours to
`structural`. Rule: a pointer is a small text, and names a sibling or nothing; where it leads out of the directory, or
to nothing, that is a finding.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from lastgood.errors import FormatError, StoreTransientError
from lastgood.identity import is_lawful_key
from lastgood.stores.port import Names, ObjectKind, Store
from lastgood.verdict import Finding

__all__ = ["DIRECTORY", "FILE", "LINK", "MAXIMUM_POINTER_BYTES", "OTHER", "Candidate", "Choice", "Root"]

MAXIMUM_POINTER_BYTES = 4096

FILE, DIRECTORY = "a file", "a directory"
LINK, OTHER = "a link, which is not followed", "a pipe, a socket or a device"
"""What may lie under the name of a pointer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A directory of checkpoints.

    Args:
        store: Where.
        prefix: Its key.
        names: Its direct children.
    """

    store: Store
    prefix: str
    names: Names

    def kind_of_pointer(self, name: str) -> str | None:
        """What lies under the name of a pointer, in words, without opening it; None where nothing does.

        Raises:
            StoreError: The store could not tell.
        """
        if name in self.names.directories:
            return DIRECTORY
        found = self.store.stat(self.key(name)) if name in self.names.files else None
        if found is None:
            return None
        return {ObjectKind.FILE: FILE, ObjectKind.LINK: LINK}.get(found.kind, OTHER)

    def leads_to(self, name: str) -> str | None:
        """What a child's name leads to: itself, or what a link in its place says, which is not followed; None where
        nothing lies there any more.

        Raises:
            StoreError: The store could not tell.
        """
        found, directory = self.store.stat(self.key(name)), self.store.local_directory(self.prefix)
        if found is None or found.kind is not ObjectKind.LINK or directory is None:
            return name
        try:
            return os.readlink(directory / name)
        except FileNotFoundError:
            return None  # whoever replaces a link takes it away first
        except OSError as error:
            if error.errno != errno.EINVAL:
                why = os.strerror(error.errno or 0).lower()
                raise StoreTransientError(f"cannot read link: {name}: {why}") from error
            return name  # a file took its place meanwhile

    def links(self) -> dict[str, str]:
        """Children that are links → the name of a neighbour, or whatever path elsewhere each of them leads to.

        Raises:
            StoreError: The store could not tell.
        """
        directory = self.store.local_directory(self.prefix)
        if directory is None:
            return {}  # a bucket has none
        links = {}
        for name in self.names.files:
            target = self.leads_to(name) if is_lawful_key(self.key(name)) else None
            if target is not None and target != name:
                path = os.path.normpath(directory / target)
                links[name] = os.path.basename(path) if os.path.dirname(path) == str(directory) else path
        return links

    def key(self, name: str) -> str:
        """Of a child."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def pointer(self, name: str) -> str | None:
        """The text of a pointer file, stripped; None where it is not there.

        Raises:
            FormatError: Longer than any pointer, or no UTF-8.
            StoreError: The store could not tell.
        """
        if name not in self.names.files:
            return None
        data = self.store.get(self.key(name), limit_bytes=MAXIMUM_POINTER_BYTES)
        try:
            return data.decode().strip() if data is not None else None
        except UnicodeDecodeError as error:
            raise FormatError(f"pointer is no text: {name}: {error}", where=name) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A sibling whose name says that it is a checkpoint of the framework.

    Args:
        name: Of the directory or file.
        step: By its name; None where the name has none.
    """

    name: str
    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a framework's own rule makes of a root.

    Args:
        rule: In words, e.g. `the largest N of checkpoint-N, complete or not`.
        picked: The checkpoint that the framework would load; None where it would begin anew or fail.
        pointer: The file that named it, where the rule goes by one.
        candidates: Newest first, in the framework's order.
        findings: About pointers.
        consequence: What the framework does with this answer, where that is not to load `picked`, e.g. `trains
            from step zero without an error`.
        is_only_named: The names are as this framework's and what lies under them is not: they tell the order, and its
            rule says nothing about them.
    """

    rule: str
    picked: str | None
    candidates: tuple[Candidate, ...]
    pointer: str | None = None
    findings: tuple[Finding, ...] = ()
    consequence: str | None = None
    is_only_named: bool = False
