"""The stack and memo that a pickle works on: plain data, within limits.

Decides what a container may hold and what a key may cost. Leaves to `opcodes` what each opcode does, and to `meaning`
what a named class or function stands for. Rules: nothing is looked up, imported or called, for there is no way from a
name in the file to an object of this process; time is linear in the bytes, since no key is hashed or compared whose
cost the file could choose. Source: ADR 0010.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from lastgood.formats.containers.stubs import ArrayStub, GlobalStub, ObjectStub, StorageStub, TensorStub

__all__ = ["MAXIMUM_NAME_CHARACTERS", "Machine", "Meaning", "PickleLimits", "TooMuch", "Unlawful"]

MAXIMUM_LINE_BYTES = 4_096
MAXIMUM_COMPOSITE_KEYS = 8_192  # tuples whose hashes collide can be computed, so they must be few
MAXIMUM_KEY_PARTS = 1_000
MAXIMUM_NAME_CHARACTERS = 4_096

_SCALARS = frozenset({str, bytes, float, bool, type(None)})
_INERT = (GlobalStub, ObjectStub, TensorStub, StorageStub, ArrayStub)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickleLimits:
    """How much a pickle may take.

    Args:
        bytes: Its length.
        opcodes: Steps; a tensor takes about 35.
        memory_bytes: What is made of it, as estimated; a tensor takes about two kilobytes.
    """

    bytes: int = 64 * 2**20
    opcodes: int = 8_000_000
    memory_bytes: int = 320 * 2**20


class Unlawful(Exception):
    """A pickle does what no writer of checkpoints does; `opcodes.execute` adds the place."""


class TooMuch(Unlawful):
    """A pickle is larger than what is read here: a limit of ours, which a healthy checkpoint may exceed."""


class Meaning(Protocol):
    """What names in a pickle stand for."""

    def find(self, module: str, name: str) -> GlobalStub:
        """The stub of a class, function or constant."""

    def construct(self, machine: Machine, type_: Any, arguments: Any, keywords: Any = None) -> Any:
        """What a call of it stands for."""

    def build(self, machine: Machine, target: Any, state: Any) -> None:
        """Give an object its state."""

    def persistent(self, identity: Any) -> Any:
        """What lies outside the pickle under an identity."""


class Machine:
    """One pickle of a longer stream, from `start` on; used once.

    Args:
        data: The stream.
        where: What to call it in messages.
        meaning: Of names.
        limits: How much it may take.
        start: First byte of the pickle.
    """

    def __init__(self, data: bytes, where: str, meaning: Meaning, limits: PickleLimits, start: int = 0) -> None:
        self.data = data
        self.where = where
        self.meaning = meaning
        self.position = start
        self.protocol = 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # the stacks below each mark
        self.memo: list[Any] = []
        self.limits = limits
        self.room_bytes = limits.memory_bytes
        self.composite_keys = 0

    def charge(self, count_bytes: int) -> None:
        """Account for memory about to be taken: of containers twice what they take, for `shape` notes each of them."""
        self.room_bytes -= count_bytes
        if self.room_bytes < 0:
            raise TooMuch(f"takes too much memory: expected at most {self.limits.memory_bytes} bytes")

    def take(self, length: int) -> bytes:
        """The next bytes of the stream."""
        start = self.position
        end = start + length
        if length < 0 or end > len(self.data):
            raise Unlawful(f"operand beyond the end: expected {length} bytes, found {len(self.data) - start}")
        self.position = end
        return self.data[start:end]

    def number(self, width: int) -> int:
        """The next unsigned number, `width` bytes, little-endian."""
        return int.from_bytes(self.take(width), "little")

    def line(self) -> bytes:
        """The next line, without its end."""
        end = self.data.find(b"\n", self.position, self.position + MAXIMUM_LINE_BYTES)
        if end < 0:
            raise Unlawful(f"line unfinished: expected its end within {MAXIMUM_LINE_BYTES} bytes")
        start, self.position = self.position, end + 1
        return self.data[start:end]

    def pop_mark(self) -> list[Any]:
        """What was pushed since the last mark."""
        if not self.outer:
            raise Unlawful("no mark on the stack")
        items, self.stack = self.stack, self.outer.pop()
        return items

    def check_key(self, key: Any) -> None:
        """Refuse what cannot be a key, or what would cost more than its share to hash."""
        kind = type(key)
        if kind in _SCALARS or isinstance(key, _INERT):
            return
        if kind is int:
            if key.bit_length() > 64:
                raise Unlawful("integer as a key: expected at most 64 bits")
            return
        if kind not in (tuple, frozenset):
            raise Unlawful(f"cannot be a key: {kind.__name__}")
        self.composite_keys += 1
        if self.composite_keys > MAXIMUM_COMPOSITE_KEYS:
            raise TooMuch(f"too many composite keys: expected at most {MAXIMUM_COMPOSITE_KEYS}")
        self._check_parts(key)

    def _check_parts(self, key: Any) -> None:
        # A tuple of twins of twins is small in memory and endless to hash, hence the count of visits.
        waiting, visits = [key], 0
        while waiting:
            part = waiting.pop()
            visits += 1
            if visits > MAXIMUM_KEY_PARTS:
                raise TooMuch(f"composite key too large: expected at most {MAXIMUM_KEY_PARTS} parts")
            if type(part) in (tuple, frozenset):
                if len(part) > MAXIMUM_KEY_PARTS:
                    raise TooMuch(f"composite key too large: expected at most {MAXIMUM_KEY_PARTS} parts")
                waiting.extend(part)
            elif type(part) is int and part.bit_length() > 64:
                raise Unlawful("integer as a key: expected at most 64 bits")
            elif type(part) not in _SCALARS and type(part) is not int and not isinstance(part, _INERT):
                raise Unlawful(f"cannot be a part of a key: {type(part).__name__}")

    def set_items(self, target: Any, items: list[Any]) -> None:
        """Keys and values, alternating, into a dictionary or an object."""
        if len(items) % 2:
            raise Unlawful("key without a value")
        self.charge(60 * len(items))
        pairs = zip(items[::2], items[1::2], strict=True)
        if type(target) is dict:
            for key, value in pairs:
                self.check_key(key)
                target[key] = value
        elif type(target) is ObjectStub:
            target.entries.extend(pairs)
        else:
            raise Unlawful(f"items set on {type(target).__name__}")

    def new_set(self, items: list[Any]) -> set[Any]:
        """A set of these."""
        self.charge(400 + 80 * len(items))
        for item in items:
            self.check_key(item)
        return set(items)
