"""Strict JSON for every document that we store: one parser, one canonical spelling.

Decides when bytes are a lawful document. Rules: at most the document's own byte limit; UTF-8 without BOM; no duplicate
key, no NaN or infinity, no lone surrogate, no integer beyond 64 bits, no nesting that exhausts the
parser; no unknown or missing key, no wrong type (msgspec's strict conversion). Source: ADR 0003.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from lastgood.errors import FormatError

__all__ = ["MAXIMUM_DOCUMENT_BYTES", "AwareTime", "Document", "canonical_bytes", "parse"]

MAXIMUM_DOCUMENT_BYTES = 64 * 2**20
MINIMUM_INTEGER = -(2**63)
MAXIMUM_INTEGER = 2**64 - 1


AwareTime: TypeAlias = Annotated[datetime, Meta(tz=True)]
"""A moment with its offset from UTC; one without is refused, since nobody could say when it was."""


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of everything stored: immutable, keyword-only, and no key that the code does not know."""


_Type = TypeVar("_Type")

# In canonical spelling, where no space comes before a number. A match inside a string only costs time.
_LONG_NUMBER = re.compile(rb"[:,\[]-?[0-9]{19}")


def _plain(value: Any) -> str:
    """Text of a kind of its own, such as `torch.__version__`, as the text that it is.

    Raises:
        TypeError: It is no text.
    """
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"a document holds no {type(value).__qualname__}")


_ENCODER = msgspec.json.Encoder(order="deterministic", enc_hook=_plain)


def canonical_bytes(document: msgspec.Struct) -> bytes:
    """Encode as UTF-8 JSON with sorted mappings, no spaces and one newline at the end.

    Law: `parse(type(d), canonical_bytes(d), where) == d`. Structs check their fields only when they are read, and
    a claim or a release is never deleted: one that no reader accepts would lock the family for ever.

    Raises:
        FormatError: The document breaks its own schema; nothing is encoded.
    """
    name = type(document).__name__
    try:
        data = _encode(document)
        msgspec.json.decode(data, type=type(document), strict=True)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise FormatError(f"document would not be lawful: {name}: {error}") from error
    return data


def _encode(document: msgspec.Struct) -> bytes:
    return _ENCODER.encode(document) + b"\n"


def parse(type_: type[_Type], data: bytes, where: str, *, limit_bytes: int = MAXIMUM_DOCUMENT_BYTES) -> _Type:
    """Read one document strictly.

    Args:
        type_: The msgspec Struct to read.
        data: The stored bytes.
        where: What to name in the error, usually the key.
        limit_bytes: Refuse anything longer before looking at it.

    Raises:
        FormatError: The bytes are not a lawful document of this type; the message names `where` and the place.
    """
    if len(data) > limit_bytes:
        message = f"document too large: {where}: expected at most {limit_bytes} bytes, found {len(data)}"
        raise FormatError(message, where=where)
    try:
        value = msgspec.json.decode(data, type=type_, strict=True)
        if isinstance(value, msgspec.Struct) and _encode(value) == data and not _LONG_NUMBER.search(data):
            # Written back, it is the same to the last byte: nothing was dropped, doubled, rounded or guessed. This
            # saves a manifest of 4,096 artifacts a tenth of a second; what is spelled otherwise takes the long way.
            return value
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # the long way says what is wrong
    try:
        return _parse_strictly(type_, data)
    except UnicodeDecodeError as error:
        raise FormatError(f"document is not UTF-8: {where}: byte {error.start}", where=where) from error
    except msgspec.ValidationError as error:
        raise FormatError(f"document does not fit its schema: {where}: {error}", where=where) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"document is not lawful JSON: {where}: {error}", where=where) from error


def _parse_strictly(type_: type[_Type], data: bytes) -> _Type:
    value = json.loads(
        data.decode("utf-8"),
        object_pairs_hook=_unique_pairs,
        parse_constant=_refuse_constant,
        parse_int=_bounded_integer,
        parse_float=_finite_float,
    )
    # Escapes can smuggle in half a surrogate pair, which is no character; it cannot be written back.
    _ENCODER.encode(value)
    return msgspec.convert(value, type_, strict=True)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"duplicate key {key!r}")
        mapping[key] = value
    return mapping


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _bounded_integer(text: str) -> int:
    if len(text) > 20 or not MINIMUM_INTEGER <= (value := int(text)) <= MAXIMUM_INTEGER:
        raise ValueError(f"integer beyond 64 bits: {text[:30]}")
    return value


def _finite_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"number too large: {text[:30]}")
    return value
