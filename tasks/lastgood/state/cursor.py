"""A sampler whose order depends on seed, epoch and index alone, with one cursor for the whole job.

Decides which samples come next on every rank. Rules: the global batch of a step is the same set of samples for every
world size; the cursor counts samples that were *handed out*, never those that a loader prefetched; after an epoch's
last batch it already stands at the next epoch's start. A tail that fills no global batch is left out of its epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler

from lastgood.errors import UsageError
from lastgood.state.ranks import RankIdentity

__all__ = ["CursorSampler", "follow"]

MAXIMUM_COUNT = 2**53

_Batch = TypeVar("_Batch")


class CursorSampler(Sampler[int]):
    """Yields this rank's sample indices from the cursor to the end of the epoch; hand it to a loader as `sampler=`.

    It has no `state_dict` on purpose: torchdata's loader would ask for it whenever it prefetches, and the cursor
    belongs to what was handed out.

    Args:
        length: Samples in the dataset.
        global_batch: Samples of one optimizer step, over all ranks and microbatches; a multiple of the world size.
        identity: This rank.
        seed: Of the order; the epoch is added to it, as torch's `DistributedSampler` does, so orders agree with it.
        shuffle: False gives the dataset's own order in every epoch.

    `epoch` and `consumed` (samples of this epoch handed out by all ranks together) are the cursor.
    """

    def __init__(
        self, length: int, *, global_batch: int, identity: RankIdentity, seed: int = 0, shuffle: bool = True
    ) -> None:
        if global_batch < 1 or global_batch % identity.world_size:
            raise UsageError(
                f"global batch cannot be shared: {global_batch} samples over {identity.world_size} ranks",
                hint="choose a global batch that every world size of the run divides",
            )
        if length < global_batch:
            raise UsageError(f"dataset smaller than one global batch: {length} samples, {global_batch} a batch")
        self.length = length
        self.global_batch = global_batch
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.consumed = 0
        self._identity = identity

    @property
    def epoch_samples(self) -> int:
        """Samples that one epoch hands out: whole global batches only."""
        return self.length - self.length % self.global_batch

    def __len__(self) -> int:
        return (self.epoch_samples - self.consumed) // self._identity.world_size

    def __iter__(self) -> Iterator[int]:
        return iter(self.rest())

    def order(self, epoch: int) -> list[int]:
        """The epoch's whole order of samples, before it is cut into batches."""
        order: list[int] = self._permutation(epoch).tolist()
        return order

    def rest(self, limit: int | None = None) -> list[int]:
        """This rank's indices from the cursor to the end of the epoch, or the first `limit` of them."""
        share = self.global_batch // self._identity.world_size
        first = self._identity.rank * share
        order, indices = self._permutation(self.epoch), list[int]()
        batch, offset = divmod(self.consumed, self.global_batch)
        offset //= self._identity.world_size  # a window in progress: every rank has taken as much of its share
        for start in range(batch * self.global_batch, self.epoch_samples, self.global_batch):
            indices.extend(order[start + first + offset : start + first + share].tolist())
            offset = 0
            if limit is not None and len(indices) >= limit:
                return indices[:limit]
        return indices

    def _permutation(self, epoch: int) -> torch.Tensor:
        """The order as int64 `[length]`, cpu: as Python's integers, a billion samples would take 36 GB at each peek."""
        if not self.shuffle:
            return torch.arange(self.length)
        generator = torch.Generator()
        generator.manual_seed(self.seed + epoch)
        return torch.randperm(self.length, generator=generator)

    def peek(self, count: int) -> tuple[int, ...]:
        """The next sample ids of this rank, at most to the end of the epoch; the cursor stays."""
        return tuple(self.rest(count))

    def advance(self, samples: int) -> None:
        """Count samples that this rank has handed out; every rank hands out as many at the same time."""
        self.consumed += samples * self._identity.world_size
        if self.consumed > self.epoch_samples:
            raise UsageError(f"cursor ran past its epoch: {self.consumed} of {self.epoch_samples} samples")
        if self.consumed == self.epoch_samples:
            self.epoch, self.consumed = self.epoch + 1, 0

    def follow(self, loader: Iterable[_Batch]) -> Iterator[_Batch]:
        """Iterate a loader to the end of the epoch and move the cursor with every batch that is handed out.

        A batch counts as handed out when the loop body gets it. Source: reports of loaders whose prefetched batches
        were lost or replayed.
        """
        epoch = self.epoch
        for batch in follow(loader):
            if self.epoch != epoch:
                raise UsageError(f"loader outran its sampler: epoch {epoch} is over after {self.epoch_samples} samples")
            self.advance(_batch_size(batch))
            yield batch

    def position(self) -> dict[str, Any]:
        """The cursor and everything that its meaning depends on.

        Raises:
            UsageError: The cursor stands inside a global batch, which another world size could not continue.
        """
        if self.consumed % self.global_batch:
            raise UsageError(
                f"save inside a global batch: {self.consumed} samples consumed, batches of {self.global_batch}",
                hint="save after the last microbatch of an optimizer step",
            )
        return {
            "epoch": self.epoch,
            "consumed": self.consumed,
            "length": self.length,
            "global_batch": self.global_batch,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Move the cursor to a validated position."""
        self.epoch, self.consumed = state["epoch"], state["consumed"]

    def problems(self, state: Any) -> Iterator[str]:
        """What is wrong with a saved cursor for this dataset and batch."""
        expected = {"epoch", "consumed", "length", "global_batch", "seed", "shuffle"}
        if not isinstance(state, dict) or state.keys() != expected:
            yield f"expected the keys {sorted(expected)}, found {sorted(state) if isinstance(state, dict) else state!r}"
            return
        for key in ("length", "global_batch", "seed", "shuffle"):
            if type(state[key]) is not type(getattr(self, key)) or state[key] != getattr(self, key):
                yield f"{key}: the run has {getattr(self, key)!r}, the checkpoint {state[key]!r}"
        for key, limit in (("epoch", MAXIMUM_COUNT), ("consumed", self.epoch_samples - 1)):
            if type(state[key]) is not int or not 0 <= state[key] <= limit:
                yield f"{key}: expected 0..{limit}, found {state[key]!r}"
        if type(state["consumed"]) is int and state["consumed"] % self.global_batch:
            yield f"consumed: {state['consumed']} is no multiple of the global batch {self.global_batch}"


def follow(loader: Iterable[_Batch]) -> Iterator[_Batch]:
    """Iterate a loader without drawing from torch's global stream.

    Making a loader's iterator draws the workers' base seed. That draw would fall at another place in a resumed run than
    in an uninterrupted one, and everything random after it would differ.
    """
    state = torch.get_rng_state()
    iterator = iter(loader)
    torch.set_rng_state(state)
    yield from iterator


def _batch_size(batch: object) -> int:
    """How many samples a collated batch holds: the first dimension of its first tensor, or the length of a list."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0])
    if isinstance(batch, dict):
        return _batch_size(next(iter(batch.values())))
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], torch.Tensor | dict | tuple | list):
        return _batch_size(batch[0])
    if isinstance(batch, Sized):
        return len(batch)
    raise UsageError(
        f"batch size unknown: a batch is a {type(batch).__qualname__}", hint="yield tensors, lists or dicts"
    )
