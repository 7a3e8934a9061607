"""The verdict set does not depend on the events: lost, tripled, shuffled, foreign and forged ones end in the same.

Over each source's real transport. The gate is this test, in a thread of its own, with an orchestrator in memory.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from lastgood.identity import GenerationId
from lastgood.records import list_records
from lastgood_prefect.hints import HintSource
from lastgood_prefect.relay.listing import ListingHints
from lastgood_prefect.relay.reading import CommitKeys, Counters, Reader
from lastgood_prefect.relay.spool import Spool
from lastgood_prefect.relay.sqs import SqsHints, connect
from lastgood_prefect.relay.webhook import WebhookHints
from lastgood_prefect.requests import Patience, RunState
from lastgood_prefect.watcher import Cadence, Watcher
from tests.pipeline.memory import MemoryRuns
from tests.relay.bodies import aws, ceph, dumped, eventbridge, minio, moto, seaweedfs, sns
from tests.relay.conftest import BUCKET, BucketFamily
from tests.relay.posting import SECRET, post
from tests.relay.queues import Queue, running_sqs

PROOF = os.environ.get("LASTGOOD_PROOF") == "1"
FULL = 1000 if PROOF else 100
QUICK = 20
PATIENCE_SECONDS = 600.0
QUICK_CADENCE = Cadence(tick=timedelta(seconds=0.05), poll=timedelta(seconds=0.1), listing=timedelta(days=1))

Send = Callable[[Sequence[bytes]], None]
Open = Callable[[Reader], HintSource]


@dataclass
class Feed:
    """A transport.

    Args:
        shapes: Of the bodies that senders put on it.
        send: Puts bodies on it.
        open: A source at its other end; a second one takes over from a first that was closed or abandoned.
        left: How much of what was sent is still kept for the relay.
    """

    shapes: Sequence[Callable[[str, str], bytes]]
    send: Send
    open: Open
    left: Callable[[], int]


@contextmanager
def sqs_feed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    with running_sqs() as (server, told):
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        queue: Queue = server.queue("feed", maximum_receives=5)

        def opened(reader: Reader) -> HintSource:
            return SqsHints(reader, connect(queue.url), queue.url, threading.Event(), visibility=timedelta(seconds=5))

        yield Feed(
            (aws, moto, sns, eventbridge),
            lambda bodies: queue.send(*(body.decode(errors="replace").encode() for body in bodies)),
            opened,
            lambda: sum(queue.counts()),
        )


@contextmanager
def webhook_feed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    listening: list[WebhookHints] = []

    def opened(reader: Reader) -> HintSource:
        listening.append(
            WebhookHints(
                reader,
                Spool(directory / "spool"),
                secret=SECRET,
                host="127.0.0.1",
                port=0,
                tick=timedelta(seconds=0.05),
            )
        )
        return listening[-1]

    def send(bodies: Sequence[bytes]) -> None:
        for body in bodies:
            assert post(listening[-1].port, body)[0] in (202, 400)

    def left() -> int:
        spool = Spool(directory / "spool")
        try:
            return len(spool.hints())
        finally:
            spool.close()

    yield Feed((minio, ceph, seaweedfs), send, opened, left)


FEEDS = {"sqs": sqs_feed, "webhook": webhook_feed}


class Gates:
    """A worker: begins each run that is asked for and judges what is due, or dies."""

    def __init__(self, runs: MemoryRuns, family: BucketFamily, chance: random.Random) -> None:
        self._runs, self._family, self._chance = runs, family, chance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        while not self._stop.wait(0.02):
            for run in self._runs.in_state(RunState.SCHEDULED):
                self._runs.put(run, RunState.RUNNING)
                if self._chance.random() < 0.8:
                    self._family.judge()
                self._runs.put(run, RunState.ENDED)


def hostile(chance: random.Random, family: BucketFamily) -> bytes:
    """What nobody configured, or nobody could read."""
    shape = chance.choice((aws, minio, ceph, seaweedfs, eventbridge))
    commit = family.commit_key(family.built.newest)
    return chance.choice(
        (
            b'{"Records": [',
            b"\xf0\x9f\x92\xa9",
            dumped({"Records": [{"eventSource": "aws:s3", "s3": 5}]}),
            shape("elsewhere", commit),
            shape(BUCKET, f"other/{commit}"),
            shape(BUCKET, "../../etc/passwd"),
            shape(BUCKET, f"{family.commit_key('../../../../etc/passwd')}"),
            shape(BUCKET, family.commit_key("00000099-0000000000000001")),  # forged: it is one of ours and never was
        )
    )


@contextmanager
def relaying(family: BucketFamily, runs: MemoryRuns, source: HintSource) -> Iterator[None]:
    """A relay in a thread of its own."""
    stop = threading.Event()
    patience = Patience(rest=timedelta(seconds=0.05), longest_rest=timedelta(seconds=0.2))
    watcher = Watcher([family.configured], runs, patience=patience, cadence=QUICK_CADENCE)
    thread = threading.Thread(target=watcher.run, args=(stop, source))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def judged(family: BucketFamily) -> list[str]:
    """The generations on record, one entry a conclusive record."""
    records = list_records(family.built.store, family.built.keys)
    return sorted(record.generation for record in records if record.verdict.outcome.is_conclusive)


SAVES = [pytest.param(QUICK, id="quick"), pytest.param(FULL, id="full", marks=pytest.mark.slow)]


@pytest.mark.parametrize("saves", SAVES)
@pytest.mark.parametrize("name", FEEDS)
def test_a_broken_feed_ends_in_the_verdicts_of_a_perfect_one(
    name: str,
    saves: int,
    growing: BucketFamily,
    runs: MemoryRuns,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """30 % of the events lost, the rest tripled and shuffled, 5 % foreign or malformed: each save is judged once.

    The relay ends in the middle and another takes over; what was lost is found by `reconcile`.
    """
    chance = random.Random(saves)
    counters: list[Counters] = []
    lost: set[GenerationId] = set()

    @contextmanager
    def half(feed: Feed) -> Iterator[None]:
        """A relay, and half of the saves with what becomes of their events."""
        reader = Reader(CommitKeys.of([growing.configured]))
        counters.append(reader.counters)
        with relaying(growing, runs, feed.open(reader)):
            pending: list[bytes] = []
            for _ in range(saves // 2):
                saved = growing.save()
                if chance.random() < 0.3:
                    lost.add(saved)
                else:
                    pending += [chance.choice(feed.shapes)(BUCKET, growing.commit_key(saved)) for _ in range(3)]
                if chance.random() < 0.15:
                    pending.append(hostile(chance, growing))
                chance.shuffle(pending)
                if len(pending) >= 10:
                    feed.send(pending[:8])
                    del pending[:8]
            feed.send(pending)
            yield

    with FEEDS[name](tmp_path, monkeypatch) as feed, Gates(runs, growing, random.Random(1)):
        with half(feed):
            pass  # left while messages are held and runs are under way
        before = len(judged(growing))
        with half(feed):
            wait_until(lambda: growing.due() <= lost)
            wait_until(lambda: feed.left() == 0)
    unannounced = growing.due()
    growing.judge()  # what `reconcile` does with what it finds
    assert judged(growing) == [str(generation) for generation in sorted(growing.built.generations)], "exactly one each"
    assert len(growing.built.generations) == 2 * (saves // 2)
    total = {one: sum(getattr(each, one) for each in counters) for one in ("received", "hints", "foreign", "malformed")}
    assert total["foreign"] + total["malformed"] > 0
    record_property("saves", len(growing.built.generations))
    record_property("events", total)
    record_property("judged when the first relay ended", before)
    record_property("left to reconcile", f"{len(unannounced)} of {len(lost)} lost")


@pytest.mark.parametrize("saves", SAVES)
def test_listings_need_no_event(growing: BucketFamily, runs: MemoryRuns, saves: int) -> None:
    """A bucket that notifies nobody is judged all the same, and each save once."""
    with Gates(runs, growing, random.Random(1)):
        source = ListingHints(
            {"llm-7b": growing.configured.location},
            threading.Event(),
            poll=timedelta(seconds=0.1),
            tick=timedelta(seconds=0.05),
        )
        with relaying(growing, runs, source):
            for _ in range(saves):
                growing.save()
            wait_until(lambda: not growing.due())
    assert judged(growing) == [str(generation) for generation in sorted(growing.built.generations)]
