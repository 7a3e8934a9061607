"""The audit: which live objects carry state that nobody registered.

Decides what looks like training state and what is covered by a registered component. Rules: everything found is named
with its type and place, not only the first; what a registered object uses is covered only if saving that object
saves it too: a scheduler covers its inner schedulers, not its optimizer, and a loader covers its sampler, not a
generator inside its dataset. What the libraries keep for themselves is no state of the run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy
import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler
from torch.utils.data.dataloader import _InfiniteConstantSampler

from lastgood.manifest import Component
from lastgood.state.modules import OptimizerPart, local_address
from lastgood.state.ownership import alive, frame_values, holders, is_library, reach
from lastgood.state.parts import DocumentPart, TensorPart
from lastgood.state.records import RecordCursor

__all__ = ["Kind", "Unregistered", "find_unregistered"]


class Kind(StrEnum):
    """What kind of state an object looks like."""

    OPTIMIZER = "optimizer"
    PARAMETER_GROUP = "parameter group"
    SCHEDULER = "scheduler"
    SCALER = "scaler"
    GENERATOR = "generator"
    SAMPLER = "sampler"
    LOADER = "stateful loader"
    AVERAGE = "moving average"


_KINDS: tuple[tuple[Kind, tuple[type, ...]], ...] = (
    (Kind.OPTIMIZER, (torch.optim.Optimizer,)),
    (Kind.SCHEDULER, (LRScheduler,)),
    (Kind.SCALER, (torch.amp.GradScaler,)),
    (Kind.GENERATOR, (torch.Generator, numpy.random.Generator, numpy.random.RandomState, random.Random)),
    (Kind.SAMPLER, (Sampler,)),
    (Kind.LOADER, (DataLoader, RecordCursor)),
    (Kind.AVERAGE, (AveragedModel, torch.nn.Module)),
)
_ALL = tuple(kind for _, kinds in _KINDS for kind in kinds)
# What a component covers besides the very objects that it was given.
_COVERS: Mapping[Component, frozenset[Kind]] = {
    Component.OPTIMIZER: frozenset({Kind.OPTIMIZER}),
    Component.SCHEDULER: frozenset({Kind.SCHEDULER}),
    Component.DATA: frozenset({Kind.SAMPLER, Kind.LOADER, Kind.GENERATOR}),
    Component.OTHER: frozenset(Kind),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unregistered:
    """One object that carries state and that no component saves."""

    kind: Kind
    type_name: str
    where: str

    def __str__(self) -> str:
        return f"{self.kind} {self.type_name} at {self.where}"


def find_unregistered(
    roots: Iterable[object], parts: Sequence[TensorPart | DocumentPart], ignored: Sequence[object], *, registry: object
) -> tuple[Unregistered, ...]:
    """List the live objects that look like state and are neither registered, covered, ignored nor a library's own.

    Args:
        roots: Named places to look at first; everything alive is looked at too.
        parts: What is registered.
        ignored: Objects that the run declared to be no state.
        registry: Not looked into.
    """
    named = [(f"root {type(root).__qualname__}", root) for root in roots]
    training = frozenset(type(root).__module__.partition(".")[0] for _, root in named)
    covered = {id(thing) for thing in ignored} | _covered(parts) | _global_generators()
    models = [_Weights(part.owns[0]) for part in parts if part.component is Component.MODEL]
    judged: set[int] = set()
    found: list[Unregistered] = list(_group_problems(parts))
    for path, thing in _everything(named, registry):
        if id(thing) in covered or id(thing) in judged:
            continue
        kind = _kind(thing) or _copied_weights(path, thing, models)
        if kind is None:
            continue
        judged.add(id(thing))
        if kind is Kind.AVERAGE and isinstance(thing, torch.nn.Module):
            if not _is_average(thing, models):
                continue
            judged.update(id(inner) for inner in thing.modules())  # named once, by its outermost module
        where = path or _place(thing, kind, training)
        if where is not None:
            name = f"{type(thing).__module__}.{type(thing).__qualname__}"
            found.append(Unregistered(kind=kind, type_name=name, where=where))
    return tuple(found)


def _everything(named: list[tuple[str, object]], registry: object) -> Iterator[tuple[str, object]]:
    yield from reach(named, lambda thing: thing is not registry)
    for path, thing in frame_values():
        if issubclass(type(thing), _ALL):
            yield path, thing
    living = alive(_ALL)
    # Outermost modules first, so that an average is named by its wrapper and not by a part of it.
    inner = {id(child) for thing in living if isinstance(thing, torch.nn.Module) for child in thing.children()}
    for thing in sorted(living, key=lambda thing: id(thing) in inner):
        yield "", thing


def _kind(thing: object) -> Kind | None:
    kind = next((kind for kind, types in _KINDS if issubclass(type(thing), types)), None)
    if kind is Kind.SAMPLER and isinstance(thing, SequentialSampler | BatchSampler | _InfiniteConstantSampler):
        return None  # they hold no order of their own
    if kind is Kind.LOADER and isinstance(thing, DataLoader) and not hasattr(type(thing), "state_dict"):
        return None  # a plain loader cannot save a position; its sampler is judged
    if kind is Kind.GENERATOR and isinstance(thing, random.SystemRandom):
        return None  # the operating system's entropy has no state
    return kind


def _covered(parts: Sequence[TensorPart | DocumentPart]) -> set[int]:
    covered: set[int] = set()
    for part in parts:
        kinds = _COVERS.get(part.component, frozenset())
        for owned in part.owns:
            covered.add(id(owned))
            if isinstance(owned, torch.nn.Module):
                covered.update(id(module) for module in owned.modules())
            elif kinds:
                walk = reach([("", owned)], _descend_into(owned, kinds))
                covered.update(id(thing) for _, thing in walk if _kind(thing) in kinds)
    return covered


def _descend_into(owner: object, kinds: frozenset[Kind]) -> Callable[[object], bool]:
    datasets = {id(getattr(owner, "dataset", None))}

    def descend(thing: object) -> bool:
        if thing is owner:
            return True
        if id(thing) in datasets and not callable(getattr(thing, "state_dict", None)):
            return False  # a loader saves its dataset's state only if the dataset gives it
        kind = _kind(thing)
        return kind is None or kind in kinds

    return descend


def _global_generators() -> set[int]:
    cuda = tuple(getattr(torch.cuda, "default_generators", ()))
    hidden = (getattr(random, "_inst", None), getattr(numpy.random.mtrand, "_rand", None))
    return {id(generator) for generator in (torch.default_generator, *cuda, *hidden)}


def _group_problems(parts: Sequence[TensorPart | DocumentPart]) -> Iterator[Unregistered]:
    for part in parts:
        if isinstance(part, OptimizerPart):
            for number in part.unregistered_groups():
                name = f"{type(part.optimizer).__module__}.{type(part.optimizer).__qualname__}"
                yield Unregistered(kind=Kind.PARAMETER_GROUP, type_name=name, where=f"{part.name} group {number}")


class _Weights:
    """A registered model's tensors by name, to recognise a copy of them."""

    def __init__(self, model: Any) -> None:
        inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        self.shapes = {name: tuple(parameter.shape) for name, parameter in inner.named_parameters()}
        self.addresses = {local_address(parameter) for parameter in inner.parameters()}

    def copied_by(self, tensors: Mapping[Any, Any]) -> bool:
        return (
            bool(self.shapes)
            and tensors.keys() == self.shapes.keys()
            and all(
                isinstance(tensor, torch.Tensor)
                and tuple(tensor.shape) == self.shapes[name]
                and local_address(tensor) not in self.addresses  # the model itself, wrapped, or a state dict of it
                for name, tensor in tensors.items()
            )
        )


def _is_average(module: torch.nn.Module, models: list[_Weights]) -> bool:
    return isinstance(module, AveragedModel) or any(one.copied_by(dict(module.named_parameters())) for one in models)


def _copied_weights(path: str, thing: object, models: list[_Weights]) -> Kind | None:
    # Only what a root holds by name: state dicts pass through the heap all the time.
    if path.startswith("root ") and type(thing) is dict and any(one.copied_by(thing) for one in models):
        return Kind.AVERAGE
    return None


def _place(thing: object, kind: Kind, training: frozenset[str]) -> str | None:
    """Where an object of the heap is held, or None if only libraries hold it for themselves."""
    anchors = list(holders(thing))
    if kind is Kind.GENERATOR and anchors and all(is_library(module, training) for module, _ in anchors):
        return None
    own = next(((module, name) for module, name in anchors if not is_library(module, training)), None)
    return f"{own[0]}.{own[1]}" if own is not None else "a live object that no root and no module names"
