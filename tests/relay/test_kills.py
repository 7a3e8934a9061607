"""Relays before a real Prefect server, one of each source: nothing that is killed takes a verdict with it."""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lastgood_prefect.project import DEPLOYMENTS, project_directory
from lastgood_prefect.relay.spool import Spool
from lastgood_prefect.stack import LASTGOOD, Stack, StackProcess
from tests.relay.bodies import aws, ceph, eventbridge, minio, seaweedfs, sns
from tests.relay.posting import SECRET, post
from tests.relay.queues import Queue, running_sqs
from tests.relay.saving import SavingFamily
from tests.relay.test_feeds import LOST, PROOF

pytestmark = pytest.mark.slow

SAVES = 1000 if PROOF else 25
"""Of each source."""
PATIENCE_SECONDS = 3600.0 if PROOF else 1200.0


@dataclass
class Served:
    """A source, its relay in a process of its own, and the family that it looks after.

    Args:
        family: Whose saves are announced.
        options: Of the relay, its source among them.
        shapes: Of the bodies that are sent; none where nobody sends.
        send: Sends one body until it is accepted, as senders with a queue of their own do.
        kept: How many hints were accepted and are not done with.
    """

    family: SavingFamily
    options: tuple[str, ...]
    shapes: Sequence[Callable[[str, str], bytes]] = ()
    send: Callable[[bytes], None] = lambda body: None
    kept: Callable[[], int] = lambda: 0
    relay: StackProcess | None = field(default=None)


@dataclass
class Scene:
    """A stack with the gate deployed, and a relay of each source."""

    stack: Stack
    served: tuple[Served, ...]

    @property
    def relays(self) -> tuple[StackProcess, ...]:
        return tuple(one.relay for one in self.served if one.relay is not None)


@pytest.fixture
def scene(bucket: str, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    local = tmp_path / "runs"
    local.mkdir()
    with ExitStack() as held:
        sqs, told = held.enter_context(running_sqs())
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", told["AWS_ENDPOINT_URL_SQS"])
        roots = {"of-sqs": f"s3://{bucket}/runs", "of-webhook": f"s3://{bucket}/runs"}
        roots |= {"of-poll": f"s3://{bucket}/runs", "of-watch": str(local)}
        families = {name: held.enter_context(SavingFamily(root, name)) for name, root in roots.items()}
        configuration = tmp_path / "lastgood.toml"
        configuration.write_text(
            "".join(f"[families.{name}]\nroot = {json.dumps(root)}\n" for name, root in roots.items())
        )
        environment = {"LASTGOOD_CONFIG": str(configuration), "LASTGOOD_RELAY_SECRET": SECRET}
        stack = held.enter_context(Stack.start(tmp_path / "stack", pools=("verify",), environment=environment))
        deploy_gate(stack)
        served = _served(families, sqs.queue("saves", maximum_receives=5), free_port, tmp_path / "lastgood-relay")
        for one in served:
            # The slow listing is as good as off: what is judged in time was announced.
            rare = ("--listing-seconds", "3600", "--patience-seconds", "40")
            command = (*LASTGOOD, "relay", one.family.name, *one.options, *rare)
            one.relay = stack.run(f"relay-{one.family.name}", command)
        yield Scene(stack, served)


def deploy_gate(stack: Stack) -> None:
    """The gate alone: a sweep on its schedule would judge what no relay asked for."""
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


def _served(families: dict[str, SavingFamily], queue: Queue, port: int, spool: Path) -> tuple[Served, ...]:
    def posted(body: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                assert post(port, body)[0] in (202, 400)
                return
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < deadline, "nobody listens"
                time.sleep(0.2)

    def spooled() -> int:
        kept = Spool(spool)
        try:
            return len(kept.hints())
        finally:
            kept.close()

    return (
        Served(
            families["of-sqs"],
            ("--source", "sqs", "--queue-url", queue.url),
            (aws, sns, eventbridge),
            queue.send,
            lambda: sum(queue.counts()),
        ),
        Served(
            families["of-webhook"],
            ("--source", "webhook", "--port", str(port)),
            (minio, ceph, seaweedfs),
            posted,
            spooled,
        ),
        Served(families["of-poll"], ("--source", "poll", "--poll-seconds", "0.5")),
        Served(families["of-watch"], ("--source", "watch")),
    )


def wait_until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"it did not come about: {what}"
        time.sleep(0.2)


def save_all(one: Served, chance: random.Random, progress: Callable[[], None]) -> None:
    """Save again and again; announce two saves of three, thrice and shuffled, among what is foreign or malformed."""
    pending: list[bytes] = []
    bucket = one.family.root.removeprefix("s3://").partition("/")[0]
    for number in range(SAVES):
        saved = one.family.save()
        progress()
        # The last one is announced: it makes the relay find whatever was lost before.
        if one.shapes and (chance.random() >= LOST or number == SAVES - 1):
            key = one.family.commit_key(saved)
            pending += [chance.choice(one.shapes)(bucket, key) for _ in range(3)]
            pending += [one.shapes[0]("elsewhere", key), b"{}"][: chance.choice((0, 0, 0, 0, 1, 2))]
        chance.shuffle(pending)
        while len(pending) > 3:
            one.send(pending.pop())
    for body in pending:
        one.send(body)


@pytest.mark.timeout(14_400 if PROOF else 3600)
def test_every_announced_save_is_judged_once_whatever_is_killed(
    scene: Scene, record_property: Callable[[str, object], None]
) -> None:
    """Relays and server die by SIGKILL while tripled, shuffled and partly lost events come in."""
    saved = threading.Semaphore(0)
    kills = threading.Thread(target=_kill, args=(scene, saved))
    savers = [
        threading.Thread(target=save_all, args=(one, random.Random(seed), saved.release))
        for seed, one in enumerate(scene.served)
    ]
    for thread in (kills, *savers):
        thread.start()
    for thread in (*savers, kills):
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    begin = time.monotonic()
    for one in scene.served:
        wait_until(lambda one=one: not one.family.due(), f"verdicts of {one.family.name}")
    record_property("seconds from the last event to the last verdict", round(time.monotonic() - begin, 1))
    for one in scene.served:
        assert one.family.verdicts() == one.family.perfect_verdicts(), "exactly one each"
        assert len(one.family.generations) == SAVES
    (webhook,) = (one for one in scene.served if one.family.name == "of-webhook")
    wait_until(lambda: webhook.kept() == 0, "an empty spool")
    record_property("saves of each source", SAVES)


def _kill(scene: Scene, saved: threading.Semaphore) -> None:
    """Kill the relays, the server, and all at once, each after a quarter of the saves, and start them again."""
    for relays, server in ((True, False), (False, True), (True, True)):
        for _ in range(SAVES):
            assert saved.acquire(timeout=PATIENCE_SECONDS)
        for relay in scene.relays if relays else ():
            relay.kill()
        if server:
            scene.stack.server.kill()
        time.sleep(1.0)
        for relay in scene.relays if relays else ():
            relay.launch()
        if server:
            scene.stack.server.restart()
