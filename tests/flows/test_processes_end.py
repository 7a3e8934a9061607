"""Drills started from a flow die with it, however it ends, and no deployment is wedged by that.

One stack for all of it: a real server, a real worker, real kills. The job is the drill's fake one: its ranks lead
sessions of their own and do not mind the death of their agent, like torchrun's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lastgood.config import ReplicaSettings
from lastgood.drill import Fault, FaultKind, drill
from lastgood.location import Location, locate
from lastgood.records import Record, list_records
from lastgood.verdict import Outcome, Tier
from lastgood_prefect.headroom import LEASE_SECONDS
from lastgood_prefect.stack import Stack

JOB = Path(__file__).resolve().parents[1] / "drill" / "fake_job.py"
DRILL = "recovery-drill/ad-hoc"
POOL = "drill-gpu"
ODD_STEPS = "987654321"
"""So odd that a process with this argument is a rank of ours."""
PATIENCE_SECONDS = 240.0
"""For Prefect to start or to end a run; nothing is claimed of it."""
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
GONE_SECONDS = 10.0
"""The promise: from whatever ends a run to the last of its ranks."""


def ranks() -> list[psutil.Process]:
    """Every living process of a job of ours that never saves, its agent included."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if f"--steps={ODD_STEPS}" in (process.info["cmdline"] or ()) and process.info["status"] != "zombie":
            found.append(process)
    return found


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> float:
    """Wait for it; how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"in vain, for {seconds:g} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - began


class Scene:
    """A stack with everything deployed, and two families: `drill`, and `holds`, whose replica never saves."""

    def __init__(self, stack: Stack, holds: Location, scratch: Path) -> None:
        self.stack = stack
        self.holds = holds
        self.scratch = scratch

    def ask(self, method: str, path: str, body: object = None) -> Any:
        status, answer = self.stack.request(method, path, body)
        assert status < 300, (method, path, status, answer)
        return answer

    def start(self, family: str, **parameters: object) -> str:
        """Ask for an ad hoc drill, as the page of its deployment does."""
        deployment = self.ask("GET", f"/deployments/name/{DRILL}")["id"]
        asked = {"parameters": {"family": family, **parameters}}
        return str(self.ask("POST", f"/deployments/{deployment}/create_flow_run", asked)["id"])

    def state(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"/flow_runs/{run}")["state"]
        return found

    def started(self) -> str:
        """A run of `holds` whose ranks train."""
        run = self.start("holds")
        until(lambda: len(ranks()) == 3 or self.state(run)["type"] in ENDED, "an agent and two ranks")
        assert len(ranks()) == 3, self.state(run)
        return run

    def ended(self, run: str) -> str:
        """The name of the run's last state, and its message."""
        until(lambda: self.state(run)["type"] in ENDED, f"the end of the run: {self.state(run)}")
        return "{name}: {message}".format(**self.state(run))

    def newest(self) -> Record | None:
        drills = [one for one in list_records(self.holds.store, self.holds.keys) if one.tier is Tier.DRILL]
        return drills[-1] if drills else None

    def taken_slots(self) -> int:
        return int(self.ask("GET", "/v2/concurrency_limits/gpu-headroom")["active_slots"])


def engine_of(run: str) -> psutil.Process:
    """The process that runs a flow run."""
    for process in psutil.process_iter(["cmdline"]):
        try:
            if "-m" in (process.info["cmdline"] or ()) and process.environ().get("PREFECT__FLOW_RUN_ID") == run:
                return process
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    raise AssertionError(f"no engine of {run}")


def produce(root: Path, family: str) -> Location:
    """A family with generations to begin with, published by a job that was killed once."""
    (root / "scratch").mkdir(exist_ok=True)
    declared = ReplicaSettings(command=(sys.executable, str(JOB)), drill_timeout_seconds=PATIENCE_SECONDS)
    fault = Fault(kind=FaultKind.RANK, rank=1, steps_after_save=3)
    location = locate(str(root / family))
    result = drill(location, declared, fault=fault, scratch=root / "scratch", keep=True)
    assert result.scratch is not None
    (result.scratch / "root" / family).rename(root / family)
    return location


def configure(root: Path) -> Path:
    lines = []
    for name, arguments in (("drill", []), ("holds", ["--rank=never saves", f"--steps={ODD_STEPS}"])):
        lines += [
            f"[families.{name}]",
            f"root = {json.dumps(str(root))}",
            f"[families.{name}.replica]",
            f"command = {json.dumps([sys.executable, str(JOB), *arguments])}",
            f"drill_timeout_seconds = {PATIENCE_SECONDS}",
        ]
    path = root / "lastgood.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    root = tmp_path / "runs"
    root.mkdir()
    produce(root, "drill")
    holds = produce(root, "holds")
    environment = {"LASTGOOD_CONFIG": str(configure(root)), "TMPDIR": str(tmp_path)}
    with Stack.start(tmp_path / "home", pools=(POOL,), environment=environment) as stack:
        deploy = (sys.executable, "-m", "lastgood", "deploy", "--headroom", "8")
        subprocess.run(deploy, env=stack.environ, check=True, timeout=PATIENCE_SECONDS)
        yield Scene(stack, holds, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_whatever_ends_a_run_ends_its_ranks_and_wedges_nothing(
    scene: Scene, record_property: Callable[[str, object], None]
) -> None:
    """A cancelled, killed or orphaned run leaves no rank behind, says what happened, and lets the next one run."""
    stack = scene.stack

    def gone(what: str) -> None:
        record_property(f"ranks gone after {what}, seconds", f"{until(lambda: not ranks(), what, GONE_SECONDS):.2f}")

    # As the button of the run's page does it. How soon a worker hears of that is Prefect's.
    run = scene.started()
    scene.ask("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    gone("cancellation")
    assert scene.ended(run).startswith("Cancelled: ")
    record = scene.newest()
    assert record is not None
    assert record.verdict.outcome is Outcome.INCONCLUSIVE
    assert [check.detail for check in record.verdict.checks] == [
        "cancelled: the flow run was cancelled, or its worker was stopped"
    ]

    run = scene.started()
    engine_of(run).kill()
    gone("SIGKILL of the flow")
    assert scene.ended(run).startswith("Crashed: ")

    run = scene.started()
    stack.workers[POOL].kill()
    gone("SIGKILL of the worker")
    assert scene.ended(run).startswith("Inconclusive: ")
    record = scene.newest()
    assert record is not None
    assert (record.attempt, run in str(record.origin)) == (2, True)
    assert "the worker that started this run is gone" in record.verdict.checks[0].detail
    stack.workers[POOL].restart()

    run = scene.started()
    stack.server.kill()
    gone("SIGKILL of the server")
    stack.server.restart()
    assert scene.ended(run).startswith("Inconclusive: ")
    record = scene.newest()
    assert record is not None
    assert (record.attempt, run in str(record.origin)) == (3, True)
    assert "no answer from the Prefect server" in record.verdict.checks[0].detail
    if stack.workers[POOL].poll() is not None:
        stack.workers[POOL].restart()

    # The deployment takes one run at a time, so any of these that still held its slot would keep this one waiting.
    run = scene.start("drill", kill="rank", inside_publish=False, seed=7)
    assert scene.ended(run).startswith("Completed: ")
    assert ranks() == []
    assert list(scene.scratch.glob("lastgood-drill-*")) == []
    until(lambda: scene.taken_slots() == 0, "the slots of a killed flow", GONE_SECONDS + 3 * LEASE_SECONDS)
