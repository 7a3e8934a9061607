"""Pickles as inert descriptions: what torch wrote is described as torch itself loads it, within limits."""

from __future__ import annotations

import pickle
import pickletools
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lastgood.errors import FormatError, ReadLimitError
from lastgood.formats.containers import opcodes
from lastgood.formats.containers.machine import PickleLimits
from lastgood.formats.containers.pickles import PickleStream, read_pickle
from lastgood.formats.containers.shape import MAXIMUM_DEPTH, tensors_in
from lastgood.formats.containers.stubs import ITEM_BYTES, ArrayStub, GlobalStub, ObjectStub, TensorStub
from lastgood.formats.containers.torchfile import read_torch_file
from tests.formats.containers.samples import every_kind, reader_of, training_state

PROTOCOLS = (0, 1, 2, 3, 4, 5)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**300), 2**300)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(scalars.filter(lambda key: not isinstance(key, int) or abs(key) < 2**63), inner, max_size=4)
        | st.frozensets(st.integers(-9, 9), max_size=1)  # of several, repr has no fixed order
    ),
    max_leaves=20,
)


def same(found: Any, value: Any) -> bool:
    """Whether a description tells of a live value all that it should."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return isinstance(found, ObjectStub) and found.path == "torch._utils._rebuild_sparse_tensor"
        return (
            isinstance(found, TensorStub)
            and found.dtype == str(value.dtype).removeprefix("torch.")
            and (found.shape, found.stride) == (tuple(value.shape), value.stride())
            and found.offset == (0 if value.is_meta else value.storage_offset())
            and (found.storage is None) == value.is_meta
        )
    if isinstance(value, np.ndarray):
        return isinstance(found, ArrayStub) and found.shape == value.shape and found.data == value.tobytes()
    if isinstance(value, torch.dtype):
        return found == GlobalStub(module="torch", name=str(value).removeprefix("torch."))
    if isinstance(value, dict):
        return type(found) is dict and list(found) == list(value) and all(same(found[key], value[key]) for key in value)
    if isinstance(value, list | tuple) or type(value).__name__ == "deque":
        return len(found) == len(value) and all(map(same, found, value))
    if isinstance(found, ObjectStub):
        return found.path.split(".")[-1] in {type(value).__name__, "device", "__generator_ctor"}
    return bool(found == value)


@pytest.mark.parametrize("protocol", PROTOCOLS[2:])
@pytest.mark.parametrize("make", [training_state, every_kind])
def test_what_torch_saves_is_described_as_torch_loads_it(make: Any, protocol: int) -> None:
    """Names, shapes, element types, strides, offsets and scalars are those that training would get back."""
    value = make()
    file = read_torch_file(reader_of(value, pickle_protocol=protocol), "state.pt")
    assert file.pickled.unknown_globals == ()
    assert file.problems == ()
    wrong = [key for key in value if not same(file.value[key], value[key])]
    assert list(file.value) == list(value)
    assert wrong == []


@given(values, st.sampled_from(PROTOCOLS))
def test_plain_values_come_back_as_they_were(value: Any, protocol: int) -> None:
    """Round trip over every protocol: what pickle writes of plain values is read as pickle itself reads it."""
    pickled = read_pickle(pickle.dumps(value, protocol), "x")
    assert repr(pickled.value) == repr(value)
    assert pickled.unknown_globals == ()


def test_every_opcode_is_known_or_refused_on_purpose() -> None:
    """A new protocol must not slip in: each opcode that pickletools knows has a handler, or stands in this list."""
    refused = {"EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER", "READONLY_BUFFER"}
    handled = {opcode.name for opcode in pickletools.opcodes if opcodes._HANDLERS[ord(opcode.code)] is not None}
    assert {opcode.name for opcode in pickletools.opcodes} - handled - {"STOP"} == refused


def test_item_sizes_are_those_of_torch() -> None:
    """A length computed from a wrong size would call a healthy storage too short, or pass one that is."""
    for name, item_bytes in ITEM_BYTES.items():
        dtype = getattr(torch, name, None)
        if dtype is not None and not name.startswith(("int", "uint")):
            assert dtype.itemsize == item_bytes, name
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        assert getattr(torch, name).itemsize == ITEM_BYTES[name]


def test_shared_storages_are_told_once() -> None:
    """Tied weights are one storage under two tensors; counting them twice would double every size."""
    base = torch.arange(10.0)
    file = read_torch_file(reader_of({"a": base[2:], "b": base[:4]}), "x")
    assert [storage.elements for storage in file.pickled.storages.values()] == [10]
    assert file.value["a"].storage is file.value["b"].storage
    assert [(path, tensor.offset) for path, tensor in tensors_in(file.value)] == [(("a",), 2), (("b",), 0)]


def test_whole_modules_are_described_and_named() -> None:
    """Some people save the model object; its class is named for the caller to judge, its tensors are found."""
    file = read_torch_file(reader_of(torch.nn.Linear(2, 3)), "x")
    assert file.pickled.unknown_globals == ("torch.nn.modules.linear.Linear",)
    assert sorted(tensor.shape for tensor in file.pickled.tensors) == [(3,), (3, 2)]
    assert file.value.attributes["in_features"] == 2


def test_random_states_keep_their_bytes() -> None:
    """Ranks that all hold rank 0's stream are told by comparing the states, so their bytes must come through."""
    states = np.random.get_state(), np.random.default_rng(5).bit_generator.state
    file = read_torch_file(reader_of({"old": states[0], "new": states[1]}), "x")
    assert file.value["old"][1].data == states[0][1].tobytes()
    assert file.value["old"][1].dtype == "<u4"
    assert file.value["new"] == states[1]


def test_bfloat16_parameter_subclasses_are_tensors() -> None:
    """A subclass is rebuilt through a function that calls another; what it wraps is what counts."""

    class Tagged(torch.Tensor):
        pass

    globals()["Tagged"] = Tagged
    Tagged.__module__, Tagged.__qualname__ = __name__, "Tagged"
    file = read_torch_file(reader_of({"w": torch.ones(2, 3).as_subclass(Tagged)}), "x")
    assert file.value["w"].shape == (2, 3)
    assert file.pickled.unknown_globals == (f"{__name__}.Tagged",)


def test_deepest_lawful_nesting_is_read_and_one_level_more_is_refused() -> None:
    """The limit protects callers that recurse, and must not be lower than it says."""
    value: Any = 1
    for _ in range(MAXIMUM_DEPTH):
        value = [value]
    assert read_pickle(pickle.dumps(value), "x").value == value
    with pytest.raises(FormatError, match="nested too deeply"):
        read_pickle(pickle.dumps([value]), "x")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (PickleLimits(bytes=10), "pickle too large: x: expected at most 10 bytes"),
        (PickleLimits(opcodes=3), "too many opcodes: expected at most 3"),
        (PickleLimits(memory_bytes=100), "takes too much memory: expected at most 100 bytes"),
    ],
)
def test_every_limit_is_named(limits: PickleLimits, message: str) -> None:
    """Whoever meets a limit with a healthy file must see which one it was."""
    with pytest.raises(ReadLimitError, match=message) as caught:
        read_pickle(pickle.dumps({"a": [1, 2, 3], "b": "text"}), "x", limits)
    assert (caught.value.reason, caught.value.where) == (None, "x")


def test_bytes_after_the_pickle_are_refused() -> None:
    """`pickle.load` passes over what follows; a second pickle could hide there from everybody else."""
    with pytest.raises(FormatError, match="bytes after the pickle"):
        read_pickle(pickle.dumps(1) + b"x", "x")


def test_a_stream_gives_one_pickle_after_the_other() -> None:
    """The form before the zip is several pickles in a row; each begins where the last one ended."""
    stream = PickleStream(pickle.dumps(1) + pickle.dumps(OrderedDict(a=2)), "x")
    assert [stream.next().value, stream.next().value] == [1, {"a": 2}]
    with pytest.raises(FormatError, match="ends, or pops, too early"):
        stream.next()


def test_python_2_text_is_read_as_torch_reads_it() -> None:
    """Old checkpoints hold `str` of Python 2: text where it is UTF-8, bytes where it is not."""
    assert read_pickle(b"U\x03abc.", "x").value == "abc"
    assert read_pickle(b"U\x02\xff\xfe.", "x").value == b"\xff\xfe"
    assert read_pickle(b"S'a\\n\\x41\\\\'\n.", "x").value == "a\nA\\"
    with pytest.raises(FormatError, match="escape unknown"):
        read_pickle(b"S'\\q'\n.", "x")


@given(st.binary(max_size=60))
def test_noise_gives_a_value_or_a_refusal(noise: bytes) -> None:
    """Whatever the bytes are, the only answer beside a value is a FormatError."""
    try:
        read_pickle(noise, "x")
    except FormatError:
        pass


@given(st.data())
def test_damaged_pickles_are_refused_or_described(data: st.DataObject) -> None:
    """One changed, cut or repeated stretch of a real pickle never raises anything else, and never runs anything."""
    whole = DAMAGED_SOURCE
    start = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(0, 8))
    middle = data.draw(st.binary(max_size=8))
    try:
        read_pickle(whole[:start] + middle + whole[start + length :], "x")
    except FormatError:
        pass


def _pickle_of(value: Any) -> bytes:
    archive = read_torch_file(reader_of(value), "x").archive
    assert archive is not None
    return archive.read_record("data.pkl", 2**24)


DAMAGED_SOURCE = _pickle_of(training_state())
