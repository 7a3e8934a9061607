"""The embedded stack: a real server, a real worker, really killed."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lastgood.errors import LastgoodError, UsageError
from lastgood.replica.keeper import ProcessIdentity, descendants, marked
from lastgood_prefect.stack import HOST, Stack
from tests.stack import alone


def mark_of(pid: int) -> str:
    """The mark that a keeper gave to a process, which everything that it starts inherits."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(one.partition(b"=")[2].decode() for one in entries if one.startswith(b"LASTGOOD_KEPT="))


def wait_gone(marks: list[str], seconds: float = 60.0) -> tuple[ProcessIdentity, ...]:
    """Wait until nothing lives that carries one of these marks; what is left."""
    deadline = time.monotonic() + seconds
    while left := tuple(process for mark in marks for process in marked(mark)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left


@pytest.mark.slow
def test_a_stack_serves_survives_kills_and_leaves_nothing(tmp_path: Path) -> None:
    """A killed worker or server comes back under its handle, and leaving the context leaves no process."""
    with Stack.start(tmp_path, pools=("verify",)) as stack:
        assert stack.request("GET", "/health") == (200, True)
        marks = [mark_of(process.pid) for process in (stack.server, stack.workers["verify"])]
        former = stack.server.pid, stack.workers["verify"].pid
        stack.workers["verify"].kill()
        assert stack.workers["verify"].poll() == -signal.SIGKILL
        stack.workers["verify"].restart()
        stack.server.kill()
        with pytest.raises(OSError, match=r"refused"):
            stack.request("GET", "/health")
        stack.server.restart()
        assert stack.request("GET", "/health") == (200, True)
        assert stack.server.poll() is None
        assert stack.workers["verify"].poll() is None
        assert not {stack.server.pid, stack.workers["verify"].pid} & set(former)
        marks += [mark_of(process.pid) for process in (stack.server, stack.workers["verify"])]
        assert {path.name for path in (tmp_path / "logs").iterdir()} == {
            "server.log",
            "server-2.log",
            "worker-verify.log",
            "worker-verify-2.log",
        }
    assert wait_gone(marks, seconds=0.0) == ()
    with pytest.raises(OSError, match=r"refused"):
        stack.request("GET", "/health")


@pytest.mark.slow
def test_a_stack_dies_with_a_starter_that_was_killed(tmp_path: Path) -> None:
    """SIGKILL of our own process leaves neither server nor worker, for nobody would ever end them."""
    command = [sys.executable, alone.__file__, str(tmp_path), "verify"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        marks = [mark_of(int(pid)) for pid in program.stdout.readline().split()]
        assert len(marks) == 2
        program.kill()
    assert wait_gone(marks) == ()


@pytest.mark.slow
def test_a_stack_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    """A server that ends at once is an error with its last words, not a wait of minutes."""
    others = descendants(os.getpid())  # another test's server
    broken = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": "nonsense://"}
    with (
        pytest.raises(LastgoodError, match=r"server ended with 1 before it was ready: (?s:.*)nonsense"),
        Stack.start(tmp_path, environment=broken),
    ):
        pass
    assert set(descendants(os.getpid())) <= set(others)


def test_a_taken_port_is_refused_by_name(tmp_path: Path) -> None:
    """A port of somebody else is said at once: what answers there would pass for our server."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port is taken: 127.0.0.1:{port}"), Stack.start(tmp_path, port=port):
            pass


def test_a_home_serves_one_stack(tmp_path: Path) -> None:
    """Two servers on one SQLite file would corrupt each other's runs."""
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="a stack is running in this home already"), Stack.start(tmp_path):
            pass
