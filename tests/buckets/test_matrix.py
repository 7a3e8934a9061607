"""Every fault at every request of verify, publish, restore and pointer update: nothing false is ever said.

Each operation is run once without faults, which tells its requests. Then, for each request and each fault, it is run
again with that fault at that request. What passes must be true, what fails must be damaged (nothing here is), and no
run may outlast the deadline that the settings imply.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from lastgood.errors import PublishError, StoreError
from lastgood.family import Family
from lastgood.identity import FamilyKeys
from lastgood.location import Location
from lastgood.manifest import Component
from lastgood.publish import StagedArtifact
from lastgood.records import list_records
from lastgood.restore.materialize import make_copy, open_scratch
from lastgood.run import Run, SoloGroup
from lastgood.stores import StoreSettings
from lastgood.stores.s3 import S3Store
from lastgood.testing.build import BuiltFamily, Recipe, build_family
from lastgood.verdict import Outcome
from lastgood.verify import repair_pointers, verify_generation
from tests.buckets.faults import (
    EXPIRED_TOKEN,
    FORBIDDEN,
    INTERNAL_ERROR,
    SLOW_DOWN,
    AbortBody,
    Delay,
    DropContinuation,
    Fault,
    FlipBit,
    LostReply,
    Reset,
    StaleList,
    Truncate,
)
from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import SeaweedFS
from tests.crash.scenarios import JOB

TIMEOUT_SECONDS = 0.5
SETTINGS = StoreSettings(attempts=3, timeout_seconds=TIMEOUT_SECONDS)
DEADLINE_SECONDS = 30.0
FAMILY = "llm"
FULL = os.environ.get("LASTGOOD_PROOF") == "1"

FAULTS: dict[str, tuple[Fault, int]] = {
    "reset": (Reset(), 1),
    "lost reply": (LostReply(), 1),
    "body aborted": (AbortBody(100), 1),
    "body closed": (AbortBody(0, reset=False), 1),
    "truncated": (Truncate(100), 1),
    "bit flipped": (FlipBit(50), 1),
    "slow down, a burst": (SLOW_DOWN, 2),
    "slow down for ever": (SLOW_DOWN, 1000),
    "internal error": (INTERNAL_ERROR, 1),
    "forbidden": (FORBIDDEN, 1),
    "expired token": (EXPIRED_TOKEN, 1),
    "silence": (Delay(timedelta(seconds=3 * TIMEOUT_SECONDS)), 1),
    "stale listing": (StaleList(), 1),
    "missing page": (DropContinuation(), 1),
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A family in a bucket, behind the proxy and beside it."""

    proxy: FaultProxy
    faulty: Location
    plain: Location

    @property
    def requests(self) -> int:
        return len(self.proxy.requests)


def upload(server: SeaweedFS, bucket: str, built: BuiltFamily) -> None:
    client = server.client()
    for path in built.root.rglob("*"):
        if path.is_file():
            client.put_object(Bucket=bucket, Key=f"root/{path.relative_to(built.root)}", Body=path.read_bytes())


@pytest.fixture
def place(seaweedfs: SeaweedFS, bucket: str, fault_proxy: FaultProxy, s3_environ: None, tmp_path: Path) -> Place:
    root = tmp_path / "built"
    root.mkdir()
    upload(seaweedfs, bucket, build_family(root, FAMILY, steps=(12, 24), recipe=Recipe(world_size=1)))
    uri = f"s3://{bucket}/root"

    def located(endpoint: str) -> Location:
        store = S3Store(uri, msgspec.structs.replace(SETTINGS, endpoint=endpoint))
        return Location(store=store, keys=FamilyKeys(FAMILY), generation=None)

    return Place(proxy=fault_proxy, faulty=located(fault_proxy.endpoint), plain=located(seaweedfs.endpoint))


Act = Callable[[Place, Path], None]


def verify(place: Place, scratch: Path) -> None:
    """A verdict of a healthy generation is a pass, or says that it could not tell."""
    newest = Family(place.plain).survey().candidates[0]
    verdict = verify_generation(place.faulty.store, place.faulty.keys, newest)
    assert verdict.outcome in (Outcome.PASS, Outcome.INCONCLUSIVE), verdict.findings


def publish(place: Place, scratch: Path) -> None:
    """A save that was acknowledged is whole for every reader, and one that was not leaves what was there."""
    before = Family(place.plain).survey().candidates
    settings = msgspec.structs.replace(SETTINGS, endpoint=place.proxy.endpoint)
    try:
        run = Run.start(place.faulty.family_uri, SoloGroup(), store=settings)
    except StoreError:
        assert Family(place.plain).survey().candidates == before
        return
    try:
        staging = run.stage(before[0].step + 12)
        (staging.payload / "state.bin").write_bytes(b"weights" * 100)
        artifact = StagedArtifact(path="state.bin", component=Component.MODEL, rank=0)
        published = run.publish(staging, [artifact], job=JOB)
    except (StoreError, PublishError):
        for generation in Family(place.plain).survey().candidates:
            # What a reader is offered is whole, whether or not the publisher heard of it.
            assert verify_generation(place.plain.store, place.plain.keys, generation).outcome is Outcome.PASS
    else:
        assert Family(place.plain).survey().candidates[0] == published.generation
        verdict = verify_generation(place.plain.store, place.plain.keys, published.generation)
        assert verdict.outcome is Outcome.PASS, verdict.findings
    finally:
        run.close()


def restore(place: Place, scratch: Path) -> None:
    """A copy that may be loaded holds exactly what was saved."""
    newest = Family(place.plain).survey().candidates[0]
    with open_scratch(None, scratch, keep=False, purpose="restore") as opened:
        copy = make_copy(place.faulty.of(newest), opened)
        assert [check.findings for check in copy.checks if check.findings] == []
        if copy.manifest is not None:
            verdict = verify_generation(copy.location.store, copy.location.keys, newest)
            assert [finding for finding in verdict.findings if finding.offender.startswith("model")] == []


def update_pointers(place: Place, scratch: Path) -> None:
    """A gate keeps its verdict or says that it could not; the caches are right after a repair."""
    family = Family(place.faulty)
    newest = Family(place.plain).survey().candidates[0]
    with contextlib.suppress(StoreError):
        judged = family.judge(newest)
        family.keep(judged.verdict, newest, judged.started_at, judged.measurements, attempt=1)
        repair_pointers(place.faulty.store, place.faulty.keys)
    repair_pointers(place.plain.store, place.plain.keys)
    assert Family(place.plain).survey().candidates[0] == newest
    kept = list_records(place.plain.store, place.plain.keys)
    assert {record.verdict.outcome for record in kept} <= {Outcome.PASS, Outcome.INCONCLUSIVE}


ACTS: dict[str, Act] = {
    "verify": verify,
    "publish": publish,
    "restore": restore,
    "pointers": update_pointers,
}


def chosen(count: int) -> Iterator[int]:
    """Which requests of an operation meet faults: all of them in a proof, else a spread that covers both ends."""
    yield from range(0, count, 1 if FULL else max(1, count // 3))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ACTS)
def test_no_fault_at_any_request_makes_anything_false(
    place: Place, name: str, fault: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nothing healthy fails, nothing torn passes, nothing hangs: whatever happens to whichever request."""
    act = ACTS[name]
    act(place, tmp_path)
    count = place.requests
    met = 0
    what, times = FAULTS[fault]
    for number in chosen(count):
        injection = place.proxy.inject(what, times=times, skip=number)
        begun = time.monotonic()
        act(place, tmp_path)
        assert time.monotonic() - begun < DEADLINE_SECONDS
        met += bool(injection.fired)
        place.proxy.clear()
        place.proxy.check()
    assert met or fault in ("missing page", "stale listing", "truncated", "bit flipped", "body aborted")
    record_property(f"{name}, {fault}: runs that met it, of so many requests", (met, count))
