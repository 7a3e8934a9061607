"""The opcodes of a pickle that push a number, a text or bytes.

Decides which literals are lawful. Rules: no length is believed before it was compared with the stream, integers have a
limit, and text is UTF-8 that can be written out again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct
from typing import TypeAlias

from lastgood.formats.containers.machine import Machine, Unlawful
from lastgood.formats.containers.reading import quoted

__all__ = ["LITERALS", "Handler", "decimal"]

MAXIMUM_INTEGER_BYTES = 256
_SIGNED_4 = Struct("<i")
_DOUBLE = Struct(">d")

Handler: TypeAlias = Callable[[Machine], None]
"""Executes one opcode; its operands follow in the stream."""

LITERALS: dict[int, Handler] = {}
"""Opcode → what it does."""


def _on(*opcodes: bytes) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for opcode in opcodes:
            LITERALS[opcode[0]] = handler
        return handler

    return register


# Scalars


@_on(b"N")
def _none(machine: Machine) -> None:
    machine.stack.append(None)


@_on(b"\x88")
def _true(machine: Machine) -> None:
    machine.stack.append(True)


@_on(b"\x89")
def _false(machine: Machine) -> None:
    machine.stack.append(False)


@_on(b"K")
def _binint1(machine: Machine) -> None:
    machine.stack.append(machine.data[machine.position])
    machine.position += 1


@_on(b"M")
def _binint2(machine: Machine) -> None:
    machine.charge(32)
    machine.stack.append(machine.number(2))


@_on(b"J")
def _binint(machine: Machine) -> None:
    machine.charge(32)
    machine.stack.append(_SIGNED_4.unpack(machine.take(4))[0])


def _long(machine: Machine, length: int) -> None:
    if length > MAXIMUM_INTEGER_BYTES:
        raise Unlawful(f"integer too long: expected at most {MAXIMUM_INTEGER_BYTES} bytes, found {length}")
    machine.charge(32 + length)
    machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))


@_on(b"\x8a")
def _long1(machine: Machine) -> None:
    _long(machine, machine.number(1))


@_on(b"\x8b")
def _long4(machine: Machine) -> None:
    _long(machine, machine.number(4))


def decimal(machine: Machine) -> int:
    """The next line as a decimal integer, with or without Python 2's `L`."""
    text = machine.line().removesuffix(b"L")
    if len(text) > 2 * MAXIMUM_INTEGER_BYTES or not text.removeprefix(b"-").isdigit():
        raise Unlawful(f"not a decimal integer: {quoted(text.decode('latin-1'))}")
    machine.charge(32 + len(text))
    return int(text)


@_on(b"I")
def _int(machine: Machine) -> None:
    if machine.data[machine.position : machine.position + 3] in (b"00\n", b"01\n"):  # how protocol 0 spells a bool
        machine.stack.append(machine.line() == b"01")
    else:
        machine.stack.append(decimal(machine))


@_on(b"L")
def _long_text(machine: Machine) -> None:
    machine.stack.append(decimal(machine))


@_on(b"F")
def _float(machine: Machine) -> None:
    machine.charge(24)
    machine.stack.append(float(machine.line()))


@_on(b"G")
def _binfloat(machine: Machine) -> None:
    machine.charge(24)
    machine.stack.append(_DOUBLE.unpack(machine.take(8))[0])


# Text and bytes


def _text(machine: Machine, length: int) -> None:
    text = machine.take(length).decode("utf-8")
    # One character beyond the first plane makes every character of its string four bytes wide.
    machine.charge(56 + (length if text.isascii() else 4 * len(text)))
    machine.stack.append(text)


@_on(b"X")
def _binunicode(machine: Machine) -> None:
    _text(machine, machine.number(4))


@_on(b"\x8c")
def _short_binunicode(machine: Machine) -> None:
    _text(machine, machine.number(1))


@_on(b"\x8d")
def _binunicode8(machine: Machine) -> None:
    _text(machine, machine.number(8))


@_on(b"V")
def _unicode(machine: Machine) -> None:
    text = machine.line().decode("raw-unicode-escape")
    text.encode("utf-8")  # escapes can smuggle in half a surrogate pair, which nothing can write out again
    machine.charge(56 + 4 * len(text))
    machine.stack.append(text)


def _bytes(machine: Machine, length: int) -> None:
    machine.stack.append(machine.take(length))
    machine.charge(40 + length)


@_on(b"B")
def _binbytes(machine: Machine) -> None:
    _bytes(machine, machine.number(4))


@_on(b"C")
def _short_binbytes(machine: Machine) -> None:
    _bytes(machine, machine.number(1))


@_on(b"\x8e", b"\x96")
def _binbytes8(machine: Machine) -> None:  # a bytearray is described as bytes
    _bytes(machine, machine.number(8))


def _old_text(machine: Machine, raw: bytes) -> None:
    # Python 2 wrote text and bytes alike. torch reads them as UTF-8; what is none of it stays bytes.
    machine.charge(56 + 4 * len(raw))
    try:
        machine.stack.append(raw.decode("utf-8"))
    except UnicodeDecodeError:
        machine.stack.append(raw)


@_on(b"U")
def _short_binstring(machine: Machine) -> None:
    _old_text(machine, machine.take(machine.number(1)))


@_on(b"T")
def _binstring(machine: Machine) -> None:
    _old_text(machine, machine.take(machine.number(4)))


# What Python 2's repr wrote, and nothing else that a backslash could begin.
_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|.|\Z)", re.DOTALL)
_ESCAPED = {b"\\": b"\\", b"'": b"'", b'"': b'"', b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def _unescaped(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    if escape[:1] == b"x" and len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape not in _ESCAPED:
        raise Unlawful(f"escape unknown: {match[0]!r}")
    return _ESCAPED[escape]


@_on(b"S")
def _string(machine: Machine) -> None:
    line = machine.line()
    if len(line) < 2 or line[0] != line[-1] or line[:1] not in (b"'", b'"'):
        raise Unlawful("text without its quotes")
    _old_text(machine, _ESCAPE.sub(_unescaped, line[1:-1]))
