"""From objects to hints: only a commit of a configured family is one, and everything is counted."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lastgood.identity import GenerationId
from lastgood_prefect.hints import Hint
from lastgood_prefect.relay.decoding import StorageEvent, UndecodableEvent
from lastgood_prefect.relay.reading import CommitKeys, Reader, bucket_of
from tests.relay.bodies import SHAPES, Body, aws

GENERATION = GenerationId.parse("00000003-0000000000048000")
ROOTS = {
    "llm-7b": "s3://checkpoints/runs",
    "llm-13b": "s3://checkpoints/runs/",
    "top": "s3://other-bucket",
    "grüße +%": "s3://checkpoints/a b+c/%41",
    "local": "/checkpoints",
}
KEYS = CommitKeys(ROOTS)


def hint(key: str, bucket: str = "checkpoints") -> Hint | None:
    return KEYS.hint(StorageEvent(bucket=bucket, key=key))


@pytest.mark.parametrize(
    ("bucket", "above", "family"),
    [
        ("checkpoints", "runs/", "llm-7b"),
        ("checkpoints", "runs/", "llm-13b"),
        ("other-bucket", "", "top"),
        ("checkpoints", "a b+c/%41/", "grüße +%"),
    ],
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_commit_of_a_configured_family_is_a_hint(shape: Body, bucket: str, above: str, family: str) -> None:
    """Whoever sends it and however the key is spelled on the way, it names the family and the generation."""
    reader = Reader(KEYS)
    body = shape(bucket, f"{above}{family}/.lastgood/commits/{GENERATION}")
    assert reader.hints(reader.decode(body)) == {Hint(family, GENERATION)}
    assert (reader.counters.received, reader.counters.hints) == (1, 1)


def test_a_sealed_foreign_generation_is_announced_too() -> None:
    """Its commit carries the name of its directory."""
    sealed = GenerationId.parse("00000000-0000000000000500~checkpoint-500")
    assert hint(f"runs/llm-7b/.lastgood/commits/{sealed}") == Hint("llm-7b", sealed)


@pytest.mark.parametrize(
    ("key", "is_of_a_family"),
    [
        (f"runs/llm-7b/{GENERATION}/model.safetensors", True),
        (f"runs/llm-7b/.lastgood/manifests/{GENERATION}.json", True),
        ("runs/llm-7b/.lastgood/commits/", True),
        ("runs/llm-7b/.lastgood/commits/.tmp-1", True),
        ("runs/llm-7b/.lastgood/commits/3-48000", True),
        ("runs/llm-7b/.lastgood/commits/٠٠٠٠٠٠٠٣-٠٠٠٠٠٠٠٠٠٠٠٤٨٠٠٠", True),
        ("runs/llm-7b/.lastgood/commits/00000000-0000000000000500~../../etc", True),
        (f"runs/llm-7b/.lastgood/commits/{GENERATION}/x", True),
        (f"runs/llm-7b/../llm-7b/.lastgood/commits/{GENERATION}", True),
        (f"runs/llm-8b/.lastgood/commits/{GENERATION}", False),
        (f"/runs/llm-7b/.lastgood/commits/{GENERATION}", False),
        (f"./runs/llm-7b/.lastgood/commits/{GENERATION}", False),
        (f"runs//llm-7b/.lastgood/commits/{GENERATION}", False),
        (f"RUNS/llm-7b/.lastgood/commits/{GENERATION}", False),
        (f"llm-7b/.lastgood/commits/{GENERATION}", False),
        (f"a b+c/A/grüße +%/.lastgood/commits/{GENERATION}", False),
        (f"local/.lastgood/commits/{GENERATION}", False),
        (f"checkpoints/local/.lastgood/commits/{GENERATION}", False),
        ("runs/llm-7b", False),
        ("../../etc/passwd", False),
    ],
)
def test_nothing_else_is_a_hint(key: str, is_of_a_family: bool) -> None:
    """A key is compared with those that are configured, exactly: it is never normalised, resolved or opened."""
    assert hint(key) is None
    assert KEYS.is_of_a_family(StorageEvent(bucket="checkpoints", key=key)) is is_of_a_family


def test_another_bucket_s_commit_is_foreign() -> None:
    """A bucket that is not configured may hold a family of the same name."""
    assert hint(f"runs/llm-7b/.lastgood/commits/{GENERATION}", bucket="elsewhere") is None


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("s3://bucket", ("bucket", "")),
        ("s3://bucket/", ("bucket", "")),
        ("s3://bucket/a/b/", ("bucket", "a/b")),
        ("/mnt/s3://bucket", None),
        ("file:///checkpoints", None),
        ("S3://bucket", None),
    ],
)
def test_only_a_bucket_s_root_can_be_announced(root: str, expected: tuple[str, str] | None) -> None:
    """No notification names a file system."""
    assert bucket_of(root) == expected


def test_everything_is_counted_as_what_it_was() -> None:
    """Whoever wires a bucket wrongly sees it in these figures before they miss a verdict."""
    reader = Reader(KEYS)
    commit = f"runs/llm-7b/.lastgood/commits/{GENERATION}"
    for key in (commit, commit, "runs/llm-7b/x/model.safetensors", "elsewhere/x"):
        reader.hints(reader.decode(aws("checkpoints", key)))
    with pytest.raises(UndecodableEvent):
        reader.decode(b"{}")
    assert str(reader.counters) == "5 received, 2 hints, 1 doubled, 1 other, 1 foreign, 1 malformed, 0 refused"
    (family,) = text_string_to_metric_families(reader.counters.prometheus())
    assert family.name == "lastgood_relay_events"
    assert {one.labels["outcome"]: one.value for one in family.samples}["foreign"] == 1
