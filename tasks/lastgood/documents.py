"""Strict JSON for every document that we store: one parser, one canonical spelling.

Decides when bytes are a lawful document. Rules: at most the document's own byte limit; UTF-8 without BOM; no duplicate
key, no NaN or infinity, no lone surrogate, no integer beyond 64 bits, no nesting that exhausts the
parser; no unknown or missing key, no wrong type (msgspec's strict conversion). Source: ADR 0003.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from lastgood.errors import FormatError

__all__ = ["MAXIMUM_DOCUMENT_BYTES", "Document", "canonical_bytes", "parse"]

MAXIMUM_DOCUMENT_BYTES = 64 * 2**20
MAXIMUM_INTEGER = 2**64 - 1


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of everything stored: immutable, keyword-only, and no key that the code does not know."""


_Type = TypeVar("_Type")

_ENCODER = msgspec.json.Encoder(order="deterministic")


def canonical_bytes(document: msgspec.Struct) -> bytes:
    """Encode as UTF-8 JSON with sorted mappings, no spaces and one newline at the end.

    Law: `parse(type(d), canonical_bytes(d), where) == d`.
    """
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
        raise FormatError(f"document too large: {where}: expected at most {limit_bytes} bytes, found {len(data)}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"document is not UTF-8: {where}: byte {error.start}") from error
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_pairs,
            parse_constant=_refuse_constant,
            parse_int=_bounded_integer,
            parse_float=_finite_float,
        )
    except (ValueError, RecursionError) as error:
        raise FormatError(f"document is not lawful JSON: {where}: {error}") from error
    try:
        return msgspec.convert(value, type_, strict=True)
    except msgspec.ValidationError as error:
        raise FormatError(f"document does not fit its schema: {where}: {error}") from error


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"duplicate key {key!r}")
        _check_text(key)
        if isinstance(value, str):
            _check_text(value)
        mapping[key] = value
    return mapping


def _check_text(text: str) -> None:
    if not text.isascii() and any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        raise ValueError(f"lone surrogate in {text[:40]!r}")


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _bounded_integer(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) > MAXIMUM_INTEGER:
        raise ValueError(f"integer beyond 64 bits: {text[:30]}")
    return value


def _finite_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"number too large: {text[:30]}")
    return value
