"""A training process in which exactly one thing is not registered: run by test_audit in a process of its own.

    python -m tests.state.audited CASE …

prints what the audit found as one line of JSON a case. All live objects of a process count, so every case has a child
of its own, forked from an interpreter that imported torch once.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import sys
import traceback
from typing import Any

import numpy
import torch
from torch.optim.lr_scheduler import LinearLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from lastgood.state import CursorSampler, RankIdentity
from tests.state.small import Numbers, Small, build_model, build_optimizer

STRAY = random.Random(1)  # held by a module of the run's own code, registered where no case is about it


class Trainer:
    """What a run gives the audit as its root."""

    def __init__(self) -> None:
        self.small = Small.build(1)
        self.small.registry.ignore(STRAY, "the case `module generator` is about it")
        self.extra: Any = None


class Nested:
    """An attribute two levels down, in slots."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = {"held": [inner]}


class DrawingDataset(Numbers):
    """Augments from a generator of its own, which no loader saves."""

    def __init__(self) -> None:
        self.random = random.Random(5)


class DrawingModel(torch.nn.Module):
    """Draws its noise from a generator that a state dict does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.generator = torch.Generator()


def _other_model() -> torch.nn.Module:
    return torch.nn.Linear(3, 3)


def _averaged(trainer: Trainer) -> Any:
    return AveragedModel(trainer.small.model)


def _plateau(trainer: Trainer) -> Any:
    return ReduceLROnPlateau(trainer.small.optimizer)


def _stateful_loader(_: Trainer) -> Any:
    return StatefulDataLoader(Numbers(), batch_size=2, sampler=SequentialSampler(Numbers()))


MAKERS: dict[str, Any] = {
    "optimizer": lambda trainer: torch.optim.SGD(_other_model().parameters(), lr=0.1),
    "scheduler": lambda trainer: StepLR(trainer.small.optimizer, 3),
    "plateau scheduler": _plateau,
    "scaler": lambda trainer: torch.amp.GradScaler("cpu"),
    "torch generator": lambda trainer: torch.Generator(),
    "numpy generator": lambda trainer: numpy.random.default_rng(1),
    "numpy legacy generator": lambda trainer: numpy.random.RandomState(1),
    "python generator": lambda trainer: random.Random(1),
    "nested generator": lambda trainer: Nested(torch.Generator()),
    "model generator": lambda trainer: DrawingModel(),
    "random sampler": lambda trainer: RandomSampler(range(4)),
    "distributed sampler": lambda trainer: DistributedSampler(range(4), num_replicas=1, rank=0),
    "cursor": lambda trainer: CursorSampler(9, global_batch=3, identity=RankIdentity(rank=0, world_size=1)),
    "shuffling loader": lambda trainer: DataLoader(Numbers(), shuffle=True),
    "stateful loader": _stateful_loader,
    "average": _averaged,
    "copied model": lambda trainer: copy.deepcopy(trainer.small.model),
    "shadow weights": lambda trainer: {name: one.clone() for name, one in trainer.small.model.named_parameters()},
    # Healthy: nothing to report.
    "nothing": lambda trainer: None,
    "evaluation loader": lambda trainer: DataLoader(Numbers(), batch_size=7),
    "another model": lambda trainer: _other_model(),
    "state dict": lambda trainer: trainer.small.model.state_dict(),
    "entropy": lambda trainer: random.SystemRandom(),
    "iterating": lambda trainer: next(iter(trainer.small.cursor.follow(trainer.small.loader))),
}
HIDDEN: list[Any] = []


def add_group(trainer: Trainer) -> None:
    """Training code that unfreezes a layer later adds its group to a registered optimizer."""
    trainer.small.model.add_module("late", torch.nn.Linear(1, 1))
    trainer.small.optimizer.add_param_group({"params": list(trainer.small.model.late.parameters()), "name": "late"})  # type: ignore[union-attr]


def left_out(component: str) -> tuple[Trainer, list[Any]]:
    """The run's own object of one component exists and is not registered."""
    trainer = Trainer()
    trainer.small = Small.build(1, leave_out=component)
    trainer.small.registry.ignore(STRAY, "the case `module generator` is about it")
    return trainer, []


def registered_kinds(trainer: Trainer) -> None:
    """Objects that registered ones own, in the shapes that real runs have them."""
    small = trainer.small = Small.build(1, leave_out="scheduler")
    small.registry.ignore(STRAY, "the case `module generator` is about it")
    optimizer = small.optimizer
    inner = [LinearLR(optimizer), StepLR(optimizer, 5)]
    small.scheduler = None  # type: ignore[assignment]
    small.registry.scheduler(SequentialLR(optimizer, inner, milestones=[2]))
    average = AveragedModel(small.model)
    small.registry.ema(average)
    loader: Any = StatefulDataLoader(Numbers(), batch_size=2, shuffle=True, generator=torch.Generator())
    small.registry.data(loader, name="second")
    next(iter(loader))
    trainer.extra = (average, loader)


def main(case: str) -> None:
    if case.startswith("left out "):
        trainer, keep = left_out(case.removeprefix("left out "))
    else:
        trainer, keep = Trainer(), []
        if case == "registered kinds":
            registered_kinds(trainer)
        elif case == "parameter group":
            add_group(trainer)
        elif case == "module generator":
            trainer.small.registry._ignored.clear()
        elif case == "dataset generator":
            trainer.small = Small.build(1, leave_out="data")
            trainer.small.registry.ignore(STRAY, "another case")
            loader: Any = StatefulDataLoader(DrawingDataset(), batch_size=2, sampler=SequentialSampler(Numbers()))
            trainer.small.registry.data(loader)
            trainer.small.registry.ignore(trainer.small.cursor, "not used here")
            trainer.small.registry.ignore(trainer.small.loader, "not used here")
            trainer.extra = loader
        elif case.startswith("hidden "):
            HIDDEN.append(Nested(MAKERS[case.removeprefix("hidden ")](trainer)))
        elif case.startswith("local "):
            keep.append(None)
            only_local = MAKERS[case.removeprefix("local ")](trainer)
            _report(case, trainer)
            del only_local
            return
        else:
            trainer.extra = MAKERS[case](trainer)
        build_optimizer(build_model())  # garbage: gone by the time of the audit
    _report(case, trainer)


def _report(case: str, trainer: Trainer) -> None:
    gc.collect()
    found = trainer.small.registry.unregistered([trainer])
    line = json.dumps([case, [[one.kind.value, one.type_name, one.where] for one in found]])
    os.write(
        1, f"{line}\n".encode()
    )  # one write: the cases share this pipe, and an unbuffered print writes its end apart


if __name__ == "__main__":
    torch.set_num_threads(1)
    AT_ONCE = len(os.sched_getaffinity(0))
    running: dict[int, str] = {}
    for number, name in enumerate(sys.argv[1:], start=1):
        child = os.fork()
        if not child:
            try:
                main(name)
                os._exit(0)
            except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's loop
                traceback.print_exc()
                os._exit(1)
        running[child] = name
        while running and (len(running) == AT_ONCE or number == len(sys.argv) - 1):
            ended, status = os.wait()
            if status:
                sys.exit(f"case {running[ended]} failed")
            del running[ended]
