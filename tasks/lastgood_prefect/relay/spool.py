"""Hints that were accepted and are not done with, on disk.

Decides when an accepted hint is safe; leaves to its caller when it is done. SQLite keeps them, since a torn write, a
full disk and two processes at once are what it is tested for. Rules:

- `add` returns after the hint was flushed to the disk, so that whoever answered a sender with "accepted" keeps its word
  through a crash or a power loss.
- Adding twice and removing what is not there change nothing.
- A bounded number is kept; a sender that is refused keeps its own copy.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

from lastgood.errors import LastgoodError, UsageError
from lastgood.identity import GenerationId
from lastgood_prefect.hints import Hint

__all__ = ["MAXIMUM_HINTS", "Spool", "SpoolError"]

MAXIMUM_HINTS: Final = 10_000
"""A hint is done in seconds; so many are waiting only if nothing has been looked at for hours."""
FILE: Final = "hints.sqlite"
BUSY_SECONDS: Final = 5.0


class SpoolError(LastgoodError):
    """The hints were not kept: the disk is full or failed, or too many are waiting."""

    exit_code = 2


class Spool:
    """A directory that keeps hints. May be shared between threads.

    Args:
        directory: Created if it is not there; on a local disk.

    Raises:
        UsageError: No spool can be kept there.
    """

    def __init__(self, directory: Path) -> None:
        self._lock = threading.Lock()
        try:
            created = not directory.exists()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                directory / FILE, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode = WAL")
            # The default of WAL leaves the last transactions to the operating system; a sender was told "accepted".
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS hints "
                "(family TEXT NOT NULL, generation TEXT NOT NULL, PRIMARY KEY (family, generation)) WITHOUT ROWID"
            )
            if created:
                _flush(directory.parent)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"no spool can be kept: {directory}: {error}") from None

    def hints(self) -> frozenset[Hint]:
        """All that are kept.

        Raises:
            SpoolError: They cannot be read.
        """
        try:
            with self._lock, closing(self._database.execute("SELECT family, generation FROM hints")) as rows:
                named = [(family, GenerationId.find(generation)) for family, generation in rows]
        except sqlite3.Error as error:
            raise SpoolError(f"spool cannot be read: {error}") from None
        return frozenset(Hint(family, generation) for family, generation in named if generation is not None)

    def add(self, hints: Iterable[Hint]) -> None:
        """Keep hints; all of them, or after an error perhaps none.

        Raises:
            SpoolError: Not kept.
        """
        rows = _rows(hints)
        if not rows:
            return
        try:
            with self._lock, self._database:
                self._database.execute("BEGIN IMMEDIATE")
                ((count,),) = self._database.execute("SELECT COUNT(*) FROM hints")
                if count + len(rows) > MAXIMUM_HINTS:
                    raise SpoolError(f"spool is full: {count} hints are waiting, expected at most {MAXIMUM_HINTS}")
                self._database.executemany("INSERT OR IGNORE INTO hints VALUES (?, ?)", rows)
        except sqlite3.Error as error:
            raise SpoolError(f"spool cannot be written: {error}") from None

    def remove(self, hints: Iterable[Hint]) -> None:
        """Keep these no longer.

        Raises:
            SpoolError: Some may still be kept.
        """
        rows = _rows(hints)
        if not rows:
            return
        try:
            with self._lock, self._database:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.executemany("DELETE FROM hints WHERE family = ? AND generation = ?", rows)
        except sqlite3.Error as error:
            raise SpoolError(f"spool cannot be written: {error}") from None

    def close(self) -> None:
        """Release the file. May be repeated."""
        with self._lock:
            self._database.close()


def _rows(hints: Iterable[Hint]) -> list[tuple[str, str]]:
    return [(hint.family, str(hint.generation)) for hint in hints]


def _flush(directory: Path) -> None:
    """Make the names in a directory durable; SQLite does so within its own, not above it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
