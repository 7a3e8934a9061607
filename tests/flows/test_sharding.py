"""One generation read by two worker processes of Dask: the same record, and trouble where a worker cannot answer."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from distributed.comm.core import CommClosedError
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.context import SyncClientContext
from prefect.task_runners import ThreadPoolTaskRunner

import lastgood
from lastgood import documents
from lastgood.digest import Algorithm, HashRequest
from lastgood.errors import StoreError, StorePermanentError, StoreTransientError, UsageError
from lastgood.records import Record, list_records
from lastgood.stores.port import Hashed, Progress
from lastgood.testing.build import BuiltFamily, Recipe, build_family
from lastgood.verdict import Outcome
from lastgood.verify import Depth, Share, merge_shares, verify_generation
from lastgood_prefect import sharding
from lastgood_prefect.settings import configured_family
from lastgood_prefect.verifying import judge_once
from tests.flows.conftest import load_flow

DASK = "[dask]\nworkers = 2\n"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def built(tmp_path: Path) -> BuiltFamily:
    """Two saves; of the newer one an artifact in either half is damaged, one of them with bytes of another."""
    root = tmp_path / "alone"
    root.mkdir()
    built = build_family(root, "llm-7b", steps=(12, 24), recipe=Recipe(world_size=8))
    directory = root / built.keys.artifacts(built.newest)
    for name in ("model/rank-00000.safetensors", "rng/rank-00007.json"):
        data = (directory / name).read_bytes()
        (directory / name).chmod(0o600)
        (directory / name).write_bytes(bytes([data[0] ^ 1]) + data[1:])
    second = directory / "optimizer/rank-00003.safetensors"
    second.chmod(0o600)
    second.write_bytes((directory / "optimizer/rank-00002.safetensors").read_bytes())
    return built


def configure(monkeypatch: pytest.MonkeyPatch, built: BuiltFamily, settings: str = "") -> None:
    file = built.root.parent / f"{built.root.name}.toml"
    file.write_text(f'{settings}[families.llm-7b]\nroot = "{built.root}"\n', encoding="utf-8")
    monkeypatch.setenv("LASTGOOD_CONFIG", str(file))


def run_gate() -> Any:
    """What the flow returned; on a thread of its own, for a browser's tests leave an event loop running on this one."""

    def run() -> Any:
        # As in test_save_gate: Prefect closes the client of a coroutine flow only if it is kept.
        with SyncClientContext.get_or_create():
            return asyncio.run(load_flow("save_gate")("llm-7b", return_state=True))

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(copy_context().run, run).result()


def judged_alone(built: BuiltFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put on record what a single reader says of each generation."""
    configure(monkeypatch, built)
    for generation in built.generations:
        judge_once(configured_family("llm-7b"), generation, Depth.FULL)


def untimed(record: Record) -> bytes:
    """A record's bytes without its times, and without the run that left it."""
    took = msgspec.structs.replace(record.measurements, seconds=None)
    same = msgspec.structs.replace(record, started_at=NOW, finished_at=NOW, origin=None, measurements=took)
    return documents.canonical_bytes(same)


@pytest.mark.slow
def test_two_workers_leave_the_record_of_one(
    built: BuiltFamily, prefect_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever spreads a reading must not change what it says: not a byte but the times, of a pass and of a fail."""
    spread = built.at(tmp_path / "spread")
    shutil.copytree(built.root, spread.root)
    judged_alone(built, monkeypatch)
    configure(monkeypatch, spread, DASK)
    state = run_gate()
    alone, shared = (list_records(one.store, one.keys) for one in (built, spread))
    assert [untimed(record) for record in shared] == [untimed(record) for record in alone]
    assert [record.verdict.outcome for record in shared] == [Outcome.PASS, Outcome.FAIL]
    assert len(shared[1].verdict.findings) == 3
    with get_client(sync_client=True) as client:
        run = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
        names = {one.name for one in client.read_task_runs(flow_run_filter=run)}
    assert names >= {f"read {generation}: {number} of 2" for generation in built.generations for number in (1, 2)}


def test_a_flow_reads_alone_unless_the_configuration_says_otherwise(
    built: BuiltFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a cluster that he did not ask for, and a file that is wrong is the run's to report."""
    configure(monkeypatch, built)
    assert sharding.task_runner() is None
    monkeypatch.setenv("LASTGOOD_CONFIG", str(built.root / "absent.toml"))
    assert sharding.task_runner() is None
    assert isinstance(load_flow("save_gate").task_runner, ThreadPoolTaskRunner)


class Client:
    """Of Dask, with a scheduler that tells of so many workers, or does not answer."""

    status = "running"
    scheduler = SimpleNamespace(ncores=None)

    def __init__(self, workers: int | None) -> None:
        self.workers = workers

    def sync(self, *_: object, **__: object) -> dict[str, int]:
        if self.workers is None:
            raise CommClosedError("in <TCP (closed)>")
        return {f"tcp://10.0.0.{number}:40123": 1 for number in range(self.workers)}


class Future:
    """Of Prefect's Dask runner: waited for so many times before its worker answers."""

    def __init__(self, answer: Exception, *, waits: int = 0) -> None:
        self.answer = answer
        self.waits = waits
        self.wrapped_future = SimpleNamespace(done=lambda: self.waits == 0)

    def wait(self, timeout: float) -> None:
        self.waits -= 1

    def result(self) -> Share:
        raise self.answer


@pytest.mark.parametrize(
    ("workers", "future", "said"),
    [
        (1, Future(CommClosedError("lost worker tcp://10.0.0.7:40123"), waits=3), "lost worker"),
        (0, Future(TypeError("ours"), waits=-1), "no Dask worker was there"),
        (None, Future(TypeError("ours"), waits=-1), "no Dask worker was there"),
    ],
)
def test_workers_that_are_gone_are_trouble_of_the_store(
    workers: int | None, future: Future, said: str, built: BuiltFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was taken away says nothing about a checkpoint, and asking again may help; one that is there may
    take its time, and where nobody is, nobody is waited for.
    """
    monkeypatch.setattr(sharding, "PATIENCE_SECONDS", -1.0)

    def read(prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None, /) -> Iterator[Hashed]:
        return merge_shares((sharding._share(one, Client(workers)) for one in [future]), progress)

    met: list[StoreError] = []
    verdict = verify_generation(built.store, built.keys, built.generations[0], trouble=met.append, read=read)
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())
    assert [type(error) for error in met] == [StoreTransientError]
    assert said in met[0].message


def test_a_mistake_in_a_worker_is_no_trouble_of_the_store() -> None:
    """Asked again for ever, it would look like a store that does not answer."""
    with pytest.raises(TypeError, match="ours"):
        sharding._share(Future(TypeError("ours")), Client(1))


def test_what_is_not_installed_at_a_worker_is_said_and_asking_again_does_not_help() -> None:
    """A worker without lastgood, or without a client of buckets, says nothing of a checkpoint."""
    lacking = Future(ModuleNotFoundError("No module named 'lastgood_prefect'"))
    with pytest.raises(StorePermanentError, match="a worker lacks what it needs: No module named 'lastgood_prefect'"):
        sharding._share(lacking, Client(1))


def share_read_at(built: BuiltFamily, *, of: BuiltFamily, version: str = lastgood.__version__) -> Share:
    """What a worker answers that has one family where the run that asks has another."""
    prefix, path = built.keys.artifacts(built.newest), "config.json"
    changed = of.store.last_changed(f"{prefix}/{path}")
    packed = sharding._packed([HashRequest(path=path, algorithms=(Algorithm.BLAKE3,))])
    return sharding.read_one_share.fn("1 of 1", version, built.store.uri, None, prefix, packed, changed)


def test_a_worker_reads_nothing_of_another_tree_under_the_same_name(built: BuiltFamily, tmp_path: Path) -> None:
    """Where a file system is not shared, a good copy there would pass what is damaged here, and an old one bar what is
    good.
    """
    assert [one.path for one in share_read_at(built, of=built).hashed] == ["config.json"]
    copy = built.at(tmp_path / "copy")
    shutil.copytree(built.root, copy.root)
    shutil.rmtree(built.root)
    built.root.mkdir()
    for share in (share_read_at(copy, of=built), share_read_at(built, of=copy)):
        assert share.hashed == ()
        assert isinstance(share.error, StorePermanentError)
        assert "another tree lies there" in share.error.message


def test_a_worker_of_another_version_reads_nothing(built: BuiltFamily) -> None:
    """What it would say of bytes may be what that version got wrong."""
    share = share_read_at(built, of=built, version="0.0.1")
    assert share.hashed == ()
    assert isinstance(share.error, StorePermanentError)
    assert f"lastgood {lastgood.__version__} runs there, and 0.0.1 asks" in share.error.message


def test_workers_that_are_asked_for_and_cannot_be_had_are_a_mistake_to_mend(
    built: BuiltFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading alone for hours, unasked, would look like a hang; and outside of a flow run nobody asked."""
    configure(monkeypatch, built, DASK)
    gate = configured_family("llm-7b")
    assert sharding.spread_reading(gate, built.newest) is None
    context = SimpleNamespace(get=lambda: SimpleNamespace(task_runner=ThreadPoolTaskRunner()))
    monkeypatch.setattr(sharding, "FlowRunContext", context)
    with pytest.raises(UsageError, match=r"\[dask\]"):
        sharding.spread_reading(gate, built.newest)
