"""Ending a gate before its time: whoever wants it is heard between two looks, and the verdict says why.

Decides what a restore or a drill that was not let begin, or not let finish, says of the checkpoint: nothing. Rules: a
request is asked for, never thrown into the work from another thread, so that the code that started a replica also ends
it; an answer that was not reached is inconclusive, whatever had been seen so far.
"""

from __future__ import annotations

from collections.abc import Callable

from lastgood.errors import LastgoodError
from lastgood.stores.port import Progress
from lastgood.verdict import Tier, Verdict, undecided

__all__ = ["Cancel", "Cancelled", "cancelled_verdict", "crowded_verdict", "heed", "heeding", "never"]

Cancel = Callable[[], str | None]
"""Why the gate shall end now, in a few words, or None; asked several times a second, from the thread that works."""


class Cancelled(LastgoodError):
    """Somebody wants the gate to end before it has an answer."""

    exit_code = 2


def never() -> str | None:
    """Nobody wants the gate to end."""
    return None


def heed(cancel: Cancel) -> None:
    """Go on, unless the gate shall end.

    Raises:
        Cancelled: It shall.
    """
    why = cancel()
    if why is not None:
        raise Cancelled(why)


def heeding(cancel: Cancel, progress: Progress | None) -> Progress:
    """A progress that also listens for the end: long work reports to it from within."""

    def report(done_bytes: int) -> None:
        heed(cancel)
        if progress is not None:
            progress(done_bytes)

    return report


def cancelled_verdict(tier: Tier, subject: str, why: str) -> Verdict:
    """The verdict of a gate that was not let finish.

    Args:
        tier: The gate.
        subject: What it was about.
        why: In a few words.
    """
    return undecided(tier=tier, subject=subject, check="cancelled", why=f"cancelled: {why}")


def crowded_verdict(tier: Tier, subject: str, why: str) -> Verdict:
    """The verdict of a gate for which there was no room on the machines.

    Args:
        tier: The gate.
        subject: What it was about.
        why: What was missing.
    """
    return undecided(tier=tier, subject=subject, check="headroom", why=why)
