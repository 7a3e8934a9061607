"""A bucket read by Dask workers that are processes of their own, reached by the address of their scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import dask
import pytest
from prefect import flow

from lastgood.location import locate
from lastgood.records import list_records
from lastgood.replica.processes import ReplicaProcess
from lastgood.testing.build import BuiltFamily
from lastgood.verdict import Outcome
from lastgood.verify import Depth
from lastgood_prefect import sharding
from lastgood_prefect.settings import configured_family
from lastgood_prefect.verifying import Answer, judge_once
from tests.buckets.conftest import bucket, fault_proxy, s3_environ, seaweedfs
from tests.buckets.faults import Before, Request
from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import SeaweedFS
from tests.flows.cluster import DaskCluster
from tests.flows.test_sharding import built, judged_alone, run_gate, untimed

__all__ = ["bucket", "built", "fault_proxy", "s3_environ", "seaweedfs"]  # fixtures are found by their names here

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server", "s3_environ")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    """A scheduler without workers."""
    home = tmp_path / "dask"
    home.mkdir()
    with DaskCluster(home) as cluster:
        yield cluster


def laid_out(built: BuiltFamily, server: SeaweedFS, root: str) -> None:
    """The family in a bucket, under a root."""
    name, _, prefix = root.removeprefix("s3://").partition("/")
    client = server.client()
    for path in (path for path in built.root.rglob("*") if path.is_file()):
        client.put_object(Bucket=name, Key=f"{prefix}/{path.relative_to(built.root)}", Body=path.read_bytes())


def configure(monkeypatch: pytest.MonkeyPatch, directory: Path, root: str, address: str) -> None:
    file = directory / "lastgood.toml"
    text = f'[dask]\nworkers = 2\naddress = "{address}"\n[families.llm-7b]\nroot = "{root}"\n'
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("LASTGOOD_CONFIG", str(file))


def is_payload(request: Request) -> bool:
    """Of what a worker asks; the run itself does not speak through the proxy."""
    return request.method == "GET" and bool(request.key)


def test_a_worker_killed_while_it_reads_a_bucket_leaves_the_record_of_one(
    built: BuiltFamily,
    cluster: DaskCluster,
    seaweedfs: SeaweedFS,
    fault_proxy: FaultProxy,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Spot machines are taken away; who reads on must not change what is said, with no keys but those of a worker."""
    monkeypatch.setattr(sharding, "PATIENCE_SECONDS", 600.0)  # the next worker may take its time on a slow machine
    root = f"s3://{bucket}/runs"
    laid_out(built, seaweedfs, root)
    there = locate(f"{root}/llm-7b")
    first = cluster.start_worker("first", fault_proxy.environ)
    cluster.await_workers(1)

    def replaced(_: Request) -> None:
        first.kill_tree()
        for name in ("second", "third"):
            cluster.start_worker(name, fault_proxy.environ)

    killed = fault_proxy.inject(Before(replaced), when=is_payload, skip=4)
    configure(monkeypatch, tmp_path, root, cluster.address)
    run_gate()
    judged_alone(built, monkeypatch)
    assert killed.fired == 1
    one, many = list_records(built.store, built.keys), list_records(there.store, there.keys)
    assert [untimed(record) for record in many] == [untimed(record) for record in one]
    assert [record.verdict.outcome for record in many] == [Outcome.PASS, Outcome.FAIL]


def test_nobody_left_to_read_is_inconclusive_and_soon_said(
    built: BuiltFamily,
    cluster: DaskCluster,
    seaweedfs: SeaweedFS,
    fault_proxy: FaultProxy,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Of workers, or a scheduler, that are gone nothing follows for a checkpoint, and who waits for them would hang."""
    root = f"s3://{bucket}/runs"
    laid_out(built, seaweedfs, root)
    configure(monkeypatch, tmp_path, root, cluster.address)
    # Until somebody was killed a slow machine may take its time.
    monkeypatch.setattr(sharding, "PATIENCE_SECONDS", 600.0)
    monkeypatch.setattr(sharding, "LOOK_SECONDS", 1.0)

    def killed_with(process: ReplicaProcess) -> str:
        def kill(_: Request) -> None:
            process.kill_tree()
            monkeypatch.setattr(sharding, "PATIENCE_SECONDS", 1.0)

        killed = fault_proxy.inject(Before(kill), when=is_payload)
        why = inconclusive()
        monkeypatch.setattr(sharding, "PATIENCE_SECONDS", 600.0)
        assert killed.fired == 1
        return why

    worker = cluster.start_worker("first", fault_proxy.environ)
    cluster.await_workers(1)
    assert "no Dask worker was there" in killed_with(worker)
    cluster.start_worker("second", fault_proxy.environ)
    cluster.await_workers(1)
    assert "cannot read: " in killed_with(cluster.scheduler)
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        assert "no Dask scheduler answers" in inconclusive()


def inconclusive() -> str:
    """Why the newest generation, judged once within a flow that has the workers, has no verdict on its bytes."""

    @flow(name="judge-once", task_runner=sharding.task_runner())
    def judge() -> Answer:
        family = configured_family("llm-7b")
        return judge_once(family, family.family.survey().candidates[0], Depth.FULL)

    with ThreadPoolExecutor(max_workers=1) as thread:
        verdict = thread.submit(copy_context().run, judge).result().verdict
    assert verdict is not None
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())
    return next(check.detail for check in verdict.checks if check.name == "digests")
