"""The checksums that a service keeps of objects, against what their publisher recorded.

Decides when the two can be compared: S3 keeps the SHA-256 of an object that was sent whole, and of one that was sent in
parts a SHA-256 over the parts' with their number, so a recorded composite fits only where the number of parts does.
Leaves to the store whether its service's checksums count at all, and to who asks what follows.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from lastgood.stores.port import Recorded
from lastgood.stores.s3.client import Refused, S3Client

__all__ = ["compare_objects", "fits"]

_KEPT = re.compile(r"([A-Za-z0-9+/]{43}=)(?:-(\d{1,5}))?", re.ASCII)


def compare_objects(client: S3Client, named: Sequence[tuple[str, Recorded]]) -> Iterator[bool | None]:
    """Ask for the checksum of each object, as many at once as the settings allow; answers in order.

    Args:
        client: Of the bucket.
        named: Whole keys and what was recorded.

    Raises:
        StoreError: The store could not tell.
    """

    def compare(one: tuple[str, Recorded]) -> bool | None:
        key, recorded = one
        try:
            answer = client.call("head_object", f"look at {key}", Key=key, ChecksumMode="ENABLED")
        except Refused:
            return None  # whether it is there is asked elsewhere
        return fits(answer.get("ChecksumSHA256"), recorded)

    with ThreadPoolExecutor(max_workers=client.settings.concurrency, thread_name_prefix="lastgood-s3") as workers:
        yield from workers.map(compare, named)


def fits(kept: str | None, recorded: Recorded) -> bool | None:
    """Whether a kept checksum is the recorded one; None where it is of another kind or over other parts."""
    found = _KEPT.fullmatch(kept or "")
    part_bytes = recorded.composite.part_bytes
    if found is None or part_bytes is None:
        return None
    try:
        value = b64decode(found[1], validate=True)
    except Error:
        return None
    parts = max(1, -(-recorded.bytes // part_bytes))
    if found[2] is None and parts == 1:
        value = hashlib.sha256(value).digest()  # sent whole: a composite of one
    elif found[2] is None or int(found[2]) != parts:
        return None
    return value.hex() == recorded.composite.value
