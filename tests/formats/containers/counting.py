"""A reader that counts what is asked of it."""

from __future__ import annotations

from lastgood.stores.port import ObjectReader


class CountingReader:
    """Passes reads on and remembers them."""

    def __init__(self, inner: ObjectReader) -> None:
        self._inner = inner
        self.reads: list[tuple[int, int]] = []

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    @property
    def bytes_read(self) -> int:
        return sum(length for _, length in self.reads)

    def read_at(self, offset: int, length: int) -> bytes:
        assert offset >= 0
        assert offset + length <= self.size_bytes, "a read beyond the object is the reader's own mistake"
        self.reads.append((offset, length))
        return self._inner.read_at(offset, length)
