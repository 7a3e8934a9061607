"""`save-gate` in a flow run: what it judges, what it skips, how it ends, and what its page shows."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.context import SyncClientContext

from lastgood.errors import StoreTransientError
from lastgood.family import Family
from lastgood.location import Location
from lastgood.records import list_records
from lastgood.stores import LocalStore
from lastgood.stores.port import Hashed
from lastgood.testing.build import BuiltFamily, Recipe, build_family
from lastgood.verdict import Outcome
from lastgood_prefect import verifying
from tests.flows.conftest import FLOWS, artifacts_of, events_about, load_flow

pytestmark = pytest.mark.usefixtures("prefect_server")

HOSTILE = "<img src=x onerror=alert(1)>[click](javascript:alert(1))\u202e\x1b[31m`**|"


@pytest.fixture
def save_gate() -> Callable[..., Any]:
    flow: Any = load_flow("save_gate")

    def run(*args: object, **kwargs: object) -> Any:
        # Prefect's engine opens a synchronous client for a coroutine flow too, and closes it only if it is kept here.
        with SyncClientContext.get_or_create():
            return asyncio.run(flow(*args, **kwargs))

    return run


def empty_shard(built: BuiltFamily, index: int) -> None:
    (built.root / built.family / str(built.generations[index]) / "optimizer/rank-00000.safetensors").write_bytes(b"")


def outcomes(built: BuiltFamily) -> list[Outcome]:
    return [record.verdict.outcome for record in list_records(built.store, built.keys)]


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info or "Traceback" in record.getMessage()]


def test_a_batch_is_drained_in_one_run_and_says_what_it_found(save_gate: Any, configured: BuiltFamily) -> None:
    """Every save is judged once; the page shows the verdicts, and each record names the run."""
    state = save_gate("llm-7b", return_state=True)
    assert state.is_completed(), state
    assert outcomes(configured) == [Outcome.PASS] * 3
    run = state.state_details.flow_run_id
    assert all(str(run) in str(record.origin) for record in list_records(configured.store, configured.keys))
    shown = artifacts_of(run)
    rows = json.loads(shown["tier1-checks-llm-7b"])
    assert {row["subject"] for row in rows} == {f"llm-7b/{one}" for one in configured.generations}
    assert shown["tier1-verdict-llm-7b"].count("PASS") == 3
    assert "Readiness page" in shown["tier1-verdict-llm-7b"]
    again = save_gate("llm-7b", return_state=True)
    assert again.is_completed()
    assert "nothing to judge" in again.message
    assert len(outcomes(configured)) == 3


def test_a_run_does_not_wait_for_its_heartbeats(save_gate: Any, configured: BuiltFamily) -> None:
    """Its function is a coroutine's, whose heartbeat thread Prefect does not join: a second a run."""
    assert asyncio.iscoroutinefunction(load_flow("save_gate").fn)
    state = save_gate("llm-7b", return_state=True)
    assert state.is_completed(), state


def test_a_fail_ends_the_run_failed_with_its_reasons(save_gate: Any, configured: BuiltFamily) -> None:
    """Whoever is called at night reads in the state what is broken; the healthy saves are judged all the same."""
    empty_shard(configured, 1)
    state: State[Any] = save_gate("llm-7b", return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Failed")
    assert "size_mismatch (optimizer/rank-00000.safetensors)" in str(state.message)
    assert sorted(outcomes(configured)) == [Outcome.FAIL, Outcome.PASS, Outcome.PASS]
    page = artifacts_of(state.state_details.flow_run_id)["tier1-verdict-llm-7b"]
    assert page.index("FAIL") < page.index("PASS")
    assert "hint:" in page


def test_conclusive_evidence_is_skipped_and_said_so(save_gate: Any, configured: BuiltFamily) -> None:
    """An event that comes twice, or late, must not read a terabyte again."""
    first, second = configured.generations[0], configured.generations[1]
    Family(Location(store=configured.store, keys=configured.keys, generation=None)).verify(first)
    state = save_gate("llm-7b", [str(first), str(second), str(second)], return_state=True)
    assert state.is_completed()
    assert f"{first}: skipped, conclusive evidence stands (pass)" in state.message
    assert f"llm-7b/{second}: pass" in state.message
    assert len(outcomes(configured)) == 2


def test_metadata_proves_no_save_and_full_evidence_stays_due(save_gate: Any, configured: BuiltFamily) -> None:
    """A look at sizes must not be taken for a read of every byte."""
    newest = str(configured.newest)
    assert save_gate("llm-7b", [newest], "metadata", return_state=True).is_completed()
    assert "skipped" in save_gate("llm-7b", [newest], "metadata", return_state=True).message
    assert "pass" in save_gate("llm-7b", [newest], return_state=True).message
    assert [record.rung.value for record in list_records(configured.store, configured.keys)] == [
        "metadata_only",
        "full",
    ]


def test_a_store_that_cannot_tell_ends_inconclusive(
    save_gate: Any, configured: BuiltFamily, caplog: pytest.LogCaptureFixture
) -> None:
    """An unmounted file system says nothing about a checkpoint: not green, not a fail, and no traceback."""
    configured.root.rename(configured.root.with_name("away"))
    state = save_gate("llm-7b", return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Inconclusive")
    assert "root is not a directory" in state.message
    assert tracebacks(caplog) == []


def unreliable(monkeypatch: pytest.MonkeyPatch, failures: int) -> list[str]:
    """Let reading fail so many times as a file system does that may answer when asked again; returns what was read."""
    hash_, asked = LocalStore.hash, []

    def read(self: LocalStore, prefix: str, requests: Any, progress: Any = None) -> Iterator[Hashed]:
        asked.append(prefix)
        if len(asked) <= failures:
            raise StoreTransientError(f"cannot read {prefix}: stale file handle")
        yield from hash_(self, prefix, requests, progress)

    monkeypatch.setattr(LocalStore, "hash", read)
    without_rest = verifying.verify_generation.with_options(retry_delay_seconds=0)
    monkeypatch.setattr(verifying, "verify_generation", without_rest)
    return asked


def test_trouble_that_passes_leaves_one_verdict(
    save_gate: Any, configured: BuiltFamily, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A network file system that was busy for a moment must not leave "could not tell" on record."""
    asked = unreliable(monkeypatch, failures=2)
    state = save_gate("llm-7b", [str(configured.newest)], return_state=True)
    assert state.is_completed(), state
    assert len(asked) == 3
    (record,) = list_records(configured.store, configured.keys)
    assert (record.verdict.outcome, record.attempt) == (Outcome.PASS, 1)
    assert tracebacks(caplog) == []


def test_trouble_that_stays_is_kept_as_inconclusive(
    save_gate: Any, configured: BuiltFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last try leaves what it has: the report must see that the gate ran and could not tell."""
    asked = unreliable(monkeypatch, failures=99)
    state = save_gate("llm-7b", [str(configured.newest)], return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Inconclusive")
    assert len(asked) == 1 + len(verifying.RETRY_DELAYS_SECONDS)
    assert outcomes(configured) == [Outcome.INCONCLUSIVE]
    assert Family(Location(store=configured.store, keys=configured.keys, generation=None)).unjudged() != ()


@pytest.mark.parametrize(
    ("family", "said"),
    [("llm-8b", "family not configured: llm-8b: lastgood.toml names llm-7b"), ("", "llm-7b"), ("../llm-7b", "escapes")],
)
def test_a_wrong_name_is_one_clear_line(
    save_gate: Any, configured: BuiltFamily, caplog: pytest.LogCaptureFixture, family: str, said: str
) -> None:
    """A form is filled in by people; a traceback tells them nothing, and no name is ever opened as a path."""
    caplog.set_level(logging.INFO)
    state = save_gate(family, return_state=True)
    assert state.is_failed()
    if family == "llm-8b":
        assert state.message == said
        assert tracebacks(caplog) == []
    assert outcomes(configured) == []


def test_a_missing_configuration_is_one_clear_line(
    save_gate: Any, configured: BuiltFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's environment is somebody else's to set; the message names the variable."""
    monkeypatch.delenv("LASTGOOD_CONFIG")
    state = save_gate("llm-7b", return_state=True)
    assert state.is_failed()
    assert "LASTGOOD_CONFIG is not set" in state.message


def test_an_unknown_generation_fails_and_keeps_nobody_from_the_others(save_gate: Any, configured: BuiltFamily) -> None:
    """A forged or late event costs one line; what it stands beside is judged."""
    state = save_gate("llm-7b", ["00000001-0000000000000099", str(configured.newest)], return_state=True)
    assert state.name == "Failed"
    assert "no such generation" in state.message
    assert outcomes(configured) == [Outcome.PASS]


def test_nothing_of_a_hostile_checkpoint_reaches_the_page_raw(
    save_gate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Names in a checkpoint are a stranger's input: shown, and neither rendered nor obeyed."""
    root = tmp_path / "hostile"
    root.mkdir()
    name = HOSTILE.replace("/", "").replace("\x1b", "").replace("\\", "")
    built = build_family(root, name, steps=(12,), recipe=Recipe(prefix=name))
    (root / name / str(built.newest) / name / "data.json").unlink()
    (root / name / str(built.newest) / name / "rng/rank-00000.json").write_bytes(b"\0")
    configuration = tmp_path / "hostile.toml"
    quoted = name.replace("\u202e", "\\u202e")
    configuration.write_text(f'[families."{quoted}"]\nroot = "{root}"\n', encoding="utf-8")
    monkeypatch.setenv("LASTGOOD_CONFIG", str(configuration))
    caplog.set_level(logging.INFO)
    state = save_gate(name, return_state=True)
    assert state.name == "Failed"
    shown = artifacts_of(state.state_details.flow_run_id)
    assert len(shown) == 2
    for text in (*shown.values(), state.message):
        assert "\u202e" not in text
        assert "\x1b" not in text
    for text in shown.values():
        assert "<img" not in text
        assert "](javascript" not in text
    assert "data.json" in shown[next(key for key in shown if "verdict" in key)]


def test_events_are_on_the_bus_once(save_gate: Any, configured: BuiltFamily) -> None:
    """Automations count on one word a fact, with the family as its resource."""
    newest = str(configured.newest)
    run = save_gate("llm-7b", [newest], return_state=True).state_details.flow_run_id
    save_gate("llm-7b", [newest], return_state=True)
    for _ in range(100):
        recorded = events_about("llm-7b", str(run))
        committed = events_about("llm-7b", str(configured.root))
        if recorded and committed:
            break
        time.sleep(0.1)
    assert recorded == ["lastgood.verdict.recorded"]
    assert committed == ["lastgood.generation.committed"]


def test_a_save_gate_loads_no_heavy_library() -> None:
    """It starts once a save: torch, pandas, Great Expectations and SQLAlchemy would each cost more than the work."""
    program = (
        "import json, sys\n"
        f"sys.path.insert(0, {str(FLOWS)!r})\n"
        "import save_gate\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    heavy = {"torch", "numpy", "pandas", "great_expectations", "sqlalchemy", "alembic", "matplotlib", "boto3"}
    assert heavy & set(json.loads(done.stdout)) == set()
