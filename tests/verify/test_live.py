"""A family that is being published to, verified at the same time: nothing healthy may look damaged for a moment."""

from __future__ import annotations

import threading
from pathlib import Path

from lastgood.protocol import choose, perform
from lastgood.testing.build import build_family, build_life
from lastgood.verdict import Finding, Outcome
from lastgood.verify import inspector, verify_family, verify_generation


def test_verifying_a_living_family_raises_no_false_alarm(tmp_path: Path) -> None:
    """Gates run while training saves and restarts; whatever they meet half-way must not be called damage."""
    built = build_family(tmp_path, "llm-7b", steps=(1,))
    finished = threading.Event()

    def train() -> None:
        life = built
        for first in range(2, 32, 10):
            life = build_life(life, steps=range(first, first + 10))
        finished.set()

    trainer = threading.Thread(target=train)
    trainer.start()
    alarms: list[Finding] = []
    rounds = 0
    while not finished.is_set() or rounds == 0:
        alarms += verify_family(built.store, built.keys).findings
        choice = perform(built.store, choose(built.keys), inspect=inspector(built.store, built.keys))
        assert choice.generation is not None
        verdict = verify_generation(built.store, built.keys, choice.generation)
        assert verdict.outcome in (Outcome.PASS, Outcome.FAIL)
        alarms += verdict.findings
        alarms += (finding for skipped in choice.skipped for finding in skipped.findings)
        rounds += 1
    trainer.join()
    assert alarms == []
    assert rounds > 3
