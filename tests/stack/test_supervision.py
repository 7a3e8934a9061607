"""When a process of the stack is started again, and when a person is asked."""

from __future__ import annotations

import pytest

from lastgood.errors import LastgoodError
from lastgood_prefect.supervision import LONGEST_PAUSE_SECONDS, MAXIMUM_ATTEMPTS, STEADY_SECONDS, Supervision


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Process:
    """A process of which a test says when it ends and whether it can start."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.status: int | None = None
        self.starts = 0
        self.startable = True

    def poll(self) -> int | None:
        return self.status

    def restart(self) -> None:
        self.starts += 1
        if not self.startable:
            raise LastgoodError(f"{self.name} ended with 3 before it was ready: port is taken")
        self.status = None


def test_what_ends_is_started_again_and_said() -> None:
    """Whoever reads the terminal must see that something died, and that it is back."""
    told: list[str] = []
    worker = Process("worker-verify")
    supervision = Supervision([Process("server"), worker], told.append, clock=Clock())
    supervision.look()
    assert told == []
    worker.status = -9
    supervision.look()
    assert told == ["worker-verify ended with -9: starting it again", "worker-verify is back"]
    assert worker.starts == 1


def test_pauses_grow_while_a_process_does_not_start() -> None:
    """A server whose port is taken must not be started hundreds of times a minute."""
    told: list[str] = []
    clock, server = Clock(), Process("server")
    supervision = Supervision([server], told.append, clock=clock)
    server.status, server.startable = 3, False
    tries = []
    for _ in range(40):
        before = server.starts
        supervision.look()
        if server.starts > before:
            tries.append(clock.now - 1000.0)
        clock.now += 1.0
    assert tries == [0.0, 2.0, 6.0, 14.0, 30.0]
    assert told[1] == "server ended with 3 before it was ready: port is taken; next try in 2 s"
    server.startable = True
    clock.now += LONGEST_PAUSE_SECONDS
    supervision.look()
    assert told[-1] == "server is back"


def test_a_process_that_never_stays_up_ends_the_supervision() -> None:
    """A defect that a restart does not mend must reach a person, with the process's own last words."""
    clock, worker = Clock(), Process("worker-verify")
    supervision = Supervision([worker], lambda line: None, clock=clock)
    for _ in range(MAXIMUM_ATTEMPTS - 1):
        worker.status = 1
        supervision.look()
        clock.now += LONGEST_PAUSE_SECONDS
        supervision.look()
    worker.status, worker.startable = 1, False
    supervision.look()
    clock.now += LONGEST_PAUSE_SECONDS
    with pytest.raises(LastgoodError, match=r"worker-verify does not stay up: .*port is taken"):
        supervision.look()


def test_an_end_a_day_is_no_defect() -> None:
    """What ran steadily is forgiven its earlier ends, or a stack would give up after some weeks."""
    told: list[str] = []
    clock, worker = Clock(), Process("worker-verify")
    supervision = Supervision([worker], told.append, clock=clock)
    for _ in range(3 * MAXIMUM_ATTEMPTS):
        worker.status = -9
        supervision.look()
        assert worker.status is None, "without a pause"
        clock.now += STEADY_SECONDS + 1.0
        supervision.look()
    assert worker.starts == 3 * MAXIMUM_ATTEMPTS
