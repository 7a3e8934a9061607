"""Shares of a generation: total, disjoint, in order, never empty, and as even as whole artifacts allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.digest import HashRequest, hash_bytes
from lastgood.errors import StoreTransientError
from lastgood.manifest import Artifact, Component
from lastgood.stores import LocalStore
from lastgood.stores.port import Hashed, Progress, Trouble
from lastgood.testing.build import BuiltFamily
from lastgood.testing.damage import CATALOGUE, Scene
from lastgood.verdict import Outcome
from lastgood.verify import Read, cut_shares, merge_shares, read_share, verify_generation

LENGTHS = st.lists(st.integers(0, 10) | st.integers(0, 2**50), min_size=1, max_size=60)


def artifacts_of(lengths: list[int]) -> tuple[Artifact, ...]:
    digests = (hash_bytes(b""),)
    return tuple(
        Artifact(path=f"{number}", component=Component.OTHER, rank=None, bytes=length, digests=digests)
        for number, length in enumerate(lengths)
    )


def length_of(artifact: Artifact) -> int:
    return artifact.bytes


@given(LENGTHS, st.integers(1, 80))
def test_shares_are_all_artifacts_once_and_in_their_order(lengths: list[int], count: int) -> None:
    """What no slice held would never be read, and what two held would be read for nothing."""
    artifacts = artifacts_of(lengths)
    shares = cut_shares(artifacts, count, length_of)
    assert tuple(artifact for share in shares for artifact in share) == artifacts
    assert len(shares) == min(count, len(artifacts))
    assert all(shares)


@given(LENGTHS, st.integers(1, 80))
def test_no_share_is_longer_than_its_part_and_one_artifact(lengths: list[int], count: int) -> None:
    """A save must not cost much more than the next, nor one worker read what two could."""
    shares = cut_shares(artifacts_of(lengths), count, length_of)
    longest = max(sum(artifact.bytes for artifact in share) for share in shares)
    assert longest * len(shares) <= sum(lengths) + max(lengths) * len(shares)


def test_equal_artifacts_make_equal_shares() -> None:
    """The common case, shards of one length, is cut evenly."""
    assert [len(share) for share in cut_shares(artifacts_of([100] * 64), 16, length_of)] == [4] * 16


def test_nothing_makes_no_share() -> None:
    """A manifest lists one artifact at least; a worker may be handed none."""
    assert cut_shares((), 4, length_of) == ()


# Reading in shares.


class BreakingStore(LocalStore):
    """A store that goes away when a certain artifact is to be read."""

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        for request in requests:
            if request.path == "optimizer/rank-00000.safetensors":
                raise StoreTransientError("cannot read: no reply")
            yield from super().hash(prefix, [request], progress)


def spread_over(store: LocalStore, workers: int) -> Read:
    """A reading by so many workers, one after the other."""

    def read(prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None, /) -> Iterator[Hashed]:
        cut = cut_shares(requests, workers, lambda request: request.size_bytes or 0)
        return merge_shares((read_share(store, prefix, share) for share in cut), progress)

    return read


@pytest.mark.parametrize("workers", [1, 2, 5, 100])
def test_however_many_read_the_verdict_is_that_of_one(healthy: BuiltFamily, scene: Scene, workers: int) -> None:
    """A verdict must not depend on how many machines were at hand, nor on where a share ends."""
    CATALOGUE["byte_flipped"].apply(scene)
    told: list[list[int]] = [[], []]
    alone = verify_generation(scene.store, scene.keys, scene.generation, progress=told[0].append)
    spread = verify_generation(
        scene.store, scene.keys, scene.generation, progress=told[1].append, read=spread_over(scene.store, workers)
    )
    assert spread == alone
    assert alone.outcome is Outcome.FAIL
    assert told[0][-1] == told[1][-1], "as many bytes were read"


def test_a_share_that_fails_ends_the_reading_as_one_worker_s_would_end(healthy: BuiltFamily) -> None:
    """What was read before it is told, and the trouble is the store's."""
    store = BreakingStore(healthy.root)
    alone = verify_generation(store, healthy.keys, healthy.newest)
    spread = verify_generation(store, healthy.keys, healthy.newest, read=spread_over(store, 3))
    assert spread == alone
    assert spread.outcome is Outcome.INCONCLUSIVE


class ForgetfulStore(LocalStore):
    """One artifact is not there for this reader, another one is shorter."""

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        for request, found in zip(requests, super().hash(prefix, requests, progress), strict=True):
            match request.path:
                case "optimizer/rank-00000.safetensors":
                    yield Hashed(path=found.path, bytes=None, trouble=Trouble.MISSING, message="object not found")
                case "optimizer/rank-00001.safetensors":
                    yield Hashed(path=found.path, bytes=1, trouble=Trouble.SIZE, message="1 byte")
                case _:
                    yield found


def test_what_one_of_many_readers_does_not_find_fails_nothing_that_is_there(healthy: BuiltFamily) -> None:
    """A worker's mount may lag; what would bar a generation for good is looked at by the run itself, too."""
    read = spread_over(ForgetfulStore(healthy.root), 3)
    verdict = verify_generation(healthy.store, healthy.keys, healthy.newest, read=read)
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())
    (unclear,) = (check for check in verdict.checks if not check.outcome.is_conclusive)
    assert "could not read 2: optimizer/rank-00000.safetensors: one of two readings: object not found" in unclear.detail
