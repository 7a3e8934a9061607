"""State values as JSON: exact both ways, and refused by their place where they are not."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lastgood.errors import FormatError, UsageError
from lastgood.state import codec

scalars = st.none() | st.booleans() | st.integers(-(2**130), 2**130) | st.floats() | st.text() | st.binary()
keys = st.text() | st.integers()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=20,
)


def through_json(value: Any) -> Any:
    return codec.decode(json.loads(json.dumps(codec.encode(value), allow_nan=False)))


@given(values)
def test_a_value_comes_back_with_its_types(value: Any) -> None:
    """`decode(encode(x)) == x`: a tuple stays a tuple, 2**100 an integer, NaN a NaN."""
    assert codec.same(through_json(value), value)
    assert repr(through_json(value)) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        Counter({30: 1, 80: 2}),
        deque([1, 2]),
        {"$": 1},
        {1: "a", "1": "b"},
        -0.0,
        torch.tensor(2**62 + 1),
        torch.tensor([1.5, math.nan], dtype=torch.bfloat16),
        torch.empty(0, 3),
        numpy.arange(4, dtype=numpy.uint32),
        numpy.float64(0.1),
        numpy.float32(0.1),
        numpy.int64(3),
    ],
    ids=repr,
)
def test_what_schedulers_and_generators_hold_comes_back(value: Any) -> None:
    """MultiStepLR holds a Counter, NumPy arrays, torch a tensor of a rate, a schedule of NumPy a NumPy number."""
    assert codec.same(through_json(value), value)
    assert list(codec.differences({"held": value}, {"held": through_json(value)})) == []


@pytest.mark.parametrize(
    "value",
    [{1, 2}, object(), 1j, {(1, 2): 3}, {True: 1}, lambda: 0, {"a": [object()]}],
    ids=["set", "object", "complex", "tuple key", "bool key", "function", "object within"],
)
def test_what_has_no_exact_spelling_is_refused(value: Any) -> None:
    """Rather at the save than after the load; nothing is ever pickled."""
    with pytest.raises(UsageError, match="state"):
        codec.encode(value)


def test_the_place_of_what_cannot_be_stored_is_named() -> None:
    """A state has hundreds of values."""
    with pytest.raises(UsageError, match=r"scheduler\._schedulers\[1\]\.hook is .*object"):
        codec.encode({"_schedulers": [{}, {"hook": object()}]}, "scheduler")


def test_endless_values_are_refused() -> None:
    """A list that holds itself must not exhaust the stack."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="nested too deeply"):
        codec.encode(endless)


@pytest.mark.parametrize(
    "value",
    [
        {"$": "pickle", "data": "x"},
        {"$": None},
        {"$": "int", "hex": "0x" + "f" * 5000},
        {"$": "int", "hex": "twelve"},
        {"$": "float", "text": "1.0"},
        {"$": "tensor", "dtype": "F32", "shape": [2], "base64": "AAAA"},
        {"$": "tensor", "dtype": "F32", "shape": [-1], "base64": ""},
        {"$": "tensor", "dtype": "Q8", "shape": [0], "base64": ""},
        {"$": "bytes", "base64": "?"},
        {"$": "tuple"},
        {"$": "dict", "items": [1]},
    ],
    ids=repr,
)
def test_spellings_that_nobody_writes_are_refused(value: Any) -> None:
    """A document's values are untrusted."""
    with pytest.raises(FormatError, match="state value malformed"):
        codec.decode(value)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ({"a": 1}, {}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1}, [1]),
        ([1, 2], [1]),
        (1, True),
        (True, 1),
        (1.0, "1"),
        ("a", 1),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), [1.0, 1.0]),
        (torch.ones(2), None),
        ({"a": 1}, None),
        (None, [1]),
    ],
    ids=repr,
)
def test_another_shape_of_state_is_described(expected: Any, found: Any) -> None:
    """`load_state_dict` of most objects takes any of these."""
    assert list(codec.differences(expected, found))


@pytest.mark.parametrize(
    ("expected", "found"),
    [(1, 0.5), (0.5, 1), (None, 3.0), (3.0, None), (OrderedDict(a=1), {"a": 2}), ((1, 2), [3, 4])],
    ids=repr,
)
def test_other_values_of_the_same_shape_are_no_difference(expected: Any, found: Any) -> None:
    """False alarms are outages too: a rate written 1 continues as 0.5."""
    assert not list(codec.differences(expected, found))
