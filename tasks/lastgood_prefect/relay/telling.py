"""A source whose counters are told: now and then in the log and in a file for Prometheus, and at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from lastgood.handover import replace_file
from lastgood.identity import GenerationId
from lastgood.text import printable
from lastgood_prefect.hints import HintSource
from lastgood_prefect.relay.reading import Counters

__all__ = ["Told"]

TELL_SECONDS: Final = 15.0
"""As often as Prometheus commonly scrapes."""

_log = logging.getLogger("lastgood.watch")


class Told:
    """Another source, told of. A `HintSource`.

    Args:
        source: Whose hints these are.
        counters: What came of its notifications.
        metrics: A file to write the counters to, if any.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        source: HintSource,
        counters: Counters,
        metrics: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._counters = counters
        self._metrics = metrics
        self._clock = clock
        self._tell_at = 0.0
        self._last_told = str(Counters())

    def wait(self) -> tuple[frozenset[str], frozenset[str]]:
        return self._source.wait()

    def acknowledge(self, unasked: Mapping[str, frozenset[GenerationId]]) -> None:
        self._source.acknowledge(unasked)
        if self._clock() >= self._tell_at:
            self._tell_at = self._clock() + TELL_SECONDS
            self._tell()

    def close(self) -> None:
        self._source.close()
        self._tell()

    def _tell(self) -> None:
        if (now := str(self._counters)) != self._last_told:
            self._last_told = now
            _log.info("events: %s", now)
        if self._metrics is not None:
            try:
                # Each time, so that its age says that the relay lives.
                replace_file(self._metrics, self._counters.prometheus().encode())
            except OSError as error:
                _log.warning("metrics not written: %s", printable(str(error)))
