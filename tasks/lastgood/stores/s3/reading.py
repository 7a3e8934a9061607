"""Reading objects: their bytes in order, hashed as they arrive, many objects at once.

Decides when a reading is one reading: it is bound to the ETag of its first answer, so that no object is put together
from two. A body that breaks off is taken up by range where it ended; what keeps breaking off without a byte more is
trouble of the store, and so is what takes longer than the settings allow for an object of its size. No object is ever
held whole: a mebibyte of each that is being read, at most.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError
from urllib3.exceptions import HTTPError

from lastgood.digest import HashRequest, StreamHasher
from lastgood.errors import StoreError, StoreTransientError
from lastgood.stores.port import Hashed, Progress, Trouble
from lastgood.stores.reading import check_range
from lastgood.stores.s3.client import Refused, S3Client, read_failure, told
from lastgood.stores.settings import StoreSettings

__all__ = ["ObjectChanged", "ObjectReading", "RangedObject", "hash_object", "hash_objects", "open_object"]

CHUNK_BYTES = 2**20
PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
PROGRESS_SECONDS = 0.1
MAXIMUM_TAKEN_UP = 100
"""Times that the reading of one object is taken up; a body that breaks off more often is a service in trouble."""
AHEAD = 4
"""Objects a thread that wait for their turn; a generation may have a million."""


class ObjectChanged(Exception):
    """Another object came under the key while this one was read, or it was deleted."""


class ObjectReading:
    """One object that is being read, from `open_object`.

    Args:
        client: Of the bucket.
        key: Whole, with the store's prefix.
        doing: What a failure could not do.
        answer: Of the first request.
    """

    def __init__(self, client: S3Client, key: str, doing: str, answer: dict[str, Any]) -> None:
        self._client = client
        self._key = key
        self._doing = doing
        self._body = answer["Body"]
        self._waited_seconds = 0.0
        self.bytes: int = told(answer, "ContentLength", doing)
        self.etag: str = told(answer, "ETag", doing)

    def close(self) -> None:
        """End it early."""
        self._body.close()

    def chunks(self) -> Iterator[memoryview]:
        """The object's bytes, in order, at most a mebibyte at a time; each piece until the next one is asked for.

        Raises:
            ObjectChanged: It is another object now.
            StoreError: The store stopped answering; what was yielded is right, and not the whole.
        """
        done_bytes = failures = taken_up = 0
        buffer = memoryview(bytearray(min(self.bytes, CHUNK_BYTES) or 1))
        while True:
            failure: Exception
            begun_bytes = done_bytes
            try:
                with contextlib.closing(self._body):
                    while count := self._read(buffer):
                        done_bytes += count
                        yield buffer[:count]
                if done_bytes == self.bytes:
                    return
                failure = OSError(f"ended after {done_bytes} of {self.bytes} bytes")
            except (BotoCoreError, HTTPError, OSError) as error:
                failure = error
            # A body that brought next to nothing before it failed is no progress.
            failures = 1 if done_bytes - begun_bytes >= self._settings.worth_bytes else failures + 1
            taken_up += 1
            is_late = self._waited_seconds > self._settings.reading_seconds(self.bytes)
            if failures >= self._settings.attempts or taken_up > MAXIMUM_TAKEN_UP or is_late:
                raise read_failure(failure, self._doing) from failure
            begun = time.monotonic()
            pause(failures)
            self._body = self._take_up(done_bytes)
            self._waited_seconds += time.monotonic() - begun

    def _read(self, buffer: memoryview) -> int:
        begun = time.monotonic()
        try:
            count: int = self._body.readinto(buffer)
        finally:
            self._waited_seconds += time.monotonic() - begun
        return count

    @property
    def _settings(self) -> StoreSettings:
        return self._client.settings

    def _take_up(self, done_bytes: int) -> Any:
        try:
            answer = self._client.get_to_hash(
                self._doing, Key=self._key, Range=f"bytes={done_bytes}-", IfMatch=self.etag
            )
        except Refused as refused:
            raise ObjectChanged(f"{refused.code} while it was read") from None
        length = told(answer, "ContentLength", self._doing)
        if length != self.bytes - done_bytes:
            answer["Body"].close()
            raise StoreTransientError(
                f"cannot {self._doing}: expected the last {self.bytes - done_bytes} bytes, found {length}"
            )
        return answer["Body"]


def pause(failures: int) -> None:
    """Wait before a request is sent again, longer each time."""
    time.sleep(min(PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS))


def open_object(client: S3Client, key: str, doing: str, *, expected_bytes: int | None = None) -> ObjectReading | None:
    """Begin to read an object; None when there is none.

    An answer of another length than expected is asked for once more: a length that a broken answer stated must not be
    taken for the object's.
    """
    for is_last in (False, True):
        try:
            answer = client.get_to_hash(doing, Key=key)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise StoreTransientError(f"cannot {doing}: {refused}") from None
        reading = ObjectReading(client, key, doing, answer)
        if is_last or expected_bytes is None or reading.bytes == expected_bytes:
            return reading
        reading.close()
    raise AssertionError("the last answer was returned")


class RangedObject:
    """An `ObjectReader` over one version of an object: every part is asked for under the ETag of the first answer.

    Args:
        client: Of the bucket.
        key: Whole, with the store's prefix.
        name: The object, as errors name it.
        size_bytes: By the first answer.
        etag: Of the first answer.
    """

    def __init__(self, client: S3Client, key: str, name: str, *, size_bytes: int, etag: str) -> None:
        self._client = client
        self._key = key
        self._name = name
        self._etag = etag
        self._size_bytes = size_bytes

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read_at(self, offset: int, length: int) -> bytes:
        check_range(self._name, self._size_bytes, offset, length)
        if not length:
            return b""
        doing = f"read {self._name}"
        for failures in range(1, self._client.settings.attempts + 1):
            try:
                answer = self._client.get_to_hash(
                    doing, Key=self._key, Range=f"bytes={offset}-{offset + length - 1}", IfMatch=self._etag
                )
            except Refused as refused:
                raise StoreTransientError(f"cannot {doing}: another object lies there by now: {refused}") from None
            failure: Exception
            try:
                with contextlib.closing(answer["Body"]) as body:
                    data: bytes = body.read()
                if len(data) == length:
                    return data
                failure = OSError(f"expected {length} bytes at {offset}, found {len(data)}")
            except (BotoCoreError, HTTPError, OSError) as error:
                failure = error
            if failures == self._client.settings.attempts:
                raise read_failure(failure, doing) from failure
            pause(failures)
        raise AssertionError("the last attempt returned or raised")


def hash_object(
    client: S3Client,
    key: str,
    request: HashRequest,
    *,
    destination: Path | None = None,
    on_read: Callable[[int], None] = lambda count: None,
) -> Hashed:
    """Hash one object, and write the bytes that were hashed to a new private file if one is named.

    Args:
        client: Of the bucket.
        key: Whole.
        request: What to hash; its path is the one that is reported.
        destination: Must not exist.
        on_read: Told of every chunk.

    Raises:
        OSError: The file cannot be written.
    """
    path, expected_bytes = request.path, request.size_bytes
    hasher = StreamHasher(request.algorithms)
    try:
        reading = open_object(client, key, f"read {key}", expected_bytes=expected_bytes)
        if reading is None:
            return Hashed(path=path, bytes=None, trouble=Trouble.MISSING, message=f"object not found: {path}")
        if expected_bytes is not None and reading.bytes != expected_bytes:
            reading.close()
            message = f"wrong size: {path}: expected {expected_bytes} bytes, found {reading.bytes}"
            return Hashed(path=path, bytes=reading.bytes, trouble=Trouble.SIZE, message=message)
        with open(destination, "xb", opener=_private) if destination else contextlib.nullcontext() as copy:
            for chunk in reading.chunks():
                on_read(len(chunk))
                hasher.update(chunk)
                if copy is not None:
                    copy.write(chunk)
    except ObjectChanged as changed:
        message = f"object changed while it was read: {path}: {changed}"
        return Hashed(path=path, bytes=None, trouble=Trouble.CHANGED, message=message)
    except StoreError as error:
        return Hashed(path=path, bytes=None, trouble=Trouble.UNREADABLE, message=error.message)
    return Hashed(path=path, bytes=reading.bytes, digests=hasher.digests())


class _Cancelled(Exception):
    """The caller wants no more results."""


def hash_objects(
    client: S3Client,
    named: Sequence[tuple[str, HashRequest]],
    progress: Progress | None = None,
) -> Generator[Hashed, None, None]:
    """Hash objects, as many at once as the settings allow; results in order, failures beside them.

    Args:
        client: Of the bucket.
        named: Whole keys and what to hash.
        progress: Called in the caller's own thread.
    """
    stopped = threading.Event()
    reads: deque[int] = deque()
    done_bytes = 0

    def on_read(count: int) -> None:
        if stopped.is_set():
            raise _Cancelled
        reads.append(count)

    def report() -> None:
        nonlocal done_bytes
        before = done_bytes
        while reads:
            done_bytes += reads.popleft()
        if progress is not None and done_bytes > before:
            progress(done_bytes)

    threads = client.settings.concurrency
    workers = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="lastgood-s3")
    pending: deque[Future[Hashed]] = deque()
    waiting = iter(named)
    try:
        while True:
            while len(pending) < AHEAD * threads and (one := next(waiting, None)) is not None:
                pending.append(workers.submit(hash_object, client, one[0], one[1], on_read=on_read))
            if not pending:
                return
            future = pending.popleft()
            while not wait((future,), timeout=PROGRESS_SECONDS).done:
                report()
            report()
            yield future.result()
    finally:
        stopped.set()
        workers.shutdown(wait=True, cancel_futures=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
