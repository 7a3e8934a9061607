"""One Prefect server for all flow tests of a session, and families of a configuration to run flows over.

Starting it costs about 13 s, so it is started once and only where a test asks for it (`prefect_server`, or a fixture
that needs it). Heartbeats are off: a flow would wait a second for their thread at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.events.worker import EventsWorker
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    temporary_settings,
)
from prefect.testing.utilities import prefect_test_harness

from lastgood.testing.build import BuiltFamily, build_family

FLOWS = Path(__file__).resolve().parents[2] / "flows"


def load_flow(name: str) -> Any:
    """A flow as a worker loads it: a script by its path. `name` is the file's and the function's."""
    return load_flow_from_entrypoint(f"{FLOWS / name}.py:{name}")


def artifacts_of(run: UUID) -> dict[str, str]:
    """What the page of a run shows: the artifacts' keys → their data, as it is stored."""
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run])))
    return {str(artifact.key): str(artifact.data) for artifact in found}


def events_about(family: str, holding: str) -> list[str]:
    """Names of the domain events of a family that hold this text, as far as the server has them, sorted."""
    EventsWorker.instance().wait_until_empty()
    wanted = EventFilter(
        event=EventNameFilter(prefix=["lastgood."]), resource=EventResourceFilter(id=[f"lastgood.family.{family}"])
    )
    with get_client(sync_client=True) as client:
        return sorted(one.event for one in client.read_events(wanted, limit=50).events if holding in str(one.payload))


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[str]:
    """The API's URL of a server on a database of its own."""
    quiet = {
        PREFECT_SERVER_ANALYTICS_ENABLED: False,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        PREFECT_CLIENT_MAX_RETRIES: 12,  # a busy SQLite says 503 for longer than Prefect's five tries on a slow machine
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DO_NOT_TRACK", "1")
        environment.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        environment.delenv("PREFECT_API_URL", raising=False)
        with temporary_settings(quiet), prefect_test_harness(server_startup_timeout=120), temporary_settings(quiet):
            yield str(PREFECT_API_URL.value())


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltFamily:
    """A healthy family of three generations, `llm-7b` by its name in the file that LASTGOOD_CONFIG names."""
    root = tmp_path / "runs"
    root.mkdir()
    built = build_family(root, "llm-7b")
    configuration = tmp_path / "lastgood.toml"
    configuration.write_text(f'[families.llm-7b]\nroot = "{root}"\n', encoding="utf-8")
    monkeypatch.setenv("LASTGOOD_CONFIG", str(configuration))
    return built
