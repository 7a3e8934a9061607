"""State values as plain JSON and back, exactly; and how one state differs from the shape of another.

Decides which values may be stored in a document: what JSON has, plus tuples, big and non-finite numbers, bytes, integer
keys, counters, NumPy numbers, small tensors or arrays. Anything else is refused by place; nothing is ever pickled.
Laws: `decode(encode(x)) == x`, types included; `encode` has one spelling for one value.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch

from lastgood.errors import FormatError, UsageError
from lastgood.state.tensorfile import DTYPES, dtype_code, tensor_bytes

__all__ = ["decode", "differences", "encode", "same"]

MAXIMUM_INLINE_BYTES = 16 * 2**20
MAXIMUM_DEPTH = 32
_TAG = "$"
_JSON_INTEGER = 2**63 - 1
_PLAIN = (type(None), bool, int, float, str)
_INT_BITS = 4096  # larger integers than any known generator's state


def encode(value: Any, place: str = "state", depth: int = 0) -> Any:
    """Turn a state value into what a strict JSON document may hold.

    Raises:
        UsageError: A value of a type that has no exact spelling, named by its place.
    """
    if depth > MAXIMUM_DEPTH:
        raise UsageError(f"state is nested too deeply: {place}: at most {MAXIMUM_DEPTH} levels")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float | bytes):
        return _encode_scalar(value)
    if isinstance(value, torch.Tensor | numpy.ndarray | numpy.generic):
        return _encode_array(value, place)
    if isinstance(value, Mapping):
        return _encode_mapping(value, place, depth)
    if isinstance(value, list | tuple | deque):
        items = [encode(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
        return (
            items
            if isinstance(value, list)
            else {_TAG: "tuple" if isinstance(value, tuple) else "deque", "items": items}
        )
    raise UsageError(
        f"state cannot be stored: {place} is {type(value).__module__}.{type(value).__qualname__}",
        hint="register the object with component(name, save=, load=, validate=) and save plain values",
    )


def _encode_scalar(value: int | float | bytes) -> Any:
    if isinstance(value, bytes):
        return {_TAG: "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, int):
        return int(value) if abs(value) <= _JSON_INTEGER else {_TAG: "int", "hex": hex(value)}
    return float(value) if math.isfinite(value) else {_TAG: "float", "text": str(float(value))}


def _encode_array(value: torch.Tensor | numpy.ndarray[Any, Any] | numpy.generic, place: str) -> Any:
    tag = "tensor" if isinstance(value, torch.Tensor) else "array" if isinstance(value, numpy.ndarray) else "number"
    tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(numpy.array(value, copy=True))
    tensor = tensor.detach().cpu().contiguous()
    if tensor.numel() * tensor.element_size() > MAXIMUM_INLINE_BYTES:
        raise UsageError(f"tensor too large for a document: {place}: at most {MAXIMUM_INLINE_BYTES} bytes")
    raw = bytes(tensor_bytes(tensor)) if tensor.numel() else b""
    return {
        _TAG: tag,
        "dtype": dtype_code(tensor.dtype),
        "shape": list(tensor.shape),
        "base64": base64.b64encode(raw).decode(),
    }


def _encode_mapping(value: Mapping[Any, Any], place: str, depth: int) -> Any:
    plain = type(value) in (dict, OrderedDict, defaultdict) or not isinstance(value, dict)
    if plain and all(type(key) is str for key in value) and _TAG not in value:
        return {key: encode(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
    for key in value:
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise UsageError(f"state cannot be stored: {place} has a key of type {type(key).__qualname__}")
    items = [[encode(key), encode(item, f"{place}.{key}", depth + 1)] for key, item in value.items()]
    return {_TAG: "counter" if isinstance(value, Counter) else "dict", "items": items}


def decode(value: Any, place: str = "state") -> Any:
    """Turn a document's value back into the state value.

    Raises:
        FormatError: A tag or its content is not one that `encode` writes.
    """
    if isinstance(value, list):
        return [decode(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(item, f"{place}.{key}") for key, item in value.items()}
    decoder = _DECODERS.get(str(value[_TAG]))
    if decoder is None:
        raise FormatError(f"state value malformed: {place}: unknown tag {str(value[_TAG])[:40]!r}")
    try:
        return decoder(value, place)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"state value malformed: {place}: {type(error).__name__}: {error}") from error


def _decode_int(value: dict[str, Any], _: str) -> int:
    if len(value["hex"]) > _INT_BITS // 4 + 3:
        raise ValueError("integer too long")
    return int(value["hex"], 16)


def _decode_float(value: dict[str, Any], _: str) -> float:
    if value["text"] not in ("nan", "inf", "-inf"):
        raise ValueError(f"not a non-finite number: {value['text'][:20]!r}")
    return float(value["text"])


def _decode_tensor(value: dict[str, Any], _: str) -> torch.Tensor:
    raw = bytearray(base64.b64decode(value["base64"], validate=True))
    dtype, shape = DTYPES[value["dtype"]], [int(size) for size in value["shape"]]
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"{len(raw)} bytes do not make shape {shape} of {dtype}")
    return torch.frombuffer(raw, dtype=dtype).reshape(shape).clone() if raw else torch.empty(shape, dtype=dtype)


_DECODERS: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "int": _decode_int,
    "float": _decode_float,
    "bytes": lambda value, _: base64.b64decode(value["base64"], validate=True),
    "tensor": _decode_tensor,
    "array": lambda value, place: _decode_tensor(value, place).numpy(),
    "number": lambda value, place: _decode_tensor(value, place).numpy()[()],
    "tuple": lambda value, place: tuple(decode(value["items"], place)),
    "deque": lambda value, place: deque(decode(value["items"], place)),
    "dict": lambda value, place: dict(decode(value["items"], place)),
    "counter": lambda value, place: Counter(dict(decode(value["items"], place))),
}


def same(one: Any, other: Any) -> bool:
    """Whether two state values have the same exact spelling (NaN equals itself, 1 differs from 1.0 and True)."""
    return repr(encode(one)) == repr(encode(other))


def differences(expected: Any, found: Any, place: str = "state") -> Iterator[str]:
    """Say where `found` has other keys, lengths or types than the live value `expected`; values may differ.

    An integer may stand for a float and the other way round, and None for any plain value: schedulers and generators
    begin with one and continue with another.
    """
    if expected is None or found is None:
        if not isinstance(expected, _PLAIN) or not isinstance(found, _PLAIN):
            yield f"{place}: expected {type(expected).__name__}, found {type(found).__name__}"
        return
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping):
            yield f"{place}: expected a mapping, found {type(found).__name__}"
            return
        for key in expected.keys() - found.keys():
            yield f"{place}: key {key!r} is missing"
        for key in found.keys() - expected.keys():
            yield f"{place}: key {str(key)[:80]!r} is unexpected"
        for key in expected.keys() & found.keys():
            yield from differences(expected[key], found[key], f"{place}.{key}")
    elif isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            size = len(found) if isinstance(found, list | tuple) else type(found).__name__
            yield f"{place}: expected {len(expected)} items, found {size}"
            return
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif isinstance(expected, torch.Tensor | numpy.ndarray):
        if type(found) is not type(expected) or found.dtype != expected.dtype or found.shape != expected.shape:
            yield f"{place}: expected a {expected.dtype} of shape {tuple(expected.shape)}"
    elif isinstance(expected, int | float) and not isinstance(expected, bool):
        # A rate may be written 1 and continue as 0.5; whoever needs an integer checks it by name.
        if isinstance(found, bool) or not isinstance(found, int | float):
            yield f"{place}: expected a number, found {type(found).__name__}"
    elif type(found) is not type(expected):
        yield f"{place}: expected {type(expected).__name__}, found {type(found).__name__}"
