"""The queue over real HTTP: what is held, what is deleted, and what is left to the dead-letter queue."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from lastgood.errors import UsageError
from lastgood.identity import GenerationId
from lastgood_prefect.hints import Hint
from lastgood_prefect.relay import sqs as sqs_module
from lastgood_prefect.relay.reading import CommitKeys, Reader
from lastgood_prefect.relay.sqs import RETURN_SECONDS, SqsHints, connect
from tests.relay.bodies import aws, dumped, eventbridge, moto, s3_record, sns
from tests.relay.queues import Queue, Sqs, running_sqs

KEYS = CommitKeys({"llm-7b": "s3://checkpoints/runs", "llm-13b": "s3://checkpoints/runs"})
NOTHING: frozenset[str] = frozenset()
FAMILY = frozenset({"llm-7b"})
ALL_ASKED: dict[str, frozenset[GenerationId]] = {"llm-7b": frozenset(), "llm-13b": frozenset()}
NAMES = (f"saves-{number}" for number in itertools.count())

Make = Callable[..., SqsHints]


def generation(step: int) -> GenerationId:
    return GenerationId(incarnation=1, step=step)


def key(step: int, family: str = "llm-7b") -> str:
    return f"runs/{family}/.lastgood/commits/{generation(step)}"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Sqs, dict[str, str]]]:
    with running_sqs() as running:
        yield running


@pytest.fixture
def queue(server: tuple[Sqs, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue of this test alone, whose messages die after three receives."""
    sqs, told = server
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    return sqs.queue(next(NAMES), maximum_receives=3)


@pytest.fixture
def make(queue: Queue) -> Make:
    """Makes a source over the queue."""

    def new(visibility: float = 60.0, **changes: Any) -> SqsHints:
        stop = threading.Event()
        return SqsHints(
            changes.pop("reader", None) or Reader(KEYS),
            changes.pop("client", None) or connect(queue.url),
            changes.pop("url", queue.url),
            stop,
            visibility=timedelta(seconds=visibility),
            **changes,
        )

    return new


@pytest.mark.parametrize("shape", [aws, moto, sns, eventbridge], ids=lambda shape: shape.__name__)
def test_a_message_is_held_until_its_run_is_acknowledged(
    make: Make, queue: Queue, shape: Callable[[str, str], bytes]
) -> None:
    """Whichever way it came into the queue: while nobody else keeps the work, the queue does."""
    source = make()
    queue.send(shape("checkpoints", key(1)))
    assert source.wait() == (FAMILY, NOTHING)
    source.acknowledge({})
    source.acknowledge({"llm-7b": frozenset({generation(1)})})
    assert queue.counts() == (0, 1)
    source.acknowledge(ALL_ASKED)
    assert queue.counts() == (0, 0)
    assert source.held == 0


def test_a_message_of_two_families_waits_for_both(make: Make, queue: Queue) -> None:
    """The format allows several records; what is done of them stays done."""
    source = make()
    records = [s3_record("aws:s3", "checkpoints", key(1, family)) for family in ("llm-7b", "llm-13b")]
    queue.send(dumped({"Records": records}))
    assert source.wait() == ({"llm-7b", "llm-13b"}, NOTHING)
    source.acknowledge({"llm-7b": frozenset(), "llm-13b": frozenset({generation(1)})})
    assert source.held == 1
    source.acknowledge({"llm-13b": frozenset()})
    assert queue.counts() == (0, 0)


def test_what_announces_nothing_is_deleted_and_counted(make: Make, queue: Queue) -> None:
    """A bucket tells of every shard; only the queue's owner could have filtered them out."""
    reader = Reader(KEYS)
    source = make(reader=reader)
    queue.send(
        dumped({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "checkpoints"}),
        aws("checkpoints", "runs/llm-7b/00000001-0000000000000001/model.safetensors"),
        aws("checkpoints", "runs/llm-8b/.lastgood/commits/00000001-0000000000000001"),
        aws("checkpoints", "../../etc/passwd"),
    )
    assert source.wait() == (NOTHING, NOTHING)
    assert queue.counts() == (0, 0)
    assert str(reader.counters) == "4 received, 0 hints, 0 doubled, 1 other, 2 foreign, 0 malformed, 0 refused"


def test_a_burst_is_received_before_it_is_looked_at(make: Make, queue: Queue) -> None:
    """A look at storage for each ten messages would be ten times the listings."""
    source = make()
    queue.send(*(aws("checkpoints", key(step)) for step in range(45)))
    assert source.wait() == (FAMILY, NOTHING)
    assert source.held == 45
    source.acknowledge(ALL_ASKED)
    assert queue.counts() == (0, 0)


def test_no_more_is_held_than_can_be_looked_after(make: Make, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the server away for a night, the queue is where messages belong."""
    monkeypatch.setattr(sqs_module, "MAXIMUM_HELD", 20)
    source = make()
    queue.send(*(aws("checkpoints", key(step)) for step in range(45)))
    source.wait()
    assert source.wait() == (NOTHING, NOTHING)
    assert source.held == 20
    assert queue.counts() == (25, 20)


def test_a_message_that_is_held_is_not_delivered_again(make: Make, queue: Queue) -> None:
    """Its visibility is renewed for as long as its run is waited for, so its receives do not count against it."""
    source = make(visibility=4.0)
    queue.send(aws("checkpoints", key(1)))
    source.wait()
    begin = time.monotonic()
    while time.monotonic() < begin + 6:
        assert source.wait() == (NOTHING, NOTHING), "it was delivered again"
    assert queue.counts() == (0, 1)
    source.acknowledge(ALL_ASKED)
    assert queue.counts() == (0, 0)


RECEIVER = """
import sys, threading, time
from datetime import timedelta
from lastgood_prefect.relay.reading import CommitKeys, Reader
from lastgood_prefect.relay.sqs import SqsHints, connect
url = sys.argv[1]
reader = Reader(CommitKeys({"llm-7b": "s3://checkpoints/runs"}))
source = SqsHints(reader, connect(url), url, threading.Event(), visibility=timedelta(seconds=2))
while not source.held:
    source.wait()
print("held", flush=True)
time.sleep(600)
"""


def test_a_relay_that_dies_before_it_deletes_gives_the_message_back(make: Make, queue: Queue) -> None:
    """What nobody acknowledged comes again, to this relay's successor or to its twin."""
    queue.send(aws("checkpoints", key(1)))
    with subprocess.Popen([sys.executable, "-c", RECEIVER, queue.url], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
        finally:
            os.kill(process.pid, signal.SIGKILL)
    source = make()
    deadline = time.monotonic() + 30
    while source.wait() != (FAMILY, NOTHING):
        assert time.monotonic() < deadline, "it did not come back"
    source.acknowledge(ALL_ASKED)
    assert queue.counts() == (0, 0)


def test_a_malformed_message_ends_in_the_dead_letter_queue(
    make: Make, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """It is given back soon, and not at once, until the queue's own policy moves it where somebody has an alarm."""
    caplog.set_level(logging.INFO, "lastgood.watch")
    reader = Reader(KEYS)
    source = make(reader=reader)
    assert queue.dead is not None
    queue.send(b'{"Records": 5}', aws("checkpoints", key(1)))
    deadline = time.monotonic() + 10 * RETURN_SECONDS
    looks = 0
    while queue.dead.counts() != (1, 0) and time.monotonic() < deadline:
        source.wait()
        looks += 1
    assert queue.dead.counts() == (1, 0)
    assert looks < 100, "a loop that spins on one message"
    assert reader.counters.malformed == 3
    assert caplog.text.count("not a storage event") == 1
    source.acknowledge(ALL_ASKED)
    assert queue.counts() == (0, 0)


def test_a_malformed_message_is_deleted_where_nothing_would_take_it_away(
    make: Make, server: tuple[Sqs, dict[str, str]], queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a redrive policy it would come back for days."""
    caplog.set_level(logging.INFO, "lastgood.watch")
    plain = server[0].queue(next(NAMES))
    source = make(url=plain.url)
    assert "no redrive policy" in caplog.text
    plain.send(b"hello")
    source.wait()
    assert plain.counts() == (0, 0)


def test_a_queue_that_does_not_answer_is_asked_again_later(
    make: Make, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The watcher goes on listing meanwhile, and no message is lost or deleted too soon."""
    caplog.set_level(logging.INFO, "lastgood.watch")
    now = [1000.0]
    monkeypatch.setattr(sqs_module, "CONNECT_SECONDS", 1.0)
    source = make(clock=lambda: now[0])
    queue.send(aws("checkpoints", key(1)))
    source.wait()
    real = source._client
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:1")
    monkeypatch.setattr(source, "_client", connect(queue.url))
    source.acknowledge(ALL_ASKED)
    assert source.held == 1
    assert "no answer from the queue" in caplog.text
    assert source.wait() == (NOTHING, NOTHING)
    now[0] += 2
    monkeypatch.setattr(source, "_client", real)
    assert source.wait() == (NOTHING, NOTHING)
    assert "the queue answers again" in caplog.text
    source.acknowledge(ALL_ASKED)
    assert queue.counts() == (0, 0)


def test_a_queue_that_is_not_there_is_said_at_once(make: Make, queue: Queue) -> None:
    """A mistyped URL would look like a bucket that saves nothing."""
    with pytest.raises(UsageError, match="no such queue"):
        make(url=f"{queue.url}-mistyped")


def test_no_credentials_are_said_at_once(
    make: Make, queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """They are boto3's affair, and their absence is the operator's."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    with pytest.raises(UsageError, match="no credentials for the queue"):
        make(client=connect(queue.url))


def test_a_queue_s_url_names_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever copies it from the console need not say it twice."""
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    client: Any = connect("https://sqs.eu-central-1.amazonaws.com/123456789012/saves")
    assert client.meta.region_name == "eu-central-1"
    with pytest.raises(UsageError, match="no region"):
        connect("http://127.0.0.1:9324/000000000000/saves")


def test_a_doubled_message_is_counted_and_harmless(make: Make, queue: Queue) -> None:
    """Standard queues deliver at least once, and S3 sends at least once."""
    reader = Reader(KEYS)
    source = make(reader=reader)
    queue.send(*[aws("checkpoints", key(1))] * 3)
    while source.held < 3:
        source.wait()
    assert (reader.counters.hints, reader.counters.doubled) == (3, 2)
    assert Hint("llm-7b", generation(1)) in next(iter(source._held.values())).hints
    source.acknowledge(ALL_ASKED)
    assert queue.counts() == (0, 0)
