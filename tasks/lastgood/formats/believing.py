"""Bytes that make no sense are believed when they are read twice: what a transfer bent is not what is stored.

Decides when a `FormatError` may become a finding. Rule: two readings that fail alike are the file's fault; anything
else is the store's, and says nothing about the checkpoint. A limit of ours is no fault of anybody's: one reading tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lastgood.errors import FormatError, ReadLimitError, StoreTransientError
from lastgood.formats.source import Source

__all__ = ["believed", "believed_once"]

_Answer = TypeVar("_Answer")


def believed(read: Callable[[], _Answer], where: str) -> _Answer:
    """The answer of a reading, or its error once a second reading gave the same.

    Args:
        read: Reads from the store each time that it is called, and keeps nothing.
        where: The file, as errors name it.

    Raises:
        FormatError: Both readings failed alike.
        StoreTransientError: The second one was another.
        StoreError: The store could not tell.
    """
    try:
        return read()
    except ReadLimitError:
        raise
    except FormatError as first:
        try:
            read()
        except FormatError as second:
            if second.message == first.message:
                raise
    raise StoreTransientError(f"two readings gave different bytes: {where}")


def believed_once(source: Source, path: str, read: Callable[[], _Answer]) -> _Answer:
    """As `believed`, of a file of a checkpoint; one that failed before fails again without being read.

    Args:
        source: The checkpoint, which remembers.
        path: The file.
        read: Understands the whole file, as others do who ask for it here.

    Raises:
        FormatError: Both readings failed alike, now or before.
        StoreError: The store could not tell.
    """
    key = f"{source.prefix}/{path}"
    if (known := source.refused.get(key)) is not None:
        raise _anew(known)
    try:
        return believed(read, path)
    except FormatError as error:
        source.refused[key] = _anew(error)
        raise


def _anew(error: FormatError) -> FormatError:
    """The same error without its traceback, which would keep everything that was made of the file."""
    kind = ReadLimitError if isinstance(error, ReadLimitError) else FormatError
    return kind(error.message, reason=error.reason, where=error.where, hint=error.hint)
