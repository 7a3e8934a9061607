"""Families whose root is said to be in a bucket while their storage is a directory here.

The relay compares events with the configured root as text, and looks at storage through the port: the two meet in
production only, so a test may part them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lastgood.config import FamilySettings
from lastgood_prefect.settings import ConfiguredFamily
from tests.pipeline.memory import Clock, GrowingFamily, MemoryRuns

BUCKET = "checkpoints"
ROOT = f"s3://{BUCKET}/runs"


class BucketFamily(GrowingFamily):
    """A growing family that the configuration says is in a bucket."""

    @property
    def configured(self) -> ConfiguredFamily:
        local = super().configured
        settings: FamilySettings = msgspec.structs.replace(local.settings, root=ROOT)
        return ConfiguredFamily(name=local.name, location=local.location, settings=settings)

    def commit_key(self, generation: object) -> str:
        """The key in the bucket under which a commit is announced."""
        return f"runs/{self.built.keys.commits}/{generation}"


@pytest.fixture
def runs() -> MemoryRuns:
    """An orchestrator without a server."""
    return MemoryRuns()


@pytest.fixture
def clock() -> Clock:
    """Time that stands still by itself."""
    return Clock()


@pytest.fixture
def growing(tmp_path: Path) -> BucketFamily:
    """A family that has not saved yet."""
    return BucketFamily(tmp_path)


@pytest.fixture
def grow(tmp_path: Path) -> Callable[[str], BucketFamily]:
    """Further families under the same root."""
    return lambda name: BucketFamily(tmp_path, name)


@pytest.fixture
def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
