"""What the ranks of another framework's job tell each other."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from lastgood.producers import ranks
from lastgood.producers.ranks import JobRanks


class Backend:
    """One rank's end of a broadcast, over a backend whose thread holds the tensor for a while after it has arrived."""

    def __init__(self, holds_s: float) -> None:
        self.holds_s = holds_s
        self.let_go = threading.Event()

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return 2

    def get_backend_config(self) -> str:
        return "cpu:gloo"

    def broadcast(self, content: torch.Tensor, source: int) -> None:
        assert source == 0
        held = [content]

        def drop() -> None:
            time.sleep(self.holds_s)
            held.clear()
            self.let_go.set()

        threading.Thread(target=drop, daemon=True).start()


def test_what_was_told_is_held_by_nobody_once_it_is_told() -> None:
    """A thread of gloo that lets go of a tensor while the interpreter ends aborts the process, after a healthy save."""
    backend = Backend(0.2)
    assert JobRanks(backend).broadcast("step-6") == "step-6"
    assert backend.let_go.is_set()


def test_a_backend_that_keeps_what_was_told_stops_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst that can follow is an abort at the very end; a job that waits for ever is worse."""
    monkeypatch.setattr(ranks, "LET_GO_SECONDS", 0.05)
    backend = Backend(5.0)
    assert JobRanks(backend).broadcast("step-6") == "step-6"
    assert not backend.let_go.is_set()
