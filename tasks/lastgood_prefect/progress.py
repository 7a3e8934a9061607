"""Progress of a restore or a drill on the page of its run, told from a thread of its own.

Decides when the page hears of progress; leaves how it is shown to `artifacts`. Rules: the work never waits for the
server, since a drill measures milliseconds and a restore must hear when it shall end; only the newest state is told.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from lastgood.location import Location
from lastgood.stores import port
from lastgood_prefect.artifacts import PATIENCE_SECONDS, Progress

__all__ = ["Told", "share_of", "told_aside"]

CLOSE_SECONDS: Final = 3.0
"""How long the end of the work waits for its last word to be shown."""


class Told:
    """Where work says how far it has come; saying it costs nothing."""

    def __init__(self) -> None:
        self._changed = threading.Event()
        self._percent = 0.0

    def __call__(self, percent: float) -> None:
        self._percent = percent
        self._changed.set()

    def wait(self) -> float:
        """Wait for news; the newest."""
        self._changed.wait()
        self._changed.clear()
        return self._percent


@contextmanager
def told_aside(key: str, description: str) -> Iterator[Told]:
    """Show what is told while the context is open.

    Args:
        key: From `artifacts.lawful_key`.
        description: What is under way, in Markdown that is safe already.
    """
    told, ended = Told(), threading.Event()
    shown = Progress(key, description, lambda: 100)

    def show() -> None:
        # Work that ends sooner shows no progress, and no page is told more often.
        while not ended.wait(PATIENCE_SECONDS):
            shown.reach(told.wait())
        shown.close()

    context = contextvars.copy_context()
    # A daemon: a server that takes minutes to answer must not hold up the end of the process.
    teller = threading.Thread(target=lambda: context.run(show), name="lastgood-progress", daemon=True)
    teller.start()
    try:
        yield told
    finally:
        ended.set()
        told(100.0)
        teller.join(CLOSE_SECONDS)


def share_of(location: Location, tell: Callable[[float], None]) -> port.Progress:
    """Turn bytes done of a generation into a share of all its bytes, from 0 to 1.

    Args:
        location: Names the generation.
        tell: Told the share.
    """
    total_bytes: list[int] = []

    def report(done_bytes: int) -> None:
        if not total_bytes:
            lying = location.store.walk(location.keys.artifacts(location.require_generation()))
            total_bytes.append(max(1, sum(stored.bytes for stored in lying)))
        tell(min(1.0, done_bytes / total_bytes[0]))

    return report
