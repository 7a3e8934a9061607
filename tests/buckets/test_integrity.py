"""The bytes of a checkpoint in a bucket, without a manifest: read in parts, by as few requests as the files allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.formats.integrity import Integrity, check_integrity
from lastgood.formats.integrity.entries import read_entries
from lastgood.formats.readers import READERS
from lastgood.formats.source import Source, open_source
from lastgood.reasons import Reason
from lastgood.stores import StoreSettings
from lastgood.stores.s3 import S3Store
from lastgood.verify import Depth
from tests.buckets.faults import FlipBit, Request
from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import SeaweedFS
from tests.formats.readers.built import BUILT

pytestmark = pytest.mark.usefixtures("s3_environ")


@pytest.fixture
def uploaded(seaweedfs: SeaweedFS, bucket: str, tmp_path: Path) -> str:
    """Megatron's newest checkpoint in a bucket; returns its key."""
    newest = BUILT["megatron"](tmp_path)[-1]
    client = seaweedfs.client()
    for path in (tmp_path / newest).rglob("*"):
        client.put_object(Bucket=bucket, Key=f"run/{newest}/{path.name}", Body=path.read_bytes())
    return f"run/{newest}"


def source_of(bucket: str, key: str, **settings: str) -> Source:
    source = open_source(S3Store(f"s3://{bucket}", StoreSettings(**settings)), key)
    assert source is not None
    return source


def check(source: Source, depth: Depth = Depth.FULL) -> Integrity:
    reader = next(reader for reader in READERS if reader.recognises(source))
    description = reader.describe(source)
    assert description.findings == ()
    return check_integrity(source, depth=depth, description=description)


def test_what_lies_in_a_bucket_is_checked_like_a_file(bucket: str, uploaded: str, seaweedfs: SeaweedFS) -> None:
    """Healthy: nothing. A changed byte: its object, by its record."""
    source = source_of(bucket, uploaded)
    healthy = check(source)
    assert (healthy.findings, healthy.unread) == ((), ())
    key = f"{uploaded}/__0_1.distcp"
    client = seaweedfs.client()
    data = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    place = data.index(b"/data/0") + 100
    client.put_object(Bucket=bucket, Key=key, Body=data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    found = check(source_of(bucket, uploaded)).findings
    assert [(one.reason, one.offender) for one in found] == [(Reason.RECORD_CORRUPT, "__0_1.distcp")]


def test_small_entries_share_a_request(bucket: str, uploaded: str, fault_proxy: FaultProxy) -> None:
    """An entry takes a kilobyte, and a request for each of a hundred thousand would take a day."""
    source = source_of(bucket, uploaded, endpoint=fault_proxy.endpoint)
    before = fault_proxy.count(_is_data)
    assert check_integrity(source).findings == ()
    assert fault_proxy.count(_is_data) - before <= 2  # a request for each of the two data files


def test_a_bit_that_a_transfer_flipped_is_nobodys_finding(bucket: str, uploaded: str, fault_proxy: FaultProxy) -> None:
    """The object is whole; what is not known is said."""
    source = source_of(bucket, uploaded, endpoint=fault_proxy.endpoint)
    entry = next(one for one in read_entries(source).by_path["__0_1.distcp"] if one.length > 4096)
    fault_proxy.inject(FlipBit(entry.offset + entry.length // 2), when=_is_second_file)
    found = check_integrity(source)
    assert found.findings == ()
    assert len(found.unread) == 1


def _is_second_file(request: Request) -> bool:
    return _is_data(request) and request.path.endswith("__0_1.distcp")


def _is_data(request: Request) -> bool:
    return request.method == "GET" and request.path.endswith(".distcp")
