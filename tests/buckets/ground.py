"""Families laid out in a bucket, all of them alike, each behind a proxy of its own: for operations that meet trouble.

An operation is run again and again, each time with something else happening to its requests. What one run left behind
would spare the next one requests or mislead it, so each has a family that nobody has touched. Nearly all of it is
waiting for answers that do not come, so several are at work at once.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from botocore.loaders import JSONFileLoader

from lastgood.identity import FamilyKeys
from lastgood.location import Location
from lastgood.stores import StoreSettings
from lastgood.stores.s3 import S3Store
from lastgood.testing.build import Recipe, build_family
from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import SeaweedFS

__all__ = ["AT_ONCE", "SETTINGS", "TIMEOUT_SECONDS", "Ground", "Place", "chosen", "read_description"]

FULL = os.environ.get("LASTGOOD_PROOF") == "1"
TIMEOUT_SECONDS = 1.0 if FULL else 0.5
"""Healthy answers take milliseconds; on a machine that does much besides for an hour, some take half a second."""
SETTINGS = StoreSettings(attempts=3, timeout_seconds=TIMEOUT_SECONDS)
FAMILY = "llm"
AT_ONCE = 4

read_description = functools.cache(JSONFileLoader().load_file)
"""boto3's descriptions of the services, read once: each store would read them anew, which costs more than all of its
requests here.
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A family in a bucket, behind a proxy and beside it, and a directory."""

    proxy: FaultProxy
    faulty: Location
    plain: Location
    scratch: Path


class Ground:
    """A bucket in which families are laid out.

    Args:
        server: Of the bucket.
        bucket: Its name.
        directory: For what is on disk.
    """

    def __init__(self, server: SeaweedFS, bucket: str, directory: Path) -> None:
        self.server = server
        self._bucket = bucket
        self._directory = directory
        self._numbers = itertools.count()
        root = directory / "built"
        root.mkdir()
        build_family(root, FAMILY, steps=(12, 24), recipe=Recipe(world_size=1))
        self._files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """A family that nobody has touched; may be called from any thread."""
        number = str(next(self._numbers))
        client = self.server.client()
        for path, data in self._files.items():
            client.put_object(Bucket=self._bucket, Key=f"{number}/{path}", Body=data)
        uri = f"s3://{self._bucket}/{number}"
        scratch = self._directory / number
        scratch.mkdir()

        def located(endpoint: str) -> Location:
            store = S3Store(uri, msgspec.structs.replace(SETTINGS, endpoint=endpoint))
            return Location(store=store, keys=FamilyKeys(FAMILY), generation=None)

        with FaultProxy(self.server) as proxy:
            yield Place(
                proxy=proxy, faulty=located(proxy.endpoint), plain=located(self.server.endpoint), scratch=scratch
            )


def chosen(count: int) -> tuple[int, ...]:
    """Which requests of an operation meet trouble: all of them in a proof, else a spread that covers both ends."""
    return tuple(range(count)) if FULL else tuple(sorted({0, count // 3, 2 * count // 3, count - 1}))
