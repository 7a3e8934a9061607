"""Credentials as canaries in flow runs: what a run shows, logs and keeps holds none of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.context import SyncClientContext
from prefect.logging.handlers import APILogHandler

from lastgood import redaction
from lastgood.run import Run, SoloGroup
from lastgood_prefect import verifying
from tests.buckets.conftest import bucket, s3_environ, seaweedfs
from tests.buckets.servers import SeaweedFS
from tests.buckets.test_run import save
from tests.flows.conftest import artifacts_of, load_flow

__all__ = ["bucket", "s3_environ", "seaweedfs"]  # fixtures are found by their names here

pytestmark = pytest.mark.usefixtures("prefect_server", "s3_environ")


@pytest.fixture
def family(bucket: str, s3_environ: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """`llm` in a bucket, two saves, the newer one damaged."""
    uri = f"s3://{bucket}/runs/llm"
    run = Run.start(uri, SoloGroup(), allow_fresh=True)
    save(run, 10)
    save(run, 20, b"newer")
    run.close()
    configuration = tmp_path / "lastgood.toml"
    configuration.write_text(f'[families.llm]\nroot = "s3://{bucket}/runs"\n', encoding="utf-8")
    monkeypatch.setenv("LASTGOOD_CONFIG", str(configuration))
    return uri


@pytest.fixture
def clean_logs() -> Iterator[None]:
    """What a flow does to the log records of its process is undone, for this process is pytest's."""
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)


def seen_of(state: Any, server: SeaweedFS, bucket: str, caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Everything that left a run: its state, its page, its logs here and on the server, and the bucket."""
    run = UUID(str(state.state_details.flow_run_id))
    asyncio.run(APILogHandler.aflush())
    with get_client(sync_client=True) as client:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run])), limit=200)
    assert logs, "the server has the logs of the run"
    stored = server.client()
    keys = [one["Key"] for one in stored.list_objects_v2(Bucket=bucket)["Contents"]]
    return {
        "state": str(state),
        "page": str(artifacts_of(run)),
        "log": caplog.text,
        "log on the server": "\n".join(log.message for log in logs),
        **{key: stored.get_object(Bucket=bucket, Key=key)["Body"].read().decode() for key in keys},
    }


def run_save_gate() -> Any:
    flow = load_flow("save_gate")
    with SyncClientContext.get_or_create():
        return asyncio.run(flow("llm", return_state=True))


def escaped(seen: dict[str, str], server: SeaweedFS) -> list[str]:
    return [where for where, text in seen.items() if server.access_key in text or server.secret_key in text]


@pytest.mark.usefixtures("clean_logs")
def test_a_run_shows_no_credentials_whatever_it_finds(
    family: str, bucket: str, seaweedfs: SeaweedFS, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fail, and then a defect whose words hold the secret: in states, artifacts, logs and records there is none."""
    key = "runs/llm/00000001-0000000000000020/state/model.bin"
    seaweedfs.client().put_object(Bucket=bucket, Key=key, Body=b"nEwer")
    caplog.set_level(logging.DEBUG)
    state = run_save_gate()
    assert state.name == "Failed"
    seen = seen_of(state, seaweedfs, bucket, caplog)
    assert "digest_mismatch" in seen["page"].replace("\\", "")
    assert "x-amz-content-sha256" in seen["log"], "botocore was as talkative as it can be"
    assert escaped(seen, seaweedfs) == []

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"sent {seaweedfs.secret_key} of {seaweedfs.access_key}")

    monkeypatch.setattr(verifying, "show", broken)
    save(again := Run.start(family, SoloGroup()), 30)
    again.close()
    state = run_save_gate()
    assert state.name == "Failed"
    seen = seen_of(state, seaweedfs, bucket, caplog)
    assert "sent <AWS_SECRET_ACCESS_KEY> of <AWS_ACCESS_KEY_ID>" in seen["state"]
    assert "sent <AWS_SECRET_ACCESS_KEY> of <AWS_ACCESS_KEY_ID>" in seen["log on the server"]
    assert escaped(seen, seaweedfs) == []


@pytest.mark.usefixtures("clean_logs", "family")
def test_a_canary_that_escapes_a_run_is_seen(
    bucket: str, seaweedfs: SeaweedFS, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without redaction the same search finds it in the logs."""
    monkeypatch.setattr(redaction, "_clean", lambda text, secrets: text)
    caplog.set_level(logging.DEBUG)
    assert "log" in escaped(seen_of(run_save_gate(), seaweedfs, bucket, caplog), seaweedfs)
