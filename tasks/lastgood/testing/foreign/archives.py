"""Edits inside the archives of torch: what a writer with a mistake in it would have written, checksums included."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from lastgood.testing.foreign.scene import ForeignScene

__all__ = ["edit_pickle", "edit_record", "edit_stored_pickle", "flip", "plant_name", "set_small_number"]

_PICKLE = "data.pkl"


def edit_record(path: Path, name: str, edit: Callable[[bytes], bytes]) -> None:
    """Write the archive again with one record changed, and the checksum that belongs to it."""
    with zipfile.ZipFile(path) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    other = path.with_name(f"{path.name}.edited")
    with zipfile.ZipFile(other, "w", zipfile.ZIP_STORED) as archive:
        for record, data in records:
            archive.writestr(record, edit(data) if record.partition("/")[2] == name else data)
    os.replace(other, path)


def edit_pickle(path: Path, edit: Callable[[bytes], bytes]) -> None:
    """Change the pickle of an archive."""
    edit_record(path, _PICKLE, edit)


def edit_stored_pickle(path: Path, offset: int, length: int, old: bytes, new: bytes) -> None:
    """Change a few bytes of the pickle of an archive that lies inside a file, and its checksum wherever it is written.

    Args:
        path: The file.
        offset: Where the archive begins.
        length: Of the archive.
        old: Bytes that the pickle holds once.
        new: As many others.
    """
    data = bytearray(path.read_bytes())
    archive = bytes(data[offset : offset + length])
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        name = next(one for one in opened.namelist() if one.partition("/")[2] == _PICKLE)
        pickle, crc = opened.read(name), opened.getinfo(name).CRC
    if pickle.count(old) != 1 or archive.count(pickle) != 1 or len(old) != len(new):
        raise AssertionError(f"cannot be put in place of {old!r}: {new!r}")
    edited = pickle.replace(old, new)
    was, is_now = (struct.pack("<L", one) for one in (crc, zlib.crc32(edited)))
    data[offset : offset + length] = archive.replace(pickle, edited).replace(was, is_now)
    path.write_bytes(data)


def flip(scene: ForeignScene, relative: str, offset: int) -> str:
    """Change one bit of the byte at an offset; returns the path."""
    path = scene.path(relative)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    return relative


def plant_name(pickle: bytes, name: str) -> bytes:
    """The same pickle, which imports one name more and throws it away.

    Args:
        pickle: Of protocol 2 or later.
        name: Module and name with a dot between.
    """
    module, _, attribute = name.rpartition(".")
    if pickle[:1] != b"\x80":
        raise AssertionError("a pickle of protocol 0 or 1 has no header to plant a name behind")
    return pickle[:2] + f"c{module}\n{attribute}\n0".encode() + pickle[2:]


def set_small_number(pickle: bytes, key: str, value: int) -> bytes:
    """The same pickle with another number under a text key; both numbers below 256."""
    text = key.encode()
    start = pickle.index(text) + len(text)
    place = pickle.index(b"K", start)
    if place - start > 8 or not 0 <= value < 256:  # a memo opcode lies between
        raise AssertionError(f"no small number under {key}")
    return pickle[: place + 1] + bytes([value]) + pickle[place + 2 :]
