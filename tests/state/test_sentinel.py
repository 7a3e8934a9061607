"""Sentinels survive a load that skips, and nothing else."""

from __future__ import annotations

import pytest
import torch

from lastgood.state.sentinel import mark, survivors
from lastgood.state.tensorfile import DTYPES


@pytest.mark.parametrize("code", DTYPES)
def test_a_skipped_load_leaves_the_mark(code: str) -> None:
    """Every element type must be able to show that it was not loaded."""
    tensor = torch.zeros(7, 3).to(DTYPES[code])
    assert survivors(tensor, mark(tensor))


@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("fill", [0, 1])
def test_a_whole_load_leaves_none(code: str, fill: int) -> None:
    """A healthy load must not be reported."""
    tensor = torch.zeros(7, 3).to(DTYPES[code])
    positions = mark(tensor)
    tensor.copy_(torch.full((7, 3), fill).to(DTYPES[code]))
    assert not survivors(tensor, positions)


def test_a_tensor_that_is_half_loaded_is_seen() -> None:
    """First, middle and last element are marked, so that a load that stops early shows."""
    tensor = torch.zeros(100)
    positions = mark(tensor)
    tensor[:60] = 1
    assert survivors(tensor, positions)


def test_strided_scalar_and_empty_tensors_are_marked_in_place() -> None:
    """A parameter in channels-last order or a step counter is marked where it lies."""
    strided = torch.zeros(4, 6).t()
    positions = mark(strided)
    assert survivors(strided, positions)
    strided.fill_(0)
    assert not survivors(strided, positions)
    scalar = torch.tensor(3.0)
    assert survivors(scalar, mark(scalar))
    assert not survivors(torch.zeros(0), mark(torch.zeros(0)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.float8_e4m3fn])
def test_values_that_equal_the_sentinel_are_lawful(dtype: torch.dtype) -> None:
    """Quantised weights may hold any value at any place, though hardly three times at these."""
    tensor = torch.zeros(9).to(dtype)
    positions = mark(tensor)
    tensor[0] = torch.ones(()).to(dtype)
    assert not survivors(tensor, positions)
