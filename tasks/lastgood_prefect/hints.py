"""When to look at a family: notifications where the kernel hears of every write, listings where it does not.

Decides how each family is watched and says so once; leaves what a change means to whoever looks, and hints that come
from elsewhere to other sources (`relay`). Rules:

- A hint names a family, never a path: what was committed is found by listing.
- Local file systems are watched by inotify, shared and unknown ones by listing the names of their commits
  (`mounts.hears_every_write`).
- Of a family that is not there yet, the deepest directory that is there, down from its root, is watched; of a root that
  is not there, nothing above it. A directory that was replaced (a file system mounted over it, or away) is noticed by
  its identity.
- A notification that could not be set up makes listings of it; one that was missed is made up for by the caller's own
  slow cadence.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

from watchfiles import Change, watch

from lastgood.errors import StoreError
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.text import printable
from lastgood_prefect.mounts import file_system_of, hears_every_write

__all__ = ["CommitNames", "Hint", "HintSource", "Hints"]

QUIET_MILLISECONDS: Final = 20
"""A commit is a handful of system calls; they are one hint when none of them is further apart."""
LONGEST_BURST_MILLISECONDS: Final = 200

_log = logging.getLogger("lastgood.watch")


@dataclass(frozen=True, slots=True)
class Hint:
    """Somebody says that a generation was committed. It may be untrue, or said before."""

    family: str
    generation: GenerationId

    def is_done(self, unasked: Mapping[str, frozenset[GenerationId]]) -> bool:
        """Whether nothing hangs on this hint any more (see `HintSource.acknowledge`)."""
        return self.family in unasked and self.generation not in unasked[self.family]


class HintSource(Protocol):
    """Says which families may have changed. Used from one thread; its own failures delay hints and raise nothing."""

    def wait(self) -> tuple[frozenset[str], frozenset[str]]:
        """Wait for a hint, or for a tick, whichever is sooner.

        Returns:
            The families that may have changed, and those among them of which nothing that is remembered counts.
        """

    def acknowledge(self, unasked: Mapping[str, frozenset[GenerationId]]) -> None:
        """Told after the families that `wait` returned were looked at, and each time after.

        Args:
            unasked: Family → its unjudged generations that belong to no run which the orchestrator acknowledged. A
                family is absent while its storage cannot tell. A hint that was returned before and whose generation
                is not among them has done its work, and whoever keeps it may drop it.
        """

    def close(self) -> None:
        """Release everything. May be repeated."""


class CommitNames:
    """The names of families' commits, as they were last listed.

    Args:
        locations: Name → family, of any store.
    """

    def __init__(self, locations: Mapping[str, Location]) -> None:
        self._locations = dict(locations)
        self._listed: dict[str, tuple[str, ...] | None] = {}

    def changed(self, families: Iterable[str]) -> set[str]:
        """List the commits of these families; returns those that have other names than when they were last listed."""
        hinted = set()
        for name in families:
            location = self._locations[name]
            try:
                names: tuple[str, ...] | None = location.store.names(location.keys.commits).files
            except StoreError:
                names = None  # the look that follows says what is wrong
            if name not in self._listed or names != self._listed[name]:
                hinted.add(name)
            self._listed[name] = names
        return hinted


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The directory that is watched for a family, which one it is, and how it is watched."""

    path: Path
    identity: tuple[int, int]
    file_system: str

    @property
    def notifies(self) -> bool:
        return hears_every_write(self.file_system)


class Hints:
    """Says which families may have changed. Not shared between threads.

    Args:
        locations: Name → family, of any store.
        stop: Set by whoever wants `wait` to return at once.
        tick: The longest that `wait` takes.
        poll: How often a family that cannot be notified of is listed.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        locations: Mapping[str, Location],
        stop: threading.Event,
        *,
        tick: timedelta,
        poll: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._locations = dict(locations)
        self._stop = stop
        self._tick_seconds, self._poll_seconds = tick.total_seconds(), poll.total_seconds()
        self._clock = clock
        self._anchors: dict[str, _Anchor | None] = {}
        self._names = CommitNames(self._locations)
        self._next_poll = 0.0
        self._changes: Generator[set[tuple[Change, str]], None, None] | None = None

    def wait(self) -> tuple[frozenset[str], frozenset[str]]:
        """Wait for a hint, or for a tick.

        Returns:
            The families that may have changed, and those among them whose directory is another one than before, so that
            nothing remembered of them counts.
        """
        moved = self._look_for_directories()
        hinted = moved | (self._notified() if self._changes is not None else self._idle())
        if self._clock() >= self._next_poll:
            self._next_poll = self._clock() + self._poll_seconds
            hinted |= self._polled()
        return frozenset(hinted), frozenset(moved)

    def acknowledge(self, unasked: Mapping[str, frozenset[GenerationId]]) -> None:
        """Nothing is kept of a hint that was returned."""

    def close(self) -> None:
        """Stop watching."""
        if self._changes is not None:
            self._changes.close()
            self._changes = None

    def _look_for_directories(self) -> set[str]:
        """Find each family's directory anew, and watch the new ones; returns the families for which it is another."""
        before = self._notifying()
        moved = set()
        for name, location in self._locations.items():
            directory = _deepest_directory(location)
            known = self._anchors.get(name)
            if name in self._anchors and directory == (known and (known.path, known.identity)):
                continue
            moved.add(name)
            # Asked only of a directory that is new: the list of mounts may be long.
            self._anchors[name] = directory and _Anchor(*directory, file_system_of(directory[0]))
            _log.info("%s: %s", name, _described(self._anchors[name], location))
        if moved and (self._notifying() != before or self._changes is None):
            self.close()
            self._changes = self._watching()
        return moved

    def _notifying(self) -> set[_Anchor]:
        return {anchor for anchor in self._anchors.values() if anchor is not None and anchor.notifies}

    def _watching(self) -> Generator[set[tuple[Change, str]], None, None] | None:
        paths = sorted({str(anchor.path) for anchor in self._notifying()})
        if not paths:
            return None
        return watch(
            *paths,
            watch_filter=None,
            debounce=LONGEST_BURST_MILLISECONDS,
            step=QUIET_MILLISECONDS,
            stop_event=self._stop,
            rust_timeout=max(1, int(self._tick_seconds * 1000)),
            yield_on_timeout=True,
            raise_interrupt=False,
            force_polling=False,
            recursive=False,
        )

    def _notified(self) -> set[str]:
        assert self._changes is not None
        try:
            changes = next(self._changes, None)
        except (OSError, RuntimeError) as error:
            # A directory that went away meanwhile is found by the next look; an exhausted limit of the kernel stays.
            _log.warning("no notifications: %s: listing instead", printable(str(error)))
            self._changes = None
            return self._idle()
        if changes is None:
            self._changes = None
            return set()
        touched = {Path(path) for _, path in changes}
        directories = touched | {path.parent for path in touched}
        return {name for name, anchor in self._anchors.items() if anchor is not None and anchor.path in directories}

    def _idle(self) -> set[str]:
        self._stop.wait(self._tick_seconds)
        return set()

    def _polled(self) -> set[str]:
        """Families without notifications whose commits have other names than when they were last listed."""
        return self._names.changed(
            name
            for name, anchor in self._anchors.items()
            if anchor is None or not anchor.notifies or self._changes is None
        )


def _deepest_directory(location: Location) -> tuple[Path, tuple[int, int]] | None:
    """The deepest directory from the root down to the family's commits, and its identity; None without a root."""
    found = None
    for directory in _down_to_commits(location):
        try:
            status = os.stat(directory)
        except OSError:
            break
        found = (directory, (status.st_dev, status.st_ino))
    return found


def _down_to_commits(location: Location) -> Sequence[Path]:
    commits = location.store.local_directory(location.keys.commits)
    if commits is None:
        return []
    depth = len(Path(location.keys.commits).parts)
    return [*reversed(commits.parents[:depth]), commits]


def _described(anchor: _Anchor | None, location: Location) -> str:
    if location.store.local_directory(location.keys.commits) is None:
        return f"listing {printable(location.family_uri)}"
    if anchor is None:
        return f"waiting for its root: {printable(location.store.uri)}"
    how = "inotify" if anchor.notifies else "listing"
    return f"watching {printable(str(anchor.path))} by {how} ({printable(anchor.file_system)})"
