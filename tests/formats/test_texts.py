"""JSON of strangers: what their writers write is read, what two parsers would read differently is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from lastgood.errors import FormatError, ReadLimitError
from lastgood.formats import texts
from lastgood.formats.texts import CutShort, number_of, parse_json
from lastgood.reasons import Reason


def test_what_trainers_log_is_read() -> None:
    """Python's own writer spells losses that diverged as NaN and Infinity, in files that are healthy otherwise."""
    value = parse_json(b'{"loss": [NaN, -Infinity, 1e3], "name": "\\u00fc"}', "x")
    assert isinstance(value, dict)
    assert value["name"] == "ü"
    assert isinstance(value["loss"], list)
    assert [math.isfinite(loss) for loss in value["loss"]] == [False, False, True]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1, "b": 2, "a": 3}', "key twice: 'a'"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b"\xff\xfe{\x00}\x00", "can't decode"),
        (b"[" * 100_000, "recursion"),
        (b"{", "Expecting"),
    ],
)
def test_what_is_no_lawful_text_is_refused(text: bytes, message: str) -> None:
    """The error names the file and carries the reason that a verdict reports."""
    with pytest.raises(FormatError, match=message) as caught:
        parse_json(text, "x.json")
    assert "x.json" in caught.value.message
    assert caught.value.reason is Reason.CONTAINER_MALFORMED


LOG = {"log": [{"loss": math.nan, "n": -1.5e-3}, {"loss": -math.inf, "ok": False}], "name": 'ü\\" {[', "step": 8}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_a_text_that_ends_too_early_is_told_apart(indent: int | None, ensure_ascii: bool) -> None:
    """Wherever a writer was killed; and what only lost its sense is no unfinished text."""
    whole = json.dumps(LOG, indent=indent, ensure_ascii=ensure_ascii).encode()
    for length in range(len(whole)):
        with pytest.raises(CutShort):
            parse_json(whole[:length], "x")
    for place in range(len(whole) - 12):
        with pytest.raises(FormatError) as caught:
            parse_json(whole[:place] + b"\0" + whole[place + 1 :], "x")
        assert not isinstance(caught.value, CutShort), place


@pytest.mark.parametrize("text", [b"\0" * 100, b"hello", b"\0", b'{"a": 1}}', b'{"a" 1, "b": [1, 2, 3, 4]}'])
def test_what_never_was_such_a_text_is_no_beginning_of_one(text: bytes) -> None:
    """Zeros in the place of a finished text are what a power cut leaves, and nobody's save under way."""
    with pytest.raises(FormatError) as caught:
        parse_json(text, "x")
    assert not isinstance(caught.value, CutShort)


def test_the_number_of_values_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text takes up to thirty times its length in memory, so it is counted before anything is made."""
    monkeypatch.setattr(texts, "MAXIMUM_VALUES", 3)
    assert parse_json(b"[1, 2, 3]", "x") == [1, 2, 3]
    with pytest.raises(ReadLimitError, match="too many values: x: expected at most 3, found 4"):
        parse_json(b"[1, 2, 3, 4]", "x")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ({"step": 8}, 8),
        ({"step": 8.0}, 8),
        ({"step": 0}, 0),
        ({"step": -1}, None),
        ({"step": 8.5}, None),
        ({"step": True}, None),
        ({"step": "8"}, None),
        ({"step": math.nan}, None),
        ({"step": math.inf}, None),
        ({}, None),
        ([], None),
    ],
)
def test_only_a_whole_number_counts(value: Any, number: int | None) -> None:
    """A counter is what a framework counted; anything else is not guessed into one."""
    assert number_of(value, "step") == number
