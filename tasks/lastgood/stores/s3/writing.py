"""Writing files as objects: created once, in parts, hashed while they are sent.

Decides how a file is cut and how much of it is in memory: parts of a size that S3 accepts, as many at once as the
settings allow requests, never a whole file. An object is created only where there is none. A reply that was lost, or a
conflict with what an earlier sending of ours may have made, is not judged here: the caller reads back what lies there
and compares it with what was sent.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, BinaryIO

from lastgood.digest import Algorithm, Digest, StreamHasher
from lastgood.errors import LastgoodError, StoreTransientError
from lastgood.stores.s3.client import Refused, S3Client

__all__ = ["Sent", "send_files"]

PART_BYTES = 8 * 2**20
MAXIMUM_PARTS = 10_000
CHECKSUM = "CRC32"
"""What boto3 sends with every part unless it is told not to."""


class Sent:
    """One file that was sent: its length and digests, as it was read for sending."""

    def __init__(self, path: str, length: int, digests: tuple[Digest, ...]) -> None:
        self.path = path
        self.bytes = length
        self.digests = digests


def send_files(
    client: S3Client, files: Sequence[tuple[str, str, Path]], algorithms: tuple[Algorithm, ...]
) -> tuple[Sent, ...]:
    """Send files to keys that nobody holds.

    Args:
        client: Of the bucket.
        files: Path to report, whole key, local file.
        algorithms: Digests to make of what is sent.

    Returns:
        What was sent, in order; whether it lies there is for the caller to read.

    Raises:
        StoreError: The store did not take it; parts of an unfinished object are given back.
        OSError: A file cannot be read.
    """
    threads = client.settings.concurrency
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="lastgood-s3") as workers:
        sender = _Sender(client, workers, threads, algorithms)
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
        self, client: S3Client, workers: ThreadPoolExecutor, threads: int, algorithms: tuple[Algorithm, ...]
    ) -> None:
        self._client = client
        self._workers = workers
        self._room = threading.BoundedSemaphore(threads + 1)
        self._algorithms = algorithms
        self._pending: list[Future[Any]] = []
        self._has_failed = False

    def send(self, path: str, key: str, file: Path) -> Sent:
        hasher = StreamHasher(self._algorithms)
        with file.open("rb") as stream:
            length = os.fstat(stream.fileno()).st_size
            if length <= PART_BYTES:
                data = stream.read()
                hasher.update(data)
                self._submit(self._put, key, data)
            else:
                self._send_parts(key, stream, length, hasher)
        return Sent(path, length, hasher.digests())

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

    def _put(self, key: str, data: bytes) -> None:
        for _ in range(self._client.settings.attempts):
            try:
                self._client.call("put_object", f"write {key}", Key=key, Body=data, IfNoneMatch="*")
                return
            except Refused as refused:
                if refused.status == 412:
                    return  # there already: the reading back tells whether it is ours
                if refused.status != 409:
                    raise StoreTransientError(f"cannot write {key}: {refused}") from None
        raise StoreTransientError(f"cannot write {key}: in conflict with another request for it")

    def _send_parts(self, key: str, stream: BinaryIO, length: int, hasher: StreamHasher) -> None:
        doing = f"write {key}"
        # Declared, for each part carries one: AWS refuses to complete what it was not told of.
        declared = {"ChecksumAlgorithm": CHECKSUM} if self._client.declares_checksums else {}
        upload = self._call("create_multipart_upload", doing, Key=key, **declared).get("UploadId")
        if not upload:
            raise StoreTransientError(f"cannot {doing}: the answer broke off: expected the id of an upload")
        parts: list[Future[dict[str, Any]]] = []
        try:
            size = max(PART_BYTES, -(-length // MAXIMUM_PARTS))
            for number, data in enumerate(_parts(stream, size), start=1):
                # Submitted before it is hashed, so that the two overlap.
                parts.append(self._submit(self._send_part, key, upload, number, data))
                hasher.update(data)
            told = {"Parts": [part.result() for part in parts]}
            self._complete(key, upload, told)
        except BaseException:
            wait(parts)  # a part that arrives after the abort would lie there for ever
            self._abort(key, upload)
            raise

    def _send_part(self, key: str, upload: str, number: int, data: bytes) -> dict[str, Any]:
        answer = self._call("upload_part", f"write {key}", Key=key, UploadId=upload, PartNumber=number, Body=data)
        sums = {name: told for name, told in answer.items() if name.startswith("Checksum") and name != "ChecksumType"}
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    def _complete(self, key: str, upload: str, told: dict[str, Any]) -> None:
        try:
            self._client.call(
                "complete_multipart_upload",
                f"write {key}",
                Key=key,
                UploadId=upload,
                MultipartUpload=told,
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


def _parts(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while data := stream.read(size):
        yield data
