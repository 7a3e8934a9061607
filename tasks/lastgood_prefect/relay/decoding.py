"""The body of a storage notification → the objects that it names.

Decides how each sender spells a body and a key, and what is refused; leaves to `reading` what an object means. Pure: a
body is bytes in, buckets and keys out, and nothing is opened or fetched. Understood, as measured or documented:

    AWS S3 → SQS, S3 → SNS → SQS     Records[], eventSource aws:s3      key URL-encoded, `+` for a space
    MinIO webhook                    Records[], eventSource minio:s3    key URL-encoded, `/` as %2F
    Ceph topic over HTTP             Records[], eventSource ceph:s3     key as it is: `+` is a plus
    S3 → EventBridge → SQS           source aws.s3, detail              key as it is
    SeaweedFS filer webhook          event_type, key /buckets/B/…       key as it is

Rules:

- Unknown members are ignored, as senders add some without notice; another major version is refused.
- Sequencers are not read. They would order the events of one key, and an event is only a reason to look.
- Whatever a body holds, `UndecodableEvent` is the one thing raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final
from urllib.parse import unquote_plus

import msgspec
from msgspec import Meta

from lastgood.errors import LastgoodError
from lastgood.text import printable

__all__ = ["MAXIMUM_BODY_BYTES", "MAXIMUM_RECORDS", "StorageEvent", "UndecodableEvent", "decode"]

MAXIMUM_BODY_BYTES: Final = 2**20
"""As much as SQS carries in one message; senders use some 2 KiB."""
MAXIMUM_RECORDS: Final = 1000
"""Senders put one record into a body; the format allows more."""
MAXIMUM_KEY_CHARACTERS: Final = 4096
"""Object stores take 1024 bytes, up to three characters a byte once they are URL-encoded."""

_SEAWEEDFS_BUCKETS: Final = "/buckets/"
_URL_ENCODED: Final = {"aws:s3": True, "minio:s3": True, "ceph:s3": False}


class UndecodableEvent(LastgoodError):
    """Bytes that claim to be a storage notification are none that we know; the message says what was expected."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageEvent:
    """Something happened to an object. What, is not said: whoever hears of it looks.

    Args:
        bucket: Its name.
        key: Of the object, decoded.
        opaque: What the owner of a Ceph topic had sent along with each event: a shared secret, so never shown.
    """

    bucket: str
    key: str
    opaque: str = field(default="", repr=False)


def decode(body: bytes) -> tuple[StorageEvent, ...]:
    """The objects that a notification names, in its order; none for a lawful one that names none (`s3:TestEvent`).

    Raises:
        UndecodableEvent: Too large, not JSON, not a notification that we know, or a key that is not text.
    """
    return tuple(_events(_parsed(body)))


_Name = Annotated[str, Meta(min_length=1, max_length=MAXIMUM_KEY_CHARACTERS)]


class _Named(msgspec.Struct, frozen=True):
    name: _Name


class _Keyed(msgspec.Struct, frozen=True):
    key: _Name


class _Subject(msgspec.Struct, frozen=True):
    bucket: _Named
    object: _Keyed


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    source: str = msgspec.field(name="eventSource")
    version: str = msgspec.field(name="eventVersion", default="2.0")
    s3: _Subject
    opaque: str = msgspec.field(name="opaqueData", default="")


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """Every shape at once: no two of them use one member for different things."""

    records: Annotated[tuple[_Record, ...], Meta(max_length=MAXIMUM_RECORDS)] | None = msgspec.field(
        name="Records", default=None
    )
    test: str | None = msgspec.field(name="Event", default=None)
    sns: str | None = msgspec.field(name="Type", default=None)
    sns_message: str = msgspec.field(name="Message", default="")
    eventbridge: str | None = msgspec.field(name="source", default=None)
    detail: _Subject | None = None
    seaweedfs: str | None = msgspec.field(name="event_type", default=None)
    key: str = ""


_DECODER: Final = msgspec.json.Decoder(_Body)


def _parsed(body: bytes) -> _Body:
    if len(body) > MAXIMUM_BODY_BYTES:
        raise UndecodableEvent(f"event too large: expected at most {MAXIMUM_BODY_BYTES} bytes, found {len(body)}")
    try:
        return _DECODER.decode(body)
    except RecursionError:
        raise UndecodableEvent("not a storage event: nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        said = str(error)
        raise UndecodableEvent(f"not a storage event: {_clipped(said[:1].lower() + said[1:])}") from None


def _events(body: _Body, *, is_unwrapped: bool = False) -> Iterator[StorageEvent]:
    if body.records is not None:
        yield from map(_of_record, body.records)
    elif body.test == "s3:TestEvent":
        return
    elif body.eventbridge == "aws.s3" and body.detail is not None:
        yield StorageEvent(bucket=body.detail.bucket.name, key=body.detail.object.key)
    elif body.seaweedfs is not None:
        bucket, _, key = body.key.removeprefix(_SEAWEEDFS_BUCKETS).partition("/")
        # A directory of buckets, or a path beside them, is the filer's own and no object.
        if body.key.startswith(_SEAWEEDFS_BUCKETS) and bucket and key:
            yield StorageEvent(bucket=bucket, key=_bounded(key))
    elif body.sns == "Notification" and not is_unwrapped:
        yield from _events(_parsed(body.sns_message.encode()), is_unwrapped=True)
    else:
        raise UndecodableEvent(
            "not a storage event: expected Records, an s3:TestEvent, an EventBridge event of aws.s3, an SNS "
            "notification of one of these, or a SeaweedFS event_type with a key"
        )


def _of_record(record: _Record) -> StorageEvent:
    if record.source not in _URL_ENCODED:
        raise UndecodableEvent(
            f"event of an unknown source: expected {', '.join(_URL_ENCODED)}, found {_clipped(record.source)}"
        )
    if record.version.partition(".")[0] != "2":
        raise UndecodableEvent(f"event of an unknown version: expected 2.x, found {_clipped(record.version)}")
    key = record.s3.object.key
    if _URL_ENCODED[record.source]:
        try:
            key = unquote_plus(key, errors="strict")
        except UnicodeDecodeError:
            raise UndecodableEvent(f"key of an event is not UTF-8: {_clipped(key)}") from None
    return StorageEvent(bucket=record.s3.bucket.name, key=key, opaque=record.opaque)


def _bounded(key: str) -> str:
    if len(key) > MAXIMUM_KEY_CHARACTERS:
        raise UndecodableEvent(
            f"key of an event too long: expected at most {MAXIMUM_KEY_CHARACTERS} characters, found {len(key)}"
        )
    return key


def _clipped(text: str) -> str:
    return printable(text[:MAXIMUM_KEY_CHARACTERS])[:200]
