"""Ledgers to fill, on SQLite and on PostgreSQL; the latter where Debian's server is installed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lastgood.ledger import Ledger, open_ledger
from lastgood.testing.evidence import HOSTILE, Past
from tests.ledger.server import PROGRAM, new_database, postgresql

POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.service(PROGRAM))
UNTIL = datetime(2026, 3, 1, 12, tzinfo=UTC)

EVENTFUL = Past(
    until=UNTIL,
    saves=24,
    lives=3,
    restore_every=3,
    drill_every=5,
    failed_verifications=2,
    failed_restores=2,
    failed_drills=1,
    inconclusive=6,
    abandoned=2,
    burned=1,
    fenced=1,
    quarantined=True,
    under_way=True,
    words=HOSTILE,
)
"""A past with one of everything."""


@pytest.fixture(scope="session")
def server() -> Iterator[Path]:
    with postgresql() as home:
        yield home


_numbers = itertools.count()


@pytest.fixture(params=["sqlite", POSTGRESQL])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty ledger's URL; a test that asks for it runs on each kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    return new_database(request.getfixturevalue("server"), f"ledger_{next(_numbers)}")


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with open_ledger(url) as opened:
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"
