"""What a notification means: a commit of a configured family, or nothing.

Decides which object announces a commit, and counts what came of every notification; leaves bodies to `decoding`. Rule:
the families are those of the configuration whose root is `s3://bucket/prefix`; an event is compared with them and
nothing else is done with what it says.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from lastgood.identity import FamilyKeys, GenerationId
from lastgood_prefect.hints import Hint
from lastgood_prefect.relay.decoding import StorageEvent, UndecodableEvent, decode
from lastgood_prefect.settings import ConfiguredFamily

__all__ = ["CommitKeys", "Counters", "Reader", "bucket_of"]

SCHEME: Final = "s3://"
MAXIMUM_REMEMBERED: Final = 10_000
"""Hints that are remembered to count the doubled ones; a figure, on which nothing hangs."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """What came of the notifications since the relay started.

    Args:
        received: Notifications that were delivered to us, doubled ones too.
        hints: Commits of configured families that they announced.
        doubled: Hints among these that had been given before.
        other: Objects of configured families that are no commits.
        foreign: Objects of nothing that is configured; dropped.
        malformed: Notifications that could not be decoded.
        refused: Requests that did not know the secret.
    """

    received: int = 0
    hints: int = 0
    doubled: int = 0
    other: int = 0
    foreign: int = 0
    malformed: int = 0
    refused: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in self._items())

    def prometheus(self) -> str:
        """The counters in Prometheus' text format."""
        name = "lastgood_relay_events_total"
        help_text = "What came of storage notifications, since the relay started."
        lines = [f"# HELP {name} {help_text}", f"# TYPE {name} counter"]
        lines += [f'{name}{{outcome="{outcome}"}} {value}' for outcome, value in self._items()]
        return "\n".join(lines) + "\n"

    def _items(self) -> list[tuple[str, int]]:
        return [(one.name, getattr(self, one.name)) for one in fields(self)]


def bucket_of(root: str) -> tuple[str, str] | None:
    """Bucket and prefix of a root `s3://bucket/prefix`, the prefix without slashes around it; None for another root."""
    if not root.startswith(SCHEME):
        return None
    bucket, _, prefix = root.removeprefix(SCHEME).partition("/")
    return bucket, prefix.strip("/")


class CommitKeys:
    """Where the configured families announce their commits.

    Args:
        roots: Family → root, of any store; those that are in no bucket can be announced by no event.
    """

    def __init__(self, roots: Mapping[str, str]) -> None:
        self._commits: dict[tuple[str, str], str] = {}
        self._families: dict[str, list[str]] = {}
        for family, root in roots.items():
            if (found := bucket_of(root)) is not None:
                bucket, prefix = found
                above = f"{prefix}/" if prefix else ""
                self._commits[bucket, f"{above}{FamilyKeys(family).commits}"] = family
                self._families.setdefault(bucket, []).append(f"{above}{family}/")

    @classmethod
    def of(cls, families: Iterable[ConfiguredFamily]) -> CommitKeys:
        """Those of configured families."""
        return cls({one.name: one.settings.root for one in families})

    def hint(self, event: StorageEvent) -> Hint | None:
        """The commit that an event announces; None when it is about something else."""
        directory, _, name = event.key.rpartition("/")
        family = self._commits.get((event.bucket, directory))
        generation = GenerationId.find(name) if family is not None else None
        return Hint(family, generation) if family is not None and generation is not None else None

    def is_of_a_family(self, event: StorageEvent) -> bool:
        """Whether it is about any object of a configured family."""
        return any(event.key.startswith(above) for above in self._families.get(event.bucket, ()))


class Reader:
    """Reads notifications, and counts. Not shared between threads.

    Args:
        keys: Of the configured families.
    """

    def __init__(self, keys: CommitKeys) -> None:
        self.counters = Counters()
        self._keys = keys
        self._given: OrderedDict[Hint, None] = OrderedDict()

    def decode(self, body: bytes) -> tuple[StorageEvent, ...]:
        """As `decoding.decode`, counted.

        Raises:
            UndecodableEvent: As `decoding.decode`.
        """
        self.counters.received += 1
        try:
            return decode(body)
        except UndecodableEvent:
            self.counters.malformed += 1
            raise

    def hints(self, events: Iterable[StorageEvent]) -> frozenset[Hint]:
        """The commits that events announce."""
        found = set()
        for event in events:
            hint = self._keys.hint(event)
            if hint is not None:
                found.add(hint)
                self._count(hint)
            elif self._keys.is_of_a_family(event):
                self.counters.other += 1
            else:
                self.counters.foreign += 1
        return frozenset(found)

    def _count(self, hint: Hint) -> None:
        self.counters.hints += 1
        self.counters.doubled += hint in self._given
        self._given[hint] = None
        self._given.move_to_end(hint)
        if len(self._given) > MAXIMUM_REMEMBERED:
            self._given.popitem(last=False)
