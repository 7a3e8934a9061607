"""JSON that others wrote: parsed within limits, told apart from text that is none.

Decides which JSON of a stranger is read. Rules: no key twice in one object, for loaders disagree on which one counts;
no nesting that exhausts the parser; no more values than `MAXIMUM_VALUES`; UTF-8, and no half of a surrogate pair, which
nothing could write out again; NaN and infinity are lawful here, since Python's own writer puts them into logs.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TypeAlias

from lastgood.errors import FormatError, ReadLimitError
from lastgood.reasons import Reason

__all__ = ["MAXIMUM_VALUES", "CutShort", "Json", "number_of", "parse_json"]

MAXIMUM_VALUES = 5_000_000
"""Of one text, counted by the characters that begin or part them: lists of empty lists take thirty times their text."""

_MAXIMUM_NAMED = 80
_LONGEST_LITERAL = len("-Infinity")

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


class CutShort(FormatError):
    """A text that ends before its value does: what a writer leaves that was killed while it wrote in place."""


def parse_json(data: bytes, where: str) -> Json:
    """Read JSON that a framework wrote.

    Args:
        data: The whole text.
        where: The file, as errors name it.

    Raises:
        CutShort: It ends too early; an empty text does.
        FormatError: No lawful JSON; its reason is `container_malformed`.
        ReadLimitError: More values than are read.
    """
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if values > MAXIMUM_VALUES:
        fact = f"too many values: {where}: expected at most {MAXIMUM_VALUES}, found {values}"
        raise ReadLimitError(fact, where=where)
    try:
        value: Json = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        what = str(error) or type(error).__name__
        kind = CutShort if _is_cut(error) else FormatError
        raise kind(f"not JSON: {where}: {what}", reason=Reason.CONTAINER_MALFORMED, where=where) from error
    return value


def _is_cut(error: Exception) -> bool:
    """Whether the parser came to the end, or to a string or literal that goes on there."""
    if isinstance(error, UnicodeDecodeError):
        return error.reason == "unexpected end of data"
    if not isinstance(error, json.JSONDecodeError) or error.msg == "Extra data":
        return False
    text = error.doc.rstrip()
    if error.msg.startswith("Unterminated string"):
        return True
    # A parser stops where the literal begins that breaks off, and a text of a few letters alone is no beginning of one.
    return not text or (error.pos > 0 and len(text) - error.pos < _LONGEST_LITERAL)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"key twice: {twice[:_MAXIMUM_NAMED]!r}")
    return value


def number_of(value: Json, key: str) -> int | None:
    """A whole number that is not negative under a key of an object; None where there is none.

    A counter that a framework wrote as a float (`8.0`) is a whole number too.
    """
    found = value.get(key) if isinstance(value, dict) else None
    if isinstance(found, float) and found.is_integer():  # neither NaN nor infinite then
        found = int(found)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None
