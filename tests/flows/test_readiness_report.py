"""`readiness-report` in a flow run: how it ends, what its page shows, and the report that it wrote."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from lastgood.testing.evidence import HOSTILE, Past, fabricate
from tests.flows.conftest import load_flow
from tests.test_house import loaded_by

readiness_report = load_flow("readiness_report")

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two families of which one is quarantined, named by the worker's configuration."""
    root = tmp_path / "runs"
    root.mkdir()
    now = datetime.now(UTC)
    fabricate(root, "good", Past(until=now))
    fabricate(root, "bad", Past(until=now, failed_restores=1, quarantined=True, words=HOSTILE))
    tables = [f'[families.{name}]\nroot = "{root}"\n' for name in ("good", "bad")]
    (tmp_path / "lastgood.toml").write_text("".join(tables), encoding="utf-8")
    monkeypatch.setenv("LASTGOOD_CONFIG", str(tmp_path / "lastgood.toml"))
    return root


def artifacts_of(run: UUID) -> dict[str, Any]:
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run])))
    return {str(artifact.key): artifact.data for artifact in found}


def test_a_missed_objective_fails_the_run_and_is_named(root: Path) -> None:
    """The run list is where people look first: red, and the reason in its message, before anything is opened."""
    state = readiness_report(return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Failed")
    assert "bad: not_quarantined" in state.message
    assert "good: " not in state.message
    shown = artifacts_of(state.state_details.flow_run_id)
    assert "| good | ✅ pass | 0 | 0 | ready |" in shown["readiness"]
    assert "| bad | ❌ fail | 0 | 2 | quarantined |" in shown["readiness"]
    page = root.parent / "lastgood-report" / "index.html"
    assert page.as_uri() in shown["readiness-page"]
    assert page.is_file()


def test_met_objectives_complete_the_run(root: Path) -> None:
    """A report on some families is about those, and green when nothing of theirs is missed."""
    state = readiness_report(["good"], return_state=True)
    assert state.is_completed(), state
    assert "bad" not in artifacts_of(state.state_details.flow_run_id)["readiness"]


def test_a_store_that_cannot_tell_is_inconclusive(root: Path) -> None:
    """A store in trouble turns no family red, and none green."""
    (root / "good" / ".lastgood" / "incarnations" / "00000001.resume").write_bytes(b"torn")
    state = readiness_report(["good"], return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Inconclusive")
    assert "good: could not tell: " in state.message


def test_the_flow_loads_pandas_and_great_expectations_only_where_it_works() -> None:
    """A worker reads every flow's file; the six seconds of these libraries belong to the run that reports."""
    heavy = frozenset({"great_expectations", "matplotlib", "pandas", "sqlalchemy", "torch"})
    assert loaded_by("import lastgood_prefect.reporting", heavy) - {"sqlalchemy"} == set()  # Prefect's own client
