"""torchdata's `StatefulDataLoader` as a data position.

Decides which saved loader states are lawful, since the loader itself takes `{}`, negative and absurd positions without
a word. Rules: the state is tied to the rank, to the world size and to the number of workers, and a change of either is
named; the sampler's epoch, which torchdata does not save, is saved here; asking for a position starts no worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DistributedSampler, SequentialSampler

from lastgood.manifest import SampleIds
from lastgood.state import codec
from lastgood.state.ranks import RankIdentity
from lastgood.verdict import Finding, Note, Reason

__all__ = ["LoaderPosition"]

_SINGLE = frozenset(
    {
        "_index_sampler_state",
        "_sampler_iter_state",
        "_sampler_iter_yielded",
        "_num_yielded",
        "_IterableDataset_len_called",
        "_shared_seed",
        "fetcher_state",
        "dataset_state",
        "_iterator_finished",
    }
)
_MULTIPLE = frozenset({"_snapshot", "_steps_since_snapshot", "_iterator_finished"})
_SNAPSHOT = frozenset({"_snapshot_step", "_last_yielded_worker_id", "_main_snapshot", "_worker_snapshots"})
_ORDER = ("seed", "shuffle", "num_replicas", "rank", "drop_last", "total_size")
MAXIMUM_BATCHES = 2**53


class LoaderPosition:
    """A `StatefulDataLoader`'s position on this rank.

    Args:
        loader: Any object with its interface.
        identity: This rank.
    """

    kind = "loader"

    def __init__(self, loader: Any, identity: RankIdentity) -> None:
        self._loader = loader
        self._identity = identity
        self.owns: tuple[object, ...] = (loader,)

    def save(self) -> dict[str, Any]:
        return {
            "num_workers": self._loader.num_workers,
            "batch_size": self._loader.batch_size,
            "world_size": self._identity.world_size,
            "sampler": self._sampler(),
            "state": self._state(),
        }

    def validate(self, saved: list[Any]) -> Iterator[str | Finding | Note]:
        if len(saved) != self._identity.world_size:
            yield Finding(
                reason=Reason.TOPOLOGY_UNSUPPORTED,
                message=f"topology unsupported: loader positions of {len(saved)} ranks cannot be mapped onto "
                f"{self._identity.world_size}: a CursorSampler's global cursor can",
                offender="data",
                expected=str(self._identity.world_size),
                found=str(len(saved)),
            )
            return
        mine = saved[self._identity.rank]
        expected = self.save()
        if not isinstance(mine, dict) or mine.keys() != expected.keys():
            yield f"loader: expected the keys {sorted(expected)}"
            return
        if mine["num_workers"] != expected["num_workers"]:
            yield Finding(
                reason=Reason.WORKER_COUNT_CHANGED,
                message=f"worker count changed: the checkpoint's loader had {mine['num_workers']} workers, "
                f"this one has {expected['num_workers']}",
                offender="data.num_workers",
                expected=str(mine["num_workers"]),
                found=str(expected["num_workers"]),
            )
            return
        if mine["batch_size"] != expected["batch_size"]:
            yield f"batch_size: the run has {expected['batch_size']}, the checkpoint {mine['batch_size']!r}"
        yield from self._sampler_problems(expected["sampler"], mine["sampler"])
        yield from self._state_problems(mine["state"])

    def load(self, saved: list[Any]) -> None:
        mine = saved[self._identity.rank]
        if isinstance(self._loader.sampler, DistributedSampler):
            self._loader.sampler.set_epoch(mine["sampler"]["epoch"])
        self._loader.load_state_dict(mine["state"] or {})

    def next_ids(self, count: int) -> SampleIds:
        sampler, state, size = self._loader.sampler, self._state(), self._loader.batch_size
        if size is None or not isinstance(sampler, DistributedSampler | SequentialSampler):
            return SampleIds(from_trace=f"{type(sampler).__name__} draws its order while it runs")
        # The base class computes the order from seed and epoch and moves nothing.
        order = list(DistributedSampler.__iter__(sampler) if isinstance(sampler, DistributedSampler) else sampler)
        consumed = 0 if state is None else _yielded(state) * size
        ids = tuple(int(index) for index in order[consumed : consumed + count])
        if not ids or (state is not None and state["_iterator_finished"]):
            return SampleIds(from_trace="the epoch is over, and the training loop decides the next one")
        return SampleIds(ids=ids)

    def _state(self) -> dict[str, Any] | None:
        # A fresh loader has no position, and asking it for one would start its workers.
        if self._loader._iterator is None:
            pending: dict[str, Any] | None = self._loader.next_iter_state
            return pending
        state: dict[str, Any] = self._loader.state_dict()
        return state

    def _sampler(self) -> dict[str, Any]:
        sampler = self._loader.sampler
        described: dict[str, Any] = {"class": type(sampler).__qualname__}
        if isinstance(sampler, DistributedSampler):
            described["epoch"] = sampler.epoch
            described.update({key: getattr(sampler, key) for key in _ORDER})
        elif hasattr(sampler, "__len__"):
            described["length"] = len(sampler)
        return described

    def _sampler_problems(self, live: dict[str, Any], saved: Any) -> Iterator[str]:
        problems = list(codec.differences(live, saved, "sampler"))
        yield from problems
        for key, value in live.items() if not problems else ():
            if key == "epoch":
                if type(saved[key]) is not int or not 0 <= saved[key] <= MAXIMUM_BATCHES:
                    yield f"sampler.epoch: expected a count, found {saved[key]!r}"
            elif saved[key] != value:
                yield f"sampler.{key}: the run has {value!r}, the checkpoint {saved[key]!r}"

    def _state_problems(self, state: Any) -> Iterator[str]:
        if state is None:
            return
        expected = _MULTIPLE if self._loader.num_workers else _SINGLE
        if not isinstance(state, dict) or state.keys() != expected:
            yield f"loader state: expected the keys {sorted(expected)}"
            return
        snapshot = state.get("_snapshot")
        if self._loader.num_workers and (not isinstance(snapshot, dict) or snapshot.keys() != _SNAPSHOT):
            yield f"loader snapshot: expected the keys {sorted(_SNAPSHOT)}"
            return
        if not isinstance(state["_iterator_finished"], bool):
            yield f"loader state: expected finished or not, found {state['_iterator_finished']!r}"
        limit = _length(self._loader)
        for name, value in _counts(state):
            if type(value) is not int or not 0 <= value <= limit:
                yield f"loader {name}: expected 0..{limit} batches, found {value!r}"
                return
        yield from self._progress_problems(state)

    def _progress_problems(self, state: dict[str, Any]) -> Iterator[str]:
        """The sampler must stand where the batches say: a lost sampler state restarts the order in silence."""
        main = state["_snapshot"]["_main_snapshot"] if self._loader.num_workers else state
        batches = state["_snapshot"]["_snapshot_step"] if self._loader.num_workers else state["_num_yielded"]
        inner = next((main[key] for key in ("_sampler_iter_state", "_index_sampler_state") if main.get(key)), None)
        stateful = callable(getattr(self._loader.sampler, "state_dict", None))
        if stateful and batches and not isinstance(inner, dict):
            yield "loader state: the sampler's own state is missing"
        elif isinstance(inner, dict) and "samples_yielded" in inner and self._loader.batch_size is not None:
            samples, size = inner["samples_yielded"], self._loader.batch_size
            if type(samples) is not int or not (batches - 1) * size < samples <= batches * size:
                yield f"loader state: {batches} batches of {size} and {samples!r} samples contradict each other"


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:  # an iterable dataset has no length
        return MAXIMUM_BATCHES


def _counts(state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in ("_num_yielded", "_sampler_iter_yielded", "_steps_since_snapshot"):
        if name in state:
            yield name, state[name]
    if "_snapshot" in state:
        yield "_snapshot_step", state["_snapshot"]["_snapshot_step"]


def _yielded(state: dict[str, Any]) -> int:
    if "_num_yielded" in state:
        return int(state["_num_yielded"])
    return int(state["_snapshot"]["_snapshot_step"]) + int(state["_steps_since_snapshot"])
