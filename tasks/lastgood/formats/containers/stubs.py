"""What stands for an object that a pickle would build: names and numbers, and nothing that could act.

Decides which facts of tensors, storages and arrays are kept. Leaves to `globals` how a pickle spells them. Law: a stub
holds plain values and other stubs; it has no method that a file could reach, and it hashes by identity, so that a file
cannot choose what its hash costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

__all__ = ["ITEM_BYTES", "ArrayStub", "GlobalStub", "ObjectStub", "StorageStub", "TensorStub"]

ITEM_BYTES: dict[str, int] = {
    **dict.fromkeys(("bool", "uint8", "int8", "qint8", "quint8", "quint4x2", "quint2x4"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("float4_e2m1fn_x2", "bits8", "bits1x8", "bits2x4", "bits4x2"), 1),
    **dict.fromkeys(("int1", "int2", "int3", "int4", "int5", "int6", "int7"), 1),
    **dict.fromkeys(("uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16", "bits16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32", "qint32", "complex32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of one element, by torch's name of its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalStub:
    """A class, function or constant that a pickle names. It was not looked up.

    Args:
        module: As spelled in the file.
        name: Its name there, dots included.
    """

    module: str
    name: str

    @property
    def path(self) -> str:
        """Module and name with a dot between."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StorageStub:
    """A run of elements that lies outside the pickle.

    Args:
        key: The record's name below `data/` (in a legacy file: its name in the list of keys).
        dtype: torch's name of the element type; `uint8` for untyped storages.
        elements: How many of them.
        location: The device that it was saved from, such as `cpu` or `cuda:0`.
    """

    key: str
    dtype: str
    elements: int
    location: str

    @property
    def bytes(self) -> int:
        """Length in bytes."""
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorStub:
    """A tensor without its elements.

    Args:
        dtype: torch's name of the element type, such as `bfloat16`.
        shape: Sizes, outermost first.
        stride: Steps in elements; as long as `shape`.
        offset: First element within its storage.
        storage: Where the elements lie; None for a tensor on the meta device, which has none.
        requires_grad: As saved.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    storage: StorageStub | None
    requires_grad: bool = False

    @property
    def elements(self) -> int:
        """The product of the sizes."""
        return prod(self.shape)

    @property
    def reach_bytes(self) -> int:
        """Bytes of its storage up to the end of its last element; 0 for an empty tensor."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return (self.offset + last + 1) * ITEM_BYTES[self.dtype]


@dataclass(slots=True, kw_only=True, eq=False)
class ArrayStub:
    """A NumPy array as it was pickled. Not frozen, since a pickle first names an array and fills it later.

    Args:
        dtype: NumPy's code with byte order, such as `<u4`; `|O` for objects.
        shape: Sizes.
        data: The raw elements; None for objects.
        objects: The elements of an array of objects, inert.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None
    objects: tuple[Any, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class ObjectStub:
    """An object that was not built: who would have built it, and from what.

    Not frozen, since a pickle goes on adding to an object after it has referred to it.

    Args:
        type: What would have been called; a stub itself where the file computes it.
        arguments: Positional, as given; keyword arguments follow as one dictionary in `keywords`.
        keywords: Of NEWOBJ_EX.
        state: What `__setstate__` or `__dict__` would have received; the last one, where there are several.
        items: What would have been appended.
        entries: What would have been set as items, key and value.
    """

    type: GlobalStub | ObjectStub
    arguments: tuple[Any, ...] = ()
    keywords: dict[Any, Any] | None = None
    state: Any = None
    items: list[Any] = field(default_factory=list)
    entries: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Module and name of its class or function; empty where the file computes it."""
        return self.type.path if isinstance(self.type, GlobalStub) else ""

    @property
    def attributes(self) -> dict[str, Any]:
        """Its instance variables, where the state is what the default protocols write; else empty."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:  # (__dict__, slots)
            parts = [part for part in state if isinstance(part, dict)]
        else:
            parts = [state] if isinstance(state, dict) else []
        return {key: value for part in parts for key, value in part.items() if isinstance(key, str)}
