"""Reading in rotation over a real bucket: checksums that the service keeps, and every byte within so many saves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest

from lastgood.digest import Algorithm, Digest
from lastgood.family import Family
from lastgood.location import Location, locate
from lastgood.manifest import Component, Manifest
from lastgood.publish import StagedArtifact
from lastgood.run import Run, SoloGroup
from lastgood.stores import StoreSettings, VerifySettings, open_store
from lastgood.stores.grading import Grade, graded
from lastgood.stores.port import Recorded
from lastgood.stores.s3.checksums import fits
from lastgood.stores.s3.writing import PART_BYTES
from lastgood.verdict import Outcome, Reason, Rung, Verdict
from lastgood.verify.reading import read_stored_manifest
from tests.buckets.servers import SeaweedFS
from tests.crash.scenarios import JOB

ROTATING = VerifySettings(mode="rotating", rotation=4)
CONTENTS = {"a.bin": b"a" * (PART_BYTES + 1), "b.bin": b"b" * 1000, "c.bin": b"", "d.bin": b"d" * PART_BYTES}
BY_NUMBER = itertools.count(1)


def trust(root: str) -> None:
    """Keep the grade that `doctor` gives this server (`test_probing_s3`), without the minute that it takes."""
    kept = msgspec.structs.replace(graded((), now=datetime.now(UTC)), grade=Grade.FULL, limits=())
    open_store(root).keep_grade(kept)


def save(run: Run) -> None:
    """One save more, of four artifacts."""
    staging = run.stage(next(BY_NUMBER))
    staged = []
    for path, content in CONTENTS.items():
        (staging.payload / path).write_bytes(content)
        staged.append(StagedArtifact(path=path, component=Component.MODEL, rank=0))
    run.publish(staging, staged, job=JOB)


def gate(location: Location) -> Iterator[Verdict]:
    family = Family(location)
    for generation in (*family.unjudged(), *family.owing()):
        yield family.verify(generation)


def manifest_of(location: Location) -> Manifest:
    newest = Family(location).survey().candidates[0]
    manifest = read_stored_manifest(location.store, location.keys, newest, None).manifest
    assert manifest is not None
    return manifest


@pytest.mark.slow
@pytest.mark.usefixtures("s3_environ")
def test_kept_checksums_are_compared_on_every_save_and_slices_read_the_rest(bucket: str, seaweedfs: SeaweedFS) -> None:
    """A replaced object is found by its checksum at once; what no checksum shows, within a rotation."""
    root = f"s3://{bucket}/runs"
    trust(root)
    run = Run.start(f"{root}/llm", SoloGroup(), allow_fresh=True)
    save(run)
    location = locate(f"{root}/llm", {root: StoreSettings(verify=ROTATING)})
    manifest = manifest_of(location)
    composites = {artifact.path: artifact.digests[-1] for artifact in manifest.artifacts}
    assert {digest.part_bytes for digest in composites.values()} == {PART_BYTES}
    (verdict,) = gate(location)
    assert (verdict.outcome, verdict.rung) == (Outcome.PASS, Rung.ROTATING)
    detail = next(check.detail for check in verdict.checks if check.name == "digests")
    assert "by the store's checksum 3 more" in detail, "of the three that were not read"
    # Of the same length, sent anew with a checksum of its own, and not in the slice that comes next.
    directory = f"runs/{location.keys.artifacts(manifest.id)}"
    assert verdict.slice is not None
    last = manifest.artifacts[(verdict.slice.first + 3) % 4].path
    assert last == "d.bin"
    seaweedfs.client().put_object(
        Bucket=bucket, Key=f"{directory}/{last}", Body=b"e" * PART_BYTES, ChecksumAlgorithm="SHA256"
    )
    save(run)
    verdicts = list(gate(location))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.PASS, Outcome.FAIL]
    assert [(f.reason, f.offender) for f in verdicts[1].findings] == [(Reason.DIGEST_MISMATCH, last)]
    # Replaced by whoever sends another kind of checksum: nothing is compared, and the rotation comes to it.
    victim = manifest_of(location)
    seaweedfs.client().put_object(
        Bucket=bucket,
        Key=f"runs/{location.keys.artifacts(victim.id)}/d.bin",
        Body=b"x" * PART_BYTES,
        ChecksumAlgorithm="CRC32",
    )
    found: list[str] = []
    for _ in range(3):
        save(run)
        found += [finding.offender for verdict in gate(location) for finding in verdict.findings]
    run.close()
    assert found == ["d.bin"]


@pytest.mark.usefixtures("s3_environ")
def test_a_store_that_was_not_seen_to_refuse_wrong_checksums_is_not_asked_for_them(bucket: str) -> None:
    """Without a whole grade nothing is recorded, and what is kept says nothing."""
    store = open_store(f"s3://{bucket}/runs")
    store.create("f/a", b"kept")
    composite = Digest(algorithm=Algorithm.SHA256, value="0" * 64, part_bytes=PART_BYTES)
    recorded = Recorded(path="a", bytes=4, composite=composite)
    assert list(store.compare_checksums("f", [recorded])) == [None]
    trust(f"s3://{bucket}/runs")
    assert list(open_store(f"s3://{bucket}/runs").compare_checksums("f", [recorded])) == [None], "no SHA256 is kept"


OF_KEPT = "gduOu7vGnGxq1KaqkrduDAivVH2iNrniydvh2ChagTA="
"""The SHA-256 of `small`, as S3 spells it."""
COMPOSITE = "9bb15acf3b5a9bb0f5ffb8da9fbe1a7b1ba4d6b4c7e4c0c5b4c9d2b0a0b8a1cd"


@pytest.mark.parametrize(
    ("kept", "length", "expected"),
    [
        (None, 5, None),
        ("", 5, None),
        ("not base64", 5, None),
        (OF_KEPT, 5, False),  # one of another object
        (f"{OF_KEPT}-1", 5, False),
        (f"{OF_KEPT}-2", 5, None),  # sent in other parts
        (OF_KEPT, PART_BYTES + 1, None),
        (f"{OF_KEPT}-2", PART_BYTES + 1, False),
        (f"{OF_KEPT}-2\n", PART_BYTES + 1, None),
    ],
)
def test_a_kept_checksum_is_compared_only_with_its_like(kept: str | None, length: int, expected: bool | None) -> None:
    """What is of another kind, or over other parts, neither agrees nor disagrees."""
    composite = Digest(algorithm=Algorithm.SHA256, value=COMPOSITE, part_bytes=PART_BYTES)
    assert fits(kept, Recorded(path="a", bytes=length, composite=composite)) is expected
