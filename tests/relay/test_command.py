"""The command itself: what is wrong is said in one line, and a process of its own does what its parts do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lastgood.cli import run
from lastgood_prefect.hints import Hint
from lastgood_prefect.relay.spool import Spool
from tests.pipeline.test_watch_command import environment
from tests.relay.bodies import minio
from tests.relay.posting import SECRET, post
from tests.relay.saving import SavingFamily


@pytest.fixture
def configuration(saving: SavingFamily, tmp_path: Path) -> Path:
    return configured(saving.root, tmp_path)


def configured(root: object, directory: Path) -> Path:
    path = directory / "lastgood.toml"
    path.write_text(f'[families.llm-7b]\nroot = "{root}"\n', encoding="utf-8")
    return path


@contextmanager
def relaying(configuration: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, with a server that is down, ended whatever the test finds."""
    command = [sys.executable, "-m", "lastgood", "relay", "--config", str(configuration), *options]
    told = {**environment(configuration.parent / "prefect"), "LASTGOOD_RELAY_SECRET": SECRET}
    with subprocess.Popen(command, env=told, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "no source: expected --source, or `source` in [relay] of lastgood.toml"),
        (("--source", "kafka"), "is not one of"),
        (("--source", "sqs"), "expected --queue-url, or `queue_url` in [relay], with the source sqs"),
        (("--source", "webhook", "--queue-url", "x"), "--queue-url belongs to --source sqs, found --source webhook"),
        (("--source", "poll", "--port", "1"), "--port belongs to --source webhook"),
        (
            ("--source", "sqs", "--queue-url", "x", "--poll-seconds", "1"),
            "--poll-seconds belongs to --source poll or watch",
        ),
        (("--source", "watch", "--metrics", "x"), "--metrics belongs to --source sqs or webhook"),
        (("--source", "webhook"), "no event can announce these families: llm-7b: expected a root s3://bucket/prefix"),
        (("--source", "webhook", "llm-8b"), "family not configured: llm-8b"),
    ],
)
def test_a_mistake_is_one_clear_line(
    tmp_path: Path, options: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that did nothing, or a relay that could hear of nothing, would look like one with nothing to do."""
    assert run(["relay", "--config", str(configured(tmp_path, tmp_path)), *options]) == 64
    assert said in capsys.readouterr().err


def test_a_webhook_takes_its_secret_from_the_environment_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arguments are seen by every user of a machine."""
    assert (
        run(["relay", "--config", str(configured(tmp_path, tmp_path)), "--source", "webhook", "--secret", SECRET]) == 64
    )
    assert "No such option" in capsys.readouterr().err


def test_a_relay_whose_server_is_down_accepts_and_keeps(
    configuration: Path, saving: SavingFamily, bucket: str, tmp_path: Path
) -> None:
    """Senders need not know of the Prefect server; what they were told is accepted outlives both."""
    saved = saving.save()
    metrics = tmp_path / "lastgood-relay.prom"
    with relaying(configuration, "--source", "webhook", "--port", "0", "--metrics", str(metrics)) as process:
        assert process.stderr is not None
        listening = next(line for line in process.stderr if "listening on" in line)
        port = int(listening.rpartition(":")[2].partition("/")[0])
        assert post(port, minio(bucket, saving.commit_key(saved)))[0] == 202
        assert post(port, minio(bucket, saving.commit_key(saved)), {})[0] == 401
        assert any("asking again in" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(60) == 0
    assert "events: 1 received, 1 hints, 0 doubled, 0 other, 0 foreign, 0 malformed, 1 refused" in rest
    assert SECRET not in listening + rest
    spool = Spool(tmp_path / "lastgood-relay")
    assert spool.hints() == {Hint("llm-7b", saved)}
    spool.close()
    (counters,) = text_string_to_metric_families(metrics.read_text())
    assert {one.labels["outcome"]: one.value for one in counters.samples}["hints"] == 1
    assert os.stat(tmp_path / "lastgood-relay").st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "no event can announce these families"),
        (("--source", "poll"), "--port belongs to --source webhook, found --source poll"),
    ],
)
def test_the_table_says_what_the_command_line_does_not(
    tmp_path: Path, options: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service that is started by hand and as a flow must not be two services; what is typed counts over the file."""
    path = configured(tmp_path, tmp_path)
    path.write_text(f'{path.read_text()}[relay]\nsource = "webhook"\nport = 1\n', encoding="utf-8")
    given = ("--port", "2", *options) if options else ()
    assert run(["relay", "--config", str(path), *given]) == 64
    assert said in capsys.readouterr().err
