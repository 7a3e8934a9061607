"""Pickles that run code, in every place where one can hide: each creates the marker where a loader executes it."""

from __future__ import annotations

import struct

from lastgood.testing.hostile.assembly import (
    archive,
    byte_text,
    command,
    global_,
    integer,
    members,
    name_of,
    pickled,
    torch_archive,
    tuple_of,
)
from lastgood.testing.hostile.catalogue import Answer, Form, enter

__all__: list[str] = []

_NAMED = Answer.GLOBAL_NAMED
_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def system(marker: str) -> bytes:
    """A call that runs the command, and its result."""
    return global_("posix", "system") + tuple_of(name_of(command(marker))) + b"R"


def _legacy(*pickles: bytes) -> bytes:
    return _MAGIC + pickled(b"M\xe9\x03") + b"".join(pickles)


@enter(Form.TORCH, _NAMED, fires=True)
def reduce_calls(marker: str) -> bytes:
    """REDUCE calls `os.system`."""
    return torch_archive(system(marker))


@enter(Form.TORCH, _NAMED, fires=True)
def stack_global_calls(marker: str) -> bytes:
    """The name comes from the stack instead of from a line."""
    body = name_of("posix") + name_of("system") + b"\x93" + tuple_of(name_of(command(marker))) + b"R"
    return torch_archive(body, protocol=4)


@enter(Form.TORCH, _NAMED, fires=True)
def inst_calls(marker: str) -> bytes:
    """INST names and calls in one opcode of protocol 0."""
    return torch_archive(b"(" + name_of(command(marker)) + b"iposix\nsystem\n")


@enter(Form.TORCH, _NAMED, fires=True)
def obj_calls(marker: str) -> bytes:
    """OBJ takes what it calls from below the arguments."""
    return torch_archive(b"(" + global_("posix", "system") + name_of(command(marker)) + b"o")


@enter(Form.TORCH, _NAMED)
def newobj_creates(marker: str) -> bytes:
    """NEWOBJ creates an instance of a class that starts a process."""
    arguments = tuple_of(name_of(command(marker)), integer(-1), b"N")
    return torch_archive(global_("subprocess", "Popen") + arguments + b"\x81")


@enter(Form.TORCH, _NAMED)
def newobj_ex_creates(marker: str) -> bytes:
    """NEWOBJ_EX creates an instance with keyword arguments."""
    keywords = b"}" + name_of("args") + name_of(command(marker)) + b"s"
    return torch_archive(global_("subprocess", "Popen") + b")" + keywords + b"\x92", protocol=4)


@enter(Form.TORCH, _NAMED, fires=True)
def build_sets_state(marker: str) -> bytes:
    """BUILD gives a partial function its target through `__setstate__`, and REDUCE calls it."""
    partial = global_("functools", "partial") + tuple_of(global_("builtins", "print")) + b"R"
    state = tuple_of(global_("posix", "system"), tuple_of(name_of(command(marker))), b"}", b"N")
    return torch_archive(partial + state + b"b)R")


@enter(Form.TORCH, fires=True)
def build_on_class(marker: str) -> bytes:
    """BUILD on a class changes the class itself."""
    return torch_archive(global_("collections", "Counter") + b"}" + name_of("update") + system(marker) + b"sb")


@enter(Form.TORCH, _NAMED, fires=True)
def computed_callable(marker: str) -> bytes:
    """What is called is itself the result of a call."""
    imported = global_("builtins", "__import__") + tuple_of(name_of("os")) + b"R"
    found = global_("builtins", "getattr") + tuple_of(imported, name_of("system")) + b"R"
    return torch_archive(found + tuple_of(name_of(command(marker))) + b"R")


@enter(Form.TORCH, fires=True)
def computed_name(marker: str) -> bytes:
    """STACK_GLOBAL takes a name that a call would have made."""
    joined = global_("builtins", "str") + tuple_of(name_of("posix")) + b"R"
    body = joined + name_of("system") + b"\x93" + tuple_of(name_of(command(marker))) + b"R"
    return torch_archive(body, protocol=4)


@enter(Form.TORCH, _NAMED, fires=True)
def python_2_name(marker: str) -> bytes:
    """The module has the name that it had in Python 2."""
    call = global_("__builtin__", "eval") + tuple_of(name_of(f"open({marker!r}, 'w')")) + b"R"
    return torch_archive(call)


@enter(Form.TORCH, _NAMED, fires=True)
def evaluated_text(marker: str) -> bytes:
    """`exec` runs a text."""
    return torch_archive(global_("builtins", "exec") + tuple_of(name_of(f"open({marker!r}, 'w')")) + b"R")


@enter(Form.TORCH, _NAMED)
def dotted_name(marker: str) -> bytes:
    """A harmless class, and by dots from there to one that is not."""
    body = name_of("collections") + name_of("abc.sys.modules") + b"\x93" + tuple_of(name_of(marker)) + b"R"
    return torch_archive(body, protocol=4)


@enter(Form.TORCH, _NAMED, fires=True)
def popped_result(marker: str) -> bytes:
    """The call's result is dropped at once, and what is left is healthy."""
    return torch_archive(system(marker) + b"0}" + name_of("epoch") + b"K\x03s")


@enter(Form.TORCH, _NAMED, fires=True)
def key_of_dictionary(marker: str) -> bytes:
    """The call is made for the key of an item."""
    return torch_archive(b"}" + system(marker) + b"K\x01s")


@enter(Form.TORCH, _NAMED, fires=True)
def member_of_set(marker: str) -> bytes:
    """The call is made for the member of a set."""
    return torch_archive(b"\x8f(" + system(marker) + b"\x90", protocol=4)


@enter(Form.TORCH, _NAMED, fires=True)
def state_of_ordered_dictionary(marker: str) -> bytes:
    """The call is made inside `_metadata`, which every state dictionary carries beside its items."""
    made = global_("collections", "OrderedDict") + b")R"
    return torch_archive(made + b"}" + name_of("_metadata") + system(marker) + b"sb")


@enter(Form.TORCH, _NAMED, fires=True)
def argument_of_known_function(marker: str) -> bytes:
    """A function of torch's own is asked to call another one."""
    arguments = tuple_of(
        global_("posix", "system"), global_("torch", "Tensor"), tuple_of(name_of(command(marker))), b"}"
    )
    return torch_archive(global_("torch._tensor", "_rebuild_from_type_v2") + arguments + b"R")


@enter(Form.TORCH, _NAMED, fires=True)
def object_array(marker: str) -> bytes:
    """The elements of a NumPy array of objects."""
    array = (
        global_("numpy._core.multiarray", "_reconstruct")
        + tuple_of(global_("numpy", "ndarray"), tuple_of(b"K\x00"), byte_text(b"b"))
        + b"R"
    )
    dtype = global_("numpy", "dtype") + tuple_of(name_of("O8"), b"\x89", b"\x88") + b"R"
    dtype += tuple_of(b"K\x03", name_of("|"), b"NNN", integer(-1), integer(-1), b"K\x3f") + b"b"
    state = tuple_of(b"K\x01", tuple_of(b"K\x01"), dtype, b"\x89", b"](" + system(marker) + b"e")
    return torch_archive(array + state + b"b", protocol=3)


@enter(Form.TORCH, _NAMED, fires=True)
def nested_archive(marker: str) -> bytes:
    """Bytes inside the pickle are a whole file of `torch.save`, which torch opens without any restriction."""
    inner = torch_archive(system(marker))
    return torch_archive(global_("torch.storage", "_load_from_bytes") + tuple_of(byte_text(inner)) + b"R", protocol=3)


@enter(Form.TORCH, _NAMED)
def reconstructor(marker: str) -> bytes:
    """The helper of protocol 0 creates an instance of any class."""
    arguments = tuple_of(global_("subprocess", "Popen"), global_("builtins", "object"), b"N")
    return torch_archive(global_("copyreg", "_reconstructor") + arguments + b"R" + name_of(marker) + b"0")


@enter(Form.TORCH, _NAMED)
def new_object_helper(marker: str) -> bytes:
    """`copyreg.__newobj__` is called as a function."""
    return torch_archive(
        global_("copyreg", "__newobj__") + tuple_of(global_("subprocess", "Popen"), name_of(marker)) + b"R"
    )


@enter(Form.TORCH)
def text_persistent_id(marker: str) -> bytes:
    """PERSID passes a text to whatever the loader does with one."""
    return torch_archive(b"P" + command(marker).encode() + b"\n")


@enter(Form.TORCH)
def persistent_id_of_other_shape(marker: str) -> bytes:
    """BINPERSID passes a tuple that names no storage."""
    return torch_archive(tuple_of(name_of("module"), global_("posix", "system"), name_of(marker), b"N") + b"Q")


@enter(Form.TORCH)
def persistent_id_calls(marker: str) -> bytes:
    """The storage class in a persistent id is a function."""
    identity = tuple_of(name_of("storage"), global_("posix", "system"), name_of("0"), name_of(marker), b"K\x01")
    return torch_archive(identity + b"Q")


@enter(Form.TORCH)
def extension_1(marker: str) -> bytes:
    """EXT1 takes a class from a registry of the loader's process."""
    return torch_archive(b"\x82\x01" + tuple_of(name_of(marker)) + b"R")


@enter(Form.TORCH)
def extension_2(marker: str) -> bytes:
    """EXT2 takes a class from a registry of the loader's process."""
    return torch_archive(b"\x83\x01\x01" + tuple_of(name_of(marker)) + b"R")


@enter(Form.TORCH)
def extension_4(marker: str) -> bytes:
    """EXT4 takes a class from a registry of the loader's process."""
    return torch_archive(b"\x84\x01\x01\x01\x01" + tuple_of(name_of(marker)) + b"R")


@enter(Form.TORCH)
def out_of_band_buffer(marker: str) -> bytes:
    """NEXT_BUFFER asks for bytes that lie elsewhere."""
    return torch_archive(name_of(marker) + b"0\x97", protocol=5)


@enter(Form.TORCH)
def second_pickle(marker: str) -> bytes:
    """A healthy pickle ends, and a hostile one follows in the same record."""
    return archive(members(pickled(b"}") + pickled(system(marker))))


@enter(Form.TORCH, _NAMED, fires=True)
def protocol_0_text(marker: str) -> bytes:
    """A pickle of printable lines, which scanners of opcodes of protocol 2 pass over."""
    text = f'cposix\nsystem\n(S"{command(marker)}"\ntR.'
    return archive(members(text.encode()))


@enter(Form.PICKLE, _NAMED, fires=True)
def framed(marker: str) -> bytes:
    """A pickle of protocol 4 in a frame."""
    body = name_of("posix") + name_of("system") + b"\x93" + name_of(command(marker)) + b"\x85R."
    return b"\x80\x04\x95" + struct.pack("<Q", len(body)) + body


@enter(Form.TORCH, _NAMED, fires=True)
def legacy_object(marker: str) -> bytes:
    """A file of the form before the zip, whose object runs code."""
    return _legacy(pickled(b"}"), pickled(system(marker)), pickled(b"]"))


@enter(Form.TORCH, _NAMED, fires=True)
def legacy_system_description(marker: str) -> bytes:
    """The description of the writer's machine, in front of the object, runs code."""
    return _legacy(pickled(system(marker)), pickled(b"}"), pickled(b"]"))


@enter(Form.TORCH, _NAMED, fires=True)
def legacy_keys(marker: str) -> bytes:
    """The list of storages, behind the object, runs code."""
    return _legacy(pickled(b"}"), pickled(b"}"), pickled(system(marker) + b"0]"))


@enter(Form.DCP_METADATA, fires=True)
def metadata_runs(marker: str) -> bytes:
    """`.metadata` of DCP is a pickle that its own reader loads without any restriction."""
    return pickled(system(marker))


@enter(Form.DCP_METADATA, _NAMED, fires=True)
def planner_data_runs(marker: str) -> bytes:
    """The part of `.metadata` that the planner reads runs code; the rest is healthy."""
    made = global_("torch.distributed.checkpoint.metadata", "Metadata") + b")\x81"
    state = b"}(" + name_of("state_dict_metadata") + b"}" + name_of("planner_data") + system(marker)
    return pickled(made + state + name_of("storage_data") + b"}" + b"ub")
