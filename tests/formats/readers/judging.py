"""What all who judge a foreign checkpoint say of one, together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lastgood.formats.classify import classify
from lastgood.formats.description import Description, Restorability
from lastgood.formats.integrity import Integrity, check_integrity
from lastgood.formats.readers import READERS, Reader
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source, open_source
from lastgood.stores import LocalStore
from lastgood.verdict import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A checkpoint with everything that was said of it."""

    source: Source
    reader: Reader
    description: Description
    integrity: Integrity
    choice: Choice | None

    @property
    def own_findings(self) -> tuple[Finding, ...]:
        return (*self.description.findings, *self.integrity.findings)

    @property
    def pointer_findings(self) -> tuple[Finding, ...]:
        return () if self.choice is None else self.choice.findings

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*self.own_findings, *self.pointer_findings)

    @property
    def restorability(self) -> Restorability:
        return classify(self.description, self.integrity.findings, self.integrity.untold).restorability


def reader_of(source: Source) -> Reader | None:
    """The first reader that recognises it."""
    return next((reader for reader in READERS if reader.recognises(source)), None)


def judge(checkpoint: Path) -> Judged:
    """Judge one checkpoint and the directory that it lies in."""
    store = LocalStore(checkpoint.parent.parent)
    prefix = checkpoint.parent.name
    source = open_source(store, f"{prefix}/{checkpoint.name}")
    assert source is not None, f"nothing lies at {checkpoint}"
    reader = reader_of(source)
    assert reader is not None, f"nobody recognises {checkpoint.name}: {sorted(source.files)}"
    description = reader.describe(source)
    return Judged(
        source=source,
        reader=reader,
        description=description,
        integrity=check_integrity(source, description=description),
        choice=reader.choose(Root(store=store, prefix=prefix, names=store.names(prefix))),
    )
