"""One SeaweedFS for all tests, a bucket for each, and a proxy between the two for whoever wants faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.loaders import JSONFileLoader

from lastgood.stores.s3.client import S3Client
from tests.buckets.ground import Ground, read_description
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


@pytest.fixture
def shorten_pages(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let listings come in pages of so many names; by themselves they have a thousand each."""
    call = S3Client.call

    def shorten(length: int) -> None:
        def paged(client: S3Client, operation: str, doing: str, **parameters: object) -> dict[str, object]:
            short = {"MaxKeys": length} if operation == "list_objects_v2" else {}
            return call(client, operation, doing, **(short | parameters))

        monkeypatch.setattr(S3Client, "call", paged)

    return shorten


@pytest.fixture
def ground(
    seaweedfs: SeaweedFS, bucket: str, s3_environ: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Ground:
    """A bucket in which families are laid out, each behind a proxy of its own."""
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda _, path: read_description(path))
    return Ground(seaweedfs, bucket, tmp_path)
