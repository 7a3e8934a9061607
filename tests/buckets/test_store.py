"""The object store over a real server: the contract of every store, and what only a bucket can do to it."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lastgood.digest import Algorithm, HashRequest, hash_bytes
from lastgood.errors import Fenced, StoreError, StorePermanentError, StoreTransientError, UsageError
from lastgood.family import Family
from lastgood.identity import GRADE
from lastgood.location import locate
from lastgood.run import Run, SoloGroup
from lastgood.stores import StoreSettings, open_store
from lastgood.stores.grading import Grade, KeptGrade, Limit, StoreGrade, graded
from lastgood.stores.port import Names, Store, StoredObject, Trouble
from lastgood.stores.roots import parse_s3_uri
from lastgood.stores.s3 import S3Store
from lastgood.stores.s3.client import Refused, S3Client
from lastgood.stores.s3.writing import PART_BYTES
from lastgood.testing.seaweedfs import READER_ROLE
from lastgood.verdict import Outcome
from lastgood.verify import repair_pointers
from tests.buckets.faults import (
    EXPIRED_TOKEN,
    INTERNAL_ERROR,
    AbortBody,
    Before,
    Delay,
    DropContinuation,
    LostReply,
    Request,
    SlowBody,
)
from tests.buckets.lives import save
from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import RADOSGW_PROGRAMS, Radosgw, SeaweedFS, connect
from tests.stores.contract import LIMIT, StoreContract

pytestmark = pytest.mark.usefixtures("s3_environ")

NUMBERS = itertools.count()
SESSION = timedelta(seconds=15)
"""Long enough to begin to read on a busy machine; the test waits for its end."""
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


@pytest.fixture(scope="module")
def radosgw() -> Iterator[Radosgw]:
    with Radosgw() as server:
        server.client().create_bucket(Bucket="graded")
        yield server


@pytest.fixture(scope="module")
def earned(radosgw: Radosgw) -> KeptGrade:
    """What `doctor` finds there."""
    with pytest.MonkeyPatch.context() as environ:
        for name, value in radosgw.environ.items():
            environ.setenv(name, value)
        return graded(open_store("s3://graded").probe(), now=datetime.now(UTC))


@pytest.mark.slow
@pytest.mark.service(*RADOSGW_PROGRAMS)
class TestRadosgw(StoreContract):
    """The contract under the grade that Ceph's gateway earns: what it claims holds, and the rest is refused by name."""

    limits = (
        Limit.CONDITIONAL_REPLACE,
        Limit.CONDITIONAL_MULTIPART,
        Limit.CHECKSUM_REJECTION,
        Limit.STORED_CHECKSUMS,
    )

    @pytest.fixture
    def store(self, radosgw: Radosgw, earned: KeptGrade, monkeypatch: pytest.MonkeyPatch) -> Store:
        for name, value in radosgw.environ.items():
            monkeypatch.setenv(name, value)
        bucket = f"radosgw-{next(NUMBERS)}"
        radosgw.client().create_bucket(Bucket=bucket)
        store = open_store(f"s3://{bucket}/some/prefix")
        store.keep_grade(earned)
        store.delete(GRADE)  # this one knows it now, and the contract lists roots that hold nothing
        return store

    def test_it_is_the_grade_that_it_earns(self, store: Store) -> None:
        """The rest of this class would prove nothing under a grade that somebody wished for."""
        assert store.grade() == StoreGrade(grade=Grade.PUBLISH_WITH_LIMITS, limits=self.limits)

    def test_a_large_artifact_is_not_sent_where_one_lies(self, store: Store, staged: Path) -> None:
        """The gateway would complete an upload in parts over it, so whoever sends looks first."""
        first, second = os.urandom(PART_BYTES + 1), os.urandom(PART_BYTES + 2)
        self.install(store, staged, a=first)
        with pytest.raises(StorePermanentError, match="not stored as sent: f/generation/a: wrong size"):
            self.persist(store, store.staging_path("f/generation"), a=second)
        (lies,) = store.hash("f/generation", [HashRequest(path="a")])
        assert lies.digests == (hash_bytes(first),)

    def test_damage_on_the_way_in_is_found_by_reading_back(
        self, store: Store, staged: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody there refuses wrong bytes, so no receipt may stand on an upload that was merely accepted."""
        send = S3Client.call

        def damaging(client: S3Client, operation: str, doing: str, **parameters: Any) -> dict[str, Any]:
            if operation == "put_object" and parameters["Key"].endswith("/a"):
                parameters["Body"] = parameters["Body"][:-1] + b"?"
            return send(client, operation, doing, **parameters)

        monkeypatch.setattr(S3Client, "call", damaging)
        with pytest.raises(StorePermanentError, match="not stored as sent: f/generation/a: other bytes"):
            self.persist(store, staged, a=b"bytes")

    def test_a_family_is_published_and_judged_under_it(self, store: Store, tmp_path: Path) -> None:
        """The grade says that one may publish there: so lives do, one takes over, and the caches are right."""
        uri = f"{store.uri}/llm"
        run = Run.start(uri, SoloGroup(), allow_fresh=True)
        save(run, 10)
        Run.start(uri, SoloGroup()).close()
        with pytest.raises(Fenced):
            save(run, 20)
        run.close()
        family = Family(locate(uri))
        (newest,) = family.survey().candidates
        assert family.verify(newest).outcome is Outcome.PASS
        family.quarantine(reason="a test")
        assert repair_pointers(family.location.store, family.location.keys) == ()


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


def test_a_store_travels_without_its_connections_and_keys(bucket: str, seaweedfs: SeaweedFS) -> None:
    """Prefect sends a task's arguments to whoever does its work, in the clear."""
    store = S3Store(f"s3://{bucket}/root", StoreSettings(attempts=3))
    store.create("f", b"there")
    sent = pickle.dumps(store)
    assert seaweedfs.access_key.encode() not in sent
    assert seaweedfs.secret_key.encode() not in sent
    arrived = pickle.loads(sent)
    assert (arrived.uri, arrived.get("f", limit_bytes=5)) == (store.uri, b"there")


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
    chain = Chain(tmp_path / "credentials", monkeypatch)
    old, new = two_keys(seaweedfs, "trainer")
    chain.write(old)
    store = open_store(f"s3://{bucket}")
    assert store.create("a", b"1")
    seaweedfs.client("iam").delete_access_key(UserName="trainer", AccessKeyId=old["AccessKeyId"])
    with pytest.raises(StoreError, match="403"):
        store.get("a", limit_bytes=LIMIT)
    chain.write(new)
    assert store.get("a", limit_bytes=LIMIT) == b"1"


class Chain:
    """A file that boto3's chain reads, and that whatever renews credentials writes."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))

    def write(self, keys: Mapping[str, str]) -> None:
        names = {
            "AccessKeyId": "access_key_id",
            "SecretAccessKey": "secret_access_key",
            "SessionToken": "session_token",
        }
        lines = [f"aws_{name} = {keys[told]}" for told, name in names.items() if told in keys]
        self._path.write_text("\n".join(["[default]", *lines, ""]))


def two_keys(server: SeaweedFS, user: str) -> tuple[dict[str, str], dict[str, str]]:
    iam = server.client("iam")
    iam.create_user(UserName=user)
    policy = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
    iam.put_user_policy(UserName=user, PolicyName="all", PolicyDocument=policy)
    old, new = (iam.create_access_key(UserName=user)["AccessKey"] for _ in range(2))
    return old, new


class Session:
    """The keys of a store that end at some moment, as AWS words it, and may have been renewed by then."""

    def __init__(self, server: SeaweedFS, proxy: FaultProxy, chain: Chain, user: str, *, is_renewed: bool) -> None:
        self._old, self._new = two_keys(server, user)
        self._has_ended = threading.Event()
        self._chain, self._is_renewed = chain, is_renewed
        chain.write(self._old)
        proxy.inject(EXPIRED_TOKEN, when=self._is_over, times=None)

    def _is_over(self, request: Request) -> bool:
        return self._has_ended.is_set() and self._old["AccessKeyId"] in request.headers["authorization"]

    def end(self) -> None:
        if self._is_renewed:
            self._chain.write(self._new)
        self._has_ended.set()


@pytest.mark.parametrize("is_renewed", [True, False], ids=["renewed", "not renewed"])
def test_a_session_that_expires_while_it_reads_is_read_anew_once(
    faulty: S3Store,
    fault_proxy: FaultProxy,
    seaweedfs: SeaweedFS,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_renewed: bool,
) -> None:
    """A terabyte takes longer than a session lasts: the next one reads the rest, and without one it is said why not."""
    data = os.urandom(3 * 2**20)
    faulty.create("f/a", data)
    chain = Chain(tmp_path / "credentials", monkeypatch)
    session = Session(seaweedfs, fault_proxy, chain, f"reader-{is_renewed}", is_renewed=is_renewed)
    store = S3Store(faulty.uri, StoreSettings(endpoint=fault_proxy.endpoint, **QUICK))

    def is_first(request: Request) -> bool:
        """The session ends while this body is on its way."""
        if is_get(request) and request.range is None:
            session.end()
            return True
        return False

    cut = fault_proxy.inject(AbortBody(2**20, reset=False), when=is_first)
    (hashed,) = store.hash("f", [HashRequest(path="a", size_bytes=len(data))])
    assert cut.fired == 1
    if is_renewed:
        assert hashed.digests == (hash_bytes(data),)
    else:
        assert hashed.trouble is Trouble.UNREADABLE
        assert "ExpiredToken (400)" in hashed.message


def test_a_session_that_expires_before_a_head_is_read_anew_too(
    faulty: S3Store, fault_proxy: FaultProxy, seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to HEAD has no body, so nothing but the status says that it is about the session."""
    faulty.create("f/a", b"12345")
    chain = Chain(tmp_path / "credentials", monkeypatch)
    session = Session(seaweedfs, fault_proxy, chain, "asker", is_renewed=True)
    store = S3Store(faulty.uri, StoreSettings(endpoint=fault_proxy.endpoint, **QUICK))
    assert store.stat("f/a") == StoredObject(key="f/a", bytes=5)
    session.end()
    assert store.stat("f/a") == StoredObject(key="f/a", bytes=5)
    statuses = [request.status for request in fault_proxy.requests if request.method == "HEAD"]
    assert statuses == [200, *[400] * (len(statuses) - 2), 200]  # boto3 asks itself whether it is in the right region
    assert len(statuses) > 2


def code_of(client: Any) -> str | None:
    """What the server objects to, or None."""
    try:
        client.list_objects_v2(Bucket="bucket")
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return None


@pytest.mark.slow
def test_a_real_session_that_expires_while_it_reads_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """STS of SeaweedFS: the first session ends in the middle of an artifact, and the next one reads its rest."""
    with SeaweedFS(iam=True, session=SESSION) as server, FaultProxy(server) as proxy:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        server.client().create_bucket(Bucket="bucket")
        data = os.urandom(3 * 2**20)
        server.client().put_object(Bucket="bucket", Key="f/a", Body=data)
        chain = Chain(tmp_path / "credentials", monkeypatch)

        def assume() -> dict[str, str]:
            keys = server.client("sts").assume_role(RoleArn=READER_ROLE, RoleSessionName="reader")["Credentials"]
            chain.write(keys)
            return dict(keys)

        def expire(_: Request) -> None:
            """Wait for the server's own word that the first session has ended."""
            environ = {
                **server.environ,
                "AWS_ACCESS_KEY_ID": first["AccessKeyId"],
                "AWS_SECRET_ACCESS_KEY": first["SecretAccessKey"],
                "AWS_SESSION_TOKEN": first["SessionToken"],
            }
            while (answer := code_of(connect(environ))) is None:
                time.sleep(0.2)
            record_property("SeaweedFS answers an expired session", answer)
            assume()

        first = assume()
        store = open_store("s3://bucket", StoreSettings(endpoint=proxy.endpoint))
        proxy.inject(AbortBody(2**20, reset=False), when=is_get)
        ended = proxy.inject(Before(expire), when=is_get)
        (hashed,) = store.hash("f", [HashRequest(path="a", size_bytes=len(data))])
        assert hashed.digests == (hash_bytes(data),)
        assert ended.fired == 1
        assert [request.status for request in proxy.requests if is_get(request)] == [200, 403, 206]


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


def test_a_body_that_trickles_is_taken_up_elsewhere(faulty: S3Store, fault_proxy: FaultProxy) -> None:
    """Twenty bytes a second are never silent; the same object over another connection comes at once."""
    data = os.urandom(3 * 2**20)
    faulty.create("f/a", data)
    slow = fault_proxy.inject(SlowBody(20), when=is_get)
    (hashed,) = faulty.hash("f", [HashRequest(path="a", size_bytes=len(data))])
    assert hashed.digests == (hash_bytes(data),)
    assert slow.fired == 1
    assert [str(request.range)[:6] for request in fault_proxy.requests if is_get(request)] == ["None", "bytes="]


def trickled(store: S3Store) -> Mapping[str, Callable[[], object]]:
    """Every kind of answer that has a body."""

    def hashed() -> None:
        (found,) = store.hash("f", [HashRequest(path="a", size_bytes=2**20)])
        assert found.trouble is Trouble.UNREADABLE
        raise StoreTransientError(found.message)

    return {
        "an artifact": hashed,
        "a document": lambda: store.get("f/a", limit_bytes=2**20),
        "a listing": lambda: store.names("f"),
        "an error": lambda: store.get("f/absent", limit_bytes=LIMIT),
    }


@pytest.mark.parametrize("kind", ["an artifact", "a document", "a listing", "an error"])
def test_a_service_that_trickles_for_ever_is_given_up(faulty: S3Store, fault_proxy: FaultProxy, kind: str) -> None:
    """At twenty bytes a second the mebibyte would take fourteen hours; it costs attempts times the timeout. No silence
    between two of them is long enough to be what it is given up for.
    """
    faulty.create("f/a", os.urandom(2**20))
    slow = fault_proxy.inject(SlowBody(20), when=lambda request: request.method == "GET", times=None)
    begun = time.monotonic()
    with pytest.raises(StoreTransientError, match="came too slowly"):
        trickled(faulty)[kind]()
    assert time.monotonic() - begun < 60
    assert slow.fired == QUICK["attempts"]


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


@pytest.mark.parametrize(
    "breaks_off",
    [
        lambda request: request.is_list and "delimiter" not in request.query and "max-keys=2" in request.target,
        lambda request: request.is_list and "delimiter" in request.query and "doctor" in request.target,
        lambda request: "uploads" in request.query,
    ],
    ids=["a listing", "a listing of directories", "an upload in parts"],
)
def test_an_answer_without_its_body_grades_nothing(
    faulty: S3Store, fault_proxy: FaultProxy, breaks_off: Callable[[Request], bool]
) -> None:
    """An empty listing is no proof that the service forgets what it was given."""
    closed = fault_proxy.inject(AbortBody(0, reset=False), when=breaks_off)
    with pytest.raises(StoreTransientError, match="the answer names no"):
        list(faulty.probe())
    assert closed.fired == 1


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


NAMES = ("a", "b/1", "b/2", "c", "d/1", "e")


@pytest.mark.parametrize("length", [1, 2, 5, 6])
def test_full_pages_show_everything_once(bucket: str, shorten_pages: Callable[[int], None], length: int) -> None:
    """The last page may be full, too: asking what lies beyond it must find nothing, not what it showed."""
    shorten_pages(length)
    store = open_store(f"s3://{bucket}")
    for name in NAMES:
        store.create(f"f/{name}", b"1")
    assert store.names("f") == Names(files=("a", "c", "e"), directories=("b", "d"))
    assert sorted(one.key for one in store.walk("f")) == [f"f/{name}" for name in NAMES]


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_listing_that_lost_its_later_pages_is_not_believed(
    faulty: S3Store, fault_proxy: FaultProxy, shorten_pages: Callable[[int], None], length: int
) -> None:
    """Its last page calls itself the last of all; believed, it hid the decision that keeps a generation."""
    shorten_pages(length)
    for name in NAMES:
        faulty.create(f"f/{name}", b"1")

    for ask, shown in ((lambda: faulty.names("f"), 5), (lambda: list(faulty.walk("f")), 6)):
        for skip in range(-(-shown // length) - 1):
            fault_proxy.clear()
            lost = fault_proxy.inject(DropContinuation(), skip=skip)
            with pytest.raises(StoreTransientError, match="expected a page after its last one"):
                ask()
            assert lost.fired == 1
