"""Accelerate with automatic checkpoint naming, and a registered object that holds the step.

Variants: `""` the position in the data comes from the step, by `skip_first_batches`; `stateful` the loader keeps it.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed

from tests.corpus.job import BATCH_SAMPLES, LEARNING_RATE, SAVED_STEPS, SEED, Job, rate_factor
from tests.corpus.observing import Observer
from tests.corpus.programs.tiny import Samples, Tiny


class Progress:
    """Completed steps, as an object that Accelerate saves with the rest."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def train(job: Job, observer: Observer) -> None:
    """Train, saving after the steps that the job says, or resume from the checkpoint of the largest number."""
    accelerator = Accelerator(
        cpu=True,
        project_config=ProjectConfiguration(project_dir=str(job.root), automatic_checkpoint_naming=True),
        dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=job.variant == "stateful"),
        step_scheduler_with_optimizer=False,
    )
    set_seed(SEED, device_specific=True)
    plain = Tiny(observer.consumed)
    plain_optimizer = torch.optim.AdamW(plain.parameters(), lr=LEARNING_RATE)
    model, optimizer, loader, scheduler = accelerator.prepare(
        plain,
        plain_optimizer,
        torch.utils.data.DataLoader(Samples(), batch_size=BATCH_SAMPLES, shuffle=True),
        torch.optim.lr_scheduler.LambdaLR(plain_optimizer, rate_factor),
    )
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if job.resume:
        accelerator.load_state()
    while progress.step < job.until:
        epoch, position = divmod(progress.step, len(loader))
        loader.set_epoch(epoch)
        rest = loader if job.variant == "stateful" else accelerator.skip_first_batches(loader, position)
        for batch in rest:
            if not observer.has_loaded:
                state = {"model": plain.state_dict(), "optimizer": plain_optimizer.state_dict()}
                observer.loaded(step=progress.step, counters={"accelerator.step": accelerator.step}, **state)
            _step(accelerator, model, optimizer, scheduler, progress, batch, observer)
            if job.save and progress.step in SAVED_STEPS:
                accelerator.save_state()
            if progress.step >= job.until:
                break
    observer.finished(plain.state_dict())


def _step(
    accelerator: Accelerator,
    model: Any,
    optimizer: Any,
    scheduler: Any,
    progress: Progress,
    batch: torch.Tensor,
    observer: Observer,
) -> None:
    rates = [group["lr"] for group in optimizer.param_groups]
    with accelerator.accumulate(model):
        accelerator.backward(model(batch))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    progress.step += 1
    observer.step(completed=progress.step, rates=rates)
