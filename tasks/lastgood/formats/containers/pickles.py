"""A pickle as an inert description: names, shapes, element types, plain values; never an object.

Decides what a caller may do with a pickle of a stranger: look at it. Leaves to the caller whether an unknown name is a
finding, since `training_args.bin` names classes that nobody here can list. Rules: see `machine`, `opcodes`, `meaning`
and `shape`; what this returns has bounded depth and size. Source: ADR 0010.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from lastgood.digest import Digest, hash_bytes
from lastgood.formats.containers.machine import Machine, PickleLimits, TooMuch, Unlawful
from lastgood.formats.containers.meaning import CheckpointMeaning
from lastgood.formats.containers.opcodes import execute
from lastgood.formats.containers.reading import beyond, malformed
from lastgood.formats.containers.shape import check_shape
from lastgood.formats.containers.stubs import StorageStub, TensorStub

__all__ = ["PickleMemory", "PickleStream", "Pickled", "read_pickle"]

SMALL_BYTES = 2**20
_LIMITS = PickleLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pickled:
    """One pickle, described.

    Args:
        value: Plain values and stubs. Ordered dictionaries, defaultdicts and counters are dictionaries, deques lists,
            `torch.Size` a tuple, bytearrays bytes.
        unknown_globals: Names that are not on the allow-list, sorted; a real loader would import them.
        globals: All names, sorted.
        storages: Key → storage, in the order of the pickle.
        tensors: Every tensor, those inside objects too.
        bytes: Length of the pickle.
        protocol: As it states; 0 where it states none.
    """

    value: Any
    unknown_globals: tuple[str, ...]
    globals: tuple[str, ...]
    storages: dict[str, StorageStub]
    tensors: tuple[TensorStub, ...]
    bytes: int
    protocol: int


class PickleStream:
    """Pickles that follow one another, sharing one count of names and storages.

    Args:
        data: The stream.
        where: What to call it in messages.
        limits: How much each of them may take.
        modules_allowed: See `CheckpointMeaning`.

    Raises:
        ReadLimitError: The stream is too long.
    """

    def __init__(
        self, data: bytes, where: str, limits: PickleLimits = _LIMITS, *, modules_allowed: bool = False
    ) -> None:
        if len(data) > limits.bytes:
            raise beyond(where, "pickle too large", f"expected at most {limits.bytes} bytes, found {len(data)}")
        self._limits = limits
        self._data = data
        self._where = where
        self._meaning = CheckpointMeaning(modules_allowed=modules_allowed)
        self.position = 0

    def next(self) -> Pickled:
        """The next pickle; `position` moves behind it.

        Raises:
            FormatError: It is no lawful pickle, or describes what torch itself would refuse.
            ReadLimitError: It exceeds a limit.
        """
        start = self.position
        machine = Machine(self._data, self._where, self._meaning, self._limits, start)
        value = execute(machine)
        try:
            check_shape(value)
        except TooMuch as error:
            raise beyond(self._where, "pickle not read", str(error)) from None
        except Unlawful as error:
            raise malformed(self._where, "pickle refused", str(error)) from None
        self.position = machine.position
        return Pickled(
            value=value,
            unknown_globals=tuple(sorted(self._meaning.unknown_globals)),
            globals=tuple(sorted({stub.path for stub in self._meaning.globals.values()})),
            storages=dict(self._meaning.storages),
            tensors=tuple(self._meaning.tensors),
            bytes=machine.position - start,
            protocol=machine.protocol,
        )


class PickleMemory:
    """Pickles that were described, for whoever recognises, describes and checks the same files one after the other.

    It holds one of any length, or several that are small together, and lets go of them before it makes another: what is
    made of a pickle is a multiple of it, and the limits on that are of one at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Digest, Pickled] = {}

    def read(self, data: bytes, where: str) -> Pickled:
        """As `read_pickle`; bytes that were read before are not read again."""
        key = hash_bytes(data)
        with self._lock:
            if (known := self._known.get(key)) is not None:
                return known
            if sum(one.bytes for one in self._known.values()) + len(data) > SMALL_BYTES:
                self._known.clear()
        pickled = read_pickle(data, where)
        with self._lock:
            self._known[key] = pickled
        return pickled


def read_pickle(data: bytes, where: str, limits: PickleLimits = _LIMITS) -> Pickled:
    """One pickle that is all of the bytes.

    Raises:
        FormatError: As `PickleStream.next`, or something follows it.
    """
    stream = PickleStream(data, where, limits)
    pickled = stream.next()
    if stream.position != len(data):
        raise malformed(
            where, "bytes after the pickle", f"expected its end at byte {len(data)}, found it at {stream.position}"
        )
    return pickled
