"""The memory double keeps the documents' half of the contract, or the model test would prove nothing about stores."""

from __future__ import annotations

import pytest

from lastgood.stores.memory import MemoryStore
from tests.stores.contract import DocumentContract


class TestMemoryStore(DocumentContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()
