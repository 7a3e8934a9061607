"""The verdict set does not depend on the events: lost, tripled, shuffled, foreign and forged ones end in the same.

Over each source's real transport, with saves in a real bucket where the source is about buckets. The gate is this test,
in a thread of its own, with an orchestrator in memory.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lastgood.identity import GenerationId
from lastgood.stores.s3.client import S3Client
from lastgood_prefect.hints import Hints, HintSource
from lastgood_prefect.relay.listing import ListingHints
from lastgood_prefect.relay.reading import CommitKeys, Counters, Reader
from lastgood_prefect.relay.spool import Spool
from lastgood_prefect.relay.sqs import SqsHints, connect
from lastgood_prefect.relay.webhook import WebhookHints
from lastgood_prefect.requests import Patience, RunState
from lastgood_prefect.watcher import Cadence, Watcher
from tests.pipeline.memory import MemoryRuns
from tests.relay.bodies import aws, ceph, dumped, eventbridge, minio, moto, seaweedfs, sns
from tests.relay.posting import SECRET, post
from tests.relay.queues import Queue, running_sqs
from tests.relay.saving import SavingFamily

PROOF = os.environ.get("LASTGOOD_PROOF") == "1"
FULL = 1000 if PROOF else 100
QUICK = 10
LOST, STRANGE = 0.3, 0.05
PATIENCE_SECONDS = 3600.0 if PROOF else 600.0
"""Half of the saves may still be unjudged when the last one is announced."""
TICK, POLL = timedelta(seconds=0.1), timedelta(seconds=0.2)
QUICK_CADENCE = Cadence(tick=TICK, poll=POLL, listing=timedelta(days=1))

Send = Callable[[Sequence[bytes]], None]
Open = Callable[[Reader], HintSource]


@dataclass
class Feed:
    """A transport.

    Args:
        shapes: Of the bodies that senders put on it; none where nobody sends and the source looks itself.
        send: Puts bodies on it.
        open: A source at its other end; a second one takes over from a first that was closed or abandoned.
        left: How much of what was sent is still kept for the relay.
    """

    shapes: Sequence[Callable[[str, str], bytes]]
    send: Send
    open: Open
    left: Callable[[], int]


class Unreliable:
    """A source of which 3 hints in 10 are lost, and the others come thrice, late and in another order.

    Args:
        source: Looks itself, so that there is no message that could be lost.
        chance: Decides.
    """

    def __init__(self, source: HintSource, chance: random.Random) -> None:
        self._source, self._chance = source, chance
        self._late: list[frozenset[str]] = []

    def wait(self) -> tuple[frozenset[str], frozenset[str]]:
        hinted, moved = self._source.wait()
        if hinted and self._chance.random() >= LOST:
            self._late += [hinted] * 3
        self._chance.shuffle(self._late)
        # What moved is no hint: it says that a directory is another one, and a source that lost that would be broken.
        return (self._late.pop() if self._late else frozenset()) | moved, moved

    def acknowledge(self, unasked: Mapping[str, frozenset[GenerationId]]) -> None:
        self._source.acknowledge(unasked)

    def close(self) -> None:
        self._source.close()


@contextmanager
def sqs_feed(directory: Path, family: SavingFamily, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    with running_sqs() as (server, told):
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", told["AWS_ENDPOINT_URL_SQS"])
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
def webhook_feed(directory: Path, family: SavingFamily, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    listening: list[WebhookHints] = []

    def opened(reader: Reader) -> HintSource:
        listening.append(
            WebhookHints(
                reader,
                Spool(directory / "spool"),
                secret=SECRET,
                host="127.0.0.1",
                port=0,
                tick=TICK,
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


@contextmanager
def poll_feed(directory: Path, family: SavingFamily, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    stop, chance = threading.Event(), random.Random(2)

    def opened(reader: Reader) -> HintSource:
        listing = ListingHints({family.name: family.location}, stop, poll=POLL, tick=TICK)
        return Unreliable(listing, chance)

    yield Feed((), lambda bodies: None, opened, lambda: 0)


@contextmanager
def watch_feed(directory: Path, family: SavingFamily, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    stop, chance = threading.Event(), random.Random(3)

    def opened(reader: Reader) -> HintSource:
        return Unreliable(Hints({family.name: family.location}, stop, tick=TICK, poll=POLL), chance)

    yield Feed((), lambda bodies: None, opened, lambda: 0)


FEEDS = {"sqs": sqs_feed, "webhook": webhook_feed, "poll": poll_feed, "watch": watch_feed}


class Gates:
    """A worker: begins each run that is asked for and judges what is due, or dies."""

    def __init__(self, runs: MemoryRuns, family: SavingFamily, chance: random.Random) -> None:
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


def bucket_of(family: SavingFamily) -> str:
    return family.root.removeprefix("s3://").partition("/")[0]


def leave_junk(family: SavingFamily, number: int) -> None:
    """What a source that looks itself may meet: a name that is no commit's, and a family that nobody configured."""
    store, keys = family.location.store, family.location.keys
    store.create(f"{keys.commits}/{number}.part", b"junk")
    store.create(f"other/.lastgood/commits/00000001-{number + 1:016d}", b"{}")


def hostile(chance: random.Random, family: SavingFamily) -> bytes:
    """What nobody configured, or nobody could read."""
    shape = chance.choice((aws, minio, ceph, seaweedfs, eventbridge))
    bucket, commit = bucket_of(family), family.commit_key(family.newest)
    return chance.choice(
        (
            b'{"Records": [',
            b"\xf0\x9f\x92\xa9",
            dumped({"Records": [{"eventSource": "aws:s3", "s3": 5}]}),
            shape("elsewhere", commit),
            shape(bucket, f"other/{commit}"),
            shape(bucket, "../../etc/passwd"),
            shape(bucket, f"{family.commit_key('../../../../etc/passwd')}"),
            shape(bucket, family.commit_key("00000099-0000000000000001")),  # forged: it is one of ours and never was
        )
    )


@contextmanager
def relaying(family: SavingFamily, runs: MemoryRuns, source: HintSource) -> Iterator[None]:
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
        time.sleep(0.25)


@pytest.fixture
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SavingFamily]:
    """Where the source finds it: in a bucket, or on a local disk for the one that watches that."""
    if request.getfixturevalue("name") == "watch":
        root = tmp_path / "runs"
        root.mkdir()
        with SavingFamily(str(root)) as family:
            yield family
    else:
        yield request.getfixturevalue("saving")


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Every key and prefix that a request of ours names, to whatever bucket."""
    named: set[str] = set()
    call = S3Client._call

    def noted(self: S3Client, client: Any, operation: str, doing: str, parameters: dict[str, Any]) -> dict[str, Any]:
        named.update(f"{self.bucket}/{parameters[one]}" for one in ("Key", "Prefix") if parameters.get(one))
        return call(self, client, operation, doing, parameters)

    monkeypatch.setattr(S3Client, "_call", noted)
    return named


SAVES = [pytest.param(QUICK, id="quick"), pytest.param(FULL, id="full", marks=pytest.mark.slow)]


@pytest.mark.parametrize("saves", SAVES)
@pytest.mark.parametrize("name", FEEDS)
def test_a_broken_feed_ends_in_the_verdicts_of_a_perfect_one(
    name: str,
    saves: int,
    family: SavingFamily,
    runs: MemoryRuns,
    tmp_path: Path,
    touched: set[str],
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
        reader = Reader(CommitKeys.of([family.configured]))
        counters.append(reader.counters)
        with relaying(family, runs, feed.open(reader)):
            pending: list[bytes] = []
            for number in range(saves // 2):
                saved = family.save()
                if not feed.shapes:
                    if chance.random() < 3 * STRANGE:
                        leave_junk(family, number)
                    continue
                if chance.random() < LOST:
                    lost.add(saved)
                else:
                    pending += [
                        chance.choice(feed.shapes)(bucket_of(family), family.commit_key(saved)) for _ in range(3)
                    ]
                # Three times as often as one would think: what is announced comes thrice, too.
                if number == 0 or chance.random() < 3 * STRANGE:
                    pending.append(hostile(chance, family))
                chance.shuffle(pending)
                if len(pending) >= 10:
                    feed.send(pending[:8])
                    del pending[:8]
            feed.send(pending)
            yield

    with FEEDS[name](tmp_path, family, monkeypatch) as feed, Gates(runs, family, random.Random(1)):
        with half(feed):
            pass  # left while messages are held and runs are under way
        before = len(family.verdicts())
        with half(feed):
            wait_until(lambda: family.due() <= lost if feed.shapes else len(family.verdicts()) > before)
            wait_until(lambda: feed.left() == 0)
    unannounced = family.due()
    family.judge()  # what `reconcile` does with what it finds
    assert len(family.generations) == 2 * (saves // 2)
    assert family.verdicts() == family.perfect_verdicts(), "exactly one each"
    allowed = ("llm-7b/", "other/.lastgood/commits/", ".lastgood/")  # the second is what this test itself left there
    opened = {one.removeprefix(f"{bucket_of(family)}/runs/") for one in touched}
    assert not [one for one in opened if not one.startswith(allowed)], "nothing that an event names is opened"
    total = {one: sum(getattr(each, one) for each in counters) for one in ("received", "hints", "foreign", "malformed")}
    assert not feed.shapes or total["foreign"] + total["malformed"] > 0
    record_property("saves", len(family.generations))
    record_property("events", total)
    record_property("judged when the first relay ended", before)
    record_property("left to reconcile", f"{len(unannounced)}, of {len(lost)} events lost")
