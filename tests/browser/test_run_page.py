"""A drill asked for through the Prefect server's API, as its form would, seen on the run's page in a real browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lastgood.config import ReplicaSettings, read_configuration
from lastgood.drill import Fault, FaultKind, drill
from lastgood.location import locate
from lastgood.records import Record, list_records
from lastgood.report.view import words
from lastgood.verdict import Outcome, Tier
from lastgood_prefect.stack import Stack
from tests.browser.conftest import Open, Visit

pytestmark = [pytest.mark.service("chromium"), pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "drill" / "fake_job.py"
FAMILY = "drill"
ASKED = {"family": FAMILY, "kill": "rank", "inside_publish": False, "seed": 7}
PATIENCE_SECONDS = 420.0
# Prefect's pages ask their own server for an icon of a state that has none, and a GPU driver talks of its pace.
NOT_OURS = ("/ico/undefined.svg", "GL Driver Message")
WIDE = {"viewport": {"width": 1400, "height": 1100}}


@dataclass(frozen=True)
class Drilled:
    """What a drill left: the stack that ran it, its run, the run of the report after it, and its record."""

    stack: Stack
    config: Path
    run: dict[str, Any]
    report: dict[str, Any]
    record: Record


def asked(stack: Stack, deployment: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Ask for a run as the form does, and wait for its end."""
    status, found = stack.request("GET", f"/deployments/name/{deployment}")
    assert status == 200, found
    described = found["parameter_openapi_schema"]["properties"]
    for name in parameters:
        assert described[name].get("description"), f"{name}: the form would show no word about it"
    status, run = stack.request("POST", f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})
    assert status in (200, 201), run
    deadline = time.monotonic() + PATIENCE_SECONDS
    while run["state_type"] not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
        assert time.monotonic() < deadline, f"{deployment} is still {run['state_name']}: {run}"
        time.sleep(1)
        _, run = stack.request("GET", f"/flow_runs/{run['id']}")
    return dict(run)


@pytest.fixture(scope="module")
def drilled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drilled]:
    """A server and its workers, everything deployed, a family that a job published, one drill and one report."""
    home = tmp_path_factory.mktemp("machine")
    fault = Fault(kind=FaultKind.RANK, rank=1, steps_after_save=3)
    command = (sys.executable, str(JOB))
    trained = drill(None, ReplicaSettings(command=command), fault=fault, scratch=home, keep=True)
    assert trained.scratch is not None
    (trained.scratch / "root" / FAMILY).rename(home / FAMILY)
    config = home / "lastgood.toml"
    lines = [
        f"[families.{FAMILY}]",
        f'root = "{home}"',
        f"[families.{FAMILY}.replica]",
        f"command = {json.dumps(command)}",
        "drill_timeout_seconds = 120.0",
        f"[families.{FAMILY}.objectives]",
        "rpo_steps = 1000",
        "rto_seconds = 120.0",
    ]
    config.write_text("\n".join(lines), encoding="utf-8")
    environment = {"LASTGOOD_CONFIG": str(config), "PYTHONPATH": str(ROOT)}
    with Stack.start(home / "stack", pools=("verify", "drill-gpu"), environment=environment) as stack:
        lastgood = [sys.executable, "-m", "lastgood", "deploy"]
        done = subprocess.run(lastgood, env=stack.environ, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        run = asked(stack, "recovery-drill/ad-hoc", ASKED)
        report = asked(stack, "readiness-report/hourly", {})
        location = locate(str(home / FAMILY))
        records = [one for one in list_records(location.store, location.keys) if one.tier is Tier.DRILL]
        assert len(records) == 1, run
        yield Drilled(stack, config, run, report, records[0])


def test_a_drill_asked_for_by_its_form_runs_on_its_pool(drilled: Drilled) -> None:
    """The parameters that the form documents are the ones that the run took, on the pool that has the devices."""
    assert drilled.run["state_type"] == "COMPLETED", drilled.run["state"]
    assert drilled.run["work_pool_name"] == "drill-gpu"
    assert {name: drilled.run["parameters"][name] for name in ASKED} == ASKED
    assert drilled.record.verdict.outcome is Outcome.PASS
    assert drilled.record.origin is not None
    assert drilled.record.origin.startswith(drilled.stack.ui_url)
    assert drilled.run["id"] in drilled.record.origin


def test_the_run_s_page_shows_timeline_verdict_and_link(drilled: Drilled, visit: Open, tmp_path: Path) -> None:
    """Who opens the run sees what happened and where the whole picture is, and no other machine hears of it."""
    seen = visit(str(drilled.record.origin), **WIDE)
    seen.page.get_by_text(drilled.run["name"]).first.wait_for(timeout=60_000)
    seen.page.get_by_text("Completed").first.wait_for(timeout=60_000)
    seen.shoot(tmp_path / "run.png")
    told = shown_on(seen, drilled, "verdict", tmp_path)
    assert f"PASS: {FAMILY}/{drilled.record.generation}" in told
    page = Path(read_configuration(drilled.config).report.directory) / "index.html"
    link = seen.page.get_by_role("link", name="Readiness page")
    assert link.get_attribute("href") == page.as_uri()
    assert page.is_file()
    timeline = shown_on(seen, drilled, "phases", tmp_path)
    measured = drilled.record.measurements
    assert f"RTO {measured.rto_seconds:.3f} s" in timeline
    assert re.search(rf"\b{measured.rpo_loss_steps} steps? lost", timeline)
    for phase, seconds in measured.phases.items():
        assert phase in timeline
        assert f"{seconds:.3f}" in timeline
    assert seen.left == []
    assert [said for said in seen.complaints if not any(known in said for known in NOT_OURS)] == []


def shown_on(seen: Visit, drilled: Drilled, kind: str, tmp_path: Path) -> str:
    """What the run's page shows of one of its artifacts, reached as a person does."""
    seen.page.goto(str(drilled.record.origin))
    seen.page.get_by_text("Artifacts", exact=True).click()
    seen.page.get_by_text(f"tier3-{kind}-{FAMILY}").first.click()
    seen.page.get_by_text("Show raw data").wait_for(timeout=60_000)
    seen.shoot(tmp_path / f"{kind}.png")
    return seen.page.locator("body").inner_text()


def test_the_readiness_page_leads_back_to_the_run(drilled: Drilled, visit: Open, tmp_path: Path) -> None:
    """The report after a drill shows its figures, and its link opens the page of the run that measured them."""
    configuration = read_configuration(drilled.config)
    page = Path(configuration.report.directory) / "index.html"
    seen = visit(page.as_uri(), **WIDE)
    assert seen.complaints == []
    assert seen.left == []
    row = seen.page.locator(f"tr[data-family='{FAMILY}']")
    measured = drilled.record.measurements
    assert measured.rto_seconds is not None
    assert float(row.get_attribute("data-rto-newest-seconds") or "nan") == pytest.approx(measured.rto_seconds)
    assert row.get_attribute("data-rpo-newest-steps") == f"{measured.rpo_loss_steps}"
    seen.shoot(tmp_path / "readiness.png")
    gate = seen.page.locator(".gate").filter(has=seen.page.locator("h4", has_text="Drill"))
    link = gate.get_by_role("link", name="flow run")
    assert link.get_attribute("href") == drilled.record.origin
    assert words.moment(drilled.record.finished_at) in gate.inner_text()
    link.click()
    seen.page.get_by_text(drilled.run["name"]).first.wait_for(timeout=60_000)
    assert seen.left == []
