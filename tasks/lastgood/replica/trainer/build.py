"""Building everything that one rank trains with, and registering all of it.

Decides how the parts are made and that each is registered; a part that is made here and not registered is found by
`audit`, which runs before training can begin. Rule: what a restart must bring back is built the same way whether it is
then loaded or not, so that a resumed rank differs from a fresh one by the load alone.
"""

from __future__ import annotations

import ctypes
import math
import os
import random
import signal
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

import numpy
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torchdata.stateful_dataloader import StatefulDataLoader

from lastgood.job import content_id
from lastgood.manifest import Component
from lastgood.replica.trainer.corpus import Augmentation, Corpus
from lastgood.replica.trainer.model import ByteTransformer
from lastgood.replica.trainer.parallel import World, local, share
from lastgood.replica.trainer.settings import Precision, Settings
from lastgood.state import Accumulation, CursorSampler, RankIdentity, Registry

__all__ = ["MovingAverage", "Training", "build", "fast_forward"]

WEIGHT_DECAY = 0.1
INITIAL_SCALE = 2.0**12
GROWTH_INTERVAL = 100
AVERAGE_DECAY = 0.99
PR_SET_PDEATHSIG = 1


class MovingAverage(nn.Module):
    """An exponential moving average of a model's weights, sharded as the model is.

    Args:
        twin: Built and shared like the model.
        model: Whose weights it starts from.
    """

    def __init__(self, twin: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.module = twin
        with torch.no_grad():
            for average, parameter in zip(twin.parameters(), model.parameters(), strict=True):
                average.copy_(parameter)
                average.requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move every average towards the model's weight."""
        for average, parameter in zip(self.module.parameters(), model.parameters(), strict=True):
            average.lerp_(parameter, 1 - AVERAGE_DECAY)


@dataclass(slots=True, kw_only=True)
class Training:
    """Everything that one rank trains with; `step` counts completed optimizer steps.

    Args:
        parameters: Of the model, in its order.
        updates: How often the optimizer stepped in this process; the scaler may skip a step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR
    scaler: torch.amp.GradScaler
    accumulation: Accumulation
    cursor: CursorSampler
    corpus: Corpus
    loader: StatefulDataLoader[tuple[Tensor, Tensor]]
    augmentation: Augmentation
    average: MovingAverage | None
    registry: Registry
    parameters: list[nn.Parameter]
    step: int = 0
    updates: int = 0

    def batches(self) -> Generator[tuple[Tensor, Tensor], None, None]:
        """Microbatches from the cursor on, epoch after epoch: sample ids `[batch]` and windows `[batch, bytes]`."""
        while True:
            self.corpus.epoch = self.cursor.epoch
            yield from self.cursor.follow(self.loader)

    def learning_rates(self) -> dict[str, float]:
        """Group → the rate that the next update will use."""
        return {group["name"]: float(group["lr"]) for group in self.optimizer.param_groups}

    def optimizer_steps(self) -> dict[str, int]:
        """Group → completed updates, as the optimizer itself counts them."""
        firsts = {group["name"]: group["params"][0] for group in self.optimizer.param_groups}
        states = {name: self.optimizer.state.get(parameter, {}) for name, parameter in firsts.items()}
        return {name: int(state.get("step", 0)) for name, state in states.items()}

    def digests(self) -> dict[str, str]:
        """Digests of this rank's whole state by kind, bit for bit; costs a pass over all of it."""
        # In the model's order and by name: a loaded optimizer holds the same entries in an order of its own.
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
        moments = [state[name] for state in states for name in sorted(state)]
        kinds = {
            "model": (*self.parameters, *self.model.buffers()),
            "optimizer": tuple(moments),
            "ema": tuple(self.average.parameters()) if self.average is not None else (),
        }
        streams = repr((random.getstate(), self.augmentation.noise.bit_generator.state)).encode()
        streams += (
            repr(numpy.random.get_state(legacy=False)["state"]).encode() + torch.get_rng_state().numpy().tobytes()
        )
        digests = {name: content_id(b"".join(map(_bytes, tensors))) for name, tensors in kinds.items() if tensors}
        return {**digests, "streams": content_id(streams)}


def build(settings: Settings, world: World) -> Training:
    """Make and register everything, then seed this rank's streams.

    Raises:
        UsageError: The settings do not fit together.
        RegistrationError: Something that changes the next step is not registered.
    """
    identity = RankIdentity(rank=world.rank, world_size=world.world_size, coordinates={"data_parallel": world.rank})
    # The same weights on every rank and for every world size.
    torch.manual_seed(settings.seed)
    model = share(ByteTransformer(settings.shape), settings, world)
    average = None
    if settings.ema:
        average = MovingAverage(share(ByteTransformer(settings.shape), settings, world), model)
    optimizer = _optimizer(model, settings)
    corpus = Corpus(context=settings.shape.context, samples=settings.samples, seed=settings.seed)
    cursor = CursorSampler(len(corpus), global_batch=settings.global_batch, identity=identity, seed=settings.seed)
    training = Training(
        model=model,
        optimizer=optimizer,
        scheduler=LambdaLR(optimizer, _schedule(settings)),
        scaler=torch.amp.GradScaler(
            world.device.type,
            init_scale=INITIAL_SCALE,
            growth_interval=GROWTH_INTERVAL,
            enabled=settings.precision is not Precision.BF16,
        ),
        accumulation=Accumulation(settings.microbatches),
        cursor=cursor,
        corpus=corpus,
        loader=_loader(corpus, cursor, settings, world),
        augmentation=Augmentation(numpy.random.default_rng([settings.seed, world.rank])),
        average=average,
        registry=Registry(identity=identity),
        parameters=list(model.parameters()),
    )
    _count_updates(training)
    _register(training, settings, world)
    _seed(settings.seed, world.rank)
    return training


def fast_forward(training: Training, step: int) -> None:
    """Pretend that `step` steps were done: every counter, the schedule and the data position stand where they would.

    The moments are made from the weights, since nothing was trained; they are no less real to a save or a load.
    """
    training.step = step
    for parameter in training.parameters:
        weights = parameter.detach()
        training.optimizer.state[parameter] = {
            "step": torch.tensor(float(step)),
            "exp_avg": weights * 1e-3,
            "exp_avg_sq": weights * weights * 1e-4 + 1e-8,
        }
    scheduler = training.scheduler
    rates = [base * rate(step) for base, rate in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
    scheduler.load_state_dict(
        {**scheduler.state_dict(), "last_epoch": step, "_step_count": step + 1, "_last_lr": rates}
    )
    for group, rate in zip(training.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    cursor = training.cursor
    steps_per_epoch = cursor.epoch_samples // cursor.global_batch
    cursor.restore({"epoch": step // steps_per_epoch, "consumed": step % steps_per_epoch * cursor.global_batch})


def _register(training: Training, settings: Settings, world: World) -> None:
    registry = training.registry
    registry.model(training.model)
    registry.optimizer(training.optimizer, training.model)
    registry.scheduler(training.scheduler)
    registry.scaler(training.scaler)
    registry.accumulation(training.accumulation)
    registry.rng(generators={"noise": training.augmentation.noise})
    registry.data(training.cursor, loader=training.loader)
    registry.topology(settings.strategy.value, {"data_parallel": world.world_size})
    registry.configuration({**settings.configuration(), "workers": settings.workers})
    if training.average is not None:
        registry.ema(training.average)
    else:
        registry.absent(Component.EMA, "the run keeps no moving average")


def _optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"name": "decay", "params": matrices, "weight_decay": WEIGHT_DECAY},
        {"name": "no_decay", "params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95))


def _bytes(tensor: Tensor) -> bytes:
    return local(tensor).cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _schedule(settings: Settings) -> Callable[[int], float]:
    """Linear warm-up, then a cosine down to a tenth; the argument counts completed steps."""

    def factor(step: int) -> float:
        if step < settings.warmup_steps:
            return (step + 1) / settings.warmup_steps
        rest = max(1, settings.steps - settings.warmup_steps)
        done = min(1.0, (step - settings.warmup_steps) / rest)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    return factor


def _loader(
    corpus: Corpus, cursor: CursorSampler, settings: Settings, world: World
) -> StatefulDataLoader[tuple[Tensor, Tensor]]:
    return StatefulDataLoader(
        corpus,
        batch_size=settings.microbatch_samples(world.world_size),
        sampler=cursor,
        num_workers=settings.workers,
        worker_init_fn=partial(_die_with_trainer, os.getpid()) if settings.workers else None,
        # A forked worker needs no second import of torch, and sees the epoch that the corpus stands at.
        multiprocessing_context="fork" if settings.workers else None,
    )


def _die_with_trainer(trainer: int, _: int) -> None:
    """Let the kernel end this worker with its trainer: torch's own watchdog would leave it alive for seconds."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != trainer:
        os._exit(1)


def _count_updates(training: Training) -> None:
    def count(*_: object) -> None:
        training.updates += 1

    training.optimizer.register_step_post_hook(count)


def _seed(seed: int, rank: int) -> None:
    """Give this rank streams of its own, apart from every other rank's."""
    streams = numpy.random.SeedSequence([seed, rank]).generate_state(3)
    random.seed(int(streams[0]))
    numpy.random.seed(int(streams[1]))
    torch.manual_seed(int(streams[2]))
