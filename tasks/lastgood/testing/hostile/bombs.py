"""Pickles that are small and would take all memory, time or stack, or that describe what cannot be."""

from __future__ import annotations

import struct

from lastgood.testing.hostile.assembly import (
    byte_text,
    global_,
    integer,
    name_of,
    one_tensor,
    pickled,
    torch_archive,
    tuple_of,
)
from lastgood.testing.hostile.catalogue import Form, enter

__all__: list[str] = []

_FOUR, _ONE = tuple_of(b"K\x04"), tuple_of(b"K\x01")


def _twins(opcode: bytes, levels: int) -> bytes:
    """Pairs of the same pair, `levels` deep: 2**levels leaves once written out."""
    body = b"K\x01"
    for level in range(levels):
        body += b"r" + struct.pack("<I", level) + b"j" + struct.pack("<I", level) + opcode
    return body


@enter(Form.TORCH)
def twins_written_out(_: str) -> bytes:
    """Tuples of twins: two kilobytes that a walk would never finish."""
    return torch_archive(_twins(b"\x86", 60))


@enter(Form.TORCH)
def twins_as_key(_: str) -> bytes:
    """Tuples of twins as a key: hashing it would never finish."""
    return torch_archive(b"}" + _twins(b"\x86", 60) + b"K\x01s")


@enter(Form.TORCH)
def twins_in_set(_: str) -> bytes:
    """Tuples of twins in a set: hashing them would never finish."""
    return torch_archive(b"\x8f(" + _twins(b"\x86", 60) + b"\x90", protocol=4)


@enter(Form.TORCH)
def keys_of_one_hash(_: str) -> bytes:
    """Keys that all have the same hash, so that each is compared with every other."""
    prime = 2**61 - 1
    items = b"".join(integer((index << 64) * prime + prime) + b"N" for index in range(1, 20_000))
    return torch_archive(b"}(" + items + b"u")


@enter(Form.TORCH)
def nested_lists(_: str) -> bytes:
    """A list in a list, a hundred thousand deep."""
    return torch_archive(b"]" * 100_000 + b"a" * 99_999)


@enter(Form.TORCH)
def nested_tuples(_: str) -> bytes:
    """A tuple in a tuple, a hundred thousand deep."""
    return torch_archive(b"N" + b"\x85" * 100_000)


@enter(Form.TORCH)
def nested_by_memo(_: str) -> bytes:
    """Lists linked through the memo, so that the stack stays flat."""
    return torch_archive(b"]q\x00" + b"0]h\x00aq\x00" * 50_000)


@enter(Form.TORCH)
def holds_itself(_: str) -> bytes:
    """A list that holds itself."""
    return torch_archive(b"]q\x00h\x00a")


@enter(Form.TORCH)
def marks_without_end(_: str) -> bytes:
    """A million marks."""
    return torch_archive(b"(" * 1_000_000)


@enter(Form.TORCH)
def memo_index_absurd(_: str) -> bytes:
    """One entry of the memo at index 4,294,967,295."""
    return torch_archive(b"Nr\xff\xff\xff\xff")


@enter(Form.TORCH)
def memo_of_gaps(_: str) -> bytes:
    """Each entry of the memo a thousand behind the one before."""
    return torch_archive(b"N" + b"".join(b"r" + struct.pack("<I", 1_000 * index) for index in range(200_000)))


@enter(Form.TORCH)
def memo_entry_missing(_: str) -> bytes:
    """An entry of the memo that was never put there."""
    return torch_archive(b"h\x07")


@enter(Form.TORCH)
def empty_sets(_: str) -> bytes:
    """Three million empty sets, of one byte each in the file and 216 in memory."""
    return torch_archive(b"(" + b"\x8f" * 3_000_000 + b"l", protocol=4)


@enter(Form.TORCH)
def small_tuples(_: str) -> bytes:
    """Two million tuples of nothing much, of two bytes each in the file."""
    return torch_archive(b"(" + b"N\x85" * 2_000_000 + b"l")


@enter(Form.TORCH)
def small_dictionaries(_: str) -> bytes:
    """A million dictionaries of one item, of four bytes each in the file and 232 in memory."""
    return torch_archive(b"(" + b"}NNs" * 1_000_000 + b"l")


@enter(Form.TORCH)
def large_state_again_and_again(_: str) -> bytes:
    """One list of objects as the state of one array, half a million times."""
    dtype = global_("numpy", "dtype") + tuple_of(name_of("O8"), b"\x89", b"\x88") + b"R"
    state = tuple_of(b"K\x01", tuple_of(integer(500_000)), dtype, b"\x89", b"](" + b"N" * 500_000 + b"e") + b"q\x000"
    array = global_("numpy._core.multiarray", "_reconstruct") + tuple_of(name_of("x")) + b"R"
    return torch_archive(state + array + b"h\x00b" * 500_000)


@enter(Form.TORCH)
def integer_of_a_gigabyte(_: str) -> bytes:
    """LONG4 announces an integer of a gigabyte."""
    return torch_archive(b"\x8b" + struct.pack("<i", 2**30))


@enter(Form.TORCH)
def integer_of_negative_length(_: str) -> bytes:
    """LONG4 announces a length below zero."""
    return torch_archive(b"\x8b" + struct.pack("<i", -1))


@enter(Form.TORCH)
def integer_of_many_digits(_: str) -> bytes:
    """Decimal digits whose conversion takes quadratic time."""
    return torch_archive(b"L" + b"9" * 1_000_000 + b"L\n")


@enter(Form.TORCH)
def number_of_many_letters(_: str) -> bytes:
    """Four kilobytes that are no number: no message may repeat all of them."""
    return torch_archive(b"F" + b"n" * 4_000 + b"\n")


@enter(Form.TORCH)
def text_beyond_the_end(_: str) -> bytes:
    """BINUNICODE8 announces an exabyte."""
    return torch_archive(b"\x8d" + struct.pack("<Q", 2**60), protocol=4)


@enter(Form.TORCH)
def bytes_beyond_the_end(_: str) -> bytes:
    """BYTEARRAY8 announces an exabyte."""
    return torch_archive(b"\x96" + struct.pack("<Q", 2**60), protocol=5)


@enter(Form.TORCH)
def frame_beyond_the_end(_: str) -> bytes:
    """A frame longer than the file."""
    return torch_archive(b"\x95" + struct.pack("<Q", 2**63) + b"N", protocol=4)


@enter(Form.TORCH)
def half_a_surrogate(_: str) -> bytes:
    """A name that cannot be written out again."""
    return torch_archive(name_of("\ud800"))


@enter(Form.TORCH)
def protocol_unknown(_: str) -> bytes:
    """Protocol 9."""
    return torch_archive(b"N", protocol=9)


@enter(Form.PICKLE)
def pickle_cut(_: str) -> bytes:
    """No STOP."""
    return pickled(b"}")[:-1]


@enter(Form.PICKLE)
def stack_underflow(_: str) -> bytes:
    """Pops what was never pushed."""
    return pickled(b"K\x01sb")


@enter(Form.TORCH)
def bytes_of_a_number(_: str) -> bytes:
    """`bytearray(2**31)`: a kilobyte that takes two gigabytes, and that `weights_only` allows."""
    return torch_archive(global_("builtins", "bytearray") + tuple_of(integer(2**31)) + b"R")


@enter(Form.TORCH)
def list_of_a_range(_: str) -> bytes:
    """`list(range(10**12))`."""
    made = global_("builtins", "range") + tuple_of(integer(10**12)) + b"R"
    return torch_archive(global_("builtins", "list") + tuple_of(made) + b"R")


@enter(Form.TORCH)
def codec_of_choice(_: str) -> bytes:
    """`codecs.encode` with another codec than the one that spells bytes."""
    return torch_archive(global_("_codecs", "encode") + tuple_of(name_of("x" * 99), name_of("zlib")) + b"R")


@enter(Form.TORCH)
def size_absurd(_: str) -> bytes:
    """A tensor of 2**60 elements that all lie in one."""
    body = one_tensor(size=tuple_of(integer(2**60)), stride=tuple_of(b"K\x00"))
    return torch_archive(body, {"0": bytes(16)})


@enter(Form.TORCH)
def product_of_sizes_absurd(_: str) -> bytes:
    """Each size is modest, and their product is not."""
    body = one_tensor(size=tuple_of(*[integer(2**20)] * 8), stride=tuple_of(*[b"K\x00"] * 8))
    return torch_archive(body, {"0": bytes(16)})


@enter(Form.TORCH)
def storage_absurd(_: str) -> bytes:
    """A storage of 2**60 elements."""
    return torch_archive(one_tensor(size=_FOUR, stride=_ONE, elements=integer(2**60)), {"0": bytes(16)})


@enter(Form.TORCH)
def size_negative(_: str) -> bytes:
    """A size below zero."""
    return torch_archive(one_tensor(size=tuple_of(integer(-4)), stride=_ONE), {"0": bytes(16)})


@enter(Form.TORCH)
def size_is_text(_: str) -> bytes:
    """A size that is no number."""
    return torch_archive(one_tensor(size=tuple_of(name_of("4")), stride=_ONE), {"0": bytes(16)})


@enter(Form.TORCH)
def dimensions_absurd(_: str) -> bytes:
    """A tensor of a hundred thousand dimensions."""
    ones = tuple_of(b"K\x01" * 100_000)
    return torch_archive(one_tensor(size=ones, stride=ones), {"0": bytes(16)})


@enter(Form.TORCH)
def tensor_beyond_its_storage(_: str) -> bytes:
    """A tensor of 64 elements in a storage of four: mapped into memory, it shows what lies behind."""
    return torch_archive(one_tensor(size=tuple_of(b"K\x40"), stride=_ONE), {"0": bytes(16)})


@enter(Form.TORCH)
def storage_of_two_lengths(_: str) -> bytes:
    """Two tensors disagree on how long their common storage is."""
    longer = one_tensor(size=_FOUR, stride=_ONE, elements=b"K\x10")
    return torch_archive(tuple_of(one_tensor(size=_FOUR, stride=_ONE), longer), {"0": bytes(16)})


@enter(Form.TORCH)
def tensor_without_storage(_: str) -> bytes:
    """The storage of a tensor is a number."""
    call = global_("torch._utils", "_rebuild_tensor_v2") + tuple_of(b"K\x07", b"K\x00", _FOUR, _ONE, b"\x89", b"}")
    return torch_archive(call + b"R")


@enter(Form.TORCH)
def array_of_another_length(_: str) -> bytes:
    """A NumPy array whose elements are fewer than its shape says."""
    dtype = global_("numpy", "dtype") + tuple_of(name_of("f8"), b"\x89", b"\x88") + b"R"
    dtype += tuple_of(b"K\x03", name_of("<"), b"NNN", integer(-1), integer(-1), b"K\x00") + b"b"
    arguments = tuple_of(byte_text(bytes(16)), dtype, tuple_of(integer(2**40)), name_of("C"))
    return torch_archive(global_("numpy._core.numeric", "_frombuffer") + arguments + b"R", protocol=4)
