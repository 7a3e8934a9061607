"""The strict parser: what it refuses is what two parsers would have read differently."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from lastgood import documents
from lastgood.documents import Document, canonical_bytes, parse
from lastgood.errors import FormatError

surrogate_free = st.text(st.characters(exclude_categories=("Cs",)))


class Inner(Document, frozen=True, kw_only=True):
    name: str
    values: tuple[float | int, ...] = ()


class Sample(Document, frozen=True, kw_only=True):
    count: Annotated[int, Meta(ge=0)]
    words: dict[str, str] = {}
    inner: Inner | None = None
    numbers: dict[str, float | int] = {}


numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
samples = st.builds(
    Sample,
    count=st.integers(0, 2**63 - 1),
    words=st.dictionaries(surrogate_free, surrogate_free, max_size=4),
    inner=st.none() | st.builds(Inner, name=surrogate_free, values=st.lists(numbers, max_size=4).map(tuple)),
    numbers=st.dictionaries(surrogate_free, numbers, max_size=4),
)


@given(samples)
def test_a_document_is_read_back_from_its_canonical_bytes(sample: Sample) -> None:
    """The law on which digests of documents stand: one value, one spelling, and back."""
    data = canonical_bytes(sample)
    assert parse(Sample, data, "sample") == sample
    assert data.endswith(b"\n")
    assert data == canonical_bytes(parse(Sample, data, "sample"))


@given(samples, st.sampled_from([None, 2]))
def test_another_spelling_of_a_lawful_document_gives_the_same_value(sample: Sample, indent: int | None) -> None:
    """The short way for canonical bytes and the long way for all others must be one parser."""
    spelled = json.dumps(msgspec.to_builtins(sample), indent=indent, ensure_ascii=True).encode()
    assert parse(Sample, spelled, "sample") == sample


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not lawful JSON"),
        (b"{", "not lawful JSON"),
        (b'{"count":1}{', "not lawful JSON"),
        (b'{"count":1,"count":2}', "duplicate key 'count'"),
        (b'{"count":1,"count":1}', "duplicate key 'count'"),
        (b'{"count":1,"words":{"a":"x","a":"x"}}', "duplicate key 'a'"),
        (b'{"count":1,"c\\u006funt":1}', "duplicate key 'count'"),
        (b'{"count":NaN}', "NaN is not a JSON number"),
        (b'{"count":1,"numbers":{"a":Infinity}}', "Infinity is not a JSON number"),
        (b'{"count":1,"numbers":{"a":-Infinity}}', "-Infinity is not a JSON number"),
        (b'{"count":1,"numbers":{"a":1e999}}', "number too large"),
        (b'{"count":1,"numbers":{"a":18446744073709551616}}', "integer beyond 64 bits"),
        (b'{"count":1,"numbers":{"a":-9223372036854775809}}', "integer beyond 64 bits"),
        (b'{"count":1,"numbers":{"a":' + b"9" * 5000 + b"}}", "integer beyond 64 bits"),
        (b'\xef\xbb\xbf{"count":1}', "not lawful JSON"),
        (b'{"count":1,"words":{"a":"\xff"}}', "not UTF-8"),
        (b'{"count":1,"words":{"a":"\xed\xa0\x80"}}', "not UTF-8"),
        (b'{"count":1,"words":{"a":"\\ud800"}}', "not lawful JSON"),
        (b'{"count":1,"words":{"\\udc00":"a"}}', "not lawful JSON"),
        (b'{"count":1,"inner":{"name":"\\ud800","values":[]}}', "not lawful JSON"),
        (b'{"count":1,"extra":1}', "unknown field `extra`"),
        (b'{"count":1,"inner":{"name":"a","extra":1}}', "unknown field `extra` - at `$.inner`"),
        (b"{}", "missing required field `count`"),
        (b'{"count":1.0}', "Expected `int`, got `float` - at `$.count`"),
        (b'{"count":true}', "Expected `int`, got `bool` - at `$.count`"),
        (b'{"count":"1"}', "Expected `int`, got `str` - at `$.count`"),
        (b'{"count":-1}', "`$.count`"),
        (b'{"count":null}', "`$.count`"),
        (b"[]", "does not fit its schema"),
        (b"[" * 100_000, "not lawful JSON"),
        (b'{"count":1,"words":' + b'{"a":' * 100_000, "not lawful JSON"),
    ],
    ids=str,
)
def test_what_parsers_disagree_about_is_refused_by_name(data: bytes, complaint: str) -> None:
    """Two readers that take one document for two are how a verified manifest and a loaded one come apart."""
    with pytest.raises(FormatError) as caught:
        parse(Sample, data, "some/key")
    assert "some/key" in caught.value.message
    assert complaint.lower() in caught.value.message.lower()
    assert caught.value.where == "some/key"


def test_numbers_at_the_edge_of_64_bits_are_kept_exactly() -> None:
    """Sample counters grow past what a float can hold."""
    for value in (2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**63)):
        data = b'{"count":1,"numbers":{"a":%d}}' % value
        assert parse(Sample, data, "x").numbers == {"a": value}


def test_a_document_longer_than_its_limit_is_refused_unread() -> None:
    """A stranger's file must not fill our memory."""
    data = canonical_bytes(Sample(count=1))
    assert parse(Sample, data, "x", limit_bytes=len(data)) == Sample(count=1)
    with pytest.raises(FormatError, match=f"expected at most {len(data) - 1} bytes, found {len(data)}"):
        parse(Sample, data, "x", limit_bytes=len(data) - 1)


def test_canonical_bytes_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch script reads a large manifest; the detour over dictionaries is for odd spellings only."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("took the long way")

    monkeypatch.setattr(documents.json, "loads", never)
    assert parse(Sample, canonical_bytes(Sample(count=1, words={"b": "x", "a": "y"})), "x").count == 1
    with pytest.raises(AssertionError):
        parse(Sample, b'{"count": 1}', "x")


class Version(str):
    """Text with an order of its own, as `torch.__version__` is."""


def test_text_of_a_kind_of_its_own_is_written_as_text() -> None:
    """`Environment(torch=torch.__version__)` is what people write; it must not fail a save with a TypeError."""
    document = Inner(name=Version("2.13.0"))
    assert canonical_bytes(document) == canonical_bytes(Inner(name="2.13.0"))
    with pytest.raises(FormatError, match="a document holds no object"):
        canonical_bytes(Sample(count=1, words={"x": object()}))  # type: ignore[dict-item]
