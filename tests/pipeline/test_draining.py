"""What a gate run that names no generation judges."""

from __future__ import annotations

import pytest

from lastgood_prefect import verifying
from lastgood_prefect.verifying import due
from tests.pipeline.memory import GrowingFamily


def test_a_run_judges_what_is_committed_while_it_judges(growing: GrowingFamily) -> None:
    """The watcher lets later saves wait for the end of the run, and a run of their own costs seconds."""
    first = growing.save()
    given = []
    for generation in due(growing.configured):
        given.append(generation)
        growing.judge(generation)
        if len(given) < 3:
            growing.save()
    assert given == list(growing.built.generations)
    assert given[0] == first


def test_a_generation_that_stays_unclear_is_tried_once_a_run(growing: GrowingFamily) -> None:
    """A store that cannot tell must end in an inconclusive run, not in one that never ends."""
    growing.save(2)
    assert list(due(growing.configured)) == list(growing.built.generations)


def test_a_run_ends_although_saves_come_faster_than_verdicts(
    growing: GrowingFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that never ends never reports, and its page grows without bound."""
    monkeypatch.setattr(verifying, "MAXIMUM_GENERATIONS", 3)
    growing.save(2)
    given = []
    for generation in due(growing.configured):
        given.append(generation)
        growing.save()
    assert given == list(growing.built.generations[:3])
