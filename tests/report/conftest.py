"""A configuration whose families have a past, and PostgreSQL for whoever compares with it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from lastgood.config import Configuration, read_configuration
from lastgood.testing.evidence import Past, fabricate
from tests.ledger.conftest import server  # noqa: F401 - the fixture
from tests.report.healthy import NOW

HEALTHY = Past(until=NOW - timedelta(minutes=5))

Configured = Callable[..., Configuration]


@pytest.fixture
def configured(tmp_path: Path) -> Configured:
    """Make families with a past, and the lastgood.toml that names them."""

    def make(objectives: str = "", **families: Past | None) -> Configuration:
        root = tmp_path / "runs"
        root.mkdir(exist_ok=True)
        lines = []
        for name, past in families.items():
            if past is not None and not (root / name).exists():
                fabricate(root, name, past)
            lines += [f"[families.{name}]", f'root = "{root}"']
            lines += [f"[families.{name}.objectives]", objectives] if objectives else []
        path = tmp_path / "lastgood.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        return read_configuration(path)

    return make
