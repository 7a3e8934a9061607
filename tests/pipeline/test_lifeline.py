"""The lifeline: work ends when its worker or its server is gone, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from lastgood.replica.keeper import MARK, marked
from lastgood.restore.cancel import Cancel
from lastgood_prefect import lifeline as module
from lastgood_prefect.lifeline import Contact, Server, lifeline
from tests.pipeline import started_by_worker

PATIENCE = timedelta(minutes=2)
SERVE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[1]))
        self.end_headers()
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Answering:
    """A process that answers every request with one status."""

    def __init__(self, status: int) -> None:
        command = [sys.executable, "-c", SERVE, str(status)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}/api"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[Answering]:
    answering = Answering(getattr(request, "param", 200))
    yield answering
    answering.end()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same decisions in less time."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(module, "UNREACHABLE_SECONDS", 0.5)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def asked(cancel: Cancel) -> str:
    until(lambda: cancel() is not None, "a reason to end")
    return str(cancel())


@pytest.mark.parametrize("answering", [200, 401, 404], indirect=True)
def test_whatever_answers_is_a_server_that_is_there(answering: Answering) -> None:
    """A server that demands a password, or has another path, is no reason to end a restore."""
    assert Server(answering.url).look() is Contact.HEARD


@pytest.mark.parametrize("answering", [502, 503], indirect=True)
def test_a_proxy_that_finds_nobody_is_no_server(answering: Answering) -> None:
    """Behind a balancer the death of a server shows as 502 or 503, and not as a refused connection."""
    assert Server(answering.url).look() is Contact.LOST


@pytest.mark.usefixtures("impatient")
def test_a_busy_server_is_told_from_a_dead_one(answering: Answering) -> None:
    """A burst of saves keeps a server from answering; ending every restore for that would leave none."""
    server = Server(answering.url)
    answering.process.send_signal(signal.SIGSTOP)
    assert server.look() is Contact.SLOW
    answering.process.send_signal(signal.SIGCONT)
    assert server.look() is Contact.HEARD
    answering.end()
    assert server.look() is Contact.LOST


@pytest.mark.usefixtures("impatient")
def test_work_ends_when_its_server_is_gone(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could cancel it any more; what it found so far is kept before the server is waited for."""
    monkeypatch.setattr(module, "RETURN_SECONDS", 0.2)
    steps = []
    with temporary_settings({PREFECT_API_URL: answering.url}), lifeline(PATIENCE) as line:

        def work(cancel: Cancel) -> str:
            assert cancel() is None
            answering.end()
            return asked(cancel)

        assert f"no answer from the Prefect server at {answering.url}" in line.run(work)
        steps.append("kept")
    assert steps == ["kept"]


@pytest.mark.usefixtures("impatient")
def test_work_whose_server_is_there_is_let_be(answering: Answering) -> None:
    """The watch must never be what ends a healthy restore."""
    with temporary_settings({PREFECT_API_URL: answering.url}), lifeline(PATIENCE) as line:
        assert line.run(lambda cancel: [time.sleep(0.05) or cancel() for _ in range(30)]) == [None] * 30


@pytest.mark.usefixtures("impatient")
def test_work_past_its_limit_is_asked_to_end() -> None:
    """Prefect's own timeout leaves no record; this one leaves a verdict that says how long was granted."""
    with temporary_settings({PREFECT_API_URL: None}), lifeline(timedelta(seconds=0.2)) as line:
        assert line.run(asked) == "not done within 0.2 s"


def start_worker(directory: Path, how: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PREFECT__FLOW_RUN_ID": "1", MARK: directory.name, "PREFECT_API_URL": ""}
    command = [sys.executable, started_by_worker.__file__, "worker", str(directory), how]
    return subprocess.Popen(command, env=environment)


def test_work_ends_when_its_worker_was_killed(tmp_path: Path) -> None:
    """An orphaned engine goes on to the end (measured), and nobody could stop it."""
    with start_worker(tmp_path, "heeds") as worker:
        until((tmp_path / "working").exists, "the work")
        worker.kill()
    until((tmp_path / "ended").exists, "the end of the work")
    until(lambda: not marked(tmp_path.name), "the end of the process")
    assert (tmp_path / "ended").read_text() == "the worker that started this run is gone"


def test_a_worker_that_died_before_the_work_began_is_missed_too(tmp_path: Path) -> None:
    """A flow takes seconds to load; by then its parent may be somebody else, but its output still has no reader."""
    (tmp_path / "late").touch()
    with start_worker(tmp_path, "heeds") as worker:
        until((tmp_path / "waits").exists, "the run")
        worker.kill()
    (tmp_path / "late").unlink()
    until((tmp_path / "ended").exists, "the end of the work")
    assert (tmp_path / "ended").read_text() == "the worker that started this run is gone"


def test_work_that_does_not_listen_ends_with_its_process(tmp_path: Path) -> None:
    """Ranks live as long as the process that holds their keeper, so a stuck one must not hold it for ever."""
    with start_worker(tmp_path, "deaf") as worker:
        until((tmp_path / "working").exists, "the work")
        worker.kill()
    until(lambda: not marked(tmp_path.name), "the end of the process")
    assert not (tmp_path / "ended").exists()
