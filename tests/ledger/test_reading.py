"""Reading many documents: in order, in bounded batches, by as many threads as waiting is worth."""

from __future__ import annotations

import threading
import time

import pytest

from lastgood.ledger.reading import BATCH_DOCUMENTS, SLICE, _in_batches


def _read(documents: int, seconds_waited: float) -> tuple[list[list[int]], set[int]]:
    asked_by: set[int] = set()

    def ask(number: int) -> int:
        asked_by.add(threading.get_ident())
        if seconds_waited:
            time.sleep(seconds_waited)
        return number

    return list(_in_batches(range(documents), ask, size=lambda _: 0)), asked_by


def test_a_store_that_lets_us_wait_is_asked_by_many_threads() -> None:
    """A bucket answers in tens of milliseconds; one after the other, 100,000 records would take an hour."""
    batches, asked_by = _read(4 * SLICE, 0.001)
    assert batches == [list(range(4 * SLICE))]
    assert len(asked_by) > 2


def test_a_store_that_answers_from_memory_is_asked_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads that only compute wait for one another's interpreter lock, and take twice as long as one."""
    for clock in ("perf_counter", "thread_time"):
        monkeypatch.setattr(time, clock, lambda: 0.0)  # nothing is waited for, whatever else this machine does
    batches, asked_by = _read(BATCH_DOCUMENTS + SLICE, 0.0)
    assert [number for batch in batches for number in batch] == list(range(BATCH_DOCUMENTS + SLICE))
    assert [len(batch) for batch in batches] == [BATCH_DOCUMENTS, SLICE]
    assert asked_by == {threading.get_ident()}
