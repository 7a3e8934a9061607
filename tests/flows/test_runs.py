"""Gate runs as a real server keeps them: what asking, reading and burying do there."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Pending, Running

from lastgood.errors import UsageError
from lastgood_prefect.requests import GateRun, RunState, Unanswered
from lastgood_prefect.runs import PrefectGateRuns

NAME = "drain-nothing/on-commit"


@flow(name="drain-nothing")
def drain_nothing(family: str) -> str:
    return family


@pytest.fixture
def runs(prefect_server: str) -> Iterator[PrefectGateRuns]:
    """A deployment that no worker looks at."""
    with get_client(sync_client=True) as client:
        client.create_deployment(flow_id=client.create_flow(drain_nothing), name="on-commit")
        with PrefectGateRuns(NAME) as runs:
            yield runs
        client.delete_deployment(client.read_deployment_by_name(NAME).id)


def key() -> str:
    return f"lastgood/llm-7b/{uuid.uuid4()}"


def ask(runs: PrefectGateRuns, key: str) -> GateRun:
    """As every caller asks: again, where a busy server gave no answer."""
    for _ in range(5):
        with contextlib.suppress(Unanswered):
            return runs.ask(key, "llm-7b")
        time.sleep(1)
    return runs.ask(key, "llm-7b")


def test_one_key_is_one_run_for_a_named_family(runs: PrefectGateRuns) -> None:
    """The acknowledged request is what makes a lost answer, a double event and a restarted watcher harmless."""
    asked = key()
    run = ask(runs, asked)
    assert run.state is RunState.SCHEDULED
    assert ask(runs, asked) == run
    assert ask(runs, key()).id != run.id
    with get_client(sync_client=True) as client:
        stored = client.read_flow_run(uuid.UUID(run.id))
    assert stored.parameters == {"family": "llm-7b"}
    assert "family:llm-7b" in stored.tags


def test_the_key_of_an_ended_run_returns_the_ended_run(runs: PrefectGateRuns) -> None:
    """The trap that the keys of `requests` are built around; if it goes away, they can become simpler."""
    asked = key()
    run = runs.ask(asked, "llm-7b")
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(uuid.UUID(run.id), Completed(), force=True)
    assert runs.ask(asked, "llm-7b") == GateRun(id=run.id, state=RunState.ENDED)


def test_states_are_read_as_they_are(runs: PrefectGateRuns) -> None:
    """Whether a run has begun decides which saves belong to it."""
    run = runs.ask(key(), "llm-7b")
    seen = []
    with get_client(sync_client=True) as client:
        for state in (Pending(), Running()):
            client.set_flow_run_state(uuid.UUID(run.id), state, force=True)
            seen.append(runs.read(run.id))
    assert [one and one.state for one in seen] == [RunState.PENDING, RunState.RUNNING]
    assert runs.read(str(uuid.uuid4())) is None


def test_a_buried_run_is_crashed_and_says_why(runs: PrefectGateRuns) -> None:
    """Whoever finds it in the list must see that its worker, not its checkpoint, was the trouble."""
    run = runs.ask(key(), "llm-7b")
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(uuid.UUID(run.id), Pending(), force=True)
        runs.bury(run.id, "a worker took it and never began")
        state = client.read_flow_run(uuid.UUID(run.id)).state
    assert state is not None
    assert (state.type, state.message) == (StateType.CRASHED, "a worker took it and never began")
    assert runs.read(run.id) == GateRun(id=run.id, state=RunState.ENDED)
    runs.bury(str(uuid.uuid4()), "nobody")


def test_a_deployment_that_was_made_anew_is_found(runs: PrefectGateRuns) -> None:
    """An operator may delete and deploy again while the watcher runs."""
    runs.ask(key(), "llm-7b")
    with get_client(sync_client=True) as client:
        client.delete_deployment(client.read_deployment_by_name(NAME).id)
        with pytest.raises(Unanswered, match="404"):
            runs.ask(key(), "llm-7b")  # the id that was remembered is gone; the next request looks it up
        with pytest.raises(Unanswered, match=f"no deployment {NAME}"):
            runs.ask(key(), "llm-7b")
        client.create_deployment(flow_id=client.create_flow(drain_nothing), name="on-commit")
    assert runs.ask(key(), "llm-7b").state is RunState.SCHEDULED


def test_a_server_that_is_not_there_is_no_answer_and_no_server_is_a_mistake() -> None:
    """The first passes; the second never does, and a client without a server would start one of its own."""
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        PrefectGateRuns() as runs,
        pytest.raises(Unanswered, match="no answer"),
    ):
        runs.ask(key(), "llm-7b")
    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(UsageError, match="PREFECT_API_URL is not set"),
    ):
        PrefectGateRuns()
