"""A second copy in a bucket, from a bucket, and between two: as on a file system, and without a rename."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood.copying import CopyResult, Selection, Standing, copy_family
from lastgood.family import Family
from lastgood.location import Location, locate
from lastgood.run import Run, SoloGroup
from lastgood.stores.settings import StoreSettings
from lastgood.testing.build import BuiltFamily, Recipe, build_family
from lastgood.verdict import Outcome, Reason
from lastgood.verify import verify_family, verify_generation
from tests.buckets.faults import SLOW_DOWN, Fault, LostReply, Reset
from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import SeaweedFS

pytestmark = pytest.mark.usefixtures("s3_environ")

ALL = Selection(newest=None)
KILLER = Path(__file__).parents[1] / "killed_copy.py"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody publishes at the copy, so a pointer that lags there need not be given time."""
    monkeypatch.setattr("lastgood.verify.pointers.time.sleep", lambda seconds: None)


@pytest.fixture
def built(tmp_path: Path) -> BuiltFamily:
    (tmp_path / "here").mkdir()
    return build_family(tmp_path / "here", "llm", steps=(12, 24), recipe=Recipe(world_size=1, shard_bytes=64))


@pytest.fixture
def source(built: BuiltFamily) -> Location:
    return locate(str(built.root / "llm"))


@pytest.fixture
def target(bucket: str) -> Location:
    return locate(f"s3://{bucket}/far/llm")


def faults(location: Location) -> list[str]:
    """Everything that tier 1 finds in a family and in each of its candidates."""
    verdicts = [verify_family(location.store, location.keys)]
    verdicts += [verify_generation(location.store, location.keys, one) for one in Family(location).survey().candidates]
    told = [f"{finding.reason}: {finding.message}" for verdict in verdicts for finding in verdict.findings]
    return told or [str(verdict.outcome) for verdict in verdicts if verdict.outcome is not Outcome.PASS]


def standings(result: CopyResult) -> list[Standing]:
    return [one.standing for one in result.generations]


def test_a_family_goes_to_a_bucket_between_buckets_and_back(
    source: Location, target: Location, built: BuiltFamily, bucket: str, tmp_path: Path
) -> None:
    """Whatever way it took, it answers as the first one does, holds in tier 1, and a job resumes from it."""
    (tmp_path / "back").mkdir()
    places = [source, target, locate(f"s3://{bucket}/farther/llm"), locate(str(tmp_path / "back" / "llm"))]
    for here, there in itertools.pairwise(places):
        assert standings(copy_family(here, there, ALL)) == [Standing.COPIED] * 2
        assert Family(there).latest().generation == built.newest
        assert faults(there) == []
        assert standings(copy_family(here, there, ALL)) == [Standing.KEPT] * 2
    first, last = (place.local_family / str(built.newest) for place in (source, places[-1]))
    for path in (path for path in first.rglob("*") if path.is_file()):
        assert (last / path.relative_to(first)).read_bytes() == path.read_bytes()
    for place in (target, places[-1]):
        run = Run.start(place.family_uri, SoloGroup())
        assert run.resumed is not None
        assert run.resumed.generation == built.newest
        assert (run.resumed.directory / "data.json").read_bytes() == (first / "data.json").read_bytes()
        run.close()


def test_only_the_newest_in_a_bucket_keeps_its_chain(source: Location, target: Location, built: BuiltFamily) -> None:
    """The remote tier may hold fewer generations than the source, and tier 1 still follows the markers."""
    assert standings(copy_family(source, target, Selection())) == [Standing.COPIED]
    assert Family(target).survey().candidates == (built.newest,)
    assert faults(target) == []


def test_wrong_bytes_are_neither_sent_nor_replaced(
    source: Location, target: Location, built: BuiltFamily, bucket: str, seaweedfs: SeaweedFS
) -> None:
    """Rot at the source ends there; an object that somebody else put under the name stays and is named."""
    first, newest = built.generations
    file = source.local_family / str(newest) / "data.json"
    file.write_bytes(bytes(file.stat().st_size))
    key = f"far/llm/{first}/config.json"
    length = (source.local_family / str(first) / "config.json").stat().st_size
    seaweedfs.client().put_object(Bucket=bucket, Key=key, Body=bytes(length))
    result = copy_family(source, target, ALL)
    assert standings(result) == [Standing.REFUSED] * 2
    found = [(one.blamed, finding.reason, finding.offender) for one in result.generations for finding in one.findings]
    assert found == [
        (target.store.uri, Reason.DIGEST_MISMATCH, "config.json"),
        (source.store.uri, Reason.DIGEST_MISMATCH, "data.json"),
    ]
    assert seaweedfs.client().get_object(Bucket=bucket, Key=key)["Body"].read() == bytes(length)
    assert Family(target).survey().candidates == ()


def test_objects_that_a_sync_left_out_are_named_and_supplied(
    source: Location, target: Location, built: BuiltFamily, bucket: str, seaweedfs: SeaweedFS
) -> None:
    """`aws s3 sync` sends `.lastgood/` before a generation's artifacts, and may be interrupted: tier 1 names what is
    missing, `latest` passes the generation over, and a copy sends just that.
    """
    client = seaweedfs.client()
    missing = source.local_family / str(built.newest) / "model" / "rank-00000.safetensors"
    for path in sorted(path for path in source.local_family.rglob("*") if path.is_file() and path != missing):
        name = path.relative_to(source.local_family.parent)
        client.put_object(Bucket=bucket, Key=f"far/{name}", Body=path.read_bytes())
    verdict = verify_generation(target.store, target.keys, built.newest)
    assert [(one.reason, one.offender) for one in verdict.findings] == [
        (Reason.SHARD_MISSING, "model/rank-00000.safetensors")
    ]
    assert Family(target).latest().generation == built.generations[0]
    result = copy_family(source, target, Selection())
    assert [one.copied_bytes for one in result.generations] == [missing.stat().st_size]
    assert faults(target) == []


@pytest.mark.parametrize("call", [2, 4, 5, 6, 9, 10])
def test_a_killed_process_is_taken_up(call: int, source: Location, target: Location, built: BuiltFamily) -> None:
    """SIGKILL of a real process at a call of the bucket's store: nothing half is offered, and the next one finishes."""
    done = subprocess.run(
        [sys.executable, str(KILLER), str(call), source.family_uri, target.family_uri], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    offer = Family(target).latest().generation
    assert offer in (None, *built.generations)
    if offer is not None:
        assert verify_generation(target.store, target.keys, offer).outcome is Outcome.PASS
    copy_family(source, target, ALL)
    assert Family(target).latest().generation == built.newest
    assert faults(target) == []


def test_this_machine_holds_some_artifacts_at_a_time(
    target: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """A generation may be larger than the disk of the machine that copies it between two buckets."""
    (tmp_path / "here").mkdir()
    recipe = Recipe(world_size=4, shard_bytes=2**20)
    build_family(tmp_path / "here", "llm", steps=(12,), recipe=recipe)
    source = locate(str(tmp_path / "here" / "llm"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr("lastgood.copying.payload.BATCH_BYTES", 2 * 2**20)
    held = []
    store = target.store
    persist = store.persist

    def watched(*arguments: object, **options: object) -> object:
        held.append(sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file()))
        return persist(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "persist", watched)
    copy_family(source, target, Selection())
    assert faults(target) == []
    total = sum(path.stat().st_size for path in (source.local_family / "00000001-0000000000000012").rglob("*.*"))
    record_property("bytes of a generation, and most on this machine at once", (total, max(held)))
    assert max(held) <= 2 * 2**20 < total / 4


@pytest.mark.parametrize("fault", [LostReply(), Reset(), SLOW_DOWN], ids=["lost", "reset", "busy"])
def test_a_fault_at_any_request_changes_nothing(
    fault: Fault,
    source: Location,
    built: BuiltFamily,
    bucket: str,
    fault_proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests are repeated, and what was carried out before its reply was lost is ours: every third one is hit."""
    for name, value in fault_proxy.environ.items():
        monkeypatch.setenv(name, value)
    numbers = itertools.count(1)
    fault_proxy.inject(fault, when=lambda request: next(numbers) % 3 == 0, times=None)
    target = locate(f"s3://{bucket}/far/llm", {f"s3://{bucket}": StoreSettings(concurrency=1, attempts=8)})
    assert standings(copy_family(source, target, ALL)) == [Standing.COPIED] * 2
    fault_proxy.clear()
    assert Family(target).latest().generation == built.newest
    assert faults(target) == []
