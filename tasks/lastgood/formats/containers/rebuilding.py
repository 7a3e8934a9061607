"""What the known functions of a pickle would have made: tensors, arrays, containers, numbers.

Decides which arguments are lawful, by what torch and NumPy themselves accept. Rules: sizes and strides are not
negative, a tensor lies within its storage, and nothing is allocated because of a number in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from struct import calcsize, unpack
from typing import Any, TypeAlias

from lastgood.formats.containers.machine import Machine, Unlawful
from lastgood.formats.containers.reading import quoted
from lastgood.formats.containers.stubs import ITEM_BYTES, ArrayStub, GlobalStub, ObjectStub, StorageStub, TensorStub

__all__ = ["BUILDERS", "INDIRECT", "STORAGE_DTYPES", "STORAGE_MODULES", "fill_array", "storage"]

MAXIMUM_ELEMENTS = 2**44  # of one tensor or storage: a trillion parameters in one flat one, sixteen times over
MAXIMUM_DIMENSIONS = 64

STORAGE_MODULES = frozenset({"torch", "torch.cuda", "torch.storage"})
STORAGE_DTYPES = {
    "BFloat16Storage": "bfloat16",
    "BoolStorage": "bool",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "QInt32Storage": "qint32",
    "QInt8Storage": "qint8",
    "QUInt2x4Storage": "quint2x4",
    "QUInt4x2Storage": "quint4x2",
    "QUInt8Storage": "quint8",
    "ShortStorage": "int16",
    "UntypedStorage": "uint8",
    "_UntypedStorage": "uint8",
}
"""Name of the storage class → name of its element type."""

Builder: TypeAlias = Callable[[Machine, tuple[Any, ...]], Any]
"""Describes a call by its arguments; NotImplemented where they are lawful and it stays an object."""

_SEVERAL_IN_ONE_BYTE = frozenset({"quint4x2", "quint2x4"})


def _arity(name: str, arguments: tuple[Any, ...], least: int, most: int) -> None:
    if not least <= len(arguments) <= most:
        raise Unlawful(f"{name}: expected {least} to {most} arguments, found {len(arguments)}")


def _count(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= MAXIMUM_ELEMENTS:
        found = type(value).__name__
        if type(value) is int:
            found = str(value) if value.bit_length() < 128 else f"a number of {value.bit_length()} bits"
        raise Unlawful(f"{what}: expected 0..{MAXIMUM_ELEMENTS}, found {found}")
    return value


def _counts(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or len(value) > MAXIMUM_DIMENSIONS:
        raise Unlawful(f"{what}: expected at most {MAXIMUM_DIMENSIONS} numbers, found {type(value).__name__}")
    for item in value:
        if type(item) is not int or not 0 <= item <= MAXIMUM_ELEMENTS:
            _count(item, what)
    return tuple(value)


def _dtype(value: Any) -> str:
    if isinstance(value, GlobalStub) and value.module == "torch" and value.name in ITEM_BYTES:
        return value.name
    raise Unlawful(f"element type: expected one of torch's, found {type(value).__name__}")


def _tensor(
    place: StorageStub | None, dtype: str, offset: Any, size: Any, stride: Any, requires_grad: Any
) -> TensorStub:
    stub = TensorStub(
        dtype=dtype,
        shape=_counts(size, "size of a tensor"),
        stride=_counts(stride, "stride of a tensor"),
        offset=_count(offset, "offset of a tensor"),
        storage=place,
        requires_grad=requires_grad is True,
    )
    if len(stub.shape) != len(stub.stride):
        raise Unlawful(f"tensor with {len(stub.shape)} sizes and {len(stub.stride)} strides")
    _count(stub.elements, "elements of a tensor")
    if place is not None and dtype not in _SEVERAL_IN_ONE_BYTE and stub.reach_bytes > place.bytes:
        raise Unlawful(
            f"tensor reaches beyond its storage: {quoted(place.key)}: needs {stub.reach_bytes} bytes, "
            f"found {place.bytes}"
        )
    return stub


def _storage_argument(value: Any) -> StorageStub:
    if not isinstance(value, StorageStub):
        raise Unlawful(f"tensor without a storage: found {type(value).__name__}")
    return value


def _rebuild_tensor(_: Machine, arguments: tuple[Any, ...]) -> Any:
    _arity("_rebuild_tensor", arguments, 4, 4)
    place, (offset, size, stride) = _storage_argument(arguments[0]), arguments[1:4]
    return _tensor(place, place.dtype, offset, size, stride, False)


def _rebuild_tensor_v2(_: Machine, arguments: tuple[Any, ...]) -> Any:
    _arity("_rebuild_tensor_v2", arguments, 5, 7)
    place, (offset, size, stride, requires_grad) = _storage_argument(arguments[0]), arguments[1:5]
    return _tensor(place, place.dtype, offset, size, stride, requires_grad)


def _rebuild_tensor_v3(_: Machine, arguments: tuple[Any, ...]) -> Any:
    _arity("_rebuild_tensor_v3", arguments, 7, 8)
    place, (offset, size, stride, requires_grad) = _storage_argument(arguments[0]), arguments[1:5]
    return _tensor(place, _dtype(arguments[6]), offset, size, stride, requires_grad)


def _rebuild_qtensor(_: Machine, arguments: tuple[Any, ...]) -> Any:
    _arity("_rebuild_qtensor", arguments, 6, 7)
    place, (offset, size, stride) = _storage_argument(arguments[0]), arguments[1:4]
    return _tensor(place, place.dtype, offset, size, stride, arguments[5])


def _rebuild_meta(_: Machine, arguments: tuple[Any, ...]) -> Any:
    _arity("_rebuild_meta_tensor_no_storage", arguments, 4, 4)
    dtype, size, stride, requires_grad = arguments
    return _tensor(None, _dtype(dtype), 0, size, stride, requires_grad)


def _same_tensor(least: int, most: int) -> Builder:
    """A parameter, or a tensor brought from a device: described as the tensor it wraps."""

    def builder(_: Machine, arguments: tuple[Any, ...]) -> Any:
        _arity("_rebuild_parameter", arguments, least, most)
        return arguments[0] if isinstance(arguments[0], TensorStub) else NotImplemented

    return builder


def storage(identity: Any) -> StorageStub:
    """The storage that a persistent id of torch names; legacy files add a view, which is always None today."""
    if type(identity) is not tuple or len(identity) not in (5, 6) or identity[0] != "storage":
        raise Unlawful("persistent id of another shape: expected that of a storage")
    type_, key, location, elements = identity[1:5]
    if (
        not isinstance(type_, GlobalStub)
        or type_.module not in STORAGE_MODULES
        or type_.name not in STORAGE_DTYPES
        or type(key) is not str
        or type(location) is not str
    ):
        raise Unlawful("persistent id of a storage: expected class, key, location and element count")
    if len(identity) == 6 and identity[5] is not None:
        raise Unlawful("view of a storage: only torch before 0.4 wrote them")
    return StorageStub(
        key=key,
        dtype=STORAGE_DTYPES[type_.name],
        elements=_count(elements, "elements of a storage"),
        location=location,
    )


# Containers and bytes


def _pairs(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    """OrderedDict and Counter: empty, or from a list of pairs, or from a dictionary."""
    _arity("dictionary", arguments, 0, 1)
    made: dict[Any, Any] = {}
    source = arguments[0] if arguments else []
    pairs = list(source.items()) if type(source) is dict else source
    if type(pairs) is not list or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise Unlawful("dictionary made from what holds no pairs")
    machine.charge(64)
    machine.set_items(made, [part for pair in pairs for part in pair])
    return made


def _defaulting(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    machine.charge(64)
    return {} if len(arguments) <= 1 else NotImplemented


def _deque(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    _arity("deque", arguments, 0, 2)
    source = arguments[0] if arguments else ()
    if not isinstance(source, list | tuple):
        raise Unlawful("deque made from what is no list")
    machine.charge(56 + 8 * len(source))
    return list(source)


def _set(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    return machine.new_set(_deque(machine, arguments))


def _frozenset(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    return frozenset(_set(machine, arguments))


def _encode(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    """How protocol 2 spells bytes."""
    _arity("encode", arguments, 1, 2)
    if type(arguments[0]) is not str or arguments[1:] not in (("latin1",), ("latin-1",)):
        raise Unlawful("encode: expected text and latin1")
    machine.charge(40 + len(arguments[0]))
    return arguments[0].encode("latin-1")


def _bytes(_: Machine, arguments: tuple[Any, ...]) -> Any:
    """Copies of bytes are the bytes."""
    if any(type(argument) is int for argument in arguments):
        raise Unlawful("bytes made from a length")
    if not arguments:
        return b""
    return arguments[0] if type(arguments[0]) is bytes and len(arguments) == 1 else NotImplemented


def _size(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    _arity("torch.Size", arguments, 0, 1)
    machine.charge(48)
    return _counts(arguments[0] if arguments else (), "torch.Size")


# NumPy

_NUMBER = re.compile(r"[<>|=][biufc]\d{1,2}")
_NATIVE = {"b1": "?", "f2": "e", "f4": "f", "f8": "d"} | {
    **{"i1": "b", "i2": "h", "i4": "i", "i8": "q"},
    **{"u1": "B", "u2": "H", "u4": "I", "u8": "Q"},
}


def _numpy_code(value: Any) -> str:
    """The code of a dtype with its byte order, such as `<u4`."""
    if not isinstance(value, ObjectStub) or value.path != "numpy.dtype" or not value.arguments:
        raise Unlawful("NumPy element type: expected a dtype")
    code, state = value.arguments[0], value.state
    if type(code) is not str or len(code) > 16:
        raise Unlawful("NumPy element type: expected its code")
    order = state[1] if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "=") else "|"
    return f"{order}{code}"


def _item_bytes(code: str) -> int | None:
    """Bytes of one element where the code is a plain number's, else None."""
    return int(code[2:]) if _NUMBER.fullmatch(code) else None


def _reconstruct(_: Machine, arguments: tuple[Any, ...]) -> Any:
    return ArrayStub(dtype="|V0", shape=(0,), data=b"")


def _from_buffer(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    _arity("_frombuffer", arguments, 4, 5)
    made = ArrayStub(dtype="|V0", shape=(0,), data=b"")
    machine.charge(100)
    fill_array(machine, made, (1, arguments[2], arguments[1], False, arguments[0]))
    return made


def fill_array(machine: Machine, array: ArrayStub, state: Any) -> None:
    """Give an array what `ndarray.__setstate__` would have received."""
    if not isinstance(state, tuple) or len(state) != 5:
        raise Unlawful("state of an array: expected version, shape, dtype, order and elements")
    shape, code, content = _counts(state[1], "shape of an array"), _numpy_code(state[2]), state[4]
    if code[1:].startswith("O"):
        if type(content) is not list or len(content) != prod(shape):
            raise Unlawful("array of objects whose list has another length than its shape")
        machine.charge(180 + 8 * len(content))
        array.data, array.objects = None, tuple(content)
    else:
        if type(content) is not bytes:
            raise Unlawful(f"elements of an array: expected bytes, found {type(content).__name__}")
        item = _item_bytes(code)
        if item is not None and len(content) != prod(shape) * item:
            raise Unlawful(
                f"array length contradicts its shape: needs {prod(shape) * item} bytes, found {len(content)}"
            )
        array.data = content
    array.dtype, array.shape = code, shape


def _scalar(_: Machine, arguments: tuple[Any, ...]) -> Any:
    """A number where NumPy's scalar is one, else an object."""
    _arity("scalar", arguments, 1, 2)
    code = _numpy_code(arguments[0])
    native = _NATIVE.get(code[1:])
    content = arguments[1] if len(arguments) == 2 else None
    if native is None or type(content) is not bytes:
        return NotImplemented
    if len(content) != calcsize(f"={native}"):
        raise Unlawful(f"NumPy scalar {code}: found {len(content)} bytes")
    return unpack(f"{'>' if code[0] == '>' else '<'}{native}", content)[0]


# Calls that only pass on what they call

_Passed: TypeAlias = tuple[Any, tuple[Any, ...], Any]
"""What is called, with which arguments, and the state of what comes back."""


def _from_type(arguments: tuple[Any, ...]) -> _Passed:
    """A tensor of a subclass: the function that rebuilds it, its class, its arguments, its attributes."""
    _arity("_rebuild_from_type", arguments, 4, 4)
    function, _, inner, state = arguments
    if type(inner) is not tuple or (isinstance(function, GlobalStub) and function.path in INDIRECT):
        raise Unlawful("_rebuild_from_type: expected a function and its arguments")
    return function, inner, state


def _reconstructor(arguments: tuple[Any, ...]) -> _Passed:
    """How protocols 0 and 1 spell an object: class, base, and the base's value."""
    _arity("_reconstructor", arguments, 3, 3)
    type_, base, value = arguments
    plain = isinstance(base, GlobalStub) and base.path == "builtins.object"
    return type_, () if plain else (value,), None


def _new_object(arguments: tuple[Any, ...]) -> _Passed:
    if not arguments:
        raise Unlawful("__newobj__ without a class")
    return arguments[0], arguments[1:], None


BUILDERS: Mapping[str, Builder] = {
    "_codecs.encode": _encode,
    "builtins.bytearray": _bytes,
    "builtins.bytes": _bytes,
    "builtins.frozenset": _frozenset,
    "builtins.list": _deque,
    "builtins.set": _set,
    "collections.Counter": _pairs,
    "collections.OrderedDict": _pairs,
    "collections.defaultdict": _defaulting,
    "collections.deque": _deque,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy._core.numeric._frombuffer": _from_buffer,
    "torch.Size": _size,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _same_tensor(4, 4),
    "torch._utils._rebuild_device_tensor_from_numpy": _same_tensor(4, 4),
    "torch._utils._rebuild_meta_tensor_no_storage": _rebuild_meta,
    "torch._utils._rebuild_parameter": _same_tensor(3, 3),
    "torch._utils._rebuild_parameter_with_state": _same_tensor(4, 4),
    "torch._utils._rebuild_qtensor": _rebuild_qtensor,
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_xla_tensor": _same_tensor(4, 4),
}
"""Path of a function or class → what a call of it describes."""

INDIRECT: Mapping[str, Callable[[tuple[Any, ...]], _Passed]] = {
    "copyreg.__newobj__": _new_object,
    "copyreg._reconstructor": _reconstructor,
    "torch._tensor._rebuild_from_type": _from_type,
    "torch._tensor._rebuild_from_type_v2": _from_type,
}
"""Path of a function that calls another one → what it calls, with which arguments."""
