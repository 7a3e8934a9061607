"""Hostile metadata: `.metadata` of DCP, safetensors headers, indexes, and names that are no regular files."""

from __future__ import annotations

import json
import struct

from lastgood.testing.hostile.assembly import global_, integer, name_of, pickled, tuple_of
from lastgood.testing.hostile.catalogue import Answer, Form, enter

__all__: list[str] = []

_CLASSES = "torch.distributed.checkpoint"


def _object(module: str, name: str, **fields: bytes) -> bytes:
    """An instance with these attributes, as pickle's default protocol spells it."""
    state = b"}(" + b"".join(name_of(key) + value for key, value in fields.items()) + b"u"
    return global_(f"{_CLASSES}.{module}", name) + b")\x81" + state + b"b"


def _metadata(*places: tuple[str, str, bytes, bytes]) -> bytes:
    """Metadata of objects: name, path, offset, length of each."""
    described = b"".join(name_of(name) + _object("metadata", "BytesStorageMetadata") for name, *_ in places)
    stored = b"".join(
        _object("metadata", "MetadataIndex", fqn=name_of(name), offset=b"N", index=b"N")
        + _object("filesystem", "_StorageInfo", relative_path=name_of(path), offset=offset, length=length)
        for name, path, offset, length in places
    )
    whole = _object(
        "metadata",
        "Metadata",
        state_dict_metadata=b"}(" + described + b"u",
        planner_data=b"N",
        storage_data=b"}(" + stored + b"u",
    )
    return pickled(whole)


@enter(Form.DCP_METADATA, Answer.PROBLEM_NAMED)
def metadata_path_escapes(_: str) -> bytes:
    """An entry lies in a file above the checkpoint, and DCP's reader joins the path unchecked."""
    return _metadata(("step", "../../other/__0_0.distcp", b"K\x00", b"K\x10"))


@enter(Form.DCP_METADATA, Answer.PROBLEM_NAMED)
def metadata_path_absolute(_: str) -> bytes:
    """An entry lies at an absolute path."""
    return _metadata(("step", "/etc/hostname", b"K\x00", b"K\x10"))


@enter(Form.DCP_METADATA, Answer.PROBLEM_NAMED)
def metadata_path_with_nul(_: str) -> bytes:
    """An entry's path ends early for a reader written in C."""
    return _metadata(("step", "__0_0.distcp\x00x", b"K\x00", b"K\x10"))


@enter(Form.DCP_METADATA, Answer.PROBLEM_NAMED)
def metadata_offset_negative(_: str) -> bytes:
    """An entry begins before its file."""
    return _metadata(("step", "__0_0.distcp", integer(-8), b"K\x10"))


@enter(Form.DCP_METADATA, Answer.PROBLEM_NAMED)
def metadata_length_absurd(_: str) -> bytes:
    """An entry of 2**70 bytes."""
    return _metadata(("step", "__0_0.distcp", b"K\x00", integer(2**70)))


@enter(Form.DCP_METADATA, Answer.PROBLEM_NAMED)
def metadata_ranges_overlap(_: str) -> bytes:
    """Two entries share bytes."""
    return _metadata(("a", "__0_0.distcp", b"K\x00", b"K\x10"), ("b", "__0_0.distcp", b"K\x08", b"K\x10"))


@enter(Form.DCP_METADATA, Answer.PROBLEM_NAMED)
def metadata_stored_twice(_: str) -> bytes:
    """One object has two entries, and which of them counts depends on the reader."""
    return _metadata(("a", "__0_0.distcp", b"K\x00", b"K\x08"), ("a", "__0_0.distcp", b"K\x08", b"K\x08"))


@enter(Form.DCP_METADATA)
def metadata_of_other_class(_: str) -> bytes:
    """An object that is no metadata."""
    return pickled(_object("metadata", "StorageMeta", save_id=name_of("x")))


@enter(Form.DCP_METADATA)
def metadata_without_types(_: str) -> bytes:
    """Offset and length are text."""
    return _metadata(("step", "__0_0.distcp", name_of("0"), name_of("16")))


@enter(Form.DCP_METADATA)
def metadata_of_absurd_sizes(_: str) -> bytes:
    """A tensor of a negative size."""
    properties = _object("metadata", "TensorProperties")[:-1] + b"0"  # its state is replaced by a tuple
    properties += tuple_of(global_("torch", "float32"), b"N", b"\x89", b"N", b"\x89") + b"b"
    size = global_("torch", "Size") + tuple_of(tuple_of(integer(-3))) + b"R"
    tensor = _object("metadata", "TensorStorageMetadata", properties=properties, size=size, chunks=b"]")
    return pickled(_object("metadata", "Metadata", state_dict_metadata=b"}(" + name_of("w") + tensor + b"u"))


# safetensors


def _safetensors(header: bytes, data: bytes = bytes(16), *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def _entry(begin: int = 0, end: int = 16, *, shape: tuple[object, ...] = (4,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _header(**entries: object) -> bytes:
    return json.dumps(entries).encode()


@enter(Form.SAFETENSORS)
def header_length_absurd(_: str) -> bytes:
    """A header of 2**63 bytes."""
    return _safetensors(_header(w=_entry()), length=2**63)


@enter(Form.SAFETENSORS)
def header_beyond_the_file(_: str) -> bytes:
    """A header one byte longer than the file."""
    header = _header(w=_entry())
    return _safetensors(header, length=len(header) + 17)


@enter(Form.SAFETENSORS)
def tensor_twice(_: str) -> bytes:
    """One name twice: the last one wins in some parsers, and covers the file."""
    entry = json.dumps(_entry()).encode()
    return _safetensors(b'{"w":' + entry + b',"w":' + entry + b"}")


@enter(Form.SAFETENSORS)
def tensors_overlap(_: str) -> bytes:
    """Two tensors share bytes."""
    return _safetensors(_header(a=_entry(0, 16), b=_entry(8, 16, shape=(2,))))


@enter(Form.SAFETENSORS)
def tensors_leave_a_hole(_: str) -> bytes:
    """Bytes that belong to no tensor."""
    return _safetensors(_header(a=_entry(0, 4, shape=(1,)), b=_entry(8, 16, shape=(2,))))


@enter(Form.SAFETENSORS)
def trailing_data(_: str) -> bytes:
    """Bytes behind the last tensor."""
    return _safetensors(_header(w=_entry()), bytes(17))


@enter(Form.SAFETENSORS)
def tensor_cut(_: str) -> bytes:
    """The last byte of the last tensor is missing."""
    return _safetensors(_header(w=_entry()), bytes(15))


@enter(Form.SAFETENSORS)
def shape_absurd(_: str) -> bytes:
    """A shape whose product overflows to the right length in 64 bits."""
    return _safetensors(_header(w=_entry(shape=(2**62, 4, 1))))


@enter(Form.SAFETENSORS)
def shape_negative(_: str) -> bytes:
    """Two sizes below zero, whose product is right."""
    return _safetensors(_header(w=_entry(shape=(-2, -2))))


@enter(Form.SAFETENSORS)
def shape_of_fractions(_: str) -> bytes:
    """A size that is no whole number."""
    return _safetensors(_header(w=_entry(shape=(4.0,))))


@enter(Form.SAFETENSORS)
def offsets_reversed(_: str) -> bytes:
    """A tensor ends before it begins."""
    return _safetensors(_header(w=_entry(16, 0)))


@enter(Form.SAFETENSORS)
def dtype_unknown(_: str) -> bytes:
    """An element type that nobody has heard of."""
    return _safetensors(_header(w=_entry(dtype="X9")))


@enter(Form.SAFETENSORS)
def header_nested(_: str) -> bytes:
    """JSON a hundred thousand levels deep."""
    return _safetensors(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@enter(Form.SAFETENSORS)
def header_of_empty_lists(_: str) -> bytes:
    """Eighteen megabytes of empty lists, which take half a gigabyte of memory."""
    return _safetensors(b'{"w":[' + b"[]," * 6_000_000 + b"[]]}")


@enter(Form.SAFETENSORS)
def name_twice_at_the_end(_: str) -> bytes:
    """Two hundred thousand names, the last of them twice: looking for it must not compare each with all others."""
    names = b",".join(b'"%d":0' % number for number in [*range(200_000), 199_999])
    return _safetensors(b"{" + names + b"}")


@enter(Form.SAFETENSORS)
def long_name_twice(_: str) -> bytes:
    """A name of a megabyte, twice: no message may repeat all of it."""
    name = b'"' + b"n" * 2**20 + b'":0'
    return _safetensors(b"{" + name + b"," + name + b"}")


@enter(Form.SAFETENSORS)
def header_in_utf_16(_: str) -> bytes:
    """A header in another encoding, which some JSON parsers guess."""
    return _safetensors(_header(w=_entry()).decode().encode("utf-16"))


@enter(Form.SAFETENSORS)
def metadata_not_text(_: str) -> bytes:
    """Free text that is a number."""
    return _safetensors(_header(w=_entry(), __metadata__={"format": 1}))


# Indexes


@enter(Form.INDEX, Answer.PROBLEM_NAMED)
def index_path_escapes(_: str) -> bytes:
    """A tensor lies in a file above the checkpoint."""
    return json.dumps({"weight_map": {"w": "../../../etc/hostname"}}).encode()


@enter(Form.INDEX, Answer.PROBLEM_NAMED)
def index_path_absolute(_: str) -> bytes:
    """A tensor lies at an absolute path."""
    return json.dumps({"weight_map": {"w": "/etc/hostname"}}).encode()


@enter(Form.INDEX)
def index_name_twice(_: str) -> bytes:
    """One tensor in two files: which of them counts depends on the parser."""
    return b'{"weight_map":{"w":"a.safetensors","w":"b.safetensors"}}'


@enter(Form.INDEX)
def index_of_numbers(_: str) -> bytes:
    """Files that are no text."""
    return b'{"weight_map":{"w":7}}'


# What is no regular file


@enter(Form.NO_FILE)
def pipe(_: str) -> bytes:
    """A pipe: opening it waits for ever."""
    return b""


@enter(Form.NO_FILE)
def link_out(_: str) -> bytes:
    """A link out of the checkpoint."""
    return b""


@enter(Form.NO_FILE)
def link_to_device(_: str) -> bytes:
    """A link to a device that never ends."""
    return b""


@enter(Form.NO_FILE)
def directory_named_as_file(_: str) -> bytes:
    """A directory where a file should be."""
    return b""
