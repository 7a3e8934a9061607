"""The webhook over real HTTP: who is let in, what is kept, and when it is dropped."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from lastgood.errors import UsageError
from lastgood.identity import GenerationId
from lastgood_prefect.hints import Hint
from lastgood_prefect.relay import spool as spool_module
from lastgood_prefect.relay import webhook as webhook_module
from lastgood_prefect.relay.decoding import MAXIMUM_BODY_BYTES
from lastgood_prefect.relay.reading import CommitKeys, Reader
from lastgood_prefect.relay.spool import Spool
from lastgood_prefect.relay.webhook import WebhookHints, check_secret
from tests.relay.bodies import ceph, dumped, minio, s3_record, seaweedfs
from tests.relay.posting import BEARER, SECRET, post

GENERATION = GenerationId(incarnation=3, step=48_000)
HINT = Hint("llm-7b", GENERATION)
KEY = f"runs/llm-7b/.lastgood/commits/{GENERATION}"
BODY = minio("checkpoints", KEY)
KEYS = CommitKeys({"llm-7b": "s3://checkpoints/runs"})
NOTHING: frozenset[str] = frozenset()

Start = Callable[[], WebhookHints]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a webhook over the spool of this test; all are closed at its end."""
    started: list[WebhookHints] = []

    def new() -> WebhookHints:
        webhook = WebhookHints(
            Reader(KEYS),
            Spool(tmp_path / "spool"),
            secret=SECRET,
            host="127.0.0.1",
            port=0,
            tick=timedelta(seconds=0.05),
        )
        started.append(webhook)
        return webhook

    yield new
    for one in started:
        one.close()


@pytest.fixture
def webhook(start: Start) -> WebhookHints:
    return start()


def kept(tmp_path: Path) -> frozenset[Hint]:
    spool = Spool(tmp_path / "spool")
    try:
        return spool.hints()
    finally:
        spool.close()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (BODY, BEARER),
        (BODY, {"Authorization": f"bearer  {SECRET}"}),
        (seaweedfs("checkpoints", KEY), BEARER),
        (ceph("checkpoints", KEY, opaque=SECRET), {}),
        (ceph("checkpoints", KEY), BEARER),
    ],
    ids=["minio", "lower case", "seaweedfs", "ceph by opaque data", "ceph by header"],
)
def test_what_a_sender_posts_is_kept_and_hinted_at(
    webhook: WebhookHints, tmp_path: Path, body: bytes, headers: dict[str, str]
) -> None:
    """Each of the three senders has one way to carry a secret; with it, a commit becomes a hint."""
    assert post(webhook.port, body, headers) == (202, "")
    assert kept(tmp_path) == {HINT}
    assert webhook.wait() == ({"llm-7b"}, NOTHING)
    assert webhook.wait() == (NOTHING, NOTHING)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (BODY, {}),
        (BODY, {"Authorization": "Bearer wrong"}),
        (BODY, {"Authorization": f"Bearer {SECRET[:-1]}"}),
        (BODY, {"Authorization": f"Bearer {SECRET}x"}),
        (BODY, {"Authorization": SECRET}),
        (BODY, {"Authorization": f"Basic {SECRET}"}),
        (BODY, {"Authorization": "Bearer \xff\xfe"}),
        (BODY, {"X-Secret": SECRET}),
        (ceph("checkpoints", KEY, opaque="wrong"), {}),
        (ceph("checkpoints", KEY, opaque=SECRET), {"Authorization": "Bearer wrong"}),
        (
            dumped(
                {
                    "Records": [
                        s3_record("ceph:s3", "checkpoints", KEY, opaqueData=SECRET),
                        s3_record("ceph:s3", "checkpoints", KEY),
                    ]
                }
            ),
            {},
        ),
        (dumped({"Records": []}), {}),
        (b"not JSON", {}),
    ],
)
def test_whoever_does_not_know_the_secret_is_refused(
    webhook: WebhookHints, tmp_path: Path, body: bytes, headers: dict[str, str]
) -> None:
    """Nothing is kept of what they sent, and nothing is said about it."""
    assert post(webhook.port, body, headers) == (401, "unknown secret\n")
    assert kept(tmp_path) == frozenset()
    assert webhook.wait() == (NOTHING, NOTHING)
    assert webhook._reader.counters.refused == 1
    assert webhook._reader.counters.received == 0


def test_a_secret_is_compared_in_constant_time(webhook: WebhookHints, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary comparison ends at the first wrong character, which can be measured over a network."""
    compared = []
    real = webhook_module.hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return real(one, other)

    monkeypatch.setattr(webhook_module.hmac, "compare_digest", watched)
    post(webhook.port, BODY, {"Authorization": "Bearer wrong"})
    post(webhook.port, ceph("checkpoints", KEY, opaque="guess"), {})
    assert compared == [b"wrong", b"guess"]


def test_a_hint_is_kept_until_its_run_is_acknowledged(webhook: WebhookHints, tmp_path: Path) -> None:
    """The sender forgot it when it was told "accepted"."""
    post(webhook.port, BODY)
    webhook.wait()
    webhook.acknowledge({})
    assert kept(tmp_path) == {HINT}, "storage could not tell"
    webhook.acknowledge({"llm-7b": frozenset({GENERATION})})
    assert kept(tmp_path) == {HINT}, "no run yet"
    webhook.acknowledge({"llm-7b": frozenset()})
    assert kept(tmp_path) == frozenset()


def test_a_hint_that_came_after_the_look_is_not_taken_for_done(webhook: WebhookHints, tmp_path: Path) -> None:
    """The look did not see its commit; dropping it would leave the save to the slow listing."""
    post(webhook.port, BODY)
    webhook.acknowledge({"llm-7b": frozenset()})
    assert kept(tmp_path) == {HINT}
    assert webhook.wait() == ({"llm-7b"}, NOTHING)
    post(webhook.port, BODY)
    webhook.acknowledge({"llm-7b": frozenset()})
    assert kept(tmp_path) == {HINT}, "it was posted again after it was returned"
    assert webhook.wait() == ({"llm-7b"}, NOTHING)
    webhook.acknowledge({"llm-7b": frozenset()})
    assert kept(tmp_path) == frozenset()


def test_what_was_accepted_is_drained_after_a_restart(start: Start, tmp_path: Path) -> None:
    """However the last relay ended, the next one begins with what it had accepted."""
    first = start()
    post(first.port, BODY)
    first.close()
    second = start()
    assert second.wait() == ({"llm-7b"}, NOTHING)
    second.acknowledge({"llm-7b": frozenset()})
    assert kept(tmp_path) == frozenset()


LISTENER = """
import sys, time
from pathlib import Path
from lastgood_prefect.relay.reading import CommitKeys, Reader
from lastgood_prefect.relay.spool import Spool
from lastgood_prefect.relay.webhook import WebhookHints
webhook = WebhookHints(
    Reader(CommitKeys({"llm-7b": "s3://checkpoints/runs"})), Spool(Path(sys.argv[1])),
    secret=sys.argv[2], host="127.0.0.1", port=0,
)
print(webhook.port, flush=True)
time.sleep(600)
"""


def test_a_kill_between_accepting_and_draining_loses_nothing(start: Start, tmp_path: Path) -> None:
    """SIGKILL is how an out-of-memory killer, a node drain and an impatient service manager end a relay."""
    hints = {Hint("llm-7b", GenerationId(incarnation=1, step=step)) for step in range(1, 21)}
    command = [sys.executable, "-c", LISTENER, str(tmp_path / "spool"), SECRET]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            for one in hints:
                body = seaweedfs("checkpoints", f"runs/llm-7b/.lastgood/commits/{one.generation}")
                assert post(port, body) == (202, "")
        finally:
            os.kill(process.pid, signal.SIGKILL)
    webhook = start()
    assert webhook.wait() == ({"llm-7b"}, NOTHING)
    assert webhook._returned == hints


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{}", 400, "expected Records"),
        (b"[" * 100_000, 400, "not a storage event"),
        (b" " * (MAXIMUM_BODY_BYTES + 1), 413, "at most"),
        (dumped({"Records": []}), 202, ""),
        (minio("elsewhere", KEY), 202, ""),
        (minio("checkpoints", "../../etc/passwd"), 202, ""),
    ],
)
def test_what_announces_nothing_is_answered_and_forgotten(
    webhook: WebhookHints, tmp_path: Path, body: bytes, status: int, said: str
) -> None:
    """A wrong body is the sender's mistake and is named; a foreign one is nobody's, and must not be sent again."""
    answered, text = post(webhook.port, body)
    assert answered == status
    assert said in text
    assert kept(tmp_path) == frozenset()
    assert webhook.wait() == (NOTHING, NOTHING)


def test_a_body_without_a_length_is_bounded_too(webhook: WebhookHints) -> None:
    """A chunked body does not say beforehand how large it is."""
    connection = http.client.HTTPConnection("127.0.0.1", webhook.port, timeout=30)
    chunks = (b" " * 65_536 for _ in range(17))
    try:
        connection.request("POST", "/events", body=chunks, headers=BEARER, encode_chunked=True)
        status = connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):
        status = 413  # it was closed on us before we had sent it all
    finally:
        connection.close()
    assert status == 413


def test_a_body_that_does_not_come_is_not_waited_for(webhook: WebhookHints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are few; one that says nothing must not hold one for ever."""
    monkeypatch.setattr(webhook_module, "BODY_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", webhook.port), timeout=30) as sender:
        head = f"POST /events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 10\r\n\r\n"
        sender.sendall(head.encode())
        assert b" 408 " in sender.recv(4096)


def test_a_full_spool_asks_the_sender_to_keep_it(webhook: WebhookHints, monkeypatch: pytest.MonkeyPatch) -> None:
    """To say "accepted" without a copy on disk would be a lie."""
    monkeypatch.setattr(spool_module, "MAXIMUM_HINTS", 0)
    assert post(webhook.port, BODY) == (503, "not kept; send it again\n")
    assert webhook.wait() == (NOTHING, NOTHING)


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/events", 405), ("POST", "/", 404), ("PUT", "/events", 405)]
)
def test_nothing_else_is_served(webhook: WebhookHints, method: str, path: str, status: int) -> None:
    """A port that answers more than it must is one more thing to defend."""
    assert post(webhook.port, BODY, method=method, path=path)[0] == status


def test_a_port_in_use_is_said_at_once(webhook: WebhookHints, tmp_path: Path) -> None:
    """Two relays on one machine are a mistake that must not look like one relay."""
    spool = Spool(tmp_path / "other")
    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {webhook.port}"):
        WebhookHints(Reader(KEYS), spool, secret=SECRET, host="127.0.0.1", port=webhook.port)
    spool.close()


@pytest.mark.parametrize("secret", [None, "", "short", "x" * 15, "a secret with blanks", "pässwörter-pässwörter"])
def test_a_weak_or_unsendable_secret_is_refused(secret: str | None) -> None:
    """An empty one would let everybody in, and a header carries visible ASCII only."""
    with pytest.raises(UsageError, match="LASTGOOD_RELAY_SECRET"):
        check_secret(secret)
