"""One SeaweedFS for all tests, a bucket for each, and a proxy between the two for whoever wants faults."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import SeaweedFS


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[SeaweedFS]:
    """Shared: a test that stops it starts it again."""
    with SeaweedFS() as server:
        yield server


_numbers = itertools.count()


@pytest.fixture
def bucket(seaweedfs: SeaweedFS) -> str:
    """The name of an empty bucket."""
    name = f"test-{next(_numbers)}"
    seaweedfs.client().create_bucket(Bucket=name)
    return name


@pytest.fixture
def fault_proxy(seaweedfs: SeaweedFS) -> Iterator[FaultProxy]:
    """Before the shared server, without any fault yet."""
    with FaultProxy(seaweedfs) as proxy:
        yield proxy


@pytest.fixture
def s3_environ(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    """What boto3's chain finds: the shared server and its administrator's keys."""
    for name, value in seaweedfs.environ.items():
        monkeypatch.setenv(name, value)
