"""What small parts of a checkpoint's files say, read without running any of them and within a budget.

Decides how much a description may read, and that a file which cannot be made sense of is a finding of it. Leaves the
file formats to `containers`. Rules: a description reads names and structure, never payload, so that it takes seconds
for a terabyte; what the budget left unread is said.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from lastgood.errors import FormatError, ReadLimitError
from lastgood.formats.believing import believed, believed_once
from lastgood.formats.containers.reading import Window
from lastgood.formats.containers.stubs import ObjectStub, TensorStub
from lastgood.formats.containers.torchfile import Container, TorchFile, container_of, read_torch_file
from lastgood.formats.containers.torchzip import open_torch_zip
from lastgood.formats.readers.wording import malformed, shown
from lastgood.formats.source import Source
from lastgood.stores.port import ObjectReader
from lastgood.verdict import Finding

__all__ = ["BUDGET_BYTES", "Contents", "TorchContent", "count_in", "number_of_value"]

BUDGET_BYTES = 48 * 2**20
"""Of pickles, for one description."""
MAXIMUM_STEPS = 64
"""Step counters that are read of one optimizer; it has one for each parameter, and they go together."""
_MAXIMUM_VISITS = 100_000
_MAXIMUM_SCALAR_STORAGE_BYTES = 4096
_TAIL_BYTES = 70_000  # what finding the directory of an archive costs

_SCALARS = {
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "uint8": "<B",
}
_ITEMS = {"bfloat16": 2, **{name: struct.calcsize(code) for name, code in _SCALARS.items()}}

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchContent:
    """One file of `torch.save`, described.

    Args:
        path: Which.
        file: What it holds.
    """

    path: str
    file: TorchFile

    @property
    def value(self) -> Any:
        """What was saved: plain values and stubs."""
        return self.file.value

    def number(self, value: Any) -> int | None:
        """A whole number that is not negative, written as a number or as a tensor of one element; else None.

        Raises:
            FormatError: The tensor's record is not what was written.
        """
        if isinstance(value, TensorStub):
            value = self._element(value)
        return number_of_value(value)

    def _element(self, stub: TensorStub) -> int | float | None:
        item, archive = _ITEMS.get(stub.dtype), self.file.archive
        if archive is None or stub.storage is None or stub.elements != 1 or item is None:
            return None
        if stub.storage.bytes > _MAXIMUM_SCALAR_STORAGE_BYTES:
            return None
        data = archive.read_record(f"data/{stub.storage.key}", _MAXIMUM_SCALAR_STORAGE_BYTES)
        part = data[stub.offset * item : (stub.offset + 1) * item]
        if len(part) != item:
            return None
        if stub.dtype == "bfloat16":  # the upper half of a float32
            return float(struct.unpack("<f", b"\0\0" + part)[0])
        found: int | float = struct.unpack(_SCALARS[stub.dtype], part)[0]
        return found

    def largest_step(self, tree: Any) -> int | None:
        """The largest of an optimizer's `step` counters; None where it holds none.

        Raises:
            FormatError: A counter's record is not what was written.
        """
        found = [self.number(value) for value in _values_named("step", tree)]
        return max((step for step in found if step is not None), default=None)


def _values_named(name: str, tree: Any) -> Iterator[Any]:
    """Values under a key, breadth first, up to `MAXIMUM_STEPS` of them."""
    waiting, found = [tree], 0
    for _ in range(_MAXIMUM_VISITS):
        if not waiting or found >= MAXIMUM_STEPS:
            return
        value = waiting.pop()
        if isinstance(value, dict):
            if name in value and not isinstance(value[name], dict | list):
                found += 1
                yield value[name]
            waiting.extend(part for part in value.values() if isinstance(part, dict | list))
        elif isinstance(value, list):
            waiting.extend(part for part in value if isinstance(part, dict | list))


def number_of_value(value: Any) -> int | None:
    """A whole number that is not negative; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or not 0 <= value < 2**63:
        return None
    return int(value) if value == int(value) else None


def count_in(value: Any, key: str) -> int | None:
    """A whole number that is not negative under a key of a dictionary, or an attribute of an object; else None."""
    if isinstance(value, ObjectStub):
        value = value.attributes
    return number_of_value(value.get(key)) if isinstance(value, Mapping) else None


class _Reading(Protocol):
    """How bytes are believed: of a file, or of a part of it."""

    def __call__(self, read: Callable[[], _Answer], /) -> _Answer:
        """What the reading gives."""


class Contents:
    """Reads of one checkpoint; what could not be made sense of is collected in `findings`.

    Args:
        source: The checkpoint.
        budget_bytes: Of pickles, in all.
    """

    def __init__(self, source: Source, *, budget_bytes: int = BUDGET_BYTES) -> None:
        self._source = source
        self._left_bytes = budget_bytes
        self._unread: list[str] = []
        self.findings: list[Finding] = []
        self._untold: list[str] = []

    @property
    def unread(self) -> tuple[str, ...]:
        """Files that the budget left out."""
        return tuple(dict.fromkeys(self._unread))

    @property
    def untold(self) -> tuple[str, ...]:
        """What is more than is read here, a sentence a file."""
        return tuple(dict.fromkeys(self._untold))

    def refuse(self, error: FormatError, path: str) -> None:
        """Keep why a file could not be read: as a finding, or, where the limit is ours, as what nobody could tell."""
        if isinstance(error, ReadLimitError):
            self._untold.append(error.message)
        else:
            self.findings.append(malformed(error, path))

    @property
    def unknowable(self) -> tuple[str, ...]:
        """What the budget left unread, in a sentence."""
        if not self._unread:
            return ()
        return (f"what is written in {shown(self._unread)}: too many files to look into at this depth",)

    @contextmanager
    def torch(self, path: str) -> Iterator[TorchContent | None]:
        """A file of `torch.save`; None where it makes no sense, or where the budget is spent.

        A `FormatError` inside the block becomes a finding too.

        Raises:
            StoreError: The store could not tell.
        """
        with self._collecting(path), self._opened(path) as reader:
            yield None if reader is None else self._describe(reader, path, partial(believed_once, self._source, path))

    @contextmanager
    def torch_entry(self, path: str, offset: int, length: int, name: str) -> Iterator[TorchContent | None]:
        """As `torch`, for an entry of a `.distcp` file, which is an archive of its own.

        Args:
            path: The file.
            offset: Of the entry, in bytes.
            length: Of the entry, in bytes.
            name: What to call it in messages.
        """
        with self._collecting(path), self._opened(path) as reader:
            window = None if reader is None else self._window(reader, offset, length, name)
            yield None if window is None else self._describe(window, path, partial(believed, where=path))

    @contextmanager
    def _collecting(self, path: str) -> Iterator[None]:
        try:
            yield
        except FormatError as error:
            self.refuse(error, path)

    @contextmanager
    def _opened(self, path: str) -> Iterator[ObjectReader | None]:
        if not self._source.holds(path):
            yield None  # whoever knows that it should be there says so
            return
        with self._source.open(path) as reader:
            yield reader

    def _window(self, reader: ObjectReader, offset: int, length: int, name: str) -> Window | None:
        try:
            return Window(reader, offset, length, name)
        except FormatError:
            return None  # whoever judges the ranges says so

    def _describe(self, reader: ObjectReader, path: str, read: _Reading) -> TorchContent | None:
        """The content, or None with a finding."""
        if self._left_bytes <= 0:
            self._unread.append(path)
            return None
        try:
            if container_of(reader, path) is Container.TORCH_ZIP:
                archive = read(lambda: open_torch_zip(reader, path))
                record = archive.records.get("data.pkl")
                self._left_bytes -= _TAIL_BYTES
                # A file that alone would take it all leaves the budget to the others.
                if record is not None and record.data_bytes > self._left_bytes:
                    self._unread.append(path)
                    return None
                self._left_bytes -= 0 if record is None else record.data_bytes
            file = read(lambda: read_torch_file(reader, path, self._source.memory))
        except FormatError as error:
            self.refuse(error, path)
            return None
        return TorchContent(path=path, file=file)
