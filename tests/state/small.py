"""A training run small enough for a unit test, with every kind of state that the registry knows."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR
from torchdata.stateful_dataloader import StatefulDataLoader

from lastgood.state import Accumulation, CursorSampler, RankIdentity, Registry

SAMPLES = 100
GLOBAL_BATCH = 16
MICROBATCHES = 2


class Numbers(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Sample `i` holds the number i."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([index / SAMPLES]), index


def build_model(width: int = 12) -> torch.nn.Module:
    """Dropout draws from torch's stream; batch norm adds buffers, a 64-bit counter among them."""
    layers = torch.nn.Linear(1, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.1), torch.nn.Linear(width, 1)
    return torch.nn.Sequential(*layers)


def build_optimizer(model: torch.nn.Module, **settings: Any) -> torch.optim.AdamW:
    """Two groups with names, as real runs have them."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [
        {"params": matrices, "name": "decay", "weight_decay": 0.1},
        {"params": vectors, "name": "plain", "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-2, **settings)


@dataclass(kw_only=True)
class Small:
    """Everything that one rank trains with, registered."""

    identity: RankIdentity
    model: torch.nn.Module
    optimizer: torch.optim.AdamW
    scheduler: CosineAnnealingLR
    scaler: torch.amp.GradScaler
    accumulation: Accumulation
    cursor: CursorSampler
    loader: Any
    augment: random.Random
    noise: numpy.random.Generator
    registry: Registry

    @classmethod
    def build(
        cls,
        seed: int,
        *,
        identity: RankIdentity | None = None,
        workers: int = 0,
        width: int = 12,
        wrap: Any = lambda model: model,
        strategy: str = "single",
        leave_out: str = "",
    ) -> Small:
        """Build and register; a different seed gives different everything, as a fresh process would have.

        Args:
            seed: Of weights and of every stream.
            identity: Rank 0 of 1 if None.
            workers: Of the loader.
            width: Of the model.
            wrap: Makes the model distributed.
            strategy: What to call it.
            leave_out: Name of a component that is not registered.
        """
        identity = identity or RankIdentity(rank=0, world_size=1)
        torch.manual_seed(seed)
        model = wrap(build_model(width))
        optimizer = build_optimizer(model)
        cursor = CursorSampler(SAMPLES, global_batch=GLOBAL_BATCH, identity=identity, seed=3)
        size = GLOBAL_BATCH // MICROBATCHES // identity.world_size
        small = cls(
            identity=identity,
            model=model,
            optimizer=optimizer,
            scheduler=CosineAnnealingLR(optimizer, 50),
            scaler=torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5),
            accumulation=Accumulation(MICROBATCHES),
            cursor=cursor,
            loader=StatefulDataLoader(Numbers(), batch_size=size, sampler=cursor, num_workers=workers),
            augment=random.Random(seed + identity.rank),
            noise=numpy.random.default_rng([seed, identity.rank]),
            registry=Registry(identity),
        )
        random.seed(seed * 100 + identity.rank)
        numpy.random.seed(seed * 100 + identity.rank)
        torch.manual_seed(seed * 100 + identity.rank)
        small.register(strategy, leave_out)
        return small

    def register(self, strategy: str, leave_out: str) -> None:
        registry = self.registry
        registrations = {
            "model": lambda: registry.model(self.model),
            "optimizer": lambda: registry.optimizer(self.optimizer, self.model),
            "scheduler": lambda: registry.scheduler(self.scheduler),
            "scaler": lambda: registry.scaler(self.scaler),
            "accumulation": lambda: registry.accumulation(self.accumulation),
            "rng": lambda: registry.rng({"augment": self.augment, "noise": self.noise}),
            "data": lambda: registry.data(self.cursor, loader=self.loader),
            "config": lambda: registry.configuration({"seed": 3, "rates": [0.1, 0.2]}),
            "topology": lambda: registry.topology(strategy, {"data_parallel": self.identity.world_size}),
        }
        for name, registration in registrations.items():
            if name != leave_out:
                registration()

    def train(self, steps: int) -> list[Any]:
        """Train whole optimizer steps; what each microbatch was, to compare runs bit for bit."""
        log: list[Any] = []
        done = 0
        while done < steps:
            for numbers, ids in self.cursor.follow(self.loader):
                target = numbers * self.augment.random() + random.random() + numpy.random.rand() + self.noise.random()
                loss = (self.model(numbers) - target).float().pow(2).mean()
                self.scaler.scale(loss / MICROBATCHES).backward()
                log.append((loss.item(), ids.tolist(), self.scheduler.get_last_lr()))
                if self.accumulation.advance():
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                    self.optimizer.zero_grad()
                    self.scheduler.step()
                    done += 1
                    if done == steps:
                        break
        return log


def everything(small: Small) -> dict[str, Any]:
    """A copy of the live state that a refused load must not touch."""
    return {
        "model": {key: value.clone() for key, value in small.model.state_dict().items()},
        "optimizer": repr(small.optimizer.state_dict()),
        "scheduler": dict(small.scheduler.state_dict()),
        "scaler": small.scaler.state_dict(),
        "cursor": small.cursor.position(),
        "python": random.getstate(),
        "torch": torch.get_rng_state().tolist(),
        "augment": small.augment.getstate(),
    }


def unchanged(before: dict[str, Any], small: Small) -> bool:
    """Whether the live state still is what `everything` saw."""
    after = everything(small)
    same_model = all(torch.equal(before["model"][key], value) for key, value in after["model"].items())
    return same_model and all(before[key] == after[key] for key in before if key != "model")
