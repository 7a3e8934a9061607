"""`lastgood up`, as people type it: it says where to look, keeps its processes alive, and leaves nothing."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lastgood.cli import run
from lastgood.replica.keeper import ProcessIdentity, descendants

CONFIGURATION = '[families.llm-7b]\nroot = "runs"\n'


@contextmanager
def up(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The command in a process of its own; its output goes to a file that tests read as it grows."""
    command = [sys.executable, "-m", "lastgood", "up", "--config", str(directory / "lastgood.toml"), *options]
    log = directory / "up.log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, text=True) as program:
        try:
            yield program, log
        finally:
            program.kill()


def wait_said(log: Path, pattern: str, program: subprocess.Popen[str], seconds: float = 900.0) -> re.Match[str]:
    deadline = time.monotonic() + seconds
    while (found := re.search(pattern, log.read_text())) is None:
        assert program.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    return found


def command_of(process: ProcessIdentity) -> str:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.mark.slow
def test_up_brings_everything_keeps_it_and_leaves_nothing(tmp_path: Path) -> None:
    """One command from nothing to deployed; a killed worker comes back; a second one is refused; the end is an end."""
    (tmp_path / "lastgood.toml").write_text(CONFIGURATION)
    (tmp_path / "runs").mkdir()
    with up(tmp_path, "--port", "0") as (program, log):
        port = int(wait_said(log, r"server +http://127\.0\.0\.1:(\d+)", program)[1])
        wait_said(log, r"Ctrl-C ends everything", program)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/api/deployments/filter", "{}", {"Content-Type": "application/json"})
        assert len(json.load(connection.getresponse())) == 8
        connection.close()
        processes = descendants(program.pid)
        (worker,) = (one for one in processes if re.search(r"prefect worker start --pool verify ", command_of(one)))
        assert any(re.search(r"lastgood watch", command_of(one)) for one in processes)
        os.kill(worker.pid, signal.SIGKILL)
        wait_said(log, r"worker-verify ended with -9: starting it again", program)
        wait_said(log, r"worker-verify is back", program)
        second = subprocess.run(
            [*program.args],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,  # type: ignore[misc]
        )
        assert second.returncode == 64
        assert "a stack is running in this home already" in second.stderr
        processes = descendants(program.pid)
        program.send_signal(signal.SIGTERM)
        assert program.wait(120) == 0
        assert "ended; nothing is left running" in log.read_text()
    assert not [one for one in processes if command_of(one)]


def test_up_serves_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever asked Prefect for another address would believe to be served there, without a password."""
    (tmp_path / "lastgood.toml").write_text(CONFIGURATION)
    monkeypatch.setenv("PREFECT_SERVER_API_HOST", "0.0.0.0")
    assert run(["up", "--config", str(tmp_path / "lastgood.toml")]) == 64
    told = capsys.readouterr().err
    assert "serves this machine alone" in told
    assert "PREFECT_SERVER_API_AUTH_STRING" in told


def test_up_wants_a_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stack that watches nothing would look like one that works."""
    (tmp_path / "lastgood.toml").write_text("")
    assert run(["up", "--config", str(tmp_path / "lastgood.toml")]) == 64
    assert "no family configured" in capsys.readouterr().err
    assert run(["up", "--config", str(tmp_path / "nowhere.toml")]) == 64
    assert "configuration not found" in capsys.readouterr().err
