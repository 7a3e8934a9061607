"""Creation success: what began, what was committed, and what must not be held against anybody yet."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from lastgood.errors import PublishError
from lastgood.identity import FamilyKeys
from lastgood.ledger import Ledger, queries
from lastgood.manifest import Component
from lastgood.protocol import claim, decide, perform
from lastgood.publish import Publisher, StagedArtifact, Staging
from lastgood.stores import LocalStore
from lastgood.testing.build import Recipe, build_job
from lastgood.testing.evidence import Past, fabricate
from tests.ledger.conftest import UNTIL

FAMILY = "llm-7b"


def start(root: Path, *, ranks: int = 1) -> list[Publisher]:
    """One life of a job: its publishers, one a rank."""
    store, keys = LocalStore(root), FamilyKeys(FAMILY)
    nonce = f"{len(store.names(keys.incarnations).files):032x}"
    incarnation = perform(store, claim(keys, nonce=nonce, host="test"))
    decision = perform(store, decide(keys, incarnation, nonce=nonce, allow_fresh=True))
    return [
        Publisher(
            store,
            keys,
            incarnation=incarnation,
            nonce=nonce,
            rank=rank,
            world_size=ranks,
            previous=decision.commit_digest,
            patience=timedelta(seconds=0.2),
        )
        for rank in range(ranks)
    ]


def write(staging: Staging, *, stray: bool = False) -> list[StagedArtifact]:
    for name in ("state.bin", *(["stray.bin"] if stray else [])):
        (staging.payload / name).write_bytes(str(staging.generation).encode())
    return [StagedArtifact(path="state.bin", component=Component.MODEL, rank=0)]


def publish(publisher: Publisher, step: int, *, stray: bool = False, ranks: int = 1) -> None:
    staging = publisher.stage(step)
    job = build_job(FAMILY, step, Recipe(world_size=ranks))
    publisher.publish(staging, write(staging, stray=stray), job=job)


def counted(ledger: Ledger, root: Path) -> tuple[int, int, dict[int, str]]:
    """Publishes begun, committed, and step → what became of it."""
    (indexed,) = ledger.update({FAMILY: str(root / FAMILY)})
    assert indexed.exit_code == 0
    with ledger.reading() as moment:
        (family,) = queries.families(moment).mappings()
        outcomes = {row["step"]: row["outcome"] for row in queries.publishes(moment).mappings()}
    return family["publishes_begun"], family["committed"], outcomes


def test_a_publish_under_way_counts_for_nothing_until_it_ended(ledger: Ledger, root: Path) -> None:
    """A save that takes ten minutes is no failure while it takes them."""
    (publisher,) = start(root)
    publish(publisher, 10)
    staging = publisher.stage(20)
    assert counted(ledger, root) == (1, 1, {10: "committed", 20: "under_way"})
    publisher.publish(staging, write(staging), job=build_job(FAMILY, 20, Recipe(world_size=1)))
    assert counted(ledger, root) == (2, 2, {10: "committed", 20: "committed"})


def test_a_publish_that_the_job_went_past_was_abandoned(ledger: Ledger, root: Path) -> None:
    """A life publishes one step after the other, so what is behind a later save can never be finished."""
    (publisher,) = start(root)
    publisher.stage(10)
    publish(publisher, 20)
    assert counted(ledger, root) == (2, 1, {10: "abandoned", 20: "committed"})


def test_a_publish_of_a_life_that_was_taken_over_was_abandoned(ledger: Ledger, root: Path) -> None:
    """A kill in the middle of a save leaves nobody to say so; the next start is what tells."""
    (publisher,) = start(root)
    publish(publisher, 10)
    publisher.stage(20)
    assert counted(ledger, root)[2][20] == "under_way"
    start(root)
    assert counted(ledger, root) == (2, 1, {10: "committed", 20: "abandoned"})


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_publish_that_failed_counts_at_once(ledger: Ledger, root: Path, ranks: int) -> None:
    """Where the coordinator says why, nobody has to wait for the next save; a full disk fails every one."""
    publisher = start(root, ranks=ranks)[0]
    if ranks == 1:
        staging = publisher.stage(10)
        publisher.abandon(staging, "no space left on device")
    else:
        with pytest.raises(PublishError, match="receipts missing"):
            publish(publisher, 10, ranks=ranks)  # the other rank never comes
    begun, committed, outcomes = counted(ledger, root)
    assert (begun, committed, outcomes) == (1, 0, {10: "failed"})
    with ledger.reading() as moment:
        (row,) = queries.publishes(moment).mappings()
    assert row["message"].startswith("no space left" if ranks == 1 else "receipts missing")


def test_a_manifest_without_a_commit_is_a_publish_too(ledger: Ledger, root: Path) -> None:
    """Killed between the two, it has left its staging already: only the manifest tells that it began, and when."""
    fabricate(root, FAMILY, Past(until=UNTIL, saves=3))
    (root / FamilyKeys(FAMILY).commits / "00000001-0000000000000200").unlink()
    (indexed,) = ledger.update({FAMILY: str(root / FAMILY)})
    assert indexed.exit_code == 0
    with ledger.reading() as moment:
        rows = {row["step"]: row for row in queries.publishes(moment).mappings()}
    assert (rows[200]["outcome"], rows[200]["at"]) == ("abandoned", UNTIL - timedelta(minutes=20))
    assert rows[300]["outcome"] == "committed"


def test_a_burned_slot_was_begun_and_is_no_save(ledger: Ledger, root: Path) -> None:
    """The sweep that gives a publish up leaves its marker, so the count does not get better by cleaning."""
    fabricate(root, FAMILY, Past(until=UNTIL, saves=8, burned=2, abandoned=1))
    ledger.update({FAMILY: str(root / FAMILY)})
    with ledger.reading() as moment:
        (family,) = queries.families(moment).mappings()
        states = sorted(row["state"] for row in queries.saves(moment).mappings())
    assert (family["publishes_begun"], family["committed"], family["candidates"]) == (8, 5, 5)
    assert states == ["burned"] * 2 + ["candidate"] * 5
    assert family["newest_save_at"] == UNTIL
