"""Sets of files that are numbered along some axes: which numbers are missing.

Decides how far an absurd number in a name or a file is followed: not at all beyond `MAXIMUM_RANKS`, and never further
than `MAXIMUM_NAMED` missing ones, so that whoever writes a number cannot fill a report or an afternoon.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod
from typing import Any

from lastgood.formats.readers.contents import count_in
from lastgood.verdict import Finding, Reason

__all__ = ["MAXIMUM_NAMED", "MAXIMUM_RANKS", "absent", "rank_count_in", "too_many_ranks"]

MAXIMUM_RANKS = 1_000_000
MAXIMUM_NAMED = 1_000


def absent(sizes: tuple[int, ...], present: Collection[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """The places of a grid that are not present, in order, and at most `MAXIMUM_NAMED` of them.

    Args:
        sizes: Of the axes, the slowest first.
        present: Places, one number for each axis.
    """
    named = 0
    for index in range(prod(sizes)):
        place, rest = [], index
        for size in reversed(sizes):
            rest, number = divmod(rest, size)
            place.append(number)
        if (found := tuple(reversed(place))) not in present:
            yield found
            named += 1
            if named >= MAXIMUM_NAMED:
                return


def rank_count_in(value: Any, key: str) -> int | None:
    """A number of ranks under a key, at least one; None where there is none, or one that no job has."""
    found = count_in(value, key)
    return found if found is not None and 0 < found <= MAXIMUM_RANKS else None


def too_many_ranks(value: Any, path: str, *keys: str) -> Iterator[Finding]:
    """Numbers of ranks that no job has."""
    for key in keys:
        found = count_in(value, key)
        if found is not None and not 0 < found <= MAXIMUM_RANKS:
            message = f"number of ranks impossible: {key} in {path}: expected 1 to {MAXIMUM_RANKS}, found {found}"
            yield Finding(reason=Reason.STATE_INVALID, message=message, offender=path, found=str(found))
