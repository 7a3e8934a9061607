"""Digests as values: which algorithms there are, their one text form, and hashing of bytes that are already at hand.

Decides how a digest is spelled and compared. Leaves reading files to `files` and spreading them over cores to `engine`.
Rules: a digest carries its algorithm, so that no reader guesses it from the length; hexadecimal is lowercase, so that
equal digests are equal text. BLAKE3 is the default of record (cryptographic, near read speed, one large file splits
over cores), SHA-256 the one that a bare shell and a regulated site can check. Source: docs/format.md; the
BLAKE3 paper (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020); FIPS 180-4.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec
from blake3 import blake3
from msgspec import Meta

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Algorithm", "Digest", "StreamHasher", "hash_bytes"]

# The length bound is not idle: `$` alone would let a trailing newline through.
Hexadecimal = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", max_length=64)]


class Algorithm(StrEnum):
    """The hash functions that a digest may name; both give 256 bits."""

    BLAKE3 = "blake3"
    SHA256 = "sha256"


_TEXT = re.compile(rf"(?P<algorithm>{'|'.join(Algorithm)}):(?P<value>[0-9a-f]{{64}})")


class Digest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One digest of one run of bytes.

    Law: `Digest.parse(str(d)) == d` for every digest that is not a composite.

    Args:
        algorithm: The hash function.
        value: 64 lowercase hexadecimal digits. The strict parser checks them; code that builds one is trusted.
        part_bytes: Part size of a composite digest (a digest over the digests of parts), above 0; None for a digest
            over the bytes themselves, the only kind that this module makes.
    """

    algorithm: Algorithm
    value: Hexadecimal
    part_bytes: Annotated[int, Meta(gt=0)] | None = None

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Read the text form `blake3:<64 hexadecimal digits>`.

        Raises:
            ValueError: The text is not a digest, or names no algorithm of ours.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            known = "|".join(Algorithm)
            raise ValueError(f"not a digest: expected {known}:<64 lowercase hexadecimal digits>, found {text[:100]!r}")
        return cls(algorithm=Algorithm(match["algorithm"]), value=match["value"])

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.value}"


class _Hash(Protocol):
    def update(self, data: Buffer, /) -> object: ...

    def hexdigest(self) -> str: ...


class StreamHasher:
    """Digests of a stream under one or more algorithms at once; memory does not grow with the stream.

    Args:
        algorithms: At least one, each once; the digests come in the same order.
        threads: Over how many threads BLAKE3 may split one `update`, at least 1; SHA-256 cannot be split. Worth it
            from about 1 MiB an update.

    Raises:
        ValueError: No algorithm, or one of them twice.
    """

    def __init__(self, algorithms: Sequence[Algorithm], *, threads: int = 1) -> None:
        if not algorithms or len(set(algorithms)) != len(algorithms):
            raise ValueError(f"algorithms: expected at least one and each once, found {list(algorithms)}")
        self._hashes = tuple((algorithm, _new_hash(algorithm, threads)) for algorithm in algorithms)

    def update(self, data: Buffer) -> None:
        """Take the next bytes. Releases the interpreter lock for anything above 2 KiB."""
        for _, hash_ in self._hashes:
            hash_.update(data)

    def digests(self) -> tuple[Digest, ...]:
        """The digests of everything taken so far, in the order of the algorithms."""
        return tuple(Digest(algorithm=algorithm, value=hash_.hexdigest()) for algorithm, hash_ in self._hashes)


def hash_bytes(data: Buffer, algorithm: Algorithm = Algorithm.BLAKE3) -> Digest:
    """The digest of bytes that are already in memory."""
    hasher = StreamHasher((algorithm,))
    hasher.update(data)
    return hasher.digests()[0]


def _new_hash(algorithm: Algorithm, threads: int) -> _Hash:
    if algorithm is Algorithm.BLAKE3:
        # A number, not blake3.AUTO: AUTO uses a thread pool that lives as long as the process and does not survive a
        # fork, whereas a number makes a pool of its own, which ends with the hash.
        return blake3(max_threads=threads)
    return hashlib.sha256()
