"""Sentinels: values that no load may leave behind.

Decides how a tensor is marked before a load and how a mark that survived is told from loaded data. A load that
silently skips a tensor (a fresh optimizer without moments to fill is the classic) leaves the mark. Three positions a
tensor are enough, because holes inside a tensor are found from the read plan. Source: reports of moments that a fresh
optimizer dropped in silence.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch

__all__ = ["mark", "survivors"]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# NaNs with a payload of their own; for other types a value that is merely unlikely.
_PATTERNS = {
    torch.bfloat16: 0x7FA5,
    torch.float16: 0x7FA5,
    torch.float32: 0x7FDAA55A,
    torch.float64: 0x7FFAA55A5AA55A5A,
}
_UNLIKELY = {1: 0x5A, 2: 0x5AA5, 4: 0x5AA55A5A, 8: 0x5AA55A5A5AA55A5A}


def mark(tensor: torch.Tensor) -> list[int]:
    """Overwrite the first, middle and last element of a live tensor with the sentinel; return their flat positions."""
    count = tensor.numel()
    positions = sorted({0, count // 2, count - 1}) if count else []
    if positions:
        pattern = _pattern(tensor)
        if tensor.device.type == "cpu":
            _flat(tensor)[positions] = pattern
        else:
            _integers(tensor)[_indices(tensor, positions)] = pattern
    return positions


def survivors(tensor: torch.Tensor, positions: list[int]) -> bool:
    """Whether the mark is still there.

    An element of one byte (but bool) or a short integer may lawfully equal its sentinel, so there all three positions
    must.
    """
    if not positions:
        return False
    if tensor.device.type == "cpu":
        equal = _flat(tensor)[positions] == _pattern(tensor)
    else:
        equal = (_integers(tensor)[_indices(tensor, positions)] == _pattern(tensor)).cpu().numpy()
    if tensor.dtype.itemsize <= 2 and tensor.dtype not in (torch.bool, *_PATTERNS):
        return len(positions) == 3 and bool(equal.all())
    return bool(equal.any())


def _pattern(tensor: torch.Tensor) -> int:
    return _PATTERNS.get(tensor.dtype, _UNLIKELY[tensor.dtype.itemsize])


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    # The same bytes as integers: indexing is not written for every element type, and copying floats may quieten NaNs.
    return tensor.detach().view(_INTEGERS[tensor.dtype.itemsize])


def _flat(tensor: torch.Tensor) -> Any:
    array: numpy.ndarray[Any, Any] = _integers(tensor).numpy()
    return array.flat


def _indices(tensor: torch.Tensor, positions: list[int]) -> tuple[torch.Tensor, ...]:
    return torch.unravel_index(torch.tensor(positions, device=tensor.device), tensor.shape)
