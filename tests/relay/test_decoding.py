"""Bodies to objects: every sender's spelling is read, and nothing else is believed."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastgood_prefect.relay.decoding import (
    MAXIMUM_BODY_BYTES,
    MAXIMUM_RECORDS,
    StorageEvent,
    UndecodableEvent,
    decode,
)
from tests.relay.bodies import SHAPES, Body, aws, ceph, dumped, percent_encoded, s3_record, sns

KEYS = (
    "ckpt/a b+c.json",
    "runs/llm-7b/.lastgood/commits/00000003-0000000000048000",
    "grüße/日本語/x=y&z?#%41",
    "%2e%2e/not-decoded-twice%252F",
)


def decoded(body: object) -> list[tuple[str, str]]:
    return [(event.bucket, event.key) for event in decode(dumped(body))]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_sender_s_key_is_read_as_it_was_put(shape: Body, key: str) -> None:
    """Senders encode keys differently, and one that is decoded twice or not at all names another object."""
    assert decode(shape("bucket", key)) == (StorageEvent(bucket="bucket", key=key),)


def test_a_space_may_be_percent_encoded() -> None:
    """AWS writes `+`; both spellings mean a space in a URL-encoded key."""
    assert decode(percent_encoded("bucket", "a b/c")) == (StorageEvent(bucket="bucket", key="a b/c"),)


def test_what_ceph_sends_along_is_kept_and_never_shown() -> None:
    """A topic's opaque data is its shared secret; a log line of an event must not give it away."""
    (event,) = decode(ceph("bucket", "key", opaque="correct horse"))
    assert event.opaque == "correct horse"
    assert "horse" not in repr(event)


@pytest.mark.parametrize(
    "body",
    [
        {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-11-29T12:00:00Z", "Bucket": "bucket"},
        {"Records": []},
        {"event_type": "create", "key": "/buckets/bucket", "message": {}},
        {"event_type": "create", "key": "/etc/seaweedfs/filer.conf", "message": {}},
        {"event_type": "delete", "key": "", "message": {}},
    ],
    ids=["test event", "no records", "a bucket", "beside the buckets", "no key"],
)
def test_a_lawful_body_may_name_no_object(body: object) -> None:
    """S3's first message is a test, and filers tell of directories; neither is anybody's mistake."""
    assert decoded(body) == []


def test_a_test_event_comes_through_sns_too() -> None:
    """The first message of a queue behind a topic is a test as well."""
    assert decoded({"Type": "Notification", "Message": '{"Event": "s3:TestEvent"}'}) == []


def test_records_are_read_in_their_order() -> None:
    """The format allows several in a body, though AWS sends one."""
    body = {"Records": [s3_record("aws:s3", "bucket", f"key-{number}") for number in range(3)]}
    assert decoded(body) == [("bucket", f"key-{number}") for number in range(3)]


@pytest.mark.parametrize("key", ["../../etc/passwd", "/etc/passwd", "http://169.254.169.254/", "a\x00b", "‮", "a//b/"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_hostile_key_is_no_more_than_text(shape: Body, key: str) -> None:
    """Nobody opens it, so nothing need be repaired; repairing could turn it into a key that means something."""
    events = decode(shape("bucket", key))
    # A filer's path has no room for a key that begins with a slash; it is then another bucket's, and as harmless.
    assert [event.key for event in events] == [key]


def s3_body(**changes: object) -> bytes:
    return dumped({"Records": [s3_record("aws:s3", "bucket", "key", **changes)]})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not a storage event"),
        (b"null", "expected `object`"),
        (b"[]", "expected `object`"),
        (b"{}", "expected Records"),
        (b'{"Records": null}', "expected Records"),
        (b'{"Records": {}}', r"\$.Records"),
        (b'{"Records": [1]}', r"\$.Records\[0\]"),
        (b'{"Records": [{"eventSource": "aws:s3"}]}', "`s3`"),
        (b'{"Records": [' + b"[" * 200_000, "expected `object`"),
        (b'{"x": ' + b'{"x":' * 200_000, "nested too deeply"),
        (b'{"x": ' + b"9" * 100_000, "truncated|not a storage event"),
        (b"\xff\xfe{}", "not a storage event"),
        (b'{"Event": "\xff"}', "not a storage event"),
        (b'{"Event": "\\ud800"}', "not a storage event"),
        (s3_body(eventSource="gcs:storage"), "unknown source: expected aws:s3, minio:s3, ceph:s3, found gcs:storage"),
        (s3_body(eventSource=7), "eventSource"),
        (s3_body(eventVersion="3.0"), "unknown version: expected 2.x, found 3.0"),
        (s3_body(s3={"bucket": {"name": ""}, "object": {"key": "k"}}), "bucket.name"),
        (s3_body(s3={"bucket": {"name": "b"}, "object": {"key": "x" * 5000}}), "object.key"),
        (s3_body(s3={"bucket": {"name": "b"}, "object": {"key": "%ff%fe"}}), "not UTF-8"),
        (dumped({"Records": [s3_record("aws:s3", "b", "k")] * (MAXIMUM_RECORDS + 1)}), r"\$.Records"),
        (b" " * (MAXIMUM_BODY_BYTES + 1), f"at most {MAXIMUM_BODY_BYTES} bytes"),
        (
            dumped({"source": "aws.ec2", "detail": {"bucket": {"name": "b"}, "object": {"key": "k"}}}),
            "expected Records",
        ),
        (dumped({"source": "aws.s3", "detail": {"state": "running"}}), "detail"),
        (dumped({"Type": "SubscriptionConfirmation", "SubscribeURL": "https://sns.invalid/"}), "expected Records"),
        (dumped({"Type": "Notification", "Message": "hello"}), "not a storage event"),
        (dumped({"Type": "Notification", "Message": sns("b", "k").decode()}), "expected Records"),
        (dumped({"event_type": "create", "key": "/buckets/b/" + "x" * 5000}), "too long"),
        (dumped({"event_type": "create", "key": 5}), r"\$.key"),
    ],
)
def test_anything_else_is_refused_by_name(body: bytes, said: str) -> None:
    """Whoever configured the sender wrongly reads what was expected; a relay that crashed would be down for all."""
    with pytest.raises(UndecodableEvent, match=said):
        decode(body)


def test_a_refusal_shows_no_control_characters_and_no_novel() -> None:
    """It goes to a log, and whoever can send an event must not write there what they like."""
    with pytest.raises(UndecodableEvent) as raised:
        decode(s3_body(eventSource="\x1b[2J" + "x" * 10_000))
    assert "\x1b" not in raised.value.message
    assert len(raised.value.message) < 400


def test_huge_numbers_and_unknown_members_are_passed_over() -> None:
    """Senders add members without notice; none that we do not read may keep an event from us."""
    body = json.loads(aws("bucket", "key"))
    body["Records"][0]["s3"]["object"]["size"] = 10**400
    body["Records"][0]["glacierEventData"] = {"restoreEventData": [[[[1e308]]]]}
    assert decoded(body) == [("bucket", "key")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)
MEMBERS = st.sampled_from(
    ("Records", "Event", "Type", "Message", "source", "detail", "event_type", "key", "s3", "bucket", "object", "name")
)


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.dictionaries(MEMBERS, JSON, max_size=6).map(lambda it: json.dumps(it).encode()))
def test_whatever_is_sent_gives_events_or_the_one_error(body: bytes) -> None:
    """Anybody who can reach a queue or a port can send anything; no other exception may reach the relay's loop."""
    with contextlib.suppress(UndecodableEvent):
        assert all(event.bucket and event.key for event in decode(body))


@settings(max_examples=300)
@given(st.sampled_from(list(SHAPES.values())), st.integers(min_value=0), st.binary(min_size=1, max_size=3))
def test_a_damaged_notification_gives_events_or_the_one_error(shape: Body, place: int, damage: bytes) -> None:
    """The bytes of a real notification with some of them replaced come nearer to every branch than noise does."""
    body = shape("bucket", "runs/llm-7b/.lastgood/commits/00000001-0000000000000001")
    place %= len(body)
    with contextlib.suppress(UndecodableEvent):
        events = decode(body[:place] + damage + body[place + len(damage) :])
        assert all(event.bucket and event.key for event in events)


@settings(max_examples=200)
@given(st.sampled_from(list(SHAPES.values())), st.text(min_size=1, max_size=60).filter(lambda key: key.isprintable()))
def test_a_key_survives_every_sender(shape: Body, key: str) -> None:
    """What is put under a key must be heard of under that key, whatever characters it has."""
    assert [event.key for event in decode(shape("bucket", key))] == [key]
