"""The global cursor: one order for every world size, and nothing prefetched is lost or seen twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from lastgood.errors import UsageError
from lastgood.state import CursorSampler, RankIdentity
from tests.state.small import Numbers


def cursors(world_size: int, *, length: int = 50, batch: int = 8, **settings: Any) -> list[CursorSampler]:
    """One cursor a rank."""
    return [
        CursorSampler(
            length, global_batch=batch, identity=RankIdentity(rank=rank, world_size=world_size), seed=5, **settings
        )
        for rank in range(world_size)
    ]


def steps(ranks: list[CursorSampler], batch: int = 8) -> list[set[int]]:
    """The set of samples of each remaining optimizer step of the epoch, over all ranks."""
    share = batch // len(ranks)
    parts = [cursor.rest() for cursor in ranks]
    return [{one for part in parts for one in part[start : start + share]} for start in range(0, len(parts[0]), share)]


def test_every_world_size_trains_on_the_same_global_batches() -> None:
    """Otherwise a change of ranks would change the run, not only its speed."""
    expected = steps(cursors(1))
    assert len(expected) == 6
    assert all(steps(cursors(world_size)) == expected for world_size in (2, 4, 8))


@given(
    length=st.integers(8, 200),
    consumed=st.integers(0, 20),
    saved=st.sampled_from([1, 2, 4, 8]),
    loaded=st.sampled_from([1, 2, 4, 8]),
)
def test_the_rest_of_the_epoch_is_the_same_multiset(length: int, consumed: int, saved: int, loaded: int) -> None:
    """Saved on some ranks and continued on others, every sample of the epoch is seen exactly once."""
    before = cursors(saved, length=length)
    batches = min(consumed, length // 8 - 1)
    seen: Counter[int] = Counter()
    for cursor in before:
        seen.update(cursor.rest(batches * 8 // saved))
        cursor.advance(batches * 8 // saved)
    after = cursors(loaded, length=length)
    for cursor in after:
        cursor.restore(before[0].position())
        seen.update(cursor.rest())
    assert seen == Counter(before[0].order(0)[: length - length % 8])


def test_the_order_is_that_of_torchs_distributed_sampler() -> None:
    """A run that changes from `DistributedSampler` keeps its order of samples."""
    sampler = DistributedSampler(range(48), num_replicas=1, rank=0, seed=5)
    sampler.set_epoch(3)
    assert cursors(1, length=48)[0].order(3) == list(sampler)


def test_epochs_differ_unless_shuffling_is_off() -> None:
    """Replaying one epoch's order for ever is a failure that loss curves hardly show."""
    (cursor,) = cursors(1)
    assert cursor.order(0) != cursor.order(1)
    (plain,) = cursors(1, shuffle=False)
    assert plain.order(0) == plain.order(1) == list(range(50))


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetching_moves_nothing(workers: int) -> None:
    """Workers are batches ahead; the saved position is that of the batch that was handed out."""
    (cursor,) = cursors(1)
    loader: Any = StatefulDataLoader(Numbers(), batch_size=4, sampler=cursor, num_workers=workers)
    expected = cursor.rest()
    seen: list[int] = []
    for number, (_, ids) in enumerate(cursor.follow(loader)):
        seen.extend(ids.tolist())
        if number == 3:
            break
    assert seen == expected[:16]
    assert cursor.consumed == 16
    assert cursor.peek(3) == tuple(expected[16:19])
    for _, ids in cursor.follow(loader):
        seen.extend(ids.tolist())
    assert seen == expected
    assert (cursor.epoch, cursor.consumed) == (1, 0)


def test_following_a_loader_draws_nothing() -> None:
    """A loader's iterator draws its base seed; a resumed run would make that draw elsewhere in the stream."""
    (cursor,) = cursors(1)
    loader: Any = StatefulDataLoader(Numbers(), batch_size=4, sampler=cursor)
    before = torch.get_rng_state()
    next(iter(cursor.follow(loader)))
    assert torch.equal(torch.get_rng_state(), before)
    next(iter(loader))
    assert not torch.equal(torch.get_rng_state(), before), "if torch stopped drawing, `follow` may stop guarding"


def test_a_position_inside_a_global_batch_is_not_saved() -> None:
    """Ranks take their shares at different places of the batch, so only its end means the same for every world size."""
    cursor = cursors(2)[0]
    cursor.advance(2)
    with pytest.raises(UsageError, match="inside a global batch: 4 samples consumed"):
        cursor.position()
    assert cursor.rest(2) == cursors(2)[0].rest(4)[2:], "the window that has begun goes on where it stood"


def test_a_loader_that_outruns_its_sampler_is_an_error() -> None:
    """A loader with another sampler would move the cursor by batches that it does not describe."""
    (cursor,) = cursors(1, length=16)
    with pytest.raises(UsageError, match="outran its sampler"):
        for _ in cursor.follow([torch.zeros(8)] * 3):
            pass


@pytest.mark.parametrize(
    ("length", "batch", "world_size", "message"),
    [(50, 8, 3, "cannot be shared"), (50, 0, 1, "cannot be shared"), (7, 8, 1, "smaller than one global batch")],
)
def test_impossible_batches_are_refused(length: int, batch: int, world_size: int, message: str) -> None:
    """Better at construction than as a deadlock between ranks with different numbers of batches."""
    with pytest.raises(UsageError, match=message):
        cursors(world_size, length=length, batch=batch)


@pytest.mark.parametrize("batch", [torch.zeros(4, 2), [torch.zeros(4), 1], {"x": torch.zeros(4)}, list("abcd")])
def test_the_size_of_a_batch_is_recognised(batch: Any) -> None:
    """The cursor counts samples in whatever a collate function gives."""
    (cursor,) = cursors(1)
    next(iter(cursor.follow([batch])))
    assert cursor.consumed == 4


def test_a_batch_of_unknown_size_is_an_error() -> None:
    """A wrong count would be a wrong position."""
    (cursor,) = cursors(1)
    with pytest.raises(UsageError, match="batch size unknown"):
        next(iter(cursor.follow([object()])))
