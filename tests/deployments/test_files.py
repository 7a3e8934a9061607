"""What is deployed, as people script against it: names, parameters, schedules, limits, alarms."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from lastgood_prefect import events, project, states
from lastgood_prefect.automations import Shipped, shipped_automations
from lastgood_prefect.pools import POOLS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = yaml.safe_load((ROOT / project.DEPLOYMENTS).read_text())
DEPLOYMENTS: list[dict[str, Any]] = DOCUMENT["deployments"]


def flow_of(deployment: dict[str, Any]) -> Any:
    path, name = deployment["entrypoint"].split(":")
    return load_flow_from_entrypoint(f"{ROOT / path}:{name}")


def full_names() -> set[str]:
    """`<flow>/<deployment>` of each, read from the sources, without running a flow file."""
    found = set()
    for deployment in DEPLOYMENTS:
        tree = ast.parse((ROOT / deployment["entrypoint"].split(":")[0]).read_text())
        (flow,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
        found.add(f"{flow.name.replace('_', '-')}/{deployment['name']}")
    return found


def test_names_parameters_and_schedules_stay(golden: Callable[[str, bytes], None]) -> None:
    """Scripts, alarms and bookmarks name deployments and parameters: a change of any is made on purpose."""
    held = {}
    for deployment in DEPLOYMENTS:
        flow = flow_of(deployment)
        schema = parameter_schema(flow).model_dump()
        held[f"{flow.name}/{deployment['name']}"] = {
            "parameters": {
                name: {key: one[key] for key in ("type", "anyOf", "default", "items", "$ref", "allOf") if key in one}
                for name, one in schema["properties"].items()
            },
            "required": schema.get("required", []),
            **{key: deployment.get(key) for key in ("tags", "work_pool", "schedules", "concurrency_limit")},
        }
    golden("deployments.json", json.dumps(held, indent=2, sort_keys=True).encode() + b"\n")


def test_every_parameter_says_what_it_is() -> None:
    """The flow's signature is the form that people fill in: a field without a word is a riddle."""
    for deployment in DEPLOYMENTS:
        for name, one in parameter_schema(flow_of(deployment)).model_dump()["properties"].items():
            assert one.get("description"), f"{deployment['entrypoint']}: {name}"


def test_deployments_use_the_pools_and_queues_that_are_set_up() -> None:
    """A queue that nobody gave a priority would be served in the order in which queues were made."""
    for deployment in DEPLOYMENTS:
        wanted = deployment["work_pool"]
        (pool,) = (one for one in POOLS if one.name == wanted["name"])
        assert wanted["work_queue_name"] in pool.queues
        assert "lastgood" in deployment["tags"], "alarms and `lastgood deploy` know our runs by this tag"
        assert all(schedule["timezone"] for schedule in deployment.get("schedules", ()))


def test_no_slot_holds_back_what_frees_slots() -> None:
    """A server that forgot a lease would cancel every sweep for ever, and with it the only one that mends that."""
    (sweep,) = (one for one in DEPLOYMENTS if one["entrypoint"].endswith(":reconcile"))
    assert "concurrency_limit" not in sweep


def test_no_deployment_names_a_machine() -> None:
    """A path of the machine that deployed would be stored and followed on every worker."""
    text = (ROOT / project.DEPLOYMENTS).read_text()
    assert "{{" not in text
    assert DOCUMENT["pull"] == [{"lastgood_prefect.project.enter_project": {}}]


def test_the_project_is_where_the_flows_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pull step leads every run to the files of the installation that runs it."""
    monkeypatch.chdir(tmp_path)
    assert project.enter_project() == {"directory": str(ROOT)}
    assert Path.cwd() == ROOT


@pytest.mark.parametrize("shipped", shipped_automations(), ids=lambda shipped: shipped.name)
def test_an_automation_is_lawful_and_says_what_to_do(shipped: Shipped) -> None:
    """Prefect's own types take it, it names a deployment that exists, and an alarm has words."""
    wanted = shipped.wanted(None, ())
    assert isinstance(wanted.trigger, EventTrigger)
    assert len(wanted.description) > 40
    assert shipped.runs is None or shipped.runs in full_names()
    assert bool(shipped.runs) == bool(shipped.notification), "an alarm without a block still leaves something to see"
    assert shipped.runs or wanted.actions


def by_name(words: str) -> Any:
    (shipped,) = (one for one in shipped_automations() if words in one.name)
    return shipped.wanted(None, ())


def test_automations_expect_what_is_emitted() -> None:
    """An alarm on an event that nobody sends is silence."""
    assert by_name("quarantined").trigger.expect == {events.FAMILY_QUARANTINED}
    assert by_name("stale").trigger.expect == {events.EVIDENCE_STALE}
    judged = by_name("not judged").trigger
    assert (judged.posture, judged.after, judged.expect) == (
        Posture.Proactive,
        {events.GENERATION_COMMITTED},
        {events.VERDICT_RECORDED},
    )


def test_no_run_that_ended_is_called_crashed() -> None:
    """Runs end under names of our own; an automation that did not expect one would overwrite it minutes later."""
    ends = {f"prefect.flow-run.{name}" for name in ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")}
    ends |= {f"prefect.flow-run.{name}" for name in states._NAMES.values()}
    assert {"prefect.flow-run.Inconclusive", "prefect.flow-run.NotRun"} <= ends
    for words in ("lost its machine", "never began"):
        automation = by_name(words)
        expected = automation.trigger.expect
        assert "prefect.flow-run.*" in expected or ends <= expected
        (action,) = automation.actions
        assert isinstance(action, ChangeFlowRunState)
        assert action.state == "CRASHED"
        assert not action.force, "a state that the server does not allow to change is not a lost run"
