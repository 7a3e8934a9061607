"""Fixtures of the relay's tests: one SeaweedFS for all of them, families in it, and an orchestrator in memory."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.buckets.servers import SeaweedFS
from tests.pipeline.memory import Clock, GrowingFamily, MemoryRuns
from tests.relay.saving import SavingFamily

_numbers = itertools.count()


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[SeaweedFS]:
    """Shared: each test has a bucket of its own."""
    with SeaweedFS() as server:
        yield server


@pytest.fixture
def bucket(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an empty bucket, which boto3's chain reaches."""
    for name, value in seaweedfs.environ.items():
        monkeypatch.setenv(name, value)
    name = f"relay-{next(_numbers)}"
    seaweedfs.create_bucket(name)
    return name


@pytest.fixture
def saving(bucket: str) -> Iterator[SavingFamily]:
    """A family in a bucket that has not saved yet."""
    with SavingFamily(f"s3://{bucket}/runs") as family:
        yield family


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
    """A family in a directory, which is all that the watcher's own tests need."""
    return GrowingFamily(tmp_path)


@pytest.fixture
def grow(tmp_path: Path) -> Callable[[str], GrowingFamily]:
    """Further families under the same root."""
    return lambda name: GrowingFamily(tmp_path, name)


@pytest.fixture
def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
