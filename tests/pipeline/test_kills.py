"""Nothing that is killed takes a verdict with it: server, worker, watcher and runs under SIGKILL while saves go on."""

from __future__ import annotations

import collections
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import psutil
import pytest

from lastgood.identity import GenerationId
from lastgood.records import Record, list_records, newest_record
from lastgood.verdict import Tier
from lastgood_prefect.project import DEPLOYMENTS, project_directory
from lastgood_prefect.stack import Stack, StackProcess
from tests.pipeline.memory import GrowingFamily

pytestmark = pytest.mark.slow

PROOF = os.environ.get("LASTGOOD_PROOF") == "1"
SAVES = 200 if PROOF else 20
SAVES_A_KILL = 4
VICTIMS = ("server", "worker", "watcher", "run")
PATIENCE_SECONDS = 600.0
# Short cadences: what a kill costs is waited for here, not in an hour.
WATCH = (sys.executable, "-m", "lastgood", "watch", "--listing-seconds", "5", "--patience-seconds", "40")


@dataclass
class Pipeline:
    """A stack with the gate deployed, a watcher, and a family that it judges."""

    stack: Stack
    watcher: StackProcess
    family: GrowingFamily
    kills: collections.Counter[str] = field(default_factory=collections.Counter)

    def kill(self, victim: str) -> bool:
        """Kill one of them; False if there was none to kill."""
        if victim == "run":
            return self.kill_run()
        process = {"server": self.stack.server, "worker": self.stack.workers["verify"], "watcher": self.watcher}[victim]
        process.kill()
        self.kills[victim] += 1
        return True

    def kill_run(self) -> bool:
        """Kill the process of one flow run, and what it had started."""
        for process in psutil.Process(self.stack.workers["verify"].pid).children():
            for one in [*process.children(recursive=True), process]:
                one.kill()
            self.kills["run"] += 1
            return True
        return False

    def restart(self, victim: str) -> None:
        """Start it again, as whatever keeps services alive on a machine would."""
        if victim == "watcher":
            self.watcher.launch()
        elif victim == "server":
            self.stack.server.restart()
        elif victim == "worker":
            self.stack.workers["verify"].restart()

    def restart_dead(self) -> None:
        """Start again what ended by itself, e.g. a worker that gave up on its server."""
        for victim, process in (("worker", self.stack.workers["verify"]), ("watcher", self.watcher)):
            if process.poll() is not None:
                self.restart(victim)

    def records(self) -> Mapping[GenerationId, list[Record]]:
        """Generation → its records."""
        found: dict[GenerationId, list[Record]] = {one: [] for one in self.family.built.generations}
        for record in list_records(self.family.built.store, self.family.built.keys):
            found[GenerationId.parse(record.generation)].append(record)
        return found

    def runs(self) -> collections.Counter[str]:
        """State → how many gate runs are in it."""
        _, found = self.stack.request("POST", "/flow_runs/filter", {"limit": 200})
        return collections.Counter(one["state"]["name"] for one in found)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """One for all tests here: starting it takes longer than they do."""
    home = tmp_path_factory.mktemp("kills")
    root = home / "runs"
    root.mkdir()
    (home / "lastgood.toml").write_text(f'[families.llm-7b]\nroot = "{root}"\n')
    environment = {"LASTGOOD_CONFIG": str(home / "lastgood.toml")}
    with Stack.start(home / "stack", pools=("verify",), environment=environment) as stack:
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
        yield Pipeline(stack, stack.run("watcher", WATCH), GrowingFamily(root))


def wait_until(holds: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait for something that other processes bring about."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        meanwhile()
        time.sleep(0.2)


def test_a_crashed_run_s_generation_is_judged_by_a_later_run(pipeline: Pipeline) -> None:
    """The key of the dead run returns the dead run for ever, so whoever asks must find a key that lives."""
    saved = pipeline.family.save()
    wait_until(pipeline.kill_run)
    wait_until(lambda: pipeline.family.due() == frozenset())
    record = newest_record(pipeline.family.built.store, pipeline.family.built.keys, saved, Tier.MANIFEST)
    assert record is not None
    assert record.origin is not None
    wait_until(lambda: pipeline.runs()["Crashed"])
    _, run = pipeline.stack.request("GET", f"/flow_runs/{record.origin.rpartition('/')[2]}")
    assert "/again-" in run["idempotency_key"]


def test_every_save_is_judged_once_whatever_is_killed(
    pipeline: Pipeline, record_property: Callable[[str, object], None]
) -> None:
    """Whoever operates the pipeline restarts things; no save may go unjudged, and none be judged twice."""
    chance = random.Random(20261130)
    pipeline.kills.clear()
    failed: list[BaseException] = []
    killer = threading.Thread(target=_kill_and_restart, args=(pipeline, random.Random(chance.random()), failed))
    killer.start()
    saves = 0
    while saves < SAVES or killer.is_alive():
        pipeline.family.save()
        saves += 1
        # On a slow machine the kills take longer than the saves; what they leave behind has to be judged, too.
        time.sleep(chance.uniform(0.0, 2.0) if saves < SAVES else 5.0)
    assert failed == []
    caught_up = time.monotonic()
    wait_until(lambda: pipeline.family.due() == frozenset(), meanwhile=pipeline.restart_dead)
    conclusive = {
        generation: [record.attempt for record in records if record.verdict.outcome.is_conclusive]
        for generation, records in pipeline.records().items()
    }
    assert all(len(attempts) == 1 for attempts in conclusive.values()), conclusive
    assert set(pipeline.kills) == set(VICTIMS)
    record_property("saves", saves)
    record_property("kills", dict(pipeline.kills))
    record_property("seconds from the last restart to the last verdict", round(time.monotonic() - caught_up, 1))
    record_property("gate runs by state", dict(pipeline.runs()))


def _kill_and_restart(pipeline: Pipeline, chance: random.Random, failed: list[BaseException]) -> None:
    """Kill each of the victims in turn, in an order and at moments of chance, and start it again after a while."""
    try:
        order: list[str] = []
        for _ in range(max(len(VICTIMS), SAVES // SAVES_A_KILL)):
            order = order or chance.sample(VICTIMS, len(VICTIMS))
            victim = order.pop()
            time.sleep(chance.uniform(0.0, 3.0))
            if victim == "run":
                # There is one only while a worker lives and a save is judged.
                wait_until(pipeline.kill_run, meanwhile=pipeline.restart_dead)
                continue
            pipeline.kill(victim)
            time.sleep(chance.uniform(0.0, 3.0))
            pipeline.restart(victim)
            pipeline.restart_dead()
    except BaseException as error:  # noqa: BLE001 - the test's own thread reports it
        failed.append(error)
