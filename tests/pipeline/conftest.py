"""Fixtures of the pipeline's tests; most of them use no Prefect (`memory`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.memory import Clock, GrowingFamily, MemoryRuns


@pytest.fixture
def runs() -> MemoryRuns:
    """An orchestrator without a server."""
    return MemoryRuns()


@pytest.fixture
def clock() -> Clock:
    """Time that stands still by itself."""
    return Clock()


@pytest.fixture
def growing(tmp_path: Path) -> GrowingFamily:
    """A family that has not saved yet."""
    return GrowingFamily(tmp_path)


@pytest.fixture
def grow(tmp_path: Path) -> Callable[[str], GrowingFamily]:
    """Further families under the same root."""
    return lambda name: GrowingFamily(tmp_path, name)
