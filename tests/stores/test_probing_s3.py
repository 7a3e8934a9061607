"""Buckets asked before they are trusted: the grade of each server that we know, and what a store does by it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest

from lastgood import documents
from lastgood.errors import StoreLimitError, StorePermanentError, StoreTransientError
from lastgood.identity import GRADE
from lastgood.stores import StoreSettings, open_store
from lastgood.stores.grading import NOT_ASKED, Grade, KeptGrade, Limit, Probe, graded, judge_probes, parse_grade
from lastgood.stores.s3 import probing
from lastgood.stores.s3.client import S3Client
from lastgood.stores.s3.probing import probe_bucket
from lastgood.testing.seaweedfs import READER_ROLE
from tests.buckets.servers import RADOSGW_PROGRAMS, JuiceFSGateway, Moto, Radosgw, SeaweedFS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = 2**20
QUICK = StoreSettings(attempts=1)
BY_NUMBER = itertools.count()

UNCHECKED = (Limit.CHECKSUM_REJECTION, Limit.STORED_CHECKSUMS)
GRADES: Mapping[type[Any], tuple[Grade, tuple[Limit, ...]]] = {
    SeaweedFS: (Grade.FULL, ()),
    Moto: (Grade.PUBLISH_WITH_LIMITS, UNCHECKED),
    JuiceFSGateway: (Grade.READING_ONLY, ()),
    Radosgw: (
        Grade.PUBLISH_WITH_LIMITS,
        (
            Limit.CONDITIONAL_REPLACE,
            Limit.CONDITIONAL_MULTIPART,
            Limit.CHECKSUM_REJECTION,
            Limit.STORED_CHECKSUMS,
        ),
    ),
}
"""Radosgw is Debian's, 16.2."""


def speak_to(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def seaweedfs() -> Iterator[SeaweedFS]:
    with SeaweedFS() as server:
        server.client().create_bucket(Bucket="bucket")
        yield server


@pytest.fixture
def root(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root of its own on a server that is fit for everything."""
    speak_to(monkeypatch, seaweedfs.environ)
    return f"s3://bucket/root-{next(BY_NUMBER)}"


@pytest.fixture
def few_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """Racers wait for one another on this server, a second at a time."""
    monkeypatch.setattr(probing, "RACERS", 2)
    monkeypatch.setattr(probing, "RACES", 1)


@pytest.fixture(scope="module")
def overwriting() -> Iterator[JuiceFSGateway]:
    with JuiceFSGateway() as server:
        server.client().create_bucket(Bucket="bucket")
        yield server


def keys(server: Any, prefix: str = "") -> list[str]:
    listed = server.client().list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", ())
    return [item["Key"] for item in listed]


def keep(root: str, grade: Grade, *limits: Limit, probes: tuple[Probe, ...] = ()) -> None:
    """Put a grade into a bucket that never earned it."""
    kept = msgspec.structs.replace(graded(probes, now=NOW), grade=grade, limits=limits)
    assert open_store(root).keep_grade(kept) is not None


def kept_in(root: str) -> KeptGrade:
    data = open_store(root).get(GRADE, limit_bytes=LIMIT)
    assert data is not None
    return parse_grade(data)


# Asking.


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(SeaweedFS, marks=pytest.mark.slow),  # its racers wait for one another, a second at a time
        Moto,
        JuiceFSGateway,
        pytest.param(Radosgw, marks=[pytest.mark.slow, pytest.mark.service(*RADOSGW_PROGRAMS)]),
    ],
    ids=lambda start: start.name,
)
def test_each_server_gets_the_grade_that_it_earns(
    start: Callable[[], AbstractContextManager[Any]],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """By what it does and not by what it answers: two of the four accept a condition or a checksum and ignore it."""
    with start() as server:
        speak_to(monkeypatch, server.environ)
        server.client().create_bucket(Bucket="bucket")
        server.client().put_object(Bucket="bucket", Key="pre/fix/other", Body=b"x")
        found = judge_probes(open_store("s3://bucket/pre/fix").probe())
        assert (found.grade, found.limits) == GRADES[type(server)]
        assert keys(server) == ["pre/fix/other"], "everything of ours is gone, and nothing else"
        assert not server.client().list_multipart_uploads(Bucket="bucket").get("Uploads")
        record_property(f"grade of {server.name}", found.words)


def test_an_interrupted_probing_leaves_nothing(seaweedfs: SeaweedFS, root: str) -> None:
    """Ctrl-C in the middle must not litter a bucket that is to be trusted."""
    probes = open_store(root).probe()
    for _ in range(4):
        next(probes)
    assert keys(seaweedfs, root.removeprefix("s3://bucket/")) != []
    probes.close()  # type: ignore[attr-defined]  # a generator, whose interruption this is
    assert keys(seaweedfs, root.removeprefix("s3://bucket/")) == []


@pytest.mark.usefixtures("few_races")
def test_a_bucket_with_versions_is_left_without_one_of_ours(
    seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted by name alone, everything that was asked would stay there, hidden, and be paid for."""
    speak_to(monkeypatch, seaweedfs.environ)
    client = seaweedfs.client()
    client.create_bucket(Bucket="versioned")
    client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    found = graded(open_store("s3://versioned/root").probe(), now=NOW)
    assert found.grade is Grade.FULL
    assert {probe.name: probe.held for probe in found.probes}["versioning"]
    left = client.list_object_versions(Bucket="versioned")
    assert not left.get("Versions")
    assert not left.get("DeleteMarkers")


class Troubled(S3Client):
    """A service in trouble from its nth request on."""

    calls = 0
    healthy = 0

    def ask(self, operation: str, doing: str, **parameters: Any) -> dict[str, Any]:
        self.calls += 1
        if self.calls > self.healthy and operation != "delete_object":
            raise StoreTransientError("cannot probe: SlowDown (503)")
        return super().ask(operation, doing, **parameters)


@pytest.mark.parametrize("healthy", [0, 1, 5, 30])
def test_a_service_in_trouble_gets_no_grade(seaweedfs: SeaweedFS, root: str, healthy: int) -> None:
    """An outage that was kept as a bad grade would stop publishing long after it ended."""
    client, prefix = Troubled("bucket", StoreSettings()), root.removeprefix("s3://bucket/")
    client.healthy = healthy
    with pytest.raises(StoreTransientError):
        tuple(probe_bucket(client, f"{prefix}/"))
    assert keys(seaweedfs, prefix) == []


class Askew(S3Client):
    """A service whose clock is an hour behind."""

    def ask(self, operation: str, doing: str, **parameters: Any) -> dict[str, Any]:
        answer = super().ask(operation, doing, **parameters)
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        headers["date"] = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
        return answer


@pytest.mark.usefixtures("few_races")
def test_a_wrong_clock_is_said_and_decides_nothing(root: str) -> None:
    """Nothing orders by it, but ages and sweeps count by it and signatures depend on it."""
    probes = tuple(probe_bucket(Askew("bucket", StoreSettings()), "askew/"))
    (clock,) = (probe for probe in probes if probe.name == "clock")
    assert not clock.held
    assert clock.detail.startswith("-3600 s")
    assert judge_probes(probes).grade is Grade.FULL


class Lying(S3Client):
    """A service that takes a request and ignores a part of it, or all."""

    operation = key = parameter = ""

    def ask(self, operation: str, doing: str, **parameters: Any) -> dict[str, Any]:
        if operation == self.operation and self.key in parameters.get("Key", ""):
            if self.parameter == "everything":
                return {}
            parameters.pop(self.parameter, None)
        return super().ask(operation, doing, **parameters)


@pytest.mark.parametrize(
    ("operation", "key", "parameter", "grade", "limits"),
    [
        ("put_object", "create", "IfNoneMatch", Grade.READING_ONLY, ()),
        ("put_object", "race-create", "IfNoneMatch", Grade.READING_ONLY, ()),
        ("list_objects_v2", "", "Prefix", Grade.READING_ONLY, ()),
        ("get_object", "range", "Range", Grade.REFUSED, ()),
        ("get_object", "range", "IfMatch", Grade.REFUSED, ()),
        ("put_object", "replace", "IfMatch", Grade.PUBLISH_WITH_LIMITS, (Limit.CONDITIONAL_REPLACE,)),
        ("put_object", "race-replace", "IfMatch", Grade.PUBLISH_WITH_LIMITS, (Limit.CONDITIONAL_REPLACE,)),
        ("complete_multipart_upload", "", "IfNoneMatch", Grade.PUBLISH_WITH_LIMITS, (Limit.CONDITIONAL_MULTIPART,)),
        ("put_object", "wrong", "ChecksumSHA256", Grade.PUBLISH_WITH_LIMITS, UNCHECKED),
        ("head_object", "", "ChecksumMode", Grade.PUBLISH_WITH_LIMITS, (Limit.STORED_CHECKSUMS,)),
        ("delete_object", "listed", "everything", Grade.PUBLISH_WITH_LIMITS, (Limit.DELETE,)),
        ("delete_objects", "", "everything", Grade.PUBLISH_WITH_LIMITS, (Limit.DELETE,)),
    ],
)
@pytest.mark.usefixtures("few_races")
def test_every_probe_can_fail(
    root: str, operation: str, key: str, parameter: str, grade: Grade, limits: tuple[Limit, ...]
) -> None:
    """One thing is ignored at a time, and exactly what stands on it is missed: a probe that always held is none."""
    client = Lying("bucket", StoreSettings())
    client.operation, client.key, client.parameter = operation, key, parameter
    found = judge_probes(probe_bucket(client, f"{root.removeprefix('s3://bucket/')}/"))
    assert (found.grade, found.limits) == (grade, limits)


def test_credentials_that_only_read_are_graded_and_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They say nothing of the service: kept, their grade would stop those who may write."""
    with SeaweedFS(iam=True) as server:
        server.client().create_bucket(Bucket="bucket")
        given = server.client("sts").assume_role(RoleArn=READER_ROLE, RoleSessionName="test")["Credentials"]
        speak_to(monkeypatch, server.environ)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", given["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", given["SecretAccessKey"])
        monkeypatch.setenv("AWS_SESSION_TOKEN", given["SessionToken"])
        store = open_store("s3://bucket/root")
        found = graded(store.probe(), now=NOW)
        assert (found.grade, [probe.name for probe in found.probes]) == (Grade.READING_ONLY, ["readable", "writable"])
        assert found.forbidding is not None
        assert "AccessDenied" in found.forbidding.detail
        assert store.keep_grade(found) is None
        with pytest.raises(StoreLimitError, match=r"reading only by its grade: writable"):
            store.prepare(())
        assert keys(server) == []


# Obeying.


def test_publishing_asks_the_essential_part_itself_and_keeps_it(root: str) -> None:
    """Nobody is made to run `doctor` first, and what was not asked is not relied on."""
    store = open_store(root)
    assert store.grade() is None
    store.prepare(("llm/a",))
    kept = kept_in(root)
    assert (kept.grade, Limit.CONDITIONAL_REPLACE in kept.limits) == (Grade.PUBLISH_WITH_LIMITS, False)
    unasked = {probe.name for probe in kept.probes if probe.detail == NOT_ASKED}
    assert unasked == set(kept.limits) == set(Limit) - {Limit.CONDITIONAL_REPLACE}
    assert store.grade() == open_store(root).grade() == kept.summary


def test_a_kept_grade_is_not_asked_for_again(root: str) -> None:
    """The next start costs one read, and a whole grade is never replaced by the lesser one."""
    keep(root, Grade.FULL)
    before = kept_in(root)
    open_store(root).prepare(("llm/a",))
    assert kept_in(root) == before


def test_a_grade_that_is_no_document_is_left_to_doctor(root: str) -> None:
    """Publishing goes on by what it asked itself; a newer version's grade must not be overwritten by ours."""
    open_store(root).create(GRADE, b'{"grade":"excellent"}\n')
    store = open_store(root)
    store.prepare(("llm/a",))
    assert store.get(GRADE, limit_bytes=LIMIT) == b'{"grade":"excellent"}\n'
    summary = store.grade()
    assert summary is not None
    assert summary.grade is Grade.PUBLISH_WITH_LIMITS


def test_publishing_is_refused_where_a_conditional_create_overwrites(
    overwriting: JuiceFSGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lives that both hold a claim would both publish; the refusal names what is missing, and what to do."""
    speak_to(monkeypatch, overwriting.environ)
    store = open_store("s3://bucket/root")
    with pytest.raises(StoreLimitError) as refused:
        store.prepare(("llm/a",))
    assert "conditional_create: creating a key that exists is not refused" in refused.value.message
    assert refused.value.hint is not None
    assert "lastgood doctor s3://bucket/root" in refused.value.hint
    assert keys(overwriting, "root/") == [f"root/{GRADE}"]


def test_no_verdict_is_recorded_where_publishing_is_forbidden(root: str) -> None:
    """A record that another verifier could overwrite is no evidence; reading goes on."""
    writer = open_store(root)
    writer.create("llm/a", b"there")
    keep(root, Grade.READING_ONLY)
    store = open_store(root)
    for write in (
        lambda: store.create("llm/b", b"x"),
        lambda: store.replace("llm/a", b"x"),
        lambda: store.compare_and_swap("llm/b", b"x", expected=None),
        lambda: store.prepare(("llm/a",)),
    ):
        with pytest.raises(StoreLimitError, match="reading only by its grade"):
            write()
    assert store.get("llm/a", limit_bytes=LIMIT) == b"there"
    assert store.names("llm").files == ("a",)


def test_a_swap_that_the_grade_leaves_out_is_not_sent(root: str) -> None:
    """A service that ignores the condition would overwrite; this one would have swapped, so nothing was sent."""
    keep(root, Grade.PUBLISH_WITH_LIMITS, Limit.CONDITIONAL_REPLACE)
    store = open_store(root)
    store.prepare(("llm/a",))
    assert store.compare_and_swap("llm/a", b"1", expected=None)
    with pytest.raises(StoreLimitError, match="conditional_replace"):
        store.compare_and_swap("llm/a", b"2", expected=b"1")
    assert store.get("llm/a", limit_bytes=LIMIT) == b"1"


@pytest.mark.usefixtures("few_races")
def test_a_new_grade_is_obeyed_at_once_by_the_store_that_kept_it(root: str) -> None:
    """Whoever changed the service and asked again need not start anything anew."""
    keep(root, Grade.READING_ONLY)
    store = open_store(root)
    with pytest.raises(StoreLimitError):
        store.prepare(())
    assert store.keep_grade(graded(store.probe(), now=NOW)) == f"{root}/{GRADE}"
    store.prepare(())
    assert documents.canonical_bytes(kept_in(root)) == open_store(root).get(GRADE, limit_bytes=LIMIT)
    summary = store.grade()
    assert summary is not None
    assert summary.words == "full"


def test_a_family_gets_no_grade_of_its_own(root: str) -> None:
    """It would lie among the family's documents, and nobody would look for it there."""
    open_store(root).create("llm/.lastgood/commits/x", b"")
    with pytest.raises(StorePermanentError, match="a family, not a root of families") as refused:
        keep(f"{root}/llm", Grade.FULL)
    assert refused.value.hint is not None
    assert f"lastgood doctor {root}`" in refused.value.hint


def test_a_server_that_is_away_gets_no_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts during an outage is told to come again, and nothing is concluded."""
    with Moto() as server:
        environ = dict(server.environ)
    speak_to(monkeypatch, environ)
    with pytest.raises(StoreTransientError):
        tuple(open_store("s3://bucket/root", QUICK).probe())


def test_a_bucket_that_is_not_there_is_named(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spelling mistake must not come out as a bad grade."""
    speak_to(monkeypatch, seaweedfs.environ)
    with pytest.raises(StorePermanentError, match="bucket not found: s3://buckets"):
        tuple(open_store("s3://buckets/root").probe())
