"""Many publishers of one family at once on a real server, killed at any moment: what is left is what may be resumed.

Each publisher is a process that claims, resumes, saves, and starts anew when it was fenced; some thirty at once fence
one another all the time. They are killed by SIGKILL before and after each kind of request, and whenever it pleases
chance. Beside them read readers, a gate that proves, and a sweeper that gives up what the dead left. Then the history
is checked, document by document (`history`). The seed is printed; by itself it repeats the kills and no race.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location, locate
from lastgood.reconcile import sweep
from lastgood.records import keep_verdict
from lastgood.run import Run, SoloGroup
from lastgood.stores import StoreSettings
from lastgood.verdict import Check, CheckState, Outcome, Rung, Tier, judge
from lastgood.verify import repair_pointers, verify_generation
from tests.buckets.faults import After, Before, Request
from tests.buckets.history import (
    KEPT,
    Acknowledged,
    Began,
    Belief,
    Decided,
    History,
    Offered,
    check,
    final,
    kind_of,
    publisher_of,
)
from tests.buckets.lives import Told, save
from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import SeaweedFS
from tests.protocol.invariants import KEYS

PROOF = os.environ.get("LASTGOOD_PROOF") == "1"
PUBLISHERS = 32
ROUNDS = 3 if PROOF else 1
SAVES = 40 if PROOF else 16
"""Acknowledged, after which a round ends, once every kill has happened."""
LONGEST_SECONDS = 900.0
ENDING_SECONDS = 120.0
LET_IN = (1, 1, 1, 2, 4)
"""Lives that are let begin at once, after all of them at first; then nobody, until some more saves were acknowledged,
or nobody saves any more."""
SAVES_BETWEEN = 6
LET_PASS = 3
READERS = 2


class Crowd:
    """Publishers by name, alive or dead; its methods may be called from any thread."""

    def __init__(self, family: str, proxy: FaultProxy, directory: Path, chance: random.Random) -> None:
        self._family = family
        self._environ = dict(proxy.environ) | {"TMPDIR": str(directory)}
        self._directory = directory
        self._chance = chance
        self._lock = threading.Lock()
        self._alive: dict[str, int] = {}
        self.names: list[str] = []
        self.killed: set[str] = set()
        inside, self._gate = os.pipe()
        self._program = subprocess.Popen(
            [sys.executable, "-B", "-m", "tests.buckets.lives", str(inside)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, pass_fds=(inside,),
        )  # fmt: skip
        os.close(inside)

    def start(self) -> None:
        """One more publisher."""
        name = f"life-{len(self.names)}"
        told = Told(
            name=name,
            family=self._family,
            notes=str(self._directory / name),
            seed=self._chance.randrange(2**32),
            environ=self._environ,
        )
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self.names.append(name)
        self._program.stdin.write(told.line())
        pid = int(self._program.stdout.readline())
        with self._lock, contextlib.suppress(ProcessLookupError):
            self._alive[name] = os.pidfd_open(pid)

    def let_in(self, lives: int) -> None:
        """So many may begin a life."""
        os.write(self._gate, b"." * lives)

    @property
    def is_let_in(self) -> bool:
        """Whether nobody is still to begin who may."""
        return not fcntl.ioctl(self._gate, termios.FIONREAD, b"\0" * 4).strip(b"\0")

    @property
    def is_idle(self) -> bool:
        """Whether all wait: the newest life ended, or was killed, and the others were fenced by it."""
        with self._lock:
            names = tuple(self._alive)
        paths = [self._directory / name for name in names]
        return all(path.exists() and path.read_bytes().endswith(b'{"what": "waits"}\n') for path in paths)

    def kill(self, name: str) -> None:
        """SIGKILL, if it lives."""
        with self._lock:
            if name in self._alive and name not in self.killed:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._alive[name], signal.SIGKILL)
                    self.killed.add(name)

    def kill_any(self) -> None:
        with self._lock:
            names = sorted(self._alive.keys() - self.killed)
        if names:
            self.kill(self._chance.choice(names))

    def bury(self) -> int:
        """Forget the dead; how many live."""
        with self._lock:
            dead = [name for name, pidfd in self._alive.items() if select.select([pidfd], [], [], 0)[0]]
            for name in dead:
                os.close(self._alive.pop(name))
            return len(self._alive)

    def stop(self) -> None:
        """Let no further life begin, and wait for those that are under way."""
        os.close(self._gate)
        deadline = time.monotonic() + ENDING_SECONDS
        while alive := self.bury():
            assert time.monotonic() < deadline, f"{alive} publishers hang"
            time.sleep(0.05)

    def notes(self) -> Iterator[tuple[str, dict[str, str]]]:
        """What everybody wrote down."""
        for name in self.names:
            path = self._directory / name
            for line in path.read_text().splitlines() if path.exists() else ():
                yield name, json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._program:
            assert self._program.stdin is not None
            self._program.stdin.close()  # by which it ends whoever is left
        self.bury()


class Beside:
    """What goes on beside the publishers, each in a thread, again and again until the end."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def each(self, seconds: float, act: Callable[[], object]) -> None:
        """Add one, and the pause after it."""
        self._threads.append(threading.Thread(target=self._repeat, args=(seconds, act)))

    def _repeat(self, seconds: float, act: Callable[[], object]) -> None:
        while not self._ended.wait(seconds):
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
                self.errors.append(error)
                return

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def prove(location: Location) -> None:
    """A gate that restored the newest candidate."""
    survey = Family(location).survey()
    newest = next(one for one in survey.candidates if not Family(location).is_burned(one))
    if newest in survey.proven:
        return
    verdict = judge(
        tier=Tier.RESTORE,
        rung=Rung.FULL,
        subject=f"{KEYS.family}/{newest}",
        checks=[Check(name="strict_load", state=CheckState.RAN, detail="everything loaded")],
        required=["strict_load"],
    )
    keep_verdict(location.store, location.keys, verdict, generation=newest)


def read(location: Location, history: History, reader: str) -> None:
    history.note(Began(reader=reader))
    history.note(Offered(reader=reader, generation=Family(location).latest().generation))


class Doom:
    """Which requests are the last thing that their publisher does: one of each kind, before and after it is answered.

    Args:
        crowd: Whom to kill.
        kinds: Of requests.
        chance: How many of a kind are let pass before.
    """

    def __init__(self, crowd: Crowd, kinds: Iterable[str], chance: random.Random) -> None:
        self._crowd = crowd
        self.kinds = tuple(kinds)
        self.due = {(kind, when): chance.randrange(LET_PASS) for kind in self.kinds for when in (Before, After)}

    def bring(self, proxy: FaultProxy) -> None:
        for when in (Before, After):
            proxy.inject(when(self._kill), when=partial(self._meets, when), times=None)

    def _meets(self, when: type[Before | After], request: Request) -> bool:
        if publisher_of(request) is None:
            return False
        key = (kind_of(request), when)
        if self.due.get(key, 1):
            if key in self.due:
                self.due[key] -= 1
            return False
        del self.due[key]
        return True

    def _kill(self, request: Request) -> None:
        self._crowd.kill(publisher_of(request) or "")


def kinds(server: SeaweedFS, bucket: str) -> list[str]:
    """Every kind of request that a life makes, from one that is not disturbed; it leaves a save to begin with."""
    with FaultProxy(server) as proxy:
        family, settings = f"s3://{bucket}/{KEYS.family}", StoreSettings(endpoint=proxy.endpoint)
        first = Run.start(family, SoloGroup(), allow_fresh=True, store=settings)
        save(first, 10)
        first.close()
        proxy.clear()
        second = Run.start(family, SoloGroup(), store=settings)
        save(second, 20)
        save(second, 30)
        second.close()
        return sorted({kind_of(request) for request in proxy.requests})


def believed(notes: Iterable[tuple[str, dict[str, str]]]) -> Iterator[Belief]:
    for name, note in notes:
        match note["what"]:
            case "decided":
                source = GenerationId.parse(note["source"])
                yield Decided(
                    who=f"{name} as {note['incarnation']}", incarnation=int(note["incarnation"]), source=source
                )
            case "acknowledged":
                yield Acknowledged(generation=GenerationId.parse(note["generation"]), commit=note["commit"])


def lying(location: Location) -> dict[str, bytes]:
    """The documents of the model that lie in the bucket."""
    found = {}
    for stored in location.store.walk(KEYS.ours):
        if stored.key.startswith(KEPT):
            found[stored.key] = location.store.get(stored.key, limit_bytes=2**20) or b""
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False], ids=["one document at a time", "all at once"])
def test_a_crowd_of_publishers_that_die_leaves_what_may_be_resumed(
    seaweedfs: SeaweedFS,
    s3_environ: None,
    ordered: bool,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """One commit a generation, no pointer goes back, nothing fenced is offered, and what was acknowledged is whole."""
    for number in range(ROUNDS):
        seed = random.SystemRandom().randrange(2**32)
        print(f"round {number}, seed {seed}")
        directory = tmp_path / str(number)
        directory.mkdir()
        told = play(seaweedfs, f"crowd-{seed}", ordered, directory, random.Random(seed))
        record_property(f"round {number}, seed {seed}", told)


def play(server: SeaweedFS, bucket: str, ordered: bool, directory: Path, chance: random.Random) -> str:
    server.client().create_bucket(Bucket=bucket)
    family = f"s3://{bucket}/{KEYS.family}"
    asked = kinds(server, bucket)
    plain = locate(family)
    before, history = lying(plain), History(ordered=ordered)
    begun = time.monotonic()
    with FaultProxy(server, history) as proxy, Crowd(family, proxy, directory, chance) as crowd:

        def behind() -> Location:
            return locate(family, {family: StoreSettings(endpoint=proxy.endpoint)})

        doom = Doom(crowd, asked, chance)
        doom.bring(proxy)
        beside, gate, broom = Beside(), behind(), behind()
        for number in range(READERS):
            beside.each(1.0, partial(read, locate(family), history, f"reader-{number}"))
        beside.each(2.0, lambda: prove(gate))
        beside.each(5.0, lambda: sweep(broom, older_than=timedelta(0)))
        with beside:
            crowd.let_in(PUBLISHERS)
            due = 1
            while history.acknowledged < SAVES or doom.due:
                assert time.monotonic() - begun < LONGEST_SECONDS, f"never met: {doom.due}"
                for _ in range(PUBLISHERS - crowd.bury()):
                    crowd.start()
                if crowd.is_let_in and (history.acknowledged >= due or crowd.is_idle):
                    crowd.let_in(chance.choice(LET_IN))
                    due = history.acknowledged + chance.randint(1, SAVES_BETWEEN)
                if chance.random() < 0.01:
                    crowd.kill_any()
                time.sleep(0.05)
            crowd.stop()
        assert beside.errors == []
        repair_pointers(behind().store, KEYS)
    wrong, told = judged(crowd, before, history, plain, ordered=ordered)
    assert wrong == []
    return f"{told}, {len(doom.kinds)} kinds of requests, {time.monotonic() - begun:.0f} s"


def judged(
    crowd: Crowd, before: dict[str, bytes], history: History, plain: Location, *, ordered: bool
) -> tuple[list[str], str]:
    """What was wrong, and how much there was that might have been."""
    notes = tuple(crowd.notes())
    ended = {name for name, note in notes if note["what"] == "ended"}
    wrong = [f"{name} vanished" for name in crowd.names if name not in ended | crowd.killed]
    wrong += [f"{name}: {note['error']}" for name, note in notes if note["what"] == "broken"]
    beliefs, after = tuple(believed(notes)), lying(plain)
    if ordered:
        wrong += check(before, history.events, beliefs)
    wrong += final(after, history.events, beliefs)
    for belief in beliefs:
        if isinstance(belief, Acknowledged):
            verdict = verify_generation(plain.store, plain.keys, belief.generation)
            if verdict.outcome is not Outcome.PASS:
                wrong.append(f"{belief.generation} was acknowledged, and is not whole: {verdict.findings}")
    counts = Counter(note["what"] for _, note in notes)
    offered = sum(isinstance(event, Offered) for event in history.events)
    told = (
        f"{counts['decided']} lives and {counts['refused']} refused in {len(crowd.names)} processes, "
        f"{len(crowd.killed)} killed, {counts['acknowledged']} saves, {counts['fenced']} fenced, "
        f"{counts['failed']} failed, {offered} offers, {len(history.events)} events"
    )
    return wrong, told
