"""The object store: the contract over a real server, and what only a bucket can do to it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from lastgood.stores import open_store
from lastgood.stores.port import Store
from tests.stores.contract import StoreContract


class TestS3Store(StoreContract):
    """The whole contract, each test in a prefix of its own."""

    races = 2  # this server lets racers for one key wait for one another, a second each

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        return open_store(f"s3://bucket/{uuid.uuid4()}")
