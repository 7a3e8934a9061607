"""Lightning's Trainer with a ModelCheckpoint that keeps every save and `last.ckpt`.

Variants: `""` a single file; `fsdp` a sharded directory, of FSDP2 (FSDP1 wants a GPU).
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import FSDPModule, fully_shard

from tests.corpus.job import BATCH_SAMPLES, LEARNING_RATE, SAVED_STEPS, SEED, Job, rate_factor
from tests.corpus.observing import Observer
from tests.corpus.programs.tiny import Samples, Tiny


class Module(lightning.LightningModule):
    """The tiny model as Lightning wants it."""

    def __init__(self, observer: Observer, *, sharded: bool) -> None:
        super().__init__()
        self.sharded = sharded
        self.tiny = Tiny(observer.consumed)

    def configure_model(self) -> None:
        if self.sharded and not isinstance(self.tiny, FSDPModule):
            fully_shard(self.tiny)

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        return self.tiny(batch)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Reporting(Callback):
    """Tells the observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._rates: list[float] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
        optimizer = trainer.optimizers[0]
        self._rates = [group["lr"] for group in optimizer.param_groups]
        if not self._observer.has_loaded:
            state = {"state": dict(enumerate(optimizer.state.values())), "rates": self._rates}
            self._observer.loaded(step=trainer.global_step, model=dict(module.named_parameters()), optimizer=state)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        self._observer.step(completed=trainer.global_step, rates=self._rates)


def train(job: Job, observer: Observer) -> None:
    """Train, saving after the steps that the job says, or resume from `last.ckpt`."""
    lightning.seed_everything(SEED, verbose=False)
    saving = ModelCheckpoint(
        dirpath=job.root, filename="{step}", every_n_train_steps=SAVED_STEPS[0], save_top_k=-1, save_last=True
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=ModelParallelStrategy(process_group_backend="gloo") if job.variant == "fsdp" else "auto",
        devices=job.ranks,
        max_steps=job.until,
        callbacks=[saving, Reporting(observer)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=job.root,
    )
    if not job.save:  # the way back is what is looked at, and a save after it has a log of its own
        trainer.strategy.save_checkpoint = lambda *_, **__: None
    loader = torch.utils.data.DataLoader(Samples(), batch_size=BATCH_SAMPLES, shuffle=True)
    module = Module(observer, sharded=job.variant == "fsdp")
    trainer.fit(module, loader, ckpt_path="last" if job.resume else None)
    observer.finished(dict(module.named_parameters()))
