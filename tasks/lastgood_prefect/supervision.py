"""Keeping a stack's processes alive: whatever ends is started again, and somebody is told.

Decides when to try again and when to give up; leaves starting and readiness to the processes. Rules: the server comes
first, for the others can do nothing without it; one that keeps ending is tried after growing pauses; one that never
stays up is a defect that a person must see, so it ends the supervision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from lastgood.errors import LastgoodError

__all__ = ["Restartable", "Supervision"]

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
STEADY_SECONDS: Final = 120.0
"""Whoever ran for so long is forgiven its earlier ends."""
MAXIMUM_ATTEMPTS: Final = 8


class Restartable(Protocol):
    """A process of a stack."""

    @property
    def name(self) -> str:
        """What people are told."""

    def poll(self) -> int | None:
        """Exit status, or None while it runs."""

    def restart(self) -> None:
        """Start it again and wait until it is ready.

        Raises:
            LastgoodError: It did not become ready.
        """


class _Watched:
    def __init__(self, process: Restartable, now: float) -> None:
        self.process = process
        self.attempts = 0
        self.up_since = now
        self.next_try = now
        self.told = False


class Supervision:
    """Looks after processes, one look at a time. Not shared between threads.

    Args:
        processes: In the order in which they need each other.
        tell: Hears what ended and what came back, a line at a time.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        processes: Iterable[Restartable],
        tell: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._watched = [_Watched(process, clock()) for process in processes]

    def look(self) -> None:
        """Start again what has ended and whose pause is over.

        Raises:
            LastgoodError: A process does not stay up.
        """
        for one in self._watched:
            status = one.process.poll()
            if status is None:
                if one.attempts and self._clock() - one.up_since > STEADY_SECONDS:
                    one.attempts = 0
                continue
            self._look_after(one, status)

    def _look_after(self, one: _Watched, status: int) -> None:
        if not one.told:
            one.told = True
            self._tell(f"{one.process.name} ended with {status}: starting it again")
            one.next_try = self._clock() + (self._pause_seconds(one) if one.attempts else 0.0)
        if self._clock() < one.next_try:
            return
        one.attempts += 1
        try:
            one.process.restart()
        except LastgoodError as error:
            if one.attempts >= MAXIMUM_ATTEMPTS:
                raise LastgoodError(f"{one.process.name} does not stay up: {error.message}", hint=error.hint) from error
            one.next_try = self._clock() + self._pause_seconds(one)
            self._tell(f"{error.message}; next try in {one.next_try - self._clock():.0f} s")
            return
        if one.attempts >= MAXIMUM_ATTEMPTS:
            raise LastgoodError(f"{one.process.name} does not stay up: started {one.attempts} times")
        one.told, one.up_since = False, self._clock()
        self._tell(f"{one.process.name} is back")

    @staticmethod
    def _pause_seconds(one: _Watched) -> float:
        return min(FIRST_PAUSE_SECONDS * 2.0**one.attempts, LONGEST_PAUSE_SECONDS)
