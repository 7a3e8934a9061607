"""`lastgood watch` as a service manager and cron see it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lastgood.cli import run
from tests.pipeline.memory import GrowingFamily


@pytest.fixture
def configuration(growing: GrowingFamily, tmp_path: Path) -> Path:
    """A family with one unjudged save, in a configuration."""
    growing.save()
    path = tmp_path / "lastgood.toml"
    path.write_text(f'[families.llm-7b]\nroot = "{growing.built.root}"\n', encoding="utf-8")
    return path


def environment(home: Path) -> dict[str, str]:
    """Of a machine whose server is down: a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        **os.environ,
        "DO_NOT_TRACK": "1",
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }


@contextmanager
def watching(configuration: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command, ended whatever the test finds."""
    command = [sys.executable, "-m", "lastgood", "watch", "--config", str(configuration), *options]
    with subprocess.Popen(
        command, env=environment(configuration.parent / "prefect"), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_it_waits_for_a_server_that_is_down_and_ends_when_told(configuration: Path) -> None:
    """A service manager stops it by SIGTERM, and must not have to kill it because a server is away."""
    with watching(configuration) as process:
        assert process.stderr is not None
        assert any("asking again in" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_once_says_that_it_could_not_ask(configuration: Path) -> None:
    """Cron learns by the exit status that nothing was asked for."""
    with watching(configuration, "--once") as process:
        assert process.wait(120) == 2
        assert process.stderr is not None
        assert "no answer from" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("llm-8b",), "family not configured: llm-8b"),
        (("llm-7b",), "PREFECT_API_URL is not set"),
    ],
)
def test_a_mistake_is_one_clear_line(configuration: Path, arguments: tuple[str, ...], said: str) -> None:
    """A typing error must end the command, for a watcher that watches nothing looks like one with nothing to do."""
    # A process of its own: in ours another test's server may be in force, whatever the environment says.
    told = environment(configuration.parent / "prefect")
    del told["PREFECT_API_URL"]
    command = [sys.executable, "-m", "lastgood", "watch", "--config", str(configuration), *arguments]
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 64
    assert said in done.stderr


def test_nothing_to_watch_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty configuration is a wrong file more often than a wish."""
    (tmp_path / "lastgood.toml").write_text("")
    assert run(["watch", "--config", str(tmp_path / "lastgood.toml")]) == 64
    assert "no family configured" in capsys.readouterr().err
