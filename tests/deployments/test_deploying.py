"""Deploying to a real server: everything is created, again nothing is changed, and what people made is left alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.events.actions import RunDeployment, SendNotification
from prefect.settings import PREFECT_API_URL, temporary_settings

from lastgood.errors import UsageError
from lastgood_prefect.automations import ensure_automation, find_block, shipped_automations
from lastgood_prefect.deploying import Change, Wish, deploy
from lastgood_prefect.project import DEPLOYMENTS
from lastgood_prefect.requests import Unanswered
from lastgood_prefect.server import connected
from lastgood_prefect.stack import HOST, Stack

ROOT = Path(__file__).resolve().parents[2]
NAMES = {
    "save-gate/on-commit",
    "reconcile/every-ten-minutes",
    "sampled-restore/nightly",
    "sampled-restore/ad-hoc",
    "recovery-drill/weekly",
    "recovery-drill/ad-hoc",
    "readiness-report/hourly",
    "relay/served",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A fresh server without workers; the tests below use it one after another, as people would."""
    with Stack.start(tmp_path_factory.mktemp("stack"), pools=()) as started:
        yield started


def program(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", *arguments)
    return subprocess.run(
        command, env=stack.environ, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )


def prefect_deploy(stack: Stack) -> subprocess.CompletedProcess[str]:
    return program(stack, "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", DEPLOYMENTS)


def changes(stack: Stack, *options: str) -> dict[tuple[str, str], str]:
    done = program(stack, "lastgood", "deploy", "--json", *options)
    assert done.returncode == 0, done.stderr
    return {(one["kind"], one["name"]): one["change"] for one in json.loads(done.stdout)}


def objects(stack: Stack) -> dict[str, Any]:
    """All that deploying makes, as the server holds it, without the times at which it was written."""

    def steady(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: steady(one) for key, one in value.items() if key not in ("created", "updated")}
        return [steady(one) for one in value] if isinstance(value, list) else value

    def read(path: str) -> Any:
        status, answer = stack.request("POST", f"/{path}/filter", {"limit": 200})
        assert status == 200, answer
        return sorted((steady(one) for one in answer), key=lambda one: str(one["id"]))

    kinds = ("work_pools", "work_queues", "flows", "deployments", "automations", "v2/concurrency_limits")
    return {kind: read(kind) for kind in kinds}


@pytest.mark.slow
def test_prefects_own_command_creates_everything_and_again_changes_nothing(stack: Stack) -> None:
    """From the repository root, where the pools exist: Prefect looks for a deployment's pool before its first step."""
    refused = prefect_deploy(stack)
    assert refused.returncode != 0
    assert "references work pool" in refused.stdout + refused.stderr
    assert objects(stack)["deployments"] == []
    # One pool is enough, e.g. the one that a worker made: the build step brings the others.
    assert stack.request("POST", "/work_pools/", {"name": "verify", "type": "process"})[0] == 201
    done = prefect_deploy(stack)
    assert done.returncode == 0, done.stdout + done.stderr
    made = objects(stack)
    flows = {flow["id"]: flow["name"] for flow in made["flows"]}
    assert {f"{flows[one['flow_id']]}/{one['name']}" for one in made["deployments"]} == NAMES
    assert {pool["name"] for pool in made["work_pools"]} >= {"verify", "restore-gpu", "drill-gpu"}
    assert "gpu-headroom" in {limit["name"] for limit in made["v2/concurrency_limits"]}
    assert prefect_deploy(stack).returncode == 0
    assert objects(stack) == made


@pytest.mark.slow
def test_deploying_again_says_unchanged(stack: Stack) -> None:
    """A second run finds what the first one made; what it keeps on purpose it names."""
    first = changes(stack, "--headroom", "3")
    assert {name for kind, name in first if kind == "deployment"} == NAMES
    assert first["pool", "verify"] == "kept", "somebody made it without our job template"
    with temporary_settings({PREFECT_API_URL: stack.api_url}):
        replaced = deploy(Wish(pools_only=True, replace_pools=True))
    assert {one.name for one in replaced if one.change is Change.UPDATED} == {"verify"}
    assert not [one.note for one in replaced if one.note], "our own stack keeps leases on disk"
    made = objects(stack)
    assert set(changes(stack).values()) == {"unchanged"}
    assert objects(stack) == made
    (headroom,) = (limit for limit in made["v2/concurrency_limits"] if limit["name"] == "gpu-headroom")
    assert headroom["limit"] == 3, "and a run that names no number leaves it so"


@pytest.mark.slow
def test_a_pool_of_another_type_is_refused_before_anything_is_touched(stack: Stack) -> None:
    """Runs of a deployment would go to workers of another kind; nobody may find that out from a stuck run."""
    made = objects(stack)
    refused = program(stack, "lastgood", "deploy", "--type", "docker", "--image", "registry.example/lastgood:1")
    assert refused.returncode == 64
    assert "pool of another type: verify: expected docker, found process" in refused.stderr
    assert "--type process" in refused.stderr
    assert objects(stack) == made


@pytest.fixture(scope="module")
def deployed(stack: Stack) -> Stack:
    """The same server with everything on it."""
    changes(stack)
    return stack


def make_block(stack: Stack, kind: str, name: str) -> None:
    """A notification block, as somebody makes one on the server's pages; nothing is ever sent through it."""
    type_id = stack.request("GET", f"/block_types/slug/{kind}")[1]["id"]
    wanted = {"block_schemas": {"block_type_id": {"any_": [type_id]}}}
    schema_id = stack.request("POST", "/block_schemas/filter", wanted)[1][0]["id"]
    data = {"url": "https://hooks.example.invalid/on-call"}
    body = {"name": name, "data": data, "block_type_id": type_id, "block_schema_id": schema_id}
    status, answer = stack.request("POST", "/block_documents/", body)
    assert status == 201, answer


@pytest.mark.slow
def test_alarms_go_where_people_said_and_stay_as_they_set_them(deployed: Stack) -> None:
    """A block is named once; later deployments keep it, and keep an automation that somebody disabled."""
    make_block(deployed, "slack-webhook", "on-call")
    with temporary_settings({PREFECT_API_URL: deployed.api_url}), connected() as client:
        with pytest.raises(UsageError, match="notification block not found: slack-webhook/nobody"):
            find_block(client, "slack-webhook/nobody")
        block = find_block(client, "slack-webhook/on-call")
        alarm = next(one for one in shipped_automations() if "quarantined" in one.name)
        assert ensure_automation(client, alarm, block) == "updated"
        assert ensure_automation(client, alarm, None) == "unchanged"
        (held,) = client.read_automations_by_name(alarm.name)
        runs, tells = held.actions
        assert isinstance(runs, RunDeployment)
        assert isinstance(tells, SendNotification)
        assert tells.block_document_id == block
        client.pause_automation(held.id)
        assert ensure_automation(client, alarm, None) == "unchanged"
        assert client.read_automations_by_name(alarm.name)[0].enabled is False
        client.resume_automation(held.id)


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.5)


def post_event(stack: Stack, event: str, resource: str, related: list[dict[str, str]] | None = None) -> None:
    body = {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": event,
        "resource": {"prefect.resource.id": resource, "prefect.resource.name": "llm-7b"},
        "related": related or [],
        "payload": {"generation": "g", "reasons": [], "cause": "c"},
    }
    assert stack.request("POST", "/events", [body])[0] == 204


@pytest.mark.slow
def test_automations_do_what_they_say(deployed: Stack) -> None:
    """A quarantine makes the page anew; a run that never begins, or falls silent, is Crashed; one that ended is not."""

    def start(deployment: str, state: dict[str, Any]) -> str:
        found = deployed.request("GET", f"/deployments/name/{deployment}")[1]
        run = deployed.request("POST", f"/deployments/{found['id']}/create_flow_run", {})[1]["id"]
        for one in ({"type": "PENDING"}, state):
            assert deployed.request("POST", f"/flow_runs/{run}/set_state", {"state": one})[0] in (200, 201)
        return str(run)

    def state_of(run: str) -> str:
        return str(deployed.request("GET", f"/flow_runs/{run}")[1]["state"]["name"])

    def reports() -> int:
        wanted = {"flows": {"name": {"any_": ["readiness-report"]}}, "limit": 200}
        every = deployed.request("POST", "/flow_runs/filter", wanted)[1]
        return len([run for run in every if "auto-scheduled" not in run["tags"]])

    with temporary_settings({PREFECT_API_URL: deployed.api_url}), get_client(sync_client=True) as client:
        for words in ("lost its machine", "never began", "sweep stopped"):
            (alarm,) = (one for one in shipped_automations() if words in one.name)
            deployment = client.read_deployment_by_name(alarm.runs).id if alarm.runs else None
            hasty = alarm.wanted(deployment, ())
            hasty.name, hasty.trigger.within = f"hasty: {words}", timedelta(seconds=12)  # type: ignore[union-attr]
            client.create_automation(hasty)
    before = reports()
    running = {"type": "RUNNING"}
    stranded = start("recovery-drill/ad-hoc", {"type": "PENDING", "name": "Submitting"})
    silent, ended = start("reconcile/every-ten-minutes", running), start("reconcile/every-ten-minutes", running)
    tag = {"prefect.resource.id": "prefect.tag.lastgood", "prefect.resource.role": "tag"}
    for run in (silent, ended):
        post_event(deployed, "prefect.flow-run.heartbeat", f"prefect.flow-run.{run}", [tag])
    inconclusive = {"type": "FAILED", "name": "Inconclusive", "message": "the store was away"}
    assert deployed.request("POST", f"/flow_runs/{ended}/set_state", {"state": inconclusive})[0] in (200, 201)
    wait_for(lambda: state_of(stranded) == "Crashed")
    wait_for(lambda: state_of(silent) == "Crashed")
    assert state_of(ended) == "Inconclusive"
    # No sweep came to its end meanwhile: the alarm about the alarm.
    wait_for(lambda: reports() > before)
    before = reports()
    post_event(deployed, "lastgood.family.quarantined", "lastgood.family.llm-7b")
    wait_for(lambda: reports() > before)


def test_a_missing_server_is_said_in_a_sentence() -> None:
    """Without an address nothing is started in secret, and with a dead one nobody waits for retries."""
    silence = r"server cannot be reached: http://127\.0\.0\.1:9/api"
    with (
        temporary_settings({PREFECT_API_URL: ""}),
        pytest.raises(UsageError, match="no Prefect server configured"),
        connected(),
    ):
        pass
    with (
        temporary_settings({PREFECT_API_URL: f"http://{HOST}:9/api"}),
        pytest.raises(Unanswered, match=silence),
        connected(),
    ):
        pass


@pytest.mark.parametrize(
    ("version", "said"),
    [("3.4.25", "server too old: .*expected Prefect 3.6 or newer, found 3.4.25"), ("hello", "no Prefect server")],
)
def test_a_server_that_cannot_do_it_is_refused(version: str, said: str) -> None:
    """An old server would take the deployments and ignore their limits."""

    class Old(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(version).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer((HOST, 0), Old) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            address = f"http://{HOST}:{server.server_port}/api"
            with temporary_settings({PREFECT_API_URL: address}), pytest.raises(UsageError, match=said), connected():
                pass
        finally:
            server.shutdown()
