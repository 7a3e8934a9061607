"""The relay as a flow run: served by a worker until somebody cancels it.

Decides when such a run ends: when it is cancelled, and with its worker, for nobody else could cancel it; the server may
be away for any time. Leaves who announces to the table [relay] of lastgood.toml, so that no form and no event can point
a worker at another queue or port, and the work to `relay.serving`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from prefect import State
from prefect.logging import get_run_logger

from lastgood.verdict import Outcome
from lastgood_prefect.lifeline import lifeline
from lastgood_prefect.relay.reading import Counters
from lastgood_prefect.relay.serving import serve
from lastgood_prefect.settings import ConfiguredFamily, read_settings
from lastgood_prefect.states import state_of

__all__ = ["conclude", "serve_relay"]

FOREVER: Final = timedelta(days=36_500)


def serve_relay(families: Sequence[ConfiguredFamily]) -> Counters | None:
    """Relay until the run's worker is gone; a run that is cancelled leaves by the signal that Prefect raises for it.

    Raises:
        UsageError: The table [relay] names no source, or one that could not hear of these families.
        LastgoodError: The source ended by itself.
    """
    settings = read_settings().relay
    with _logged(), lifeline(FOREVER, needs_server=False) as line:
        return line.run(lambda cancel: serve(families, settings, _Asking(cancel)))


def conclude(counted: Counters | None) -> State[Any]:
    """The state of a relay that ended in peace."""
    told = f": {counted}" if counted is not None else ""
    return state_of(Outcome.PASS, f"ended with the worker that started it{told}")


class _Asking(threading.Event):
    """An event that is set once somebody answers that it is time to end.

    Args:
        cancel: Says why, or None.
    """

    def __init__(self, cancel: Callable[[], str | None]) -> None:
        super().__init__()
        self._cancel = cancel

    def is_set(self) -> bool:
        return super().is_set() or self._cancel() is not None


class _ToRun(logging.Handler):
    """Hands lines on to a run's log, also those of threads that know of no run."""

    def __init__(self) -> None:
        super().__init__()
        self._log = get_run_logger()

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(record.levelno, "%s", record.getMessage())


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """What the watcher and its source decide is read on the run's page."""
    log, handler = logging.getLogger("lastgood.watch"), _ToRun()
    former = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(former)
