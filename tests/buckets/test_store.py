"""The object store over a real server: the contract of every store, and what only a bucket can do to it."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lastgood.digest import Algorithm, HashRequest, hash_bytes
from lastgood.errors import StoreError, StorePermanentError, StoreTransientError, UsageError
from lastgood.stores import StoreSettings, open_store
from lastgood.stores.port import Store, StoredObject, Trouble
from lastgood.stores.s3 import S3Store
from lastgood.stores.s3.client import Refused, S3Client, parse_s3_uri
from lastgood.stores.s3.writing import PART_BYTES
from tests.buckets.faults import INTERNAL_ERROR, AbortBody, Before, Delay, LostReply, Request
from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import SeaweedFS
from tests.stores.contract import LIMIT, StoreContract

pytestmark = pytest.mark.usefixtures("s3_environ")

QUICK = {"attempts": 3, "timeout_seconds": 1.0}


@pytest.fixture
def faulty(bucket: str, fault_proxy: FaultProxy) -> S3Store:
    """A store behind the proxy that gives up soon."""
    return S3Store(f"s3://{bucket}/root", StoreSettings(endpoint=fault_proxy.endpoint, **QUICK))


def is_get(request: Request) -> bool:
    return request.method == "GET" and request.key.endswith("/a")


def is_put(request: Request) -> bool:
    return request.method == "PUT" and bool(request.key)


class TestS3Store(StoreContract):
    """The whole contract, each test in a bucket of its own."""

    races = 2  # this server lets racers for one key wait for one another, a second each

    @pytest.fixture
    def store(self, bucket: str) -> Store:
        return open_store(f"s3://{bucket}/some/prefix")


@pytest.mark.slow
class TestBucketAsRoot(StoreContract):
    """The contract again, with the bucket itself as the root."""

    races = 1

    @pytest.fixture
    def store(self, bucket: str) -> Store:
        return open_store(f"s3://{bucket}")


# Where a store is.


@pytest.mark.parametrize(
    ("uri", "expected"),
    [("s3://b-1/a/b", ("b-1", "a/b")), ("s3://b-1/a/", ("b-1", "a")), ("s3://b-1", ("b-1", ""))],
)
def test_a_uri_names_a_bucket_and_a_prefix(uri: str, expected: tuple[str, str]) -> None:
    """A slash at the end makes no other place."""
    assert parse_s3_uri(uri) == expected


@pytest.mark.parametrize("uri", ["s3://", "s3:///a", "s3://b", "s3://bucket//a", "s3://bucket/a/../b", "s3://b?x/a"])
def test_an_unlawful_uri_is_refused(uri: str) -> None:
    """What S3 would read as another key, or as a query, is a mistake of whoever wrote it."""
    with pytest.raises(UsageError, match="not a"):
        parse_s3_uri(uri)


def test_a_bucket_that_is_not_there_is_named(seaweedfs: SeaweedFS) -> None:
    """A misspelled bucket is no damaged checkpoint, and nothing is created in its place."""
    store = open_store("s3://no-such-bucket/root")
    assert not store.is_root()
    for act in (
        lambda: store.prepare(("f",)),
        lambda: store.names("f"),
        lambda: store.stat("f"),
        lambda: store.create("f", b""),
        lambda: store.get("f", limit_bytes=1),
        lambda: store.clock("f"),
    ):
        with pytest.raises(StorePermanentError, match="bucket not found: s3://no-such-bucket"):
            act()


def test_wrong_and_missing_keys_are_permanent_and_say_what_to_do(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking again with the same keys helps nobody."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorePermanentError, match="403") as denied:
        open_store(f"s3://{bucket}").names("")
    assert "credentials" in str(denied.value.hint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(StorePermanentError, match="no credentials"):
        open_store(f"s3://{bucket}").names("")


def test_keys_that_were_rotated_are_read_anew_once(
    seaweedfs: SeaweedFS, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever rotates keys while a terabyte is read must not make the reading fail."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def rotate(access_key: str, secret_key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n")

    iam = seaweedfs.client("iam")
    iam.create_user(UserName="trainer")
    policy = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
    iam.put_user_policy(UserName="trainer", PolicyName="all", PolicyDocument=policy)
    old, new = (iam.create_access_key(UserName="trainer")["AccessKey"] for _ in range(2))
    rotate(old["AccessKeyId"], old["SecretAccessKey"])
    store = open_store(f"s3://{bucket}")
    assert store.create("a", b"1")
    iam.delete_access_key(UserName="trainer", AccessKeyId=old["AccessKeyId"])
    with pytest.raises(StoreError, match="403"):
        store.get("a", limit_bytes=LIMIT)
    rotate(new["AccessKeyId"], new["SecretAccessKey"])
    assert store.get("a", limit_bytes=LIMIT) == b"1"


def test_a_service_that_is_not_there_is_transient_and_soon_said(bucket: str) -> None:
    """Nothing listens: the answer is that the store could not tell, and it does not take minutes."""
    begun = time.monotonic()
    store = open_store(f"s3://{bucket}", StoreSettings(endpoint="http://127.0.0.1:9", **QUICK))
    with pytest.raises(StoreTransientError, match="cannot list"):
        store.names("")
    assert time.monotonic() - begun < 30


# What happens to requests.


def test_a_lost_reply_to_a_creation_is_settled_by_the_bytes(faulty: S3Store, fault_proxy: FaultProxy) -> None:
    """The service has the object; the repeated request is refused, and it was ours all the same."""
    lost = fault_proxy.inject(LostReply(), when=is_put)
    assert faulty.create("a", b"ours") is True
    assert lost.fired == 1
    assert faulty.create("a", b"ours") is False


def test_a_lost_reply_to_a_lost_race_is_a_lost_race(
    faulty: S3Store, fault_proxy: FaultProxy, bucket: str, seaweedfs: SeaweedFS
) -> None:
    """Another was faster, and the refusal got lost: its bytes are not ours."""
    seaweedfs.client().put_object(Bucket=bucket, Key="root/a", Body=b"theirs")
    fault_proxy.inject(LostReply(), when=is_put)
    assert faulty.create("a", b"ours") is False
    assert faulty.get("a", limit_bytes=LIMIT) == b"theirs"


def test_a_lost_reply_to_a_swap_is_settled_by_the_bytes(faulty: S3Store, fault_proxy: FaultProxy) -> None:
    """A pointer that was moved was moved, whoever did not hear of it."""
    faulty.create("pointer", b"1")
    lost = fault_proxy.inject(LostReply(), when=is_put)
    assert faulty.compare_and_swap("pointer", b"2", expected=b"1") is True
    assert lost.fired == 1


def test_silence_ends_within_the_timeouts(faulty: S3Store, fault_proxy: FaultProxy) -> None:
    """A service that hangs costs attempts times the timeout, and then the store could not tell."""
    faulty.create("a", b"1")
    fault_proxy.inject(Delay(timedelta(seconds=5)), when=is_get, times=3)
    begun = time.monotonic()
    with pytest.raises(StoreTransientError):
        faulty.get("a", limit_bytes=LIMIT)
    assert time.monotonic() - begun < 15


def test_a_body_that_breaks_off_is_taken_up_where_it_ended(faulty: S3Store, fault_proxy: FaultProxy) -> None:
    """A terabyte is not read twice for one reset connection."""
    data = os.urandom(3 * 2**20)
    faulty.create("f/a", data)
    cut = fault_proxy.inject(AbortBody(2 * 2**20, reset=False), when=is_get)
    (hashed,) = faulty.hash("f", [HashRequest(path="a", size_bytes=len(data))])
    assert hashed.digests == (hash_bytes(data),)
    assert cut.fired == 1
    first, *later = [request for request in fault_proxy.requests if is_get(request)]
    assert first.range is None
    # How much of what was on its way arrived is the network's affair.
    assert [str(request.range)[:6] for request in later] == ["bytes="]
    assert "if-match" in later[0].headers


@pytest.mark.parametrize("deleted", [False, True])
def test_another_object_under_the_reader_is_said(
    faulty: S3Store, fault_proxy: FaultProxy, bucket: str, seaweedfs: SeaweedFS, deleted: bool
) -> None:
    """No digest is of half the one and half the other."""
    client = seaweedfs.client()
    faulty.create("f/a", os.urandom(3 * 2**20))

    def disturb(_: Request) -> None:
        if deleted:
            client.delete_object(Bucket=bucket, Key="root/f/a")
        else:
            client.put_object(Bucket=bucket, Key="root/f/a", Body=os.urandom(3 * 2**20))

    fault_proxy.inject(AbortBody(2**20, reset=False), when=is_get)
    fault_proxy.inject(Before(disturb), when=is_get)
    (hashed,) = faulty.hash("f", [HashRequest(path="a", size_bytes=3 * 2**20)])
    assert hashed.trouble is Trouble.CHANGED
    fault_proxy.check()


def test_an_answer_that_got_lost_grades_nothing(faulty: S3Store, fault_proxy: FaultProxy) -> None:
    """The refusal of a request that was sent twice may be the echo of our own: no good bucket is called bad for it."""
    lost = fault_proxy.inject(LostReply(), when=lambda request: is_put(request) and request.key.endswith("/create"))
    with pytest.raises(StoreTransientError, match="got lost on the way"):
        faulty.prepare(("f",))
    assert lost.fired == 1
    again = S3Store(faulty.uri, StoreSettings(endpoint=fault_proxy.endpoint, **QUICK))
    assert again.grade() is None
    again.prepare(("f",))
    grade = again.grade()
    assert grade is not None
    assert grade.grade.may_publish


# Artifacts.


def test_a_large_file_is_sent_in_parts_and_read_back(bucket: str, seaweedfs: SeaweedFS) -> None:
    """What is longer than a part is never held whole, and is one object at the end."""
    store = open_store(f"s3://{bucket}")
    prefix = store.payload("f/staging/s/payload", "f/generation")
    data = os.urandom(2 * PART_BYTES + 12345)
    (store.staging_path(prefix) / "large").write_bytes(data)
    (hashed,) = store.persist(prefix, ("large",), (Algorithm.BLAKE3, Algorithm.SHA256))
    assert hashed.digests == (hash_bytes(data), hash_bytes(data, Algorithm.SHA256))
    assert seaweedfs.client().head_object(Bucket=bucket, Key="f/generation/large")["ETag"].strip('"').endswith("-3")
    assert not list(store.staging_path(prefix).iterdir()), "the disk of a training machine is small"


@pytest.mark.parametrize("length", [1000, PART_BYTES + 1])
def test_a_lost_reply_to_the_last_request_of_an_artifact_is_settled_by_reading(
    faulty: S3Store, fault_proxy: FaultProxy, length: int
) -> None:
    """Completed or not: the bytes that lie there are compared with those that were sent."""
    prefix = faulty.payload("s/p", "g")
    data = os.urandom(length)
    (faulty.staging_path(prefix) / "a").write_bytes(data)

    def is_last(request: Request) -> bool:
        return bool(request.key) and (request.method == "POST" if length > PART_BYTES else request.method == "PUT")

    lost = fault_proxy.inject(LostReply(), when=lambda request: is_last(request) and "uploads" not in request.query)
    (hashed,) = faulty.persist(prefix, ("a",), (Algorithm.BLAKE3,))
    assert hashed.digests == (hash_bytes(data),)
    assert lost.fired == 1


def test_an_upload_that_fails_leaves_nothing_and_is_discarded_if_it_could_not(
    faulty: S3Store, fault_proxy: FaultProxy, bucket: str, seaweedfs: SeaweedFS
) -> None:
    """Parts of an object that never came to be are listed nowhere else, and cost money."""
    prefix = faulty.payload("s/p", "g")
    client = seaweedfs.client()

    def uploads() -> list[str]:
        return [one["Key"] for one in client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())]

    def persist() -> None:
        (faulty.staging_path(prefix) / "a").write_bytes(os.urandom(PART_BYTES + 1))
        with pytest.raises(StoreTransientError):
            faulty.persist(prefix, ("a",), (Algorithm.BLAKE3,))
        assert not list(faulty.staging_path(prefix).iterdir()), "it is never sent again"

    fault_proxy.inject(INTERNAL_ERROR, when=lambda request: "partNumber" in request.query, times=20)
    persist()
    assert uploads() == []
    fault_proxy.clear()
    fault_proxy.inject(INTERNAL_ERROR, when=lambda request: "uploadId" in request.query, times=20)
    persist()
    fault_proxy.clear()
    assert uploads() == ["root/g/a"]
    assert faulty.sweep("g", before=datetime.now(UTC) - timedelta(days=1)) == ()
    assert faulty.sweep("f", before=datetime.now(UTC) + timedelta(days=1)) == ()
    assert uploads() == ["root/g/a"], "it may be of a publish that is alive"
    faulty.discard("g")
    assert uploads() == []


def test_what_is_refused_after_a_conflict_may_be_ours(faulty: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent, its answer lost, in conflict when sent again, refused when sent anew: it is there, and nobody else's."""
    send = S3Client.call
    answers = iter([Refused(409, "ConditionalRequestConflict", is_resent=True)])

    def call(client: S3Client, operation: str, doing: str, **parameters: object) -> dict[str, object]:
        if operation == "put_object" and (answer := next(answers, None)) is not None:
            send(client, operation, doing, **parameters)
            raise answer
        return send(client, operation, doing, **parameters)

    monkeypatch.setattr(S3Client, "call", call)
    assert faulty.create("a", b"ours") is True
    answers = iter([Refused(409, "ConditionalRequestConflict", is_resent=True)])
    assert faulty.compare_and_swap("a", b"newer", expected=b"ours") is True


def test_an_answer_that_lacks_what_every_answer_has_is_trouble(
    faulty: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that sends no length says nothing about a checkpoint."""
    faulty.create("f/a", b"1")
    send = S3Client._send

    def without_length(client: S3Client, *arguments: object) -> dict[str, object]:
        answer = send(client, *arguments)
        answer.pop("ContentLength", None)
        return answer

    monkeypatch.setattr(S3Client, "_send", without_length)
    with pytest.raises(StoreTransientError, match="names no ContentLength"):
        faulty.stat("f/a")
    (hashed,) = faulty.hash("f", [HashRequest(path="a")])
    assert hashed.trouble is Trouble.UNREADABLE


def test_what_a_console_puts_there_to_show_a_directory_is_no_file(bucket: str, seaweedfs: SeaweedFS) -> None:
    """A marker of no bytes under a name that ends in a slash is nobody's artifact; one with bytes is."""
    client = seaweedfs.client()
    client.put_object(Bucket=bucket, Key="f/g/", Body=b"")
    client.put_object(Bucket=bucket, Key="f/g/a", Body=b"1")
    store = open_store(f"s3://{bucket}")
    assert list(store.walk("f/g")) == [StoredObject(key="f/g/a", bytes=1)]
    assert store.names("f/g").files == ("a",)
