"""The object store: a prefix of a bucket that speaks the S3 API.

Decides which requests make each promise of the port true. Rules (reasons: ADR 0007): keys are written once, under a
condition that the service checks; only caches are replaced, and only from the version that was read; artifacts are
written under the generation's final name at once, for nothing can be renamed here and nobody looks there before
COMMIT; a rank vouches for what it read back. Where a condition may have been met by an earlier sending of the same
request, the bytes that lie there decide.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError
from urllib3.exceptions import HTTPError

from lastgood import documents
from lastgood.digest import Algorithm, HashRequest
from lastgood.errors import (
    FormatError,
    StoreError,
    StoreLimitError,
    StorePermanentError,
    StoreTransientError,
    UsageError,
)
from lastgood.identity import GRADE, check_key, is_lawful_key
from lastgood.stores.grading import MAXIMUM_GRADE_BYTES, KeptGrade, Limit, Probe, StoreGrade, graded, parse_grade
from lastgood.stores.port import Hashed, Names, ObjectKind, ObjectReader, Progress, Recorded, StoredObject, Trouble
from lastgood.stores.roots import parse_s3_uri
from lastgood.stores.s3.checksums import compare_objects
from lastgood.stores.s3.client import Refused, S3Client, read_failure, told
from lastgood.stores.s3.probing import probe_bucket, probe_essentials
from lastgood.stores.s3.reading import RangedObject, hash_object, hash_objects, pause
from lastgood.stores.s3.writing import send_files
from lastgood.stores.scratch import PrivateDirectory
from lastgood.stores.settings import StoreSettings

__all__ = ["S3Store"]

MAXIMUM_DELETED = 1000
"""Keys that one request may delete."""
MAXIMUM_LISTED = 1000
"""Names in a page where its answer does not say how many it may hold."""
LAST_CHARACTER = "\U0010ffff"
"""No key that goes on after a prefix sorts behind it."""


class S3Store:
    """A `Store` over a prefix of a bucket.

    Args:
        uri: `s3://bucket/prefix`; the bucket must exist, the prefix need not.
        settings: How it is spoken to.
    """

    def __init__(self, uri: str, settings: StoreSettings | None = None) -> None:
        bucket = parse_s3_uri(uri)
        self.uri = bucket.uri
        self._prefix = f"{bucket.prefix}/" if bucket.prefix else ""
        self._client = S3Client(bucket.name, settings or StoreSettings())
        self._scratch: PrivateDirectory | None = None
        self._making_scratch = threading.Lock()
        self._kept: KeptGrade | None = None
        self._has_looked = False

    def __reduce__(self) -> tuple[type[S3Store], tuple[str, StoreSettings]]:
        """Opened anew where it arrives, with the credentials there: connections do not travel, and keys must not."""
        return type(self), (self.uri, self._client.settings)

    # Reading.

    def is_root(self) -> bool:
        try:
            self._client.call("head_bucket", "look at the root")
        except Refused:
            return False
        return True

    # Its grade.

    def probe(self) -> Iterator[Probe]:
        return probe_bucket(self._client, self._prefix)

    def grade(self) -> StoreGrade | None:
        kept = self._kept_grade()
        return kept.summary if kept is not None else None

    def keep_grade(self, grade: KeptGrade) -> str | None:
        if not grade.is_of_store:
            return None
        if self.names(GRADE.partition("/")[0]).directories:
            hint = f"`lastgood doctor {self.uri.rpartition('/')[0]}` grades the root that it lies in"
            raise StorePermanentError(f"a family, not a root of families: {self.uri}", hint=hint)
        self._replace(GRADE, documents.canonical_bytes(grade))
        self._kept, self._has_looked = grade, True
        return f"{self.uri}/{GRADE}"

    def _kept_grade(self) -> KeptGrade | None:
        """What lies there, read once. What cannot be read or is no lawful grade grants and forbids nothing: a gate may
        have no rights beyond its family, and a publisher asks for itself.
        """
        if not self._has_looked:
            try:
                data = self.get(GRADE, limit_bytes=MAXIMUM_GRADE_BYTES)
                self._kept = parse_grade(data) if data is not None else None
            except (FormatError, StorePermanentError):
                self._kept = None
            self._has_looked = True
        return self._kept

    def _is_limited(self, limit: Limit) -> bool:
        """Whether the store was seen to lack something, or was not asked; without any grade it is not known to."""
        kept = self._kept_grade()
        return kept is not None and limit in kept.limits

    def _check_publishing(self) -> None:
        """Refuse a bucket whose grade forbids publishing; one that has none is asked for the essential part."""
        kept = self._kept_grade()
        if kept is None:
            kept = self._kept = graded(probe_essentials(self._client, self._prefix), now=datetime.now(UTC))
            if kept.is_of_store:
                # Never over another: a whole one is worth more, and one that we cannot read is for `doctor` to replace.
                # Publishing does not depend on it: whoever finds none asks again.
                with contextlib.suppress(StoreError):
                    self._create(GRADE, documents.canonical_bytes(kept))
        if not kept.grade.may_publish:
            raise self._forbidden(kept, "publish to")

    def _check_writing(self) -> None:
        """Refuse to write documents where a grade forbids it; a gate that finds none does not wait for one."""
        kept = self._kept_grade()
        if kept is not None and not kept.grade.may_publish:
            raise self._forbidden(kept, "write to", "--no-record only looks; ")

    def _forbidden(self, kept: KeptGrade, doing: str, advice: str = "") -> StoreLimitError:
        probe = kept.forbidding
        seen = f"{probe.name}: {probe.detail}" if probe is not None else "no probe held"
        return StoreLimitError(
            f"cannot {doing} {self.uri}: {kept.grade.words} by its grade: {seen}",
            hint=f"{advice}`lastgood doctor {self.uri}` asks again, once the service or our rights were changed",
        )

    # Its objects.

    def local_directory(self, prefix: str) -> Path | None:
        check_key(prefix)
        return None

    def names(self, prefix: str) -> Names:
        files: list[str] = []
        directories: list[str] = []
        below = f"{self._key(prefix)}/" if prefix else self._prefix
        for page in self._pages(f"list {prefix}", Prefix=below, Delimiter="/"):
            files += [name for item in page.get("Contents", ()) if (name := item["Key"].removeprefix(below))]
            directories += [item["Prefix"].removeprefix(below).rstrip("/") for item in page.get("CommonPrefixes", ())]
        return Names(files=tuple(sorted(files)), directories=tuple(sorted(name for name in directories if name)))

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        for item in self._items(prefix):
            key = item["Key"].removeprefix(self._prefix)
            if key.endswith("/") and not item["Size"]:
                continue  # what consoles put there to show a directory
            kind = ObjectKind.FILE if is_lawful_key(key) else ObjectKind.OTHER
            # In whole seconds, as HEAD tells it: some services list fractions, and the two must compare.
            written_at = told(item, "LastModified", f"walk {prefix}").replace(microsecond=0)
            yield StoredObject(key=key, bytes=item["Size"], kind=kind, written_at=written_at)

    def stat(self, key: str) -> StoredObject | None:
        doing = f"stat {key}"
        found = self._head(key, doing)
        if found is None:
            return None
        size_bytes = told(found, "ContentLength", doing)
        return StoredObject(key=key, bytes=size_bytes, written_at=told(found, "LastModified", doing))

    def last_changed(self, prefix: str) -> datetime | None:
        found = self._head(prefix, f"look at {prefix}")
        moments = [found["LastModified"]] if found is not None else []
        return max([*moments, *(item["LastModified"] for item in self._items(prefix))], default=None)

    def clock(self, prefix: str) -> datetime:
        check_key(prefix)
        try:
            answer = self._client.call("head_bucket", f"ask the time of {prefix}")
        except Refused as refused:
            raise self._no_bucket() from refused
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        return parsedate_to_datetime(told(headers, "date", f"ask the time of {prefix}")).astimezone(UTC)

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        found = self._read(key, limit_bytes)
        return found[0] if found is not None else None

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        check_key(prefix)
        return hash_objects(
            self._client, [(self._key(f"{prefix}/{request.path}"), request) for request in requests], progress
        )

    @contextlib.contextmanager
    def open(self, prefix: str, path: str) -> Iterator[ObjectReader]:
        name, doing = f"{prefix}/{path}", f"read {prefix}/{path}"
        found = self._head(name, doing)
        if found is None:
            raise StorePermanentError(f"object not found: {name}")
        size_bytes, etag = told(found, "ContentLength", doing), told(found, "ETag", doing)
        yield RangedObject(self._client, self._key(name), name, size_bytes=size_bytes, etag=etag)

    def compare_checksums(self, prefix: str, recorded: Sequence[Recorded]) -> Iterator[bool | None]:
        if not self._vouches():
            return (None for _ in recorded)
        return compare_objects(self._client, [(self._key(f"{prefix}/{one.path}"), one) for one in recorded])

    def _vouches(self) -> bool:
        """Whether a checksum that the service keeps says something of an object: it was seen to refuse wrong ones."""
        kept = self._kept_grade()
        return kept is not None and kept.grade.may_publish and Limit.STORED_CHECKSUMS not in kept.limits

    def fetch(self, prefix: str, request: HashRequest, destination: Path) -> Hashed:
        try:
            return hash_object(self._client, self._key(f"{prefix}/{request.path}"), request, destination=destination)
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise StorePermanentError(f"cannot fetch {prefix}/{request.path} to {destination}: {reason}") from error

    # Small documents.

    def create(self, key: str, data: bytes) -> bool:
        self._check_writing()
        return self._create(key, data)

    def _create(self, key: str, data: bytes) -> bool:
        is_resent = False  # an earlier sending may have been carried out
        for failures in range(1, self._client.settings.attempts + 1):
            try:
                self._client.call("put_object", f"create {key}", Key=self._key(key), Body=data, IfNoneMatch="*")
                return True
            except Refused as refused:
                is_resent |= refused.is_resent
                if refused.status == 412:
                    return is_resent and self._holds(key, data)
                if refused.status == 404:
                    raise self._no_bucket() from refused
            pause(failures)  # 409: a request for the same key is under way; it may yet fail
        raise StoreTransientError(f"cannot create {key}: in conflict with other requests for it")

    def replace(self, key: str, data: bytes) -> None:
        self._check_writing()
        self._replace(key, data)

    def _replace(self, key: str, data: bytes) -> None:
        try:
            self._client.call("put_object", f"replace {key}", Key=self._key(key), Body=data)
        except Refused as refused:
            raise StoreTransientError(f"cannot replace {key}: {refused}") from refused

    def compare_and_swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        if expected is None:
            return self.create(key, data)
        self._check_writing()
        if self._is_limited(Limit.CONDITIONAL_REPLACE):
            raise StoreLimitError(f"cannot swap {key}: {self.uri} has no {Limit.CONDITIONAL_REPLACE}")
        is_resent = False
        for failures in range(1, self._client.settings.attempts + 1):
            found = self._read(key, max(len(expected), len(data)) + 4096)
            if found is None or found[0] != expected:
                return is_resent and found is not None and found[0] == data
            try:
                self._client.call("put_object", f"swap {key}", Key=self._key(key), Body=data, IfMatch=found[1])
                return True
            except Refused as refused:
                is_resent |= refused.is_resent
                if refused.status != 409:
                    return is_resent and self._holds(key, data)
            pause(failures)
        raise StoreTransientError(f"cannot swap {key}: in conflict with other requests for it")

    def delete(self, key: str) -> None:
        with contextlib.suppress(Refused):
            self._client.call("delete_object", f"delete {key}", Key=self._key(key))

    # Trees.

    def prepare(self, prefixes: Iterable[str]) -> None:
        for prefix in prefixes:
            check_key(prefix)
        if not self.is_root():
            raise self._no_bucket()
        self._check_publishing()

    def payload(self, staging: str, final: str) -> str:
        check_key(staging)
        return check_key(final)

    def staging_path(self, prefix: str) -> Path:
        check_key(prefix)
        with self._making_scratch:
            if self._scratch is None:
                self._scratch = PrivateDirectory("staging")
        directory = self._scratch.path / prefix
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorePermanentError(f"cannot stage {prefix} ({directory}): {error.strerror}") from error
        return directory

    def persist(
        self, prefix: str, paths: Sequence[str], algorithms: tuple[Algorithm, ...], progress: Progress | None = None
    ) -> tuple[Hashed, ...]:
        staged = self.staging_path(prefix)
        files = [(path, self._key(f"{prefix}/{path}"), staged / path) for path in paths]
        try:
            sent = send_files(
                self._client,
                files,
                algorithms,
                composites=self._client.declares_checksums and self._vouches(),
                looks_first=self._is_limited(Limit.CONDITIONAL_MULTIPART),
            )
        except OSError as error:
            raise StorePermanentError(f"cannot persist {prefix} ({error.filename}): {error.strerror}") from error
        finally:
            # Copies of what is stored now, or of what never will be; and the disk of a training machine is small.
            shutil.rmtree(staged, ignore_errors=True)
        requests = [HashRequest(path=one.path, algorithms=algorithms, size_bytes=one.bytes) for one in sent]
        read = list(self.hash(prefix, requests, progress))
        for number, one in enumerate(sent):
            if read[number].trouble is None and read[number].digests != one.digests:
                # What a transfer flipped is not what is stored.
                (read[number],) = self.hash(prefix, (requests[number],))
            found = read[number]
            if found.trouble is Trouble.UNREADABLE:
                raise StoreTransientError(f"cannot read back {prefix}/{one.path}: {found.message}")
            if found.trouble is not None or found.digests != one.digests:
                what = found.message or "other bytes lie there than were sent"
                raise StorePermanentError(f"not stored as sent: {prefix}/{one.path}: {what}")
        return tuple(replace(found, composite=one.composite) for one, found in zip(sent, read, strict=True))

    def install(self, source: str, target: str) -> bool:
        check_key(source)
        if source != check_key(target):
            raise UsageError(f"nothing is renamed in a bucket: {source}: expected what `payload` says for {target}")
        return True

    def discard(self, prefix: str) -> None:
        # Parts of objects that never came to be are listed nowhere else, and cost money.
        for upload in self._uploads(prefix):
            self._abort(upload)
        keys = [item["Key"] for item in self._items(prefix)]
        self._delete_all(keys, prefix)
        parent, _, name = prefix.rpartition("/")
        if keys and name in self.names(parent).directories:
            # Services that keep real directories show an empty one until its name is deleted, the deepest first.
            below = len(self._prefix)
            kept = {key[:end] for key in keys for end in range(below + len(prefix), len(key)) if key[end] == "/"}
            self._delete_all([f"{key}/" for key in sorted(kept, key=len, reverse=True)], prefix)
        if self._scratch is not None:
            shutil.rmtree(self._scratch.path / prefix, ignore_errors=True)

    def sweep(self, prefix: str, *, before: datetime) -> tuple[str, ...]:
        """Uploads of objects directly under the prefix; those of artifacts belong to publishes, which may be alive."""
        below = f"{self._key(prefix)}/"
        swept = []
        for upload in self._uploads(prefix):
            name = upload["Key"].removeprefix(below)
            if "/" not in name and upload["Initiated"] < before:
                self._abort(upload)
                swept.append(name)
        return tuple(swept)

    # Steps shared by the above.

    def _uploads(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Uploads in parts that were begun below a prefix and did not end."""
        below, markers = f"{self._key(prefix)}/", dict[str, str]()
        while True:
            try:
                page = self._client.call("list_multipart_uploads", f"list uploads of {prefix}", Prefix=below, **markers)
            except Refused:
                return
            yield from (upload for upload in page.get("Uploads", ()) if upload["Key"].startswith(below))
            following = {
                name: page[f"Next{name}"] for name in ("KeyMarker", "UploadIdMarker") if page.get(f"Next{name}")
            }
            if not page.get("IsTruncated") or following in ({}, markers):
                return
            markers = following

    def _abort(self, upload: dict[str, Any]) -> None:
        # Refused: its owner, or another sweep, was faster.
        with contextlib.suppress(Refused):
            self._client.call(
                "abort_multipart_upload", "abort an upload", Key=upload["Key"], UploadId=upload["UploadId"]
            )

    def _delete_all(self, keys: Sequence[str], prefix: str) -> None:
        for begin in range(0, len(keys), MAXIMUM_DELETED):
            doomed = {"Objects": [{"Key": key} for key in keys[begin : begin + MAXIMUM_DELETED]], "Quiet": True}
            try:
                answer = self._client.call("delete_objects", f"discard {prefix}", Delete=doomed)
            except Refused as refused:
                raise StoreTransientError(f"cannot discard {prefix}: {refused}") from refused
            if failed := answer.get("Errors"):
                first = failed[0]
                raise StoreTransientError(f"cannot discard {prefix}: {first.get('Key')}: {first.get('Code')}")

    def _key(self, key: str) -> str:
        return f"{self._prefix}{check_key(key)}"

    def _pages(self, doing: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        token: dict[str, str] = {}
        while True:
            try:
                page = self._client.call("list_objects_v2", doing, **parameters, **token)
            except Refused as refused:
                raise self._no_bucket() from refused
            # A body that broke off before its first byte parses as a listing of nothing, which must not be believed.
            if "IsTruncated" not in page:
                raise StoreTransientError(f"cannot {doing}: the listing broke off: expected an answer")
            yield page
            if not page["IsTruncated"]:
                self._check_last(page, doing, parameters)
                return
            if (following := page.get("NextContinuationToken")) in (None, token.get("ContinuationToken")):
                raise StoreTransientError(f"cannot {doing}: the listing broke off: expected a further page")
            token = {"ContinuationToken": following}

    def _check_last(self, page: dict[str, Any], doing: str, parameters: dict[str, Any]) -> None:
        """Ask what lies beyond a page that is full and calls itself the last: one that lost its successors does, too.

        Believed, it would hide a decision or a refusal, and with it what they refuse.
        """
        shown = [*(item["Key"] for item in page.get("Contents", ()))]
        # Whatever lies below a common prefix is shown by it, so what is beyond begins after all of that.
        shown += [f"{item['Prefix']}{LAST_CHARACTER}" for item in page.get("CommonPrefixes", ())]
        if not shown or len(shown) < page.get("MaxKeys", MAXIMUM_LISTED):
            return
        last = max(shown)
        try:
            beyond = self._client.call("list_objects_v2", doing, **{**parameters, "StartAfter": last, "MaxKeys": 1})
        except Refused as refused:
            raise self._no_bucket() from refused
        told(beyond, "IsTruncated", doing)
        names = [item["Key"] for item in beyond.get("Contents", ())]
        names += [item["Prefix"] for item in beyond.get("CommonPrefixes", ())]
        if any(name > last for name in names):
            raise StoreTransientError(f"cannot {doing}: the listing broke off: expected a page after its last one")

    def _items(self, prefix: str) -> Iterator[dict[str, Any]]:
        for page in self._pages(f"walk {prefix}", Prefix=f"{self._key(prefix)}/"):
            yield from page.get("Contents", ())

    def _head(self, key: str, doing: str) -> dict[str, Any] | None:
        try:
            return self._client.call("head_object", doing, Key=self._key(key))
        except Refused:
            # The answer to HEAD has no body that would say which of the two is absent.
            if not self.is_root():
                raise self._no_bucket() from None
            return None

    def _read(self, key: str, limit_bytes: int) -> tuple[bytes, str] | None:
        """The whole of a small object, and its ETag."""
        doing = f"read {key}"
        for failures in range(1, self._client.settings.attempts + 1):
            try:
                answer = self._client.call("get_object", doing, Key=self._key(key))
            except Refused:
                return None
            with contextlib.closing(answer["Body"]) as body:
                if told(answer, "ContentLength", doing) > limit_bytes:
                    raise StorePermanentError(f"object too large: {key}: expected at most {limit_bytes} bytes")
                try:
                    return body.read(), told(answer, "ETag", doing)
                except (BotoCoreError, HTTPError, OSError) as error:
                    if failures == self._client.settings.attempts:
                        raise read_failure(error, doing) from error
            pause(failures)
        raise AssertionError("the last attempt returned or raised")

    def _holds(self, key: str, data: bytes) -> bool:
        """Whether what lies there is ours: an earlier sending of the same request may have been carried out."""
        found = self.stat(key)
        return found is not None and found.bytes == len(data) and self.get(key, limit_bytes=len(data)) == data

    def _no_bucket(self) -> StorePermanentError:
        return StorePermanentError(
            f"bucket not found: s3://{self._client.bucket}", hint="does it exist, and is its name spelled right?"
        )
