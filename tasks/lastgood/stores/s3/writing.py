"""Writing files as objects: created once, in parts, hashed while they are sent.

Decides how a file is cut and how much of it is in memory: parts of a size that S3 accepts, as many at once as the
settings allow requests, never a whole file. Where the service keeps checksums that count, each part carries its SHA-256
and the object's is told as a composite digest. An object is created only where there is none; where a service does not
check that of an upload in parts, whoever sends looks first. A reply that was lost, or a conflict with what an earlier
sending of ours may have made, is not judged here: the caller reads back what lies there and compares it with what was
sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, BinaryIO

from lastgood.digest import Algorithm, Digest, StreamHasher
from lastgood.errors import LastgoodError, StoreTransientError
from lastgood.stores.s3.client import Refused, S3Client, told

__all__ = ["Sent", "send_files"]

PART_BYTES = 8 * 2**20
MAXIMUM_PARTS = 10_000
CHECKSUM = "CRC32"
"""What boto3 sends with every part unless it is told not to."""


class Sent:
    """One file that was sent: its length and digests, as it was read for sending.

    Args:
        path: As asked.
        length: In bytes.
        digests: Over all of it.
        part_bytes: Into parts of which size it was cut.
        sums: Number → SHA-256 of each part, once all were sent; None where none was asked for.
    """

    def __init__(
        self, path: str, length: int, digests: tuple[Digest, ...], part_bytes: int, sums: dict[int, bytes] | None
    ) -> None:
        self.path = path
        self.bytes = length
        self.digests = digests
        self._part_bytes = part_bytes
        self._sums = sums

    @property
    def composite(self) -> Digest | None:
        """The digest over the digests of its parts: what the service keeps as its checksum."""
        if self._sums is None:
            return None
        value = hashlib.sha256(b"".join(self._sums[number] for number in sorted(self._sums))).hexdigest()
        return Digest(algorithm=Algorithm.SHA256, value=value, part_bytes=self._part_bytes)


def send_files(
    client: S3Client,
    files: Sequence[tuple[str, str, Path]],
    algorithms: tuple[Algorithm, ...],
    *,
    composites: bool = False,
    looks_first: bool = False,
) -> tuple[Sent, ...]:
    """Send files to keys that nobody holds.

    Args:
        client: Of the bucket.
        files: Path to report, whole key, local file.
        algorithms: Digests to make of what is sent.
        composites: Send the SHA-256 of each part as its checksum, and tell them all.
        looks_first: Send nothing in parts where an object lies: the service would let it be replaced.

    Returns:
        What was sent, in order; whether it lies there is for the caller to read.

    Raises:
        StoreError: The store did not take it; parts of an unfinished object are given back.
        OSError: A file cannot be read.
    """
    threads = client.settings.concurrency
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="lastgood-s3") as workers:
        sender = _Sender(client, workers, threads, algorithms, composites=composites, looks_first=looks_first)
        sent = []
        try:
            for path, key, file in files:
                sent.append(sender.send(path, key, file))
        finally:
            sender.finish()
        sender.raise_first()
    return tuple(sent)


class _Sender:
    """Reads files one after the other and hands their parts to the workers."""

    def __init__(
        self,
        client: S3Client,
        workers: ThreadPoolExecutor,
        threads: int,
        algorithms: tuple[Algorithm, ...],
        *,
        composites: bool,
        looks_first: bool,
    ) -> None:
        self._client = client
        self._workers = workers
        self._room = threading.BoundedSemaphore(threads + 1)
        self._algorithms = algorithms
        self._composites = composites
        self._looks_first = looks_first
        self._pending: list[Future[Any]] = []
        self._has_failed = False

    def send(self, path: str, key: str, file: Path) -> Sent:
        hasher = StreamHasher(self._algorithms)
        with file.open("rb") as stream:
            length = os.fstat(stream.fileno()).st_size
            part_bytes = max(PART_BYTES, -(-length // MAXIMUM_PARTS))
            sums: dict[int, bytes] | None = {} if self._composites else None
            if length <= PART_BYTES:
                data = stream.read()
                hasher.update(data)
                self._submit(self._put, key, data, sums)
            elif self._looks_first and self._is_there(key):
                for number, data in enumerate(_parts(stream, part_bytes), start=1):
                    _checksum(data, sums, number)
                    hasher.update(data)
            else:
                self._send_parts(key, stream, part_bytes, hasher, sums)
        return Sent(path, length, hasher.digests(), part_bytes, sums)

    def finish(self) -> None:
        for future in self._pending:
            future.exception()

    def raise_first(self) -> None:
        for future in self._pending:
            future.result()

    def _submit(self, work: Any, *arguments: Any) -> Future[Any]:
        self._room.acquire()
        if self._has_failed:
            self._room.release()
            self.raise_first()

        def run() -> Any:
            try:
                return work(*arguments)
            except BaseException:
                self._has_failed = True
                raise
            finally:
                self._room.release()

        future = self._workers.submit(run)
        self._pending.append(future)
        return future

    def _put(self, key: str, data: bytes, sums: dict[int, bytes] | None) -> None:
        checksum = _checksum(data, sums, 1)
        for _ in range(self._client.settings.attempts):
            try:
                self._client.call("put_object", f"write {key}", Key=key, Body=data, IfNoneMatch="*", **checksum)
                return
            except Refused as refused:
                if refused.status == 412:
                    return  # there already: the reading back tells whether it is ours
                if refused.status != 409:
                    raise StoreTransientError(f"cannot write {key}: {refused}") from None
        raise StoreTransientError(f"cannot write {key}: in conflict with another request for it")

    def _send_parts(
        self, key: str, stream: BinaryIO, part_bytes: int, hasher: StreamHasher, sums: dict[int, bytes] | None
    ) -> None:
        doing = f"write {key}"
        # Declared, for each part carries one: AWS refuses to complete what it was not told of.
        carried = CHECKSUM if self._client.declares_checksums else None
        declared = {"ChecksumAlgorithm": name} if (name := "SHA256" if sums is not None else carried) else {}
        upload = self._call("create_multipart_upload", doing, Key=key, **declared).get("UploadId")
        if not upload:
            raise StoreTransientError(f"cannot {doing}: the answer broke off: expected the id of an upload")
        parts: list[Future[dict[str, Any]]] = []
        try:
            for number, data in enumerate(_parts(stream, part_bytes), start=1):
                # Submitted before it is hashed, so that the two overlap.
                parts.append(self._submit(self._send_part, key, upload, number, data, sums))
                hasher.update(data)
            self._complete(key, upload, {"Parts": [part.result() for part in parts]})
        except BaseException:
            wait(parts)  # a part that arrives after the abort would lie there for ever
            self._abort(key, upload)
            raise

    def _is_there(self, key: str) -> bool:
        """There already, as 412 says elsewhere: the reading back tells whether it is ours."""
        try:
            self._client.call("head_object", f"look at {key}", Key=key)
        except Refused as refused:
            if refused.status != 404:
                raise StoreTransientError(f"cannot look at {key}: {refused}") from None
            return False
        return True

    def _send_part(
        self, key: str, upload: str, number: int, data: bytes, sums: dict[int, bytes] | None
    ) -> dict[str, Any]:
        named = {"Key": key, "UploadId": upload, "PartNumber": number}
        answer = self._call("upload_part", f"write {key}", Body=data, **named, **_checksum(data, sums, number))
        kept = {name: value for name, value in answer.items() if name.startswith("Checksum") and name != "ChecksumType"}
        return {"PartNumber": number, "ETag": told(answer, "ETag", f"write {key}"), **kept}

    def _complete(self, key: str, upload: str, parts: dict[str, Any]) -> None:
        try:
            self._client.call(
                "complete_multipart_upload",
                f"write {key}",
                Key=key,
                UploadId=upload,
                MultipartUpload=parts,
                IfNoneMatch="*",
            )
        except Refused as refused:
            # 412: there already. 404: the upload is gone, perhaps because an earlier sending completed it.
            if refused.status == 412:
                self._abort(key, upload)
            elif refused.status != 404 or not refused.is_resent:
                raise StoreTransientError(f"cannot write {key}: {refused}") from None

    def _abort(self, key: str, upload: str) -> None:
        with contextlib.suppress(LastgoodError, Refused):
            self._client.call("abort_multipart_upload", f"write {key}", Key=key, UploadId=upload)

    def _call(self, operation: str, doing: str, **parameters: Any) -> dict[str, Any]:
        try:
            return self._client.call(operation, doing, **parameters)
        except Refused as refused:
            raise StoreTransientError(f"cannot {doing}: {refused}") from None


def _checksum(data: bytes, sums: dict[int, bytes] | None, number: int) -> dict[str, str]:
    """The parameters by which a part carries its own digest, which is noted; none where none was asked for."""
    if sums is None:
        return {}
    sums[number] = hashlib.sha256(data).digest()
    return {"ChecksumSHA256": b64encode(sums[number]).decode()}


def _parts(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while data := stream.read(size):
        yield data
