"""Changes inside one file: cut, flip, take out an entry. Opens only what frameworks have written for these tests.

A flip goes where it does harm: into the middle of the largest tensor of the file, at the byte of a float that holds its
sign and most of its exponent. A flip in padding, which no loader could notice, would say nothing about loaders.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

COUNTERS = frozenset({"global_step", "global_steps", "step"})
"""Entries that count completed steps."""
CONFIGURATION = frozenset({"config.json", "generation_config.json", "adapter_config.json"})
"""Files of settings, whose loss as a whole says enough."""
FLOAT_BYTES = 4


def truncate(path: Path) -> None:
    """Cut to half."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path: Path) -> None:
    """Change one byte, the length stays."""
    data = bytearray(path.read_bytes())
    place, mask = _harmful_place(path, bytes(data))
    data[place] ^= mask
    path.write_bytes(data)


def _harmful_place(path: Path, data: bytes) -> tuple[int, int]:
    if path.suffix == ".safetensors":
        start = 8 + struct.unpack("<Q", data[:8])[0]
        return _middle_float(start, len(data) - start), 0xFF
    if (largest := _largest_record(path, data)) is not None:
        return _middle_float(*largest), 0xFF
    if path.suffix in {".json", ".txt", ".py", ".md"} or path.name == "latest":
        return len(data) // 2, 0x01  # stays readable as text, so that a parser has to notice what it means
    return len(data) // 2, 0xFF


def _middle_float(start: int, length: int) -> int:
    """Offset of the last byte, little-endian, of the float in the middle."""
    return start + length // FLOAT_BYTES // 2 * FLOAT_BYTES + min(FLOAT_BYTES, length) - 1


def _largest_record(path: Path, data: bytes) -> tuple[int, int] | None:
    """Offset and length of the largest tensor in a zip of torch, or in the zips of which a `.distcp` is made."""
    found: list[tuple[int, int]] = []
    for start, window in _zips(path, data):
        with zipfile.ZipFile(io.BytesIO(window)) as archive:
            for record in archive.infolist():
                if "/data/" in record.filename and record.file_size:
                    name_bytes, extra_bytes = struct.unpack("<HH", window[record.header_offset + 26 :][:4])
                    payload = record.header_offset + 30 + name_bytes + extra_bytes
                    found.append((start + payload, record.file_size))
    return max(found, key=lambda place: place[1], default=None)


def _zips(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    if path.suffix == ".distcp":
        from torch.distributed.checkpoint import FileSystemReader

        for info in FileSystemReader(path.parent).read_metadata().storage_data.values():
            window = data[info.offset : info.offset + info.length]
            if info.relative_path == path.name and zipfile.is_zipfile(io.BytesIO(window)):
                yield info.offset, window
    elif zipfile.is_zipfile(path):
        yield 0, data


def entries(path: Path) -> Iterator[tuple[str, bool, bool]]:
    """Keys of the dictionary that a file holds; whether each holds a list or dictionary, whether it counts steps."""
    try:
        content, _ = _opened(path)
    except (OSError, ValueError, RuntimeError, UnpicklingError):  # it holds no dictionary: nothing can be edited
        return
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        holds_others = isinstance(value, list | dict)
        if isinstance(key, str) and value is not None and not (holds_others and not value):
            yield key, holds_others, key in COUNTERS and isinstance(value, int) and value > 0


def remove_entry(path: Path, entry: str) -> None:
    """Take a key out."""
    _change(path, lambda content: content.pop(entry))


def empty_entry(path: Path, entry: str) -> None:
    """Empty a list or dictionary."""
    _change(path, lambda content: content[entry].clear())


def halve_entry(path: Path, entry: str) -> None:
    """Count half the steps."""
    _change(path, lambda content: content.__setitem__(entry, content[entry] // 2))


def _change(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content, write = _opened(path)
    change(content)
    write(content)


def _opened(path: Path) -> tuple[Any, Callable[[Any], object]]:
    if path.name in CONFIGURATION:
        raise ValueError(f"every key has a default: {path.name}")
    if path.suffix == ".json":
        return json.loads(path.read_bytes()), lambda content: path.write_text(json.dumps(content))
    if not zipfile.is_zipfile(path) or path.suffix == ".distcp":
        raise ValueError(f"no dictionary that could be edited: {path.name}")
    return torch.load(path, weights_only=False, map_location="cpu"), lambda content: torch.save(content, path)
