"""A file read part by part, for whoever needs a few kilobytes out of a hundred gigabytes.

Decides when a reading is still one of the same file: its length never changes, and no part comes short. Leaves where
files lie, and which names are followed, to the store that opens them.
"""

from __future__ import annotations

import os
from typing import Self

from lastgood.errors import StoreTransientError

__all__ = ["FileReader", "check_range"]


class FileReader:
    """An `ObjectReader` over an open file; a context manager that closes it.

    Args:
        descriptor: Of a regular file, open for reading; it belongs to the reader from now on.
        name: The file, as errors name it.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._size_bytes = os.fstat(descriptor).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read_at(self, offset: int, length: int) -> bytes:
        check_range(self._name, self._size_bytes, offset, length)
        try:
            data = os.pread(self._descriptor, length, offset)
            while len(data) < length and (more := os.pread(self._descriptor, length - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise StoreTransientError(f"cannot read {self._name}: {(error.strerror or str(error)).lower()}") from error
        if len(data) < length:
            raise StoreTransientError(
                f"cannot read {self._name}: expected {length} bytes at {offset}, found {len(data)}: it is being changed"
            )
        return data


def check_range(name: str, size_bytes: int, offset: int, length: int) -> None:
    """Refuse a range that does not lie within an object.

    Raises:
        ValueError: It does not.
    """
    if offset < 0 or length < 0 or offset + length > size_bytes:
        raise ValueError(f"range outside of {name}: {length} bytes at {offset} of {size_bytes}")
