"""What a bucket really does, asked before it is trusted: on objects of our own under the prefix, removed at the end.

Decides which questions there are and when an answer is the one that we need; `grading` decides what follows. Services
that speak the S3 API accept conditions and checksums that they then ignore, so nothing is concluded from an answer
alone: what lies there afterwards must be what the answer said. A service in trouble is no answer (`StoreError`), so
that no outage gets a bucket a bad grade.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import BotoCoreError, FlexibleChecksumError
from urllib3.exceptions import HTTPError

from lastgood.errors import StoreError, StoreTransientError
from lastgood.stores.grading import NOT_ASKED, RIGHTS, Limit, Needed, Probe
from lastgood.stores.s3.client import Refused, S3Client, read_failure, told
from lastgood.stores.s3.reading import pause
from lastgood.stores.s3.writing import CHECKSUM
from lastgood.text import printable

__all__ = ["SCRATCH", "probe_bucket", "probe_essentials"]

SCRATCH = ".lastgood-doctor-"
RACERS = 4
"""More show nothing new, and some services let each of eight racers wait for seconds."""
RACES = 4
ESSENTIAL_RACERS = ESSENTIAL_RACES = 2
"""A training job waits for these at its first start."""
PART_BYTES = 5 * 2**20
"""The least that S3 takes for a part that is not the last."""
TIMED_REQUESTS = 7
MAXIMUM_SKEW = timedelta(seconds=60)
SLOW_SECONDS = 1.0
LISTED = 5
PAGE = 2
WRONG_ETAG = '"00000000000000000000000000000000"'


def probe_bucket(client: S3Client, prefix: str) -> Iterator[Probe]:
    """Ask a bucket for everything that publishing, verifying and restoring rely on.

    Args:
        client: Of the bucket.
        prefix: The store's root with its last slash; empty for the whole bucket.

    Raises:
        StoreError: There is no such bucket, no credentials, or no answer.
    """
    yield from _ask_all(_Scratch(client, prefix, RACERS, RACES), _QUESTIONS)


def probe_essentials(client: S3Client, prefix: str) -> Iterator[Probe]:
    """Ask only whether racing writers have one winner; the limits that were not asked for are said not to hold."""
    scratch = _Scratch(client, prefix, ESSENTIAL_RACERS, ESSENTIAL_RACES)
    yield from _ask_all(scratch, tuple(one for one in _QUESTIONS if one[0] in _ESSENTIAL))
    for name, needed, _ in _QUESTIONS:
        if needed is Needed.FULL and name not in _ESSENTIAL:
            yield Probe(name=name, held=False, needed=needed, detail=NOT_ASKED)


class _Unfit(Exception):
    """The probe does not hold; the message says what was seen."""


class _Scratch:
    """Objects of one probing, under a prefix of its own.

    Args:
        client: Of the bucket.
        root: The store's prefix.
        racers: How many race for a key.
        races: For how many keys.
    """

    def __init__(self, client: S3Client, root: str, racers: int, races: int) -> None:
        self.client = client
        self.root = root
        self.racers = racers
        self.races = races
        self.prefix = f"{root}{SCRATCH}{secrets.token_hex(8)}/"
        self._written: dict[str, None] = {}

    def put(self, name: str, data: bytes, **options: Any) -> dict[str, Any]:
        self._written[name] = None
        return self.ask("put_object", Key=self.prefix + name, Body=data, **options)

    def put_version(self, name: str, data: bytes) -> str:
        """The ETag under which the service keeps it."""
        etag: str = told(self.put(name, data), "ETag", self._doing)
        return etag

    def get(self, name: str, **options: Any) -> bytes | None:
        """The bytes under a name; None when it is absent."""
        try:
            answer = self.ask("get_object", Key=self.prefix + name, **options)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise
        try:
            with contextlib.closing(answer["Body"]) as body:
                data: bytes = body.read()
                return data
        except FlexibleChecksumError as error:
            raise _Unfit(f"answers with a checksum that does not fit: {printable(str(error))}") from None
        except (BotoCoreError, HTTPError, OSError) as error:
            raise read_failure(error, self._doing) from error

    def ask(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return self.client.ask(operation, self._doing, **parameters)

    def upload(self, name: str, parts: tuple[bytes, ...], *, checksum: str = CHECKSUM, **conditions: Any) -> None:
        """Store an object in parts, the last one sent first."""
        self._written[name] = None
        key = self.prefix + name
        declared = {"ChecksumAlgorithm": checksum} if self.client.declares_checksums else {}
        upload = told(self.ask("create_multipart_upload", Key=key, **declared), "UploadId", self._doing)
        try:
            sent: list[dict[str, Any]] = []
            for number, data in reversed(tuple(enumerate(parts, start=1))):
                named = {"Key": key, "UploadId": upload, "PartNumber": number}
                answer = self.ask("upload_part", Body=data, **named, **declared)
                sums = {k: v for k, v in answer.items() if k.startswith("Checksum") and k != "ChecksumType"}
                sent.insert(0, {"PartNumber": number, "ETag": told(answer, "ETag", self._doing), **sums})
            listed = {"Parts": sent}
            self.ask("complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload=listed, **conditions)
        except BaseException:
            with contextlib.suppress(StoreError, Refused):
                self.ask("abort_multipart_upload", Key=key, UploadId=upload)
            raise

    def page(self, **options: Any) -> dict[str, Any]:
        """A page of a listing. One that broke off before its first byte parses as an empty one: that is no answer."""
        page = self.ask("list_objects_v2", Prefix=self.prefix, **options)
        told(page, "IsTruncated", self._doing)
        return page

    def names(self) -> set[str]:
        """What a listing shows, page by page."""
        found: set[str] = set()
        token: dict[str, str] = {}
        while True:
            page = self.page(MaxKeys=PAGE, **token)
            found |= {item["Key"].removeprefix(self.prefix) for item in page.get("Contents", ())}
            if not page["IsTruncated"]:
                return found
            if page.get("NextContinuationToken") in (None, token.get("ContinuationToken")):
                raise _Unfit("a listing of several pages breaks off")
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def remove(self) -> None:
        """Remove everything that was written, older versions too, as far as the service lets us."""
        if not self._written:
            return
        try:
            # The last is the directory that services with real directories keep.
            for name in (*self._written, ""):
                with contextlib.suppress(Refused):
                    self.ask("delete_object", Key=self.prefix + name)
            for version in self._versions():
                with contextlib.suppress(Refused):
                    self.ask("delete_object", Key=version["Key"], VersionId=version["VersionId"])
        except (StoreError, Refused):
            pass  # it went away, or has no versions; what is left lies under a name that says whose it is

    def _versions(self) -> Iterator[dict[str, Any]]:
        markers: dict[str, str] = {}
        while True:
            page = self.ask("list_object_versions", Prefix=self.prefix, **markers)
            yield from (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))
            following = {
                name: page[f"Next{name}"] for name in ("KeyMarker", "VersionIdMarker") if page.get(f"Next{name}")
            }
            if not page.get("IsTruncated") or following in ({}, markers):
                return
            markers = following

    @property
    def _doing(self) -> str:
        return f"probe {self.prefix}"


_Question = Callable[[_Scratch], str]


def _ask_all(scratch: _Scratch, questions: tuple[tuple[str, Needed, _Question], ...]) -> Iterator[Probe]:
    try:
        for name, needed, question in questions:
            probe = _ask(name, needed, question, scratch)
            yield probe
            if name in RIGHTS and not probe.held:
                return  # everything below would say the same
    finally:
        scratch.remove()


def _ask(name: str, needed: Needed, question: _Question, scratch: _Scratch) -> Probe:
    try:
        held, detail = True, question(scratch)
    except _Unfit as unfit:
        held, detail = False, str(unfit)
    except Refused as refused:
        if refused.is_resent:
            # The refusal may be the echo of our own first sending: it says nothing about the service.
            raise StoreTransientError(f"cannot tell: {name}: an answer got lost on the way") from refused
        held, detail = False, f"answered {refused}"
    except StoreError as error:
        if needed is not Needed.NOTHING:
            raise
        held, detail = False, f"could not tell: {error.message}"
    return Probe(name=name, held=held, needed=needed, detail=detail)


# Questions: what was seen, or `_Unfit`.


def _readable(scratch: _Scratch) -> str:
    scratch.ask("list_objects_v2", Prefix=scratch.root, MaxKeys=1)
    return "can be listed"


def _writable(scratch: _Scratch) -> str:
    scratch.put("writable", b"written")
    _expect(scratch.get("writable"), b"written", "read back after writing")
    return "an object is written and read back"


def _conditional_create(scratch: _Scratch) -> str:
    scratch.put("create", b"first", IfNoneMatch="*")
    _must_refuse(lambda: scratch.put("create", b"second", IfNoneMatch="*"), "creating a key that exists")
    _expect(scratch.get("create"), b"first", "after a refused creation")
    return "If-None-Match: a second creation is refused and changes nothing"


def _create_race(scratch: _Scratch) -> str:
    for number in range(scratch.races):
        _race(scratch, f"race-create-{number}", IfNoneMatch="*")
    return f"{scratch.racers} racers for each of {scratch.races} keys: one winner each"


def _conditional_replace(scratch: _Scratch) -> str:
    etag = scratch.put_version("replace", b"first")
    _must_refuse(lambda: scratch.put("replace", b"wrong", IfMatch=WRONG_ETAG), "replacing another version")
    _expect(scratch.get("replace"), b"first", "after a refused replacement")
    try:
        scratch.put("replace", b"second", IfMatch=etag)
    except Refused as refused:
        if refused.is_resent:
            raise
        raise _Unfit(f"If-Match: replacing the right version is answered {refused}") from None
    _must_refuse(lambda: scratch.put("replace", b"third", IfMatch=etag), "replacing a version that is gone")
    _expect(scratch.get("replace"), b"second", "after a replacement")
    for number in range(scratch.races):
        etag = scratch.put_version(f"race-replace-{number}", b"")
        _race(scratch, f"race-replace-{number}", IfMatch=etag)
    return f"If-Match: only the version that was read is replaced; {scratch.racers} racers, one winner each"


def _ranged_read(scratch: _Scratch) -> str:
    data = bytes(range(256)) * 16
    etag = scratch.put_version("range", data)
    _expect(scratch.get("range", Range="bytes=1000-", IfMatch=etag), data[1000:], "of a range to the end")
    _expect(scratch.get("range", Range="bytes=10-19", IfMatch=etag), data[10:20], "of a range")
    _must_refuse(lambda: scratch.get("range", Range="bytes=1000-", IfMatch=WRONG_ETAG), "reading another version")
    return "a reading that broke off can be taken up, bound to its version"


def _multipart(scratch: _Scratch) -> str:
    parts = (b"a" * PART_BYTES, b"b" * 1000)
    scratch.upload("multipart", parts)
    if scratch.get("multipart") != b"".join(parts):
        raise _Unfit("an object that was sent in parts is not what was sent")
    return "an object in two parts, sent in the wrong order, is whole"


def _conditional_multipart(scratch: _Scratch) -> str:
    scratch.upload("parts", (b"first",), IfNoneMatch="*")
    _must_refuse(lambda: scratch.upload("parts", (b"second",), IfNoneMatch="*"), "completing an upload over an object")
    _expect(scratch.get("parts"), b"first", "after a refused completion")
    return "If-None-Match: an upload in parts is not completed over an object"


def _checksum_rejection(scratch: _Scratch) -> str:
    data, other = b"sent", b"meant"
    for name, wrong in _checksums(other).items():
        try:
            scratch.put(f"right-{name}", data, **_checksums(data)[name])
        except Refused as refused:
            raise _Unfit(f"the right {name} of an upload is answered {refused}") from None
        try:
            scratch.put(f"wrong-{name}", data, **wrong)
        except Refused:
            continue
        raise _Unfit(f"an upload whose {name} is wrong is accepted")
    return "uploads whose CRC32 or SHA256 is wrong are refused"


def _stored_checksums(scratch: _Scratch) -> str:
    data = b"kept"
    for name, checksum in _checksums(data).items():
        scratch.put(f"stored-{name}", data, **checksum)
        answer = scratch.ask("head_object", Key=f"{scratch.prefix}stored-{name}", ChecksumMode="ENABLED")
        kept = answer.get(f"Checksum{name}")
        if kept != checksum[f"Checksum{name}"]:
            raise _Unfit(f"{name} is not kept" if kept is None else f"another {name} is kept than was sent")
    scratch.upload("stored-parts", (data,), checksum="SHA256")
    answer = scratch.ask("head_object", Key=f"{scratch.prefix}stored-parts", ChecksumMode="ENABLED")
    whole = hashlib.sha256(hashlib.sha256(data).digest()).digest()
    if answer.get("ChecksumSHA256") != (expected := f"{base64.b64encode(whole).decode()}-1"):
        raise _Unfit(
            f"the SHA256 over parts: expected {expected}, found {printable(str(answer.get('ChecksumSHA256')))}"
        )
    return "HEAD returns the CRC32 and the SHA256 of an upload, and the SHA256 over the parts of one"


def _list_after_write(scratch: _Scratch) -> str:
    before = scratch.names()
    written = {f"listed/{number}" for number in range(LISTED)}
    for name in sorted(written):
        scratch.put(name, b"")
        if name not in scratch.names():
            raise _Unfit("what was just written is not listed")
    if scratch.names() != before | written:
        raise _Unfit("a listing of several pages is not what lies there")
    page = scratch.page(Delimiter="/")
    if [one["Prefix"] for one in page.get("CommonPrefixes", ())] != [f"{scratch.prefix}listed/"]:
        raise _Unfit("a listing with a delimiter does not show what lies below")
    return "what was written is listed at once, page by page"


def _delete(scratch: _Scratch) -> str:
    names = [f"listed/{number}" for number in range(LISTED)]
    scratch.ask("delete_object", Key=scratch.prefix + names[0])
    if scratch.get(names[0]) is not None or names[0] in scratch.names():
        raise _Unfit("what was deleted is still there")
    doomed = {"Objects": [{"Key": scratch.prefix + name} for name in names[1:]], "Quiet": True}
    failed = scratch.ask("delete_objects", Delete=doomed).get("Errors")
    if failed or scratch.names() & set(names):
        raise _Unfit("of several that were deleted in one request, some are still there")
    return "one by one and many at once"


def _versioning(scratch: _Scratch) -> str:
    status = scratch.ask("get_bucket_versioning").get("Status")
    if status != "Enabled":
        raise _Unfit("off: what somebody deletes or overwrites is gone")
    return "on: let a lifecycle rule expire what the caches leave"


def _clock(scratch: _Scratch) -> str:
    begun = datetime.now(UTC)
    answer = scratch.put("clock", b"")
    middle = begun + (datetime.now(UTC) - begun) / 2
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        raise _Unfit("the service does not say what time it is")
    # The header has whole seconds, cut off; on average half of one is missing.
    skew = parsedate_to_datetime(date).astimezone(UTC) + timedelta(seconds=0.5) - middle
    seen = f"{round(skew.total_seconds()):+d} s against this machine"
    if abs(skew) > MAXIMUM_SKEW:
        raise _Unfit(f"{seen}: expected at most {MAXIMUM_SKEW.total_seconds():.0f} s")
    return seen


def _latency(scratch: _Scratch) -> str:
    took: dict[str, list[float]] = {"PUT": [], "GET": []}
    for number in range(TIMED_REQUESTS):
        begun = time.monotonic()
        scratch.put(f"timed-{number}", b"x" * 1000)
        between = time.monotonic()
        scratch.get(f"timed-{number}")
        took["PUT"].append(between - begun)
        took["GET"].append(time.monotonic() - between)
    medians = {name: statistics.median(times) for name, times in took.items()}
    seen = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in medians.items())
    if max(medians.values()) > SLOW_SECONDS:
        raise _Unfit(f"{seen}: a publish waits for a dozen of them")
    return seen


# Steps shared by the questions.


def _expect(found: bytes | None, expected: bytes, when: str) -> None:
    if found != expected:
        raise _Unfit(f"other bytes than expected {when}")


def _must_refuse(request: Callable[[], object], what: str) -> None:
    """A request whose condition does not hold must be answered 412."""
    try:
        request()
    except Refused as refused:
        if refused.status != 412:
            raise _Unfit(f"{what} is answered {refused}: expected 412") from None
        return
    raise _Unfit(f"{what} is not refused: the condition is ignored")


def _race(scratch: _Scratch, name: str, **condition: Any) -> None:
    """Let racers write one key under one condition; exactly one may win, and its bytes must lie there."""
    barrier = threading.Barrier(scratch.racers)

    def write(racer: int) -> bool | None:
        """Whether it won; None where an earlier sending of its own may have."""
        barrier.wait()
        for failures in range(1, scratch.client.settings.attempts + 1):
            try:
                scratch.put(name, b"%d" % racer, **condition)
                return True
            except Refused as refused:
                if refused.status == 412:
                    return None if refused.is_resent else False
                if refused.status != 409:
                    raise
            pause(failures)  # 409: another one is under way, and may yet fail
        raise StoreTransientError(f"cannot probe {scratch.prefix}: in conflict with itself")

    with ThreadPoolExecutor(max_workers=scratch.racers, thread_name_prefix="lastgood-race") as threads:
        answers = list(threads.map(write, range(scratch.racers)))
    lies = scratch.get(name)
    won = [
        b"%d" % racer for racer, answer in enumerate(answers) if answer or (answer is None and lies == b"%d" % racer)
    ]
    if len(won) != 1:
        raise _Unfit(f"{len(won)} of {scratch.racers} racers won: expected one")
    _expect(lies, won[0], "after a race")


def _checksums(data: bytes) -> dict[str, dict[str, str]]:
    """By the name of an algorithm (what boto3 sends by itself, and what proves more) the parameters of an upload."""
    values = {"CRC32": zlib.crc32(data).to_bytes(4, "big"), "SHA256": hashlib.sha256(data).digest()}
    return {
        name: {"ChecksumAlgorithm": name, f"Checksum{name}": base64.b64encode(value).decode()}
        for name, value in values.items()
    }


_QUESTIONS: tuple[tuple[str, Needed, _Question], ...] = (
    ("readable", Needed.READING, _readable),
    ("writable", Needed.PUBLISHING, _writable),
    ("ranged_read", Needed.READING, _ranged_read),
    ("conditional_create", Needed.PUBLISHING, _conditional_create),
    ("create_race", Needed.PUBLISHING, _create_race),
    (Limit.CONDITIONAL_REPLACE, Needed.FULL, _conditional_replace),
    ("multipart", Needed.PUBLISHING, _multipart),
    (Limit.CONDITIONAL_MULTIPART, Needed.FULL, _conditional_multipart),
    (Limit.CHECKSUM_REJECTION, Needed.FULL, _checksum_rejection),
    (Limit.STORED_CHECKSUMS, Needed.FULL, _stored_checksums),
    ("list_after_write", Needed.PUBLISHING, _list_after_write),
    (Limit.DELETE, Needed.FULL, _delete),  # of what the listing left
    ("versioning", Needed.NOTHING, _versioning),
    ("clock", Needed.NOTHING, _clock),
    ("latency", Needed.NOTHING, _latency),
)

_ESSENTIAL = frozenset({"readable", "writable", "conditional_create", "create_race", Limit.CONDITIONAL_REPLACE})
