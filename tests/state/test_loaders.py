"""torchdata's loader as a position: exact with workers, and every absurd state refused before it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from lastgood.errors import RegistrationError
from lastgood.state import RankIdentity, follow
from lastgood.state.data import data_part, position_of
from lastgood.state.parts import DocumentPart
from lastgood.verdict import Finding, Reason
from tests.state.small import Numbers

IDENTITY = RankIdentity(rank=0, world_size=2)


def build(workers: int, seed: int = 3, **settings: Any) -> tuple[Any, DocumentPart, Any]:
    """A loader, its part and its position, of rank 0 of 2."""
    dataset = Numbers()
    sampler: Any = StatefulDistributedSampler(dataset, num_replicas=2, rank=0, seed=seed)
    loader: Any = StatefulDataLoader(dataset, batch_size=4, sampler=sampler, num_workers=workers, **settings)
    position = position_of(loader, IDENTITY)
    return loader, data_part(position, "train"), position


def ids_of(batches: Any, limit: int = 1000) -> list[int]:
    ids: list[int] = []
    for number, (_, batch) in enumerate(batches):
        ids.extend(batch.tolist())
        if number + 1 == limit:
            break
    return ids


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [0, 1, 5])
def test_a_loader_continues_where_it_was(workers: int, batches: int) -> None:
    """In the middle of the second epoch, prefetched batches and all; torchdata alone forgets which epoch it was."""
    loader, part, _ = build(workers)
    loader.sampler.set_epoch(1)
    iterator = follow(loader)
    before = ids_of(iterator, batches) if batches else []
    saved = part.save()
    rest = ids_of(iterator)

    again, again_part, position = build(workers)
    assert list(again_part.validate([saved, saved])) == []
    again_part.load([saved, saved])
    assert again.sampler.epoch == 1
    peeked = position.next_ids(6)
    assert again_part.save() == saved
    assert list(peeked.ids) == rest[:6]
    assert ids_of(follow(again)) == rest
    assert len(before) + len(rest) == 50


def test_a_peek_starts_no_worker_and_draws_nothing() -> None:
    """Asking a fresh loader for its state would start its processes and draw a seed."""
    loader, part, position = build(2)
    before = torch.get_rng_state()
    assert len(position.next_ids(5).ids) == 5
    assert part.save()["position"]["state"] is None
    assert loader._iterator is None
    assert torch.equal(torch.get_rng_state(), before)


def test_what_cannot_be_peeked_says_so() -> None:
    """Wrong expectations are worse than none; the reason is recorded instead."""
    dataset = Numbers()
    loader: Any = StatefulDataLoader(dataset, batch_size=4, shuffle=True)
    position = position_of(loader, RankIdentity(rank=0, world_size=1))
    assert "draws its order" in str(position.next_ids(4).from_trace)
    loader, _, position = build(0)
    ids_of(follow(loader))
    assert "epoch is over" in str(position.next_ids(4).from_trace)


def findings(part: DocumentPart, saved: list[Any]) -> list[Reason]:
    """Reasons, a plain sentence counting as an invalid state."""
    return [one.reason if isinstance(one, Finding) else Reason.STATE_INVALID for one in part.validate(saved)]


def test_another_number_of_workers_is_named() -> None:
    """Torchdata raises a bare AssertionError without a message."""
    loader, part, _ = build(2)
    ids_of(follow(loader), 2)
    saved = part.save()
    _, other, _ = build(0)
    assert findings(other, [saved, saved]) == [Reason.WORKER_COUNT_CHANGED]


def test_another_number_of_ranks_is_named() -> None:
    """A loader's positions belong to ranks; two of them cannot become four."""
    _, part, _ = build(0)
    saved = part.save()
    assert findings(part, [saved] * 4) == [Reason.TOPOLOGY_UNSUPPORTED]


def edit(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    """Set one value deep in a saved state."""

    def change(state: dict[str, Any]) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = to

    return change


SINGLE: dict[str, Callable[[dict[str, Any]], None]] = {
    "far ahead": edit("_num_yielded", to=10**12),
    "negative": edit("_num_yielded", to=-5),
    "one off": edit("_num_yielded", to=4),
    "finished": edit("_iterator_finished", to="yes"),
    "sampler lost": edit("_sampler_iter_state", to=None),
    "sampler reset": edit("_sampler_iter_state", "samples_yielded", to=0),
    "empty": lambda state: state.clear(),
    "unknown key": edit("extra", to=1),
}
MULTIPLE: dict[str, Callable[[dict[str, Any]], None]] = {
    "no snapshot": edit("_snapshot", to={}),
    "far ahead": edit("_snapshot", "_snapshot_step", to=10**12),
    "negative": edit("_snapshot", "_snapshot_step", to=-1),
    "sampler lost": edit("_snapshot", "_main_snapshot", "_sampler_iter_state", to=None),
    "steps negative": edit("_steps_since_snapshot", to=-3),
    "empty": lambda state: state.clear(),
}
CASES = [
    pytest.param(workers, change, id=f"{workers} workers, {name}")
    for workers, changes in ((0, SINGLE), (2, MULTIPLE))
    for name, change in changes.items()
]


@pytest.mark.parametrize(("workers", "change"), CASES)
def test_absurd_states_are_refused(workers: int, change: Callable[[dict[str, Any]], None]) -> None:
    """The loader takes each of these and restarts, skips or stops in silence."""
    loader, part, _ = build(workers)
    ids_of(follow(loader), 3)
    saved = part.save()
    assert findings(part, [saved, saved]) == []
    change(saved["position"]["state"])
    assert Reason.STATE_INVALID in findings(part, [saved, saved])


@pytest.mark.parametrize("setting", [{"seed": 4}])
def test_another_order_is_refused(setting: dict[str, Any]) -> None:
    """A position means nothing in another permutation."""
    _, part, _ = build(0)
    saved = part.save()
    _, other, _ = build(0, **setting)
    assert findings(other, [saved, saved]) == [Reason.STATE_INVALID]


def test_a_plain_loader_cannot_be_registered() -> None:
    """It has no position to save."""
    with pytest.raises(RegistrationError, match="data position cannot be saved"):
        position_of(torch.utils.data.DataLoader(Numbers()), IDENTITY)
