"""Every fault must reach boto3 as what it claims to be: a proxy that did nothing would let each test above it pass."""

from __future__ import annotations

import http.client
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    FlexibleChecksumError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from lastgood.testing.server import HOST
from tests.buckets.faults import (
    EXPIRED_TOKEN,
    FORBIDDEN,
    INTERNAL_ERROR,
    SLOW_DOWN,
    AbortBody,
    Answer,
    Before,
    Delay,
    DropContinuation,
    FlipBit,
    LostReply,
    Request,
    Reset,
    SlowBody,
    StaleList,
    Truncate,
)
from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import Moto, SeaweedFS

BODY = bytes(itertools.islice(itertools.cycle(range(251)), 300_000))
HARMLESS = {"response_checksum_validation": "when_required"}
"""Without it, boto3 compares a whole object with the checksum that the server kept."""


def of(method: str, key: str = "") -> Callable[[Request], bool]:
    return lambda request: request.method == method and request.key == key


@pytest.fixture
def direct(seaweedfs: SeaweedFS, bucket: str) -> Any:
    """A client that goes around the proxy; the bucket holds BODY as "object"."""
    client = seaweedfs.client()
    client.put_object(Bucket=bucket, Key="object", Body=BODY)
    return client


@pytest.mark.usefixtures("direct")
class TestWithoutFault:
    def test_everything_passes_as_it_came(self, fault_proxy: FaultProxy, bucket: str) -> None:
        """Signatures, keys with special characters, ranges, conditions and checksums must survive the detour."""
        client = fault_proxy.client()
        key = "a b/x+y=ü%41&?#"
        client.put_object(Bucket=bucket, Key=key, Body=BODY, ChecksumAlgorithm="SHA256", IfNoneMatch="*")
        with pytest.raises(ClientError, match="PreconditionFailed"):
            client.put_object(Bucket=bucket, Key=key, Body=b"", IfNoneMatch="*")
        head = client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        assert head["ContentLength"] == len(BODY)
        assert head["ChecksumSHA256"]
        assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == BODY
        assert client.get_object(Bucket=bucket, Key=key, Range="bytes=10-19")["Body"].read() == BODY[10:20]
        assert [one["Key"] for one in client.list_objects_v2(Bucket=bucket)["Contents"]] == [key, "object"]
        client.delete_object(Bucket=bucket, Key=key)
        assert [request.status for request in fault_proxy.requests if request.key == key] == [
            200, 412, 200, 200, 206, 204,
        ]  # fmt: skip
        assert [request.range for request in fault_proxy.requests if request.status == 206] == ["bytes=10-19"]

    def test_a_large_body_is_streamed_both_ways(self, fault_proxy: FaultProxy, bucket: str) -> None:
        """Shards are gigabytes; multipart uploads are how they travel."""
        client = fault_proxy.client()
        data = BODY * 60
        part = 6 * 2**20
        upload = client.create_multipart_upload(Bucket=bucket, Key="large")["UploadId"]
        parts = [
            {
                "PartNumber": number,
                "ETag": client.upload_part(
                    Bucket=bucket, Key="large", UploadId=upload, PartNumber=number, Body=data[start : start + part]
                )["ETag"],
            }
            for number, start in enumerate(range(0, len(data), part), 1)
        ]
        client.complete_multipart_upload(Bucket=bucket, Key="large", UploadId=upload, MultipartUpload={"Parts": parts})
        assert client.get_object(Bucket=bucket, Key="large")["Body"].read() == data
        # The client may have all of it before the proxy has noted the last block.
        deadline = time.monotonic() + 10
        while fault_proxy.requests[-1].sent_bytes != len(data) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert fault_proxy.requests[-1].sent_bytes == len(data)

    def test_many_clients_are_served_at_once(self, fault_proxy: FaultProxy, bucket: str) -> None:
        """Ranks publish together, and a request that waits for another one would hide their races."""
        client = fault_proxy.client()
        held = fault_proxy.inject(Delay(timedelta(seconds=2)), when=of("GET", "object"), times=8)
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            bodies = list(pool.map(lambda _: client.get_object(Bucket=bucket, Key="object")["Body"].read(), range(8)))
        assert bodies == [BODY] * 8
        assert held.fired == 8
        assert time.monotonic() - began < 15

    def test_a_chunked_upload_reaches_the_server(self, seaweedfs: SeaweedFS) -> None:
        """Over TLS, boto3 sends bodies whose length it does not tell."""
        with Moto() as moto, FaultProxy(moto) as proxy:
            moto.client().create_bucket(Bucket="bucket")
            connection = http.client.HTTPConnection(HOST, int(proxy.endpoint.rpartition(":")[2]), timeout=20)
            connection.request("PUT", "/bucket/key", body=iter([b"one ", b"two"]), encode_chunked=True,
                               headers={"Transfer-Encoding": "chunked"})  # fmt: skip
            assert connection.getresponse().status == 200
            connection.close()
            assert moto.client().get_object(Bucket="bucket", Key="key")["Body"].read() == b"one two"


def test_a_reset_request_never_reaches_the_server(fault_proxy: FaultProxy, direct: Any, bucket: str) -> None:
    """The innocent half of a lost connection: nothing happened, and repeating is right."""
    reset = fault_proxy.inject(Reset(), when=of("PUT", "new"))
    with pytest.raises(ConnectionClosedError):
        fault_proxy.client().put_object(Bucket=bucket, Key="new", Body=BODY)
    assert reset.fired == 1
    assert direct.list_objects_v2(Bucket=bucket)["KeyCount"] == 1


def test_a_lost_reply_hides_what_was_done(fault_proxy: FaultProxy, direct: Any, bucket: str) -> None:
    """The other half: it happened, and whoever repeats a conditional create is told that someone else was first."""
    fault_proxy.inject(LostReply(), when=of("PUT", "new"))
    client = fault_proxy.client()
    with pytest.raises(ConnectionClosedError):
        client.put_object(Bucket=bucket, Key="new", Body=BODY, IfNoneMatch="*")
    assert direct.get_object(Bucket=bucket, Key="new")["Body"].read() == BODY
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="new", Body=BODY, IfNoneMatch="*")


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize(
    ("peace", "raised"), [(False, ResponseStreamingError), (True, (IncompleteReadError, ResponseStreamingError))]
)
def test_an_aborted_body_is_an_error_of_the_reader(
    fault_proxy: FaultProxy, bucket: str, peace: bool, raised: Any
) -> None:
    """A read that ends early must not look like a short object; boto3 does not repeat it by itself."""
    abort = fault_proxy.inject(AbortBody(100_000, reset=not peace), when=of("GET", "object"))
    body = fault_proxy.client(retries={"total_max_attempts": 5}).get_object(Bucket=bucket, Key="object")["Body"]
    with pytest.raises(raised):
        body.read()
    assert abort.fired == 1
    assert fault_proxy.requests[-1].sent_bytes == 100_000


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("fault", [Truncate(200_000), FlipBit(123_456, 3)], ids=["truncated", "one bit flipped"])
def test_damaged_bytes_are_seen_by_checksums_alone(fault_proxy: FaultProxy, bucket: str, fault: Any) -> None:
    """HTTP shows nothing of it: only the store's checksum does, on whole objects, and else only our own digest."""
    damaged = fault_proxy.inject(fault, when=of("GET", "object"), times=3)
    with pytest.raises(FlexibleChecksumError):
        fault_proxy.client().get_object(Bucket=bucket, Key="object")["Body"].read()
    trusting = fault_proxy.client(**HARMLESS)
    found = trusting.get_object(Bucket=bucket, Key="object")["Body"].read()
    if isinstance(fault, Truncate):
        assert found == BODY[:200_000]
    else:
        assert [at for at, pair in enumerate(zip(BODY, found, strict=True)) if pair[0] != pair[1]] == [123_456]
        assert found[123_456] ^ BODY[123_456] == 8
    ranged = fault_proxy.client().get_object(Bucket=bucket, Key="object", Range="bytes=0-249999")["Body"].read()
    assert ranged != BODY[:250_000]
    assert damaged.fired == 3


@pytest.mark.usefixtures("direct")
def test_a_body_too_short_to_be_hurt_is_spared(fault_proxy: FaultProxy, bucket: str) -> None:
    """A fault that missed must say so, or a test would believe that its reader coped with it."""
    fault = fault_proxy.inject(FlipBit(len(BODY)), when=of("GET", "object"))
    assert fault_proxy.client().get_object(Bucket=bucket, Key="object")["Body"].read() == BODY
    assert fault.fired == 0


@pytest.mark.usefixtures("direct")
def test_a_slow_body_takes_its_time(fault_proxy: FaultProxy, bucket: str) -> None:
    """No single read times out, so only a deadline over the whole can end it."""
    fault_proxy.inject(SlowBody(300_000), when=of("GET", "object"))
    began = time.monotonic()
    assert fault_proxy.client(read_timeout=0.5).get_object(Bucket=bucket, Key="object")["Body"].read() == BODY
    assert time.monotonic() - began > 0.8


def test_an_answer_can_come_too_late(fault_proxy: FaultProxy, direct: Any, bucket: str) -> None:
    """A timeout says nothing about what was done, and here it was done."""
    fault_proxy.inject(Delay(timedelta(seconds=30)), when=of("PUT", "new"))
    began = time.monotonic()
    with pytest.raises(ReadTimeoutError):
        fault_proxy.client(read_timeout=0.5).put_object(Bucket=bucket, Key="new", Body=b"x")
    assert time.monotonic() - began < 20
    assert direct.get_object(Bucket=bucket, Key="new")["Body"].read() == b"x"


@pytest.mark.parametrize(
    "answer", [SLOW_DOWN, INTERNAL_ERROR, FORBIDDEN, EXPIRED_TOKEN], ids=lambda answer: answer.code
)
def test_the_services_own_errors_arrive_with_status_and_code(
    fault_proxy: FaultProxy, direct: Any, bucket: str, answer: Answer
) -> None:
    """A store tells transient from permanent by these two, and nothing else."""
    fault_proxy.inject(answer, when=of("PUT", "new"))
    fault_proxy.inject(answer, when=of("HEAD", "object"))
    client = fault_proxy.client()
    with pytest.raises(ClientError) as raised:
        client.put_object(Bucket=bucket, Key="new", Body=BODY)
    assert raised.value.response["Error"]["Code"] == answer.code
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == answer.status
    with pytest.raises(ClientError) as raised:
        client.head_object(Bucket=bucket, Key="object")
    # A HEAD has no body to carry the code.
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == answer.status
    assert client.head_object(Bucket=bucket, Key="object")["ContentLength"] == len(BODY)
    assert direct.list_objects_v2(Bucket=bucket)["KeyCount"] == 1


@pytest.mark.usefixtures("direct")
def test_a_burst_ends_after_its_number(fault_proxy: FaultProxy, bucket: str) -> None:
    """A patient client gets through a burst of SlowDown, and the log shows how often it asked."""
    burst = fault_proxy.inject(SLOW_DOWN, when=of("GET", "object"), times=2)
    client = fault_proxy.client(retries={"total_max_attempts": 3, "mode": "standard"})
    assert client.get_object(Bucket=bucket, Key="object")["Body"].read() == BODY
    assert burst.fired == 2
    assert [request.status for request in fault_proxy.requests] == [503, 503, 200]
    assert fault_proxy.count(lambda request: request.fault is SLOW_DOWN) == 2
    fault_proxy.clear()
    assert fault_proxy.requests == ()


def test_a_stale_list_shows_the_past(fault_proxy: FaultProxy, direct: Any, bucket: str) -> None:
    """Not every store lists what was just written; discovery must not take that for the truth."""
    client = fault_proxy.client()

    def keys(prefix: str = "") -> list[str]:
        listed = client.list_objects_v2(Bucket=bucket, Prefix=prefix)
        return [one["Key"] for one in listed.get("Contents", ())]

    assert keys() == ["object"]
    direct.put_object(Bucket=bucket, Key="new", Body=b"x")
    stale = fault_proxy.inject(StaleList(), when=lambda request: request.is_list)
    assert keys("n") == ["new"], "was not asked before, so there is no past to show"
    assert stale.fired == 0
    assert keys() == ["object"]
    assert stale.fired == 1
    assert keys() == ["new", "object"]


def test_a_list_can_lose_its_later_pages(fault_proxy: FaultProxy, direct: Any, bucket: str) -> None:
    """A paginator that is told of no further page stops, with everything looking complete."""
    for number in range(4):
        direct.put_object(Bucket=bucket, Key=f"key-{number}", Body=b"x")
    pages = fault_proxy.client().get_paginator("list_objects_v2")

    def keys() -> list[str]:
        listed = pages.paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
        return [one["Key"] for page in listed for one in page.get("Contents", ())]

    lost = fault_proxy.inject(DropContinuation(), when=lambda request: request.is_list, skip=1)
    assert keys() == ["key-0", "key-1", "key-2", "key-3"]
    assert lost.fired == 1
    assert keys() == ["key-0", "key-1", "key-2", "key-3", "object"]


def test_an_object_can_be_replaced_between_two_ranges(fault_proxy: FaultProxy, direct: Any, bucket: str) -> None:
    """A reader that takes its ranges from two objects has bytes that nobody ever wrote."""
    other = BODY[::-1]
    replace = Before(lambda request: direct.put_object(Bucket=bucket, Key="object", Body=other))
    client = fault_proxy.client()

    def ranges(**condition: str) -> bytes:
        got = [
            client.get_object(Bucket=bucket, Key="object", Range=f"bytes={start}-{start + 99_999}", **condition)
            for start in range(0, len(BODY), 100_000)
        ]
        return b"".join(one["Body"].read() for one in got)

    replaced = fault_proxy.inject(replace, when=lambda request: request.range is not None, skip=1)
    assert ranges() == BODY[:100_000] + other[100_000:]
    assert replaced.fired == 1
    tag = client.head_object(Bucket=bucket, Key="object")["ETag"]
    again = Before(lambda request: direct.put_object(Bucket=bucket, Key="object", Body=BODY))
    fault_proxy.inject(again, when=lambda request: request.range is not None, skip=1)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        ranges(IfMatch=tag)


def test_an_object_can_be_deleted_under_its_reader(fault_proxy: FaultProxy, direct: Any, bucket: str) -> None:
    """A lifecycle rule does not ask who is reading."""
    delete = Before(lambda request: direct.delete_object(Bucket=bucket, Key="object"))
    fault_proxy.inject(delete, when=of("GET", "object"), skip=1)
    client = fault_proxy.client()
    assert client.get_object(Bucket=bucket, Key="object", Range="bytes=0-9")["Body"].read() == BODY[:10]
    with pytest.raises(ClientError, match="NoSuchKey"):
        client.get_object(Bucket=bucket, Key="object", Range="bytes=10-19")


@pytest.mark.usefixtures("direct")
def test_the_first_fault_that_was_injected_is_met_first(fault_proxy: FaultProxy, bucket: str) -> None:
    """Two faults for one request would leave nobody knowing which of them was seen."""
    first = fault_proxy.inject(FORBIDDEN, when=of("GET", "object"))
    second = fault_proxy.inject(SLOW_DOWN, when=of("GET", "object"))
    codes = []
    for _ in range(2):
        with pytest.raises(ClientError) as raised:
            fault_proxy.client().get_object(Bucket=bucket, Key="object")
        codes.append(raised.value.response["Error"]["Code"])
    assert codes == ["AccessDenied", "SlowDown"]
    assert (first.fired, second.fired) == (1, 1)


def test_a_failing_callback_fails_the_test(fault_proxy: FaultProxy, bucket: str) -> None:
    """It runs in another thread, where an assertion would vanish; the end of the proxy checks, too."""
    fault_proxy.inject(Before(lambda request: 1 // 0))
    with pytest.raises(ConnectionClosedError):
        fault_proxy.client().list_objects_v2(Bucket=bucket)
    with pytest.raises(ZeroDivisionError):
        fault_proxy.check()
    fault_proxy.check()


def test_a_server_that_is_down_is_a_lost_connection() -> None:
    """The proxy must not invent an answer of its own where there is none, and must find a server that came back."""
    with SeaweedFS() as server, FaultProxy(server) as proxy:
        client = proxy.client()
        client.create_bucket(Bucket="bucket")
        server.kill()
        with pytest.raises(ConnectionClosedError):
            client.list_buckets()
        server.start()
        assert [one["Name"] for one in client.list_buckets()["Buckets"]] == ["bucket"]
