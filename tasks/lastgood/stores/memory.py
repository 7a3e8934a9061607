"""A store in memory, for models and tests: the small-document half of the port, linearizable, with a request count."""

from __future__ import annotations

from lastgood.stores.port import Names

__all__ = ["MemoryStore"]


class MemoryStore:
    """Documents in a dictionary. `requests` counts every operation, as a bucket would bill it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests = 0

    @property
    def uri(self) -> str:
        return "memory:"

    def names(self, prefix: str) -> Names:
        self.requests += 1
        start = f"{prefix}/" if prefix else ""
        below = [key.removeprefix(start) for key in self.objects if key.startswith(start)]
        files = sorted(name for name in below if "/" not in name)
        return Names(files=tuple(files), directories=tuple(sorted({n.split("/")[0] for n in below if "/" in n})))

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        self.requests += 1
        return self.objects.get(key)

    def create(self, key: str, data: bytes) -> bool:
        self.requests += 1
        if key in self.objects:
            return False
        self.objects[key] = data
        return True

    def replace(self, key: str, data: bytes) -> None:
        self.requests += 1
        self.objects[key] = data

    def compare_and_swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        self.requests += 1
        if self.objects.get(key) != expected:
            return False
        self.objects[key] = data
        return True
