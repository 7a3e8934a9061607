"""The relay before a real Prefect server: nothing that is killed takes a verdict with it."""

from __future__ import annotations

import http.client
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lastgood.records import list_records
from lastgood_prefect.project import DEPLOYMENTS, project_directory
from lastgood_prefect.relay.spool import Spool
from lastgood_prefect.stack import Stack, StackProcess
from tests.relay.bodies import ceph, minio, seaweedfs
from tests.relay.conftest import BUCKET, ROOT, BucketFamily
from tests.relay.posting import SECRET, post
from tests.relay.test_command import IN_A_BUCKET
from tests.relay.test_feeds import PROOF

pytestmark = pytest.mark.slow

SAVES = 200 if PROOF else 16
PATIENCE_SECONDS = 600.0


@dataclass
class Pipeline:
    """A stack with the gate deployed, a relay that listens, and a family that it judges."""

    stack: Stack
    relay: StackProcess
    family: BucketFamily
    port: int
    spool: Path

    def kept(self) -> int:
        """How many accepted hints are not done with."""
        spool = Spool(self.spool)
        try:
            return len(spool.hints())
        finally:
            spool.close()

    def send(self, body: bytes) -> None:
        """Post until it is accepted, as senders with a queue of their own do."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                assert post(self.port, body)[0] in (202, 400)
                return
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < deadline, "nobody listens"
                time.sleep(0.2)


@pytest.fixture
def pipeline(tmp_path: Path, free_port: int) -> Iterator[Pipeline]:
    root = tmp_path / "runs"
    root.mkdir()
    configuration = tmp_path / "lastgood.toml"
    configuration.write_text(f'[families.llm-7b]\nroot = "{root}"\n')
    environment = {"LASTGOOD_CONFIG": str(configuration), "LASTGOOD_RELAY_SECRET": SECRET}
    # The slow listing is as good as off: what is judged in time was announced.
    options = ("--source", "webhook", "--port", str(free_port), "--listing-seconds", "3600", "--patience-seconds", "40")
    with Stack.start(tmp_path / "stack", pools=("verify",), environment=environment) as stack:
        deploy = ("deploy", "--name", "save-gate/on-commit", "--prefect-file", DEPLOYMENTS)
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *deploy],
            env=stack.environ,
            cwd=project_directory(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        relay = stack.run("relay", (sys.executable, "-c", IN_A_BUCKET, ROOT, "relay", *options))
        yield Pipeline(stack, relay, BucketFamily(root), free_port, tmp_path / "lastgood-relay")


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.2)


def test_every_announced_save_is_judged_once_whatever_is_killed(
    pipeline: Pipeline, record_property: Callable[[str, object], None]
) -> None:
    """Relay and server die by SIGKILL while tripled, shuffled and partly lost events come in."""
    chance = random.Random(20261130)
    kills = threading.Thread(target=_kill_both, args=(pipeline,))
    kills.start()
    pending: list[bytes] = []
    for number in range(SAVES):
        saved = pipeline.family.save()
        # The last one is announced: it makes the relay find whatever was lost before.
        if chance.random() >= 0.3 or number == SAVES - 1:
            shape = chance.choice((minio, ceph, seaweedfs))
            pending += [shape(BUCKET, pipeline.family.commit_key(saved))] * 3
        pending += [minio("elsewhere", "x"), b"{}"][: chance.choice((0, 0, 0, 1, 2))]
        chance.shuffle(pending)
        while len(pending) > 3:
            pipeline.send(pending.pop())
        time.sleep(chance.uniform(0.0, 1.5))
    kills.join(PATIENCE_SECONDS)
    assert not kills.is_alive()
    for body in pending:
        pipeline.send(body)
    begin = time.monotonic()
    wait_until(lambda: not pipeline.family.due())
    wait_until(lambda: pipeline.kept() == 0)
    records = list_records(pipeline.family.built.store, pipeline.family.built.keys)
    conclusive = sorted(record.generation for record in records if record.verdict.outcome.is_conclusive)
    assert conclusive == [str(generation) for generation in sorted(pipeline.family.built.generations)]
    record_property("saves", SAVES)
    record_property("seconds from the last event to the last verdict", round(time.monotonic() - begin, 1))


def _kill_both(pipeline: Pipeline) -> None:
    """Kill relay and server, each on its own and both at once, and start them again."""
    for relay, server in ((True, False), (False, True), (True, True)):
        time.sleep(3.0)
        if relay:
            pipeline.relay.kill()
        if server:
            pipeline.stack.server.kill()
        time.sleep(1.0)
        if relay:
            pipeline.relay.launch()
        if server:
            pipeline.stack.server.restart()
