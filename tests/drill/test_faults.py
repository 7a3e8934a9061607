from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.config import ReplicaSettings
from lastgood.drill import Fault, FaultKind, random_fault
from lastgood.drill.faults import FaultMissed, Shot, inject
from lastgood.drill.launcher import CommandLauncher
from lastgood.drill.watch import Life, Watch
from lastgood.errors import UsageError
from lastgood.identity import GenerationId
from lastgood.replica.contract import ReplicaEnvironment
from lastgood.replica.processes import ProcessIdentity
from lastgood.replica.trace import Mark, Phase, Saved, Span, Step, Stopped, StopReason, TraceRecord
from lastgood.restore.evidence import read_rank

# An agent that ignores the end of its workers, and two of those.
AGENT = """
import subprocess, sys, time
for _ in range(2):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
time.sleep(1000)
"""


class PaperWatch(Watch):
    """What a watch would show, as a script: one life, and for each look whether a publish is going on."""

    def __init__(self, *, stopped: bool = False, publishing: Callable[[], bool] = lambda: False) -> None:
        self.stopped, self.ask = stopped, publishing
        self.looks = 0

    def life(self, incarnation: int) -> Life:
        at = Mark.now()
        save = Span(phase=Phase.SAVE, begin_ns=0, end_ns=40_000_000)
        records: list[TraceRecord] = [
            *(Step(at=at, spans=(), step=one, loss=1.0, grad_norm=None, learning_rates={}) for one in range(1, 13)),
            Saved(at=at, spans=(save,), generation="00000001-0000000000000010", step=10),
            *(
                [Stopped(at=at, spans=(), reason=StopReason.FAILED, step=12, message="no space")]
                if self.stopped
                else []
            ),
        ]
        return Life(incarnation=incarnation, ranks={rank: read_rank(rank, records) for rank in (0, 1)})

    def publishing(self, incarnation: int) -> GenerationId | None:
        self.looks += 1
        return GenerationId(incarnation, 20) if self.ask() else None


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """A running agent with two workers, and which process is which rank."""
    (tmp_path / "home").mkdir()
    settings = ReplicaSettings(command=(sys.executable, "-S", "-c", AGENT), directory=str(tmp_path))
    told = ReplicaEnvironment(is_replica=True, family=str(tmp_path / "family"))
    with CommandLauncher(settings, told, home=tmp_path / "home", logs=tmp_path) as launcher:
        launcher.launch()
        deadline = time.monotonic() + 60
        while len(workers := [one for one in launcher.processes() if one != launcher.agent()]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield launcher, dict(enumerate(workers))


def stopped(launcher: CommandLauncher) -> set[ProcessIdentity]:
    """Those of a job that a SIGSTOP holds, and no SIGCONT has let go."""
    stats = {one: Path(f"/proc/{one.pid}/stat").read_text() for one in launcher.processes()}
    return {one for one, stat in stats.items() if stat.rpartition(")")[2].split()[0] == "T"}


def shoot(job: Any, fault: Fault, watch: Watch) -> Shot:
    def pause(awaited: str) -> None:
        raise FaultMissed(f"waited for {awaited}")

    launcher, ranks = job
    return inject(fault, launcher, watch, 1, ranks, pause=pause)


ONE = Fault(kind=FaultKind.RANK, rank=1, steps_after_save=2)


def test_one_rank_is_killed_and_no_other(job: Any) -> None:
    """The launcher must find one rank dead and the rest alive, or the drill shows another fault than it says."""
    launcher, ranks = job
    shot = shoot(job, ONE, PaperWatch())
    assert (shot.victims, shot.step, shot.publishing) == ((ranks[1],), 12, None)
    assert set(launcher.processes()) == {launcher.agent(), ranks[0]}
    assert not {ranks[0], launcher.agent()} & stopped(launcher)


def test_the_whole_job_is_killed(job: Any) -> None:
    """A machine that dies takes the launcher with it; ranks that lead sessions of their own are no exception."""
    launcher, ranks = job
    shot = shoot(job, msgspec.structs.replace(ONE, kind=FaultKind.JOB), PaperWatch())
    assert set(shot.victims) == {launcher.agent(), *ranks.values()}
    assert launcher.processes() == ()
    assert launcher.exit_status() == -9


def test_a_kill_waits_for_its_step(job: Any) -> None:
    """A fault by coordinates lands there or not at all."""
    with pytest.raises(FaultMissed, match="waited for step 13"):
        shoot(job, msgspec.structs.replace(ONE, steps_after_save=3), PaperWatch())
    assert len(job[0].processes()) == 3


def test_a_kill_inside_a_publish_lets_go_of_what_was_quicker(job: Any) -> None:
    """Stopped too late, the victims go on unharmed; the next publish is hit, and hit earlier."""
    answers = iter([True, False, True, True])
    watch = PaperWatch(publishing=lambda: next(answers))
    inside = msgspec.structs.replace(ONE, inside_publish=True, publish_ratio=0.5)
    shot = shoot(job, inside, watch)
    assert shot.publishing == GenerationId(1, 20)
    assert watch.looks == 4
    assert stopped(job[0]) == set()


def test_a_victim_that_missed_every_publish_is_left_running(job: Any) -> None:
    """A drill that gives up must not leave stopped processes behind."""
    answers = iter([True, False, False])
    watch = PaperWatch(publishing=lambda: next(answers))
    with pytest.raises(FaultMissed, match="waited for a publish"):
        shoot(job, msgspec.structs.replace(ONE, inside_publish=True), watch)
    assert len(job[0].processes()) == 3
    assert stopped(job[0]) == set()


def test_a_victim_that_is_dead_already_is_no_kill(job: Any) -> None:
    """A rank that died by itself would make every launcher look good."""
    launcher, ranks = job
    launcher.signal(ranks[1], 15)
    deadline = time.monotonic() + 60
    while ranks[1] in launcher.processes():
        assert time.monotonic() < deadline
    with pytest.raises(FaultMissed, match="victim ended before it was killed"):
        shoot(job, ONE, PaperWatch())


def test_a_victim_that_said_why_it_ended_was_not_killed(job: Any) -> None:
    """A trace that ends with a reason contradicts a SIGKILL."""
    with pytest.raises(FaultMissed, match="rank 1 ended of its own accord"):
        shoot(job, ONE, PaperWatch(stopped=True))


def test_a_foreign_process_cannot_be_signalled(job: Any) -> None:
    """A launcher answers for its own processes only."""
    with subprocess.Popen(["sleep", "1000"]) as decoy:
        with pytest.raises(UsageError, match="not of this job"):
            job[0].signal(ProcessIdentity(decoy.pid, 1), 9)
        assert decoy.poll() is None
        decoy.kill()


@given(st.integers(0, 2**64), st.integers(1, 64), st.integers(0, 1000))
def test_a_drawn_fault_is_lawful_and_repeatable(seed: int, world_size: int, most_steps: int) -> None:
    """A drill that failed must be repeatable from its seed, and a demanded kind must not move the rest of the draw."""
    fault = random_fault(seed, world_size=world_size, most_steps=most_steps)
    assert fault == random_fault(seed, world_size=world_size, most_steps=most_steps)
    assert 0 <= fault.rank < world_size
    assert 0 <= fault.steps_after_save <= most_steps
    assert 0 <= fault.publish_ratio < 1
    demanded = random_fault(seed, world_size=world_size, most_steps=most_steps, kind=FaultKind.JOB, inside_publish=True)
    assert msgspec.structs.replace(fault, kind=FaultKind.JOB, inside_publish=True) == demanded


def test_draws_reach_every_coordinate() -> None:
    """Drills on a cadence must not hit the same rank at the same moment for ever."""
    faults = [random_fault(seed, world_size=4) for seed in range(400)]
    kinds = Counter((fault.kind, fault.inside_publish) for fault in faults)
    assert len(kinds) == 4
    assert min(kinds.values()) > 60
    assert {fault.rank for fault in faults} == {0, 1, 2, 3}
    assert {fault.steps_after_save for fault in faults} == set(range(21))
