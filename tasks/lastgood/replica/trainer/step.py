"""One optimizer step: a window of microbatches and the update that ends it.

Decides the arithmetic of training. Leaves what is said about it to `report`, when to save to `loop`. Rule: gradients
are clipped after they were unscaled, and the schedule moves last, so that between two steps every counter names the
completed step and every group already holds the next rate.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional

from lastgood.replica.trainer.build import Training
from lastgood.replica.trainer.parallel import World, synchronise
from lastgood.replica.trainer.settings import Precision, Settings

__all__ = ["Batches", "Window", "train_step"]

Batches: TypeAlias = Generator[tuple[Tensor, Tensor], None, None]

CLIPPED_NORM = 1.0
_AUTOCAST = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16, Precision.FP32: torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one step leaves behind for its report; scalars stay on the device.

    Args:
        losses: One scalar a microbatch, of this rank.
        grad_norm: Global, unscaled, before clipping.
        sample_ids: One int64 `[batch]` on the host a microbatch.
    """

    losses: list[Tensor]
    grad_norm: Tensor
    sample_ids: list[Tensor]


def train_step(training: Training, settings: Settings, world: World, batches: Batches) -> Window:
    """Run one window of microbatches and update; afterwards `training.step` counts it as completed."""
    losses, sample_ids = [], []
    for index in range(settings.microbatches):
        ids, windows = next(batches)
        sample_ids.append(ids)
        losses.append(_microbatch(training, settings, world, windows, last=index + 1 == settings.microbatches))
        training.accumulation.advance()
    norm = _update(training)
    if settings.step_delay_seconds:
        time.sleep(settings.step_delay_seconds)
    return Window(losses=losses, grad_norm=norm, sample_ids=sample_ids)


def _microbatch(training: Training, settings: Settings, world: World, windows: Tensor, *, last: bool) -> Tensor:
    tokens = training.augmentation(windows).to(world.device, non_blocking=True)
    lower = settings.precision is not Precision.FP32
    with synchronise(training.model, last=last):
        with torch.autocast(world.device.type, _AUTOCAST[settings.precision], enabled=lower):
            logits = training.model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.float(), tokens[:, 1:].flatten())
        training.scaler.scale(loss / settings.microbatches).backward()
    return loss.detach()


def _update(training: Training) -> Tensor:
    training.scaler.unscale_(training.optimizer)
    norm = torch.nn.utils.clip_grad_norm_(training.parameters, CLIPPED_NORM)
    training.scaler.step(training.optimizer)
    training.scaler.update()
    training.optimizer.zero_grad(set_to_none=True)
    training.scheduler.step()
    if training.average is not None:
        training.average.update(training.model)
    training.step += 1
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
