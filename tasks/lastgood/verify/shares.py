"""A generation's artifacts cut into consecutive shares of about equal length, and read share by share.

Decides where the cuts lie, and how what was read of shares becomes the reading of the whole; leaves to callers what a
share is for: a slice of the bytes that one save has read, or what one of several workers reads, and where workers are.
Rules: the order alone decides, so whoever holds the manifest cuts alike, today and on another machine; an artifact is
never cut, for a digest speaks of the whole of it; however many workers read, the caller sees what one would show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lastgood.digest import HashRequest
from lastgood.errors import StoreError
from lastgood.stores.port import Hashed, Progress, Store

__all__ = ["Share", "cut_shares", "merge_shares", "read_share"]

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one worker read.

    Args:
        hashed: In order, as far as it came.
        read_bytes: Bytes of payload that it read.
        error: Why it came no further.
    """

    hashed: tuple[Hashed, ...]
    read_bytes: int
    error: StoreError | None = None


def read_share(store: Store, prefix: str, requests: Sequence[HashRequest]) -> Share:
    """Read what one worker was given; trouble of the store is brought back with what was read before it."""
    hashed: list[Hashed] = []
    read_bytes, error = 0, None

    def count(done_bytes: int) -> None:
        nonlocal read_bytes
        read_bytes = done_bytes

    try:
        hashed.extend(store.hash(prefix, requests, count))
    except StoreError as failure:
        error = failure
    return Share(hashed=tuple(hashed), read_bytes=read_bytes, error=error)


def merge_shares(shares: Iterator[Share], progress: Progress | None = None) -> Iterator[Hashed]:
    """What was read of consecutive shares as one reading, which ends where one worker's would have ended.

    Raises:
        StoreError: The store failed in a share; what was read of it, and before it, has been given.
    """
    done_bytes = 0
    for share in shares:
        done_bytes += share.read_bytes
        if progress is not None and share.read_bytes:
            progress(done_bytes)
        yield from share.hashed
        if share.error is not None:
            raise share.error


def cut_shares(items: Sequence[_Item], count: int, length: Callable[[_Item], int]) -> tuple[tuple[_Item, ...], ...]:
    """Cut artifacts, or requests for them, into shares, each a range of them in their order.

    Laws: the shares together are the items, each once and in their order; none is empty; none is longer than its part
    of all bytes and one item.

    Args:
        items: In the order of the manifest.
        count: How many shares, at least 1; fewer where there are fewer items.
        length: Of an item, in bytes.
    """
    count = min(count, len(items))
    lengths = [length(item) for item in items]
    total_bytes = sum(lengths)
    cuts, at, before_bytes = [0], 0, 0
    for share in range(1, count):
        # An artifact belongs where its middle lies. The bounds leave each share, before and after, one of its own.
        while at < len(items) - (count - share) and (
            at == cuts[-1] or (2 * before_bytes + lengths[at]) * count < 2 * share * total_bytes
        ):
            before_bytes += lengths[at]
            at += 1
        cuts.append(at)
    ends = [*cuts[1:], len(items)]
    return tuple(tuple(items[begin:end]) for begin, end in zip(cuts, ends, strict=True) if end > begin)
