"""Lightning's Trainer with lastgood: one callback in the place of ModelCheckpoint seals each save.

    mkdir -p runs
    lastgood exec runs/line --policy structural --allow-fresh -- python examples/train_lightning.py runs/line \
        --resume {generation}

Run it, kill it, run it again. What lastgood adds is marked with `# lastgood`.
"""

from __future__ import annotations

import argparse
import os

import lightning
import torch
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from lastgood.producers.lightning import SealedModelCheckpoint


class Line(lightning.LightningModule):
    """A line through noise."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        inputs, wanted = batch
        return (self.line(inputs) - wanted).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def main() -> None:
    """Train to the last step, from the checkpoint that is named or from the first step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--resume", default="", help="the checkpoint to go on from; empty: from step zero")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--keep", type=int, default=-1, help="checkpoints that Lightning keeps; -1: all")
    asked = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    inputs = torch.randn(512, 8)
    saving = SealedModelCheckpoint(  # lastgood: otherwise as ModelCheckpoint
        dirpath=asked.output, filename="{step}", every_n_train_steps=asked.save_every, save_top_k=asked.keep
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=asked.steps,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=os.fspath(asked.output),
    )
    # lastgood: of a plain DataLoader Lightning saves no place, and begins its samples anew in the middle of an epoch
    data = StatefulDataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=16)
    trainer.fit(Line(), data, ckpt_path=asked.resume or None)


if __name__ == "__main__":
    main()
