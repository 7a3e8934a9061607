"""Digests of bytes and files, as fast as the machine reads.

- `values`: `Algorithm`, `Digest`, its text form, hashing of bytes at hand.
- `files`: one regular file, opened without following links and read so that nothing it does can kill the reader.
- `beneath`: files named by a path relative to a root that no link can lead out of.
- `engine`: many files over all cores.
"""

from __future__ import annotations

from lastgood.digest.values import Algorithm, Digest, StreamHasher, hash_bytes

__all__ = [
    "Algorithm",
    "Digest",
    "StreamHasher",
    "hash_bytes",
]
