"""Data positions as document parts: all ranks' in one file, `data.json`.

Decides how a source of samples is recognised and which saved positions are lawful. Leaves the positions themselves to
`cursor`, `records` and `loaders`. Rules: a position is global wherever the source allows it, so that another world size
continues it; `{}`, negative, absurd and foreign positions are refused here, because loaders take them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from lastgood.errors import RegistrationError
from lastgood.manifest import Component, SampleIds
from lastgood.state import codec
from lastgood.state.cursor import CursorSampler
from lastgood.state.loaders import LoaderPosition
from lastgood.state.parts import DocumentPart, Scope
from lastgood.state.ranks import RankIdentity
from lastgood.state.records import RecordCursor
from lastgood.verdict import Finding, Note

__all__ = ["DATA_FILE", "PEEKED_SAMPLES", "Position", "data_part", "position_of"]

DATA_FILE = "data.json"
PEEKED_SAMPLES = 16
_VERSION = 1


class Position(Protocol):
    """Where a source of samples stands."""

    kind: str
    owns: tuple[object, ...]

    def save(self) -> dict[str, Any]:
        """This rank's position; ranks that share one global position save equal values."""

    def validate(self, saved: list[Any]) -> Iterator[str | Finding | Note]:
        """What is wrong with the positions that the saving ranks wrote, in rank order, for this rank now."""

    def load(self, saved: list[Any]) -> None:
        """Continue from validated positions."""

    def next_ids(self, count: int) -> SampleIds:
        """The next sample ids of this rank, or why they cannot be peeked."""


class _CursorPosition:
    """A `CursorSampler`: one global position, which any world size continues."""

    kind = "cursor"

    def __init__(self, cursor: CursorSampler, loader: object = None) -> None:
        self._cursor = cursor
        self.owns: tuple[object, ...] = (cursor,) if loader is None else (cursor, loader)

    def save(self) -> dict[str, Any]:
        return self._cursor.position()

    def validate(self, saved: list[Any]) -> Iterator[str | Finding | Note]:
        if any(not codec.same(saved[0], other) for other in saved[1:]):
            yield "the ranks saved different positions of one global cursor"
        yield from self._cursor.problems(saved[0])

    def load(self, saved: list[Any]) -> None:
        self._cursor.restore(saved[0])

    def next_ids(self, count: int) -> SampleIds:
        return SampleIds(ids=self._cursor.peek(count))


class _RecordPosition:
    """A `RecordCursor`: the durable offset of the next global batch."""

    kind = "records"

    def __init__(self, cursor: RecordCursor) -> None:
        self._cursor = cursor
        self.owns: tuple[object, ...] = (cursor,)

    def save(self) -> dict[str, Any]:
        return self._cursor.position()

    def validate(self, saved: list[Any]) -> Iterator[str | Finding | Note]:
        if any(not codec.same(saved[0], other) for other in saved[1:]):
            yield "the ranks saved different offsets of one global stream"
        yield from self._cursor.problems(saved[0])

    def load(self, saved: list[Any]) -> None:
        self._cursor.restore(saved[0])

    def next_ids(self, count: int) -> SampleIds:
        return SampleIds(ids=self._cursor.peek(count))


def position_of(source: Any, identity: RankIdentity, loader: object = None) -> Position:
    """The position of a source that is known here.

    Raises:
        RegistrationError: Not a source whose position can be saved.
    """
    if isinstance(source, CursorSampler):
        return _CursorPosition(source, loader)
    if isinstance(source, RecordCursor):
        return _RecordPosition(source)
    if callable(getattr(source, "state_dict", None)) and callable(getattr(source, "load_state_dict", None)):
        return LoaderPosition(source, identity)
    raise RegistrationError(
        f"data position cannot be saved: {type(source).__qualname__}",
        hint="use a CursorSampler, a RecordCursor or a StatefulDataLoader; a plain DataLoader knows no position",
    )


def data_part(position: Position, name: str) -> DocumentPart:
    """One source's positions in the file of all ranks' data state."""

    def save() -> dict[str, Any]:
        return {"version": _VERSION, "kind": position.kind, "position": position.save()}

    def validate(saved: Any) -> Iterator[str | Finding | Note]:
        if not isinstance(saved, list) or not saved:
            yield f"{name}: expected one position a rank, found {type(saved).__name__}"
            return
        for rank, one in enumerate(saved):
            if not isinstance(one, dict) or one.keys() != {"version", "kind", "position"} or not one["position"]:
                yield f"{name}: rank {rank} has no position: {str(one)[:80]!r}"
            elif one["version"] != _VERSION:
                yield f"{name}: rank {rank}: position version {one['version']!r} is unknown, expected {_VERSION}"
            elif one["kind"] != position.kind:
                yield f"{name}: rank {rank}: the run has a {position.kind}, the checkpoint a {one['kind']!r}"
            else:
                continue
            return
        yield from position.validate([one["position"] for one in saved])

    return DocumentPart(
        component=Component.DATA,
        name=f"data.{name}",
        file=DATA_FILE,
        scope=Scope.GATHERED,
        save=save,
        validate=validate,
        load=lambda saved: position.load([one["position"] for one in saved]),
        owns=position.owns,
    )
