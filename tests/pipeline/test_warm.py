"""Runs that are forked from a process that has imported Prefect: they must be like those that a worker starts."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.slow

WORKER = """
import json, subprocess, sys
for line in sys.stdin:
    command = [sys.executable, "-m", "lastgood_prefect.warm"]
    run = subprocess.Popen(
        command, env=json.loads(line), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(run.pid, flush=True)
    said, _ = run.communicate()
    print(json.dumps([run.returncode, said]), flush=True)
"""


class Worker:
    """A process that starts runs, one after the other, as Prefect's process worker does."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.first = (0, "")
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, **environment: str) -> psutil.Process:
        """Start a run; returns the process that the worker believes to be it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**self.environment, **environment}) + "\n")
        self.process.stdin.flush()
        return psutil.Process(int(self._line()))

    def end(self) -> tuple[int, str]:
        """The exit status of the run that was begun, and what it said."""
        status, said = json.loads(self._line())
        return status, said

    def waiting(self) -> psutil.Process | None:
        """The process that was left waiting, once it has imported everything."""
        for process in psutil.process_iter():
            try:
                command = process.cmdline()
            except psutil.Error:
                continue
            if command[1:5] == ["-m", "lastgood_prefect.warm", "serve", str(self.process.pid)]:
                with socket.socket(socket.AF_UNIX) as probe:
                    return process if probe.connect_ex(f"\0{command[5]}") == 0 else None
        return None

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.process.poll() is None:
            for left in psutil.Process(self.process.pid).children():
                left.kill()  # a run that its test did not end
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def wait_until(holds: Callable[[], Any], seconds: float = 240.0) -> Any:
    """Wait for something that other processes bring about, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return found


@pytest.fixture
def silent_server() -> Iterator[int]:
    """The port of a server that takes connections and says nothing, so that a run goes on for ever."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


@pytest.fixture
def worker(tmp_path: Path, silent_server: int) -> Iterator[Worker]:
    """A worker whose first run is over and has left a process waiting."""
    one = Worker(
        {
            **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
            "DO_NOT_TRACK": "1",
            "PREFECT_HOME": str(tmp_path),
            "PREFECT_API_URL": f"http://127.0.0.1:{silent_server}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
    )
    try:
        one.begin(PREFECT__FLOW_RUN_ID="nonsense")
        one.first = one.end()
        wait_until(one.waiting)
        yield one
    finally:
        one.close()


def test_a_forked_run_reports_as_one_of_its_own(worker: Worker) -> None:
    """Whoever looks at a worker's log or at an exit status must not be able to tell how the run was started."""
    status, said = worker.first
    assert (status, "Invalid flow run id" in said) == (1, True)
    waiting = worker.waiting()
    worker.begin(PREFECT__FLOW_RUN_ID="another nonsense")
    status, said = worker.end()
    assert (status, "Invalid flow run id" in said) == (1, True)
    assert worker.waiting() == waiting, "it serves the next one too"


def test_a_forked_run_ends_with_whoever_stands_for_it(worker: Worker) -> None:
    """The worker cancels a run by killing the process that it started; nothing may go on behind its back."""
    waiting = wait_until(worker.waiting)
    started = worker.begin(PREFECT__FLOW_RUN_ID="00000000-0000-0000-0000-000000000000")
    (run,) = wait_until(waiting.children)
    started.kill()
    assert worker.end()[0] == -signal.SIGKILL
    wait_until(lambda: not run.is_running() or run.status() == psutil.STATUS_ZOMBIE)
    wait_until(lambda: waiting.children() == [])


def test_a_signal_reaches_a_forked_run(worker: Worker) -> None:
    """SIGTERM is how a worker asks a run to end by itself, and its status says that it did."""
    waiting = wait_until(worker.waiting)
    started = worker.begin(PREFECT__FLOW_RUN_ID="00000000-0000-0000-0000-000000000000")
    wait_until(waiting.children)
    started.terminate()
    assert worker.end()[0] == -signal.SIGTERM
    wait_until(lambda: waiting.children() == [])


def test_a_run_ends_with_the_process_that_it_was_forked_from(worker: Worker) -> None:
    """A run that nobody can signal any more must not go on; the worker sees it fail, and its save is due again."""
    waiting = wait_until(worker.waiting)
    worker.begin(PREFECT__FLOW_RUN_ID="00000000-0000-0000-0000-000000000000")
    (run,) = wait_until(waiting.children)
    waiting.kill()
    status, said = worker.end()
    assert (status, "has ended" in said) == (1, True)
    wait_until(lambda: not run.is_running() or run.status() == psutil.STATUS_ZOMBIE)


def test_what_waits_ends_with_its_worker(worker: Worker) -> None:
    """Nothing is left of a worker that ended, however it ended."""
    waiting = wait_until(worker.waiting)
    worker.process.kill()
    worker.process.wait()
    wait_until(lambda: not waiting.is_running() or waiting.status() == psutil.STATUS_ZOMBIE)


def test_another_environment_is_not_served_by_this_one(worker: Worker) -> None:
    """Prefect reads its settings once, when it is imported; a run with others must not get these."""
    waiting = wait_until(worker.waiting)
    started = worker.begin(
        PREFECT__FLOW_RUN_ID="00000000-0000-0000-0000-000000000000", PREFECT_LOGGING_LEVEL="CRITICAL"
    )
    wait_until(lambda: "prefect.engine" in started.cmdline())
    assert waiting.children() == []
    started.kill()
    assert worker.end()[0] == -signal.SIGKILL


def ask(waiting: psutil.Process, data: bytes) -> socket.socket:
    """Ask for a run as its process would, with these bytes for what it needs."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60.0)
    connection.connect(f"\0{waiting.cmdline()[5]}")
    socket.send_fds(connection, [len(data).to_bytes(4, "big")], range(3))
    connection.sendall(data)
    return connection


def test_what_waits_imports_nothing_from_the_directory_of_a_run(worker: Worker) -> None:
    """A run's directory in /tmp goes with the run; whoever makes it again must not choose what later runs import."""
    assert wait_until(worker.waiting).cwd() == "/"


def test_a_run_whose_process_gave_up_waiting_is_not_forked(worker: Worker) -> None:
    """It has gone its ordinary way by then, and one save would be judged by two runs of one name."""
    waiting = wait_until(worker.waiting)
    waiting.suspend()
    started = worker.begin(PREFECT__FLOW_RUN_ID="00000000-0000-0000-0000-000000000000")
    wait_until(lambda: "prefect.engine" in started.cmdline())
    waiting.resume()
    # Answered in turn: once the second one is, the first has been looked at, and the process has forked for one alone.
    with ask(waiting, json.dumps(["/", {"PREFECT__FLOW_RUN_ID": "nonsense"}]).encode()) as second:
        (forked,) = struct.unpack("!I", second.recv(4))
        assert [one.pid for one in waiting.children()] in ([], [forked])
    started.kill()
    assert worker.end()[0] == -signal.SIGKILL


def test_what_is_no_request_leaves_no_descriptor_behind(worker: Worker) -> None:
    """It lives as long as its worker: what each mistake leaves open would end it, and every run that it forked."""
    waiting = wait_until(worker.waiting)
    before = waiting.num_fds()
    for _ in range(5):
        with ask(waiting, b"no JSON") as connection:
            assert connection.recv(1) == b""
    assert waiting.num_fds() <= before  # the process may just have closed what its own start had left open


def test_a_run_goes_on_when_there_are_no_descriptors_for_another(worker: Worker) -> None:
    """A verdict that is nearly there must not die of what somebody else asked for."""
    waiting = wait_until(worker.waiting)
    started = worker.begin(PREFECT__FLOW_RUN_ID="00000000-0000-0000-0000-000000000000")
    (run,) = wait_until(waiting.children)
    waiting.rlimit(resource.RLIMIT_NOFILE, (3, 4096))  # of the standard streams, so no other one
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(60.0)
        other.connect(f"\0{waiting.cmdline()[5]}")
        with contextlib.suppress(ConnectionError):
            assert other.recv(1) == b"", "nobody listens any more"
    assert run.is_running()
    assert run.status() != psutil.STATUS_ZOMBIE
    started.terminate()
    assert worker.end()[0] == -signal.SIGTERM
