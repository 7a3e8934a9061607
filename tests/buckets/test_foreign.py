"""Checkpoints that another framework wrote, in a bucket: seen, judged, chosen and sealed as on a file system."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastgood.copying import Selection, Standing, copy_family
from lastgood.errors import SealRefused
from lastgood.family import Family
from lastgood.formats.examination import examine, open_place
from lastgood.formats.sealing import Sealed, seal
from lastgood.formats.structural import choose_structurally
from lastgood.formats.trees import find_checkpoints
from lastgood.location import locate, locate_place
from lastgood.verdict import Outcome, Reason
from tests.buckets.servers import SeaweedFS
from tests.foreign import toy_known, write_toy, write_toy_file

pytestmark = pytest.mark.usefixtures("s3_environ")


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with toy_known():
        yield


@pytest.fixture
def root(seaweedfs: SeaweedFS, bucket: str, tmp_path: Path) -> str:
    """A run in a bucket: two whole directories, a torn one, and a single file."""
    local = tmp_path / "runs" / "llm"
    for step in (100, 200, 300):
        write_toy(local, step)
    (local / "toy-300" / "rank-1.rng").unlink()
    write_toy_file(local, 50)
    client = seaweedfs.client()
    for path in local.rglob("*"):
        if path.is_file():
            client.put_object(Bucket=bucket, Key=str(path.relative_to(tmp_path)), Body=path.read_bytes())
    return f"s3://{bucket}/runs/llm"


def adopt(uri: str) -> Sealed:
    return seal(locate_place(uri))


def test_a_bucket_of_checkpoints_is_seen_and_chosen_from(root: str) -> None:
    """No directory exists there, only keys; an empty one cannot be seen, and a torn one is passed over."""
    place = locate_place(root)
    found = {source.name: str(examine(source).restorability) for source in find_checkpoints(place.store, place.key)}
    assert found == {
        "toy-100": "resumable",
        "toy-200": "resumable",
        "toy-300": "damaged",
        "toy-50.safetensors": "resumable",
    }
    offer = choose_structurally(place)
    assert (offer.uri, offer.step) == (f"{root}/toy-200", 200)
    assert [one.name for one in offer.passed_over] == ["toy-300"]
    assert examine(open_place(locate_place(f"{root}/toy-50.safetensors"))).step == 50


def test_a_checkpoint_in_a_bucket_is_sealed_copied_home_and_back(
    root: str, seaweedfs: SeaweedFS, bucket: str, tmp_path: Path
) -> None:
    """Directory or single object, its bytes are vouched for, and a flipped one is named."""
    sealed = [adopt(f"{root}/{name}") for name in ("toy-50.safetensors", "toy-100", "toy-200")]
    assert not adopt(f"{root}/toy-200").is_new
    family = Family(locate(root))
    assert family.latest().uri == f"{root}/toy-200"
    assert {family.verify(one.manifest.id).outcome for one in sealed} == {Outcome.PASS}
    (tmp_path / "home").mkdir()
    home = locate(str(tmp_path / "home" / "llm"))
    there = copy_family(locate(root), home, Selection(newest=None))
    assert [one.standing for one in there.generations] == [Standing.COPIED] * 3
    assert {Family(home).verify(one.manifest.id).outcome for one in sealed} == {Outcome.PASS}
    back = locate(f"s3://{bucket}/again/llm")
    again = copy_family(home, back, Selection(newest=None))
    assert [one.standing for one in again.generations] == [Standing.COPIED] * 3
    assert {Family(back).verify(one.manifest.id).outcome for one in sealed} == {Outcome.PASS}
    key = "runs/llm/toy-50.safetensors"
    data = seaweedfs.client().get_object(Bucket=bucket, Key=key)["Body"].read()
    seaweedfs.client().put_object(Bucket=bucket, Key=key, Body=data.replace(b"weights", b"Weights", 1))
    found = family.verify(sealed[0].manifest.id)
    assert [(one.reason, one.offender) for one in found.findings] == [(Reason.DIGEST_MISMATCH, "toy-50.safetensors")]


def test_a_cut_checkpoint_in_a_bucket_stays_cut_until_all_of_it_is_written_anew(
    root: str, seaweedfs: SeaweedFS, bucket: str
) -> None:
    """Buckets tell in whole seconds when an object was written; that is enough to tell a branch from the one before."""
    kept, place = adopt(f"{root}/toy-100"), locate_place(root)
    Family(locate(root)).rollback(kept.manifest.id, reason="the loss diverged")
    assert choose_structurally(place).name == "toy-100"
    with pytest.raises(SealRefused, match="cut by a rollback"):
        adopt(f"{root}/toy-200")
    client, store = seaweedfs.client(), locate(root).store
    keys = [one.key for one in store.walk("llm/toy-200")]
    newest = max(one.written_at for one in store.walk("llm/toy-200") if one.written_at is not None)
    while store.clock("llm") <= newest:
        time.sleep(0.1)
    for count, key in enumerate(keys, 1):
        whole = f"runs/{key}"
        client.put_object(Bucket=bucket, Key=whole, Body=client.get_object(Bucket=bucket, Key=whole)["Body"].read())
        assert choose_structurally(place).name == ("toy-200" if count == len(keys) else "toy-100")
    assert adopt(f"{root}/toy-200").manifest.generation == "00000001-0000000000000200~toy-200"
