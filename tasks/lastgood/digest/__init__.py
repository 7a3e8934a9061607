"""Digests of bytes and files, as fast as the machine reads.

- `values`: `Algorithm`, `Digest`, its text form, hashing of bytes at hand.
- `files`: one regular file, opened without following links and read so that nothing it does can kill the reader.
- `beneath`: files named by a path relative to a root that no link can lead out of.
- `engine`: many files over all cores.
"""

from __future__ import annotations

from lastgood.digest.beneath import RootDirectory
from lastgood.digest.engine import HashRequest, default_jobs, hash_files
from lastgood.digest.files import (
    FileChanged,
    FileDigest,
    NotRegularFile,
    SizeMismatch,
    copy_and_hash,
    hash_file,
    open_regular,
)
from lastgood.digest.values import Algorithm, Digest, StreamHasher, hash_bytes

__all__ = [
    "Algorithm",
    "Digest",
    "FileChanged",
    "FileDigest",
    "HashRequest",
    "NotRegularFile",
    "RootDirectory",
    "SizeMismatch",
    "StreamHasher",
    "copy_and_hash",
    "default_jobs",
    "hash_bytes",
    "hash_file",
    "hash_files",
    "open_regular",
]
