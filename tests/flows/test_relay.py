"""The relay as a run of its deployment: a bucket's own events become verdicts until somebody cancels it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lastgood.testing.seaweedfs import SeaweedFS
from lastgood.testing.server import free_ports
from lastgood_prefect.project import DEPLOYMENTS, project_directory
from lastgood_prefect.relay.spool import Spool
from lastgood_prefect.stack import Stack
from tests.relay.posting import SECRET
from tests.relay.saving import SavingFamily

BUCKET = "served"
PATIENCE_SECONDS = 300.0
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.2)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def deploy(stack: Stack, *names: str) -> None:
    """These alone: a sweep on its schedule would judge what no event announced."""
    options = [option for name in names for option in ("--name", name)]
    subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", *options, "--prefect-file", DEPLOYMENTS],
        env=stack.environ,
        cwd=project_directory(),
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )


def state_of(stack: Stack, run: str) -> dict[str, Any]:
    found: dict[str, Any] = stack.require("GET", f"/flow_runs/{run}")["state"]
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_served_relay_asks_for_what_the_bucket_announces_until_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """Whoever runs everything as flows needs no service beside them; it ends when told to, or with its worker."""
    (port,) = free_ports(1)
    (tmp_path / "lastgood.toml").write_text(
        f'[families.llm-7b]\nroot = "s3://{BUCKET}/runs"\n'
        f'[relay]\nsource = "webhook"\nport = {port}\nlisting_seconds = 3600.0\n'
    )
    with SeaweedFS(webhook=f"http://127.0.0.1:{port}/events", token=SECRET) as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        server.create_bucket(BUCKET)
        environment = {"LASTGOOD_CONFIG": str(tmp_path / "lastgood.toml"), "LASTGOOD_RELAY_SECRET": SECRET}
        with (
            Stack.start(tmp_path / "stack", pools=("verify",), environment=environment) as stack,
            SavingFamily(f"s3://{BUCKET}/runs") as family,
        ):
            deploy(stack, "save-gate/on-commit", "relay/served")
            run = str(stack.ask("relay/served")["id"])
            until(lambda: is_listening(port) or state_of(stack, run)["type"] in ENDED, "a relay that listens")
            assert state_of(stack, run)["type"] == "RUNNING", state_of(stack, run)
            second = str(stack.ask("relay/served")["id"])
            for _ in range(3):
                family.save()
            began = time.monotonic()
            until(lambda: not family.due(), "verdicts")
            record_property("seconds from the last save to the last verdict", round(time.monotonic() - began, 1))
            until(lambda: not _spooled(tmp_path), "an empty spool")
            assert family.verdicts() == family.perfect_verdicts(), "exactly one each"
            until(lambda: state_of(stack, second)["type"] == "CANCELLED", "one relay is enough")
            stack.require("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
            until(lambda: state_of(stack, run)["type"] in ENDED, "the end of the relay")
            assert state_of(stack, run)["type"] == "CANCELLED", state_of(stack, run)
            until(lambda: not is_listening(port), "a port that is free again")
            wanted = {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200}
            said = [one["message"] for one in stack.require("POST", "/logs/filter", wanted)]
            assert any("listening on" in line for line in said), said
            assert SECRET not in "\n".join(said)

            stack.ask("relay/served")
            until(lambda: is_listening(port), "a relay that listens again")
            stack.workers["verify"].kill()
            until(lambda: not is_listening(port), "the end of a relay that nobody could cancel any more")


def _spooled(directory: Path) -> int:
    spool = Spool(directory / "lastgood-relay")
    try:
        return len(spool.hints())
    finally:
        spool.close()
