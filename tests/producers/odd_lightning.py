"""Jobs on Lightning that are not the ordinary ones, one after the other in one process.

    python odd_lightning.py DIRECTORY

By manual optimization into `turns/` (two optimizers, stepped in turn), `both/` (two, both stepped in every batch),
`silent/` (one, without a loss) and `shared/` (in turn, with two callbacks of one directory); then, as a replica that is
to save in `turns/`, one with callbacks of two directories.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from lastgood.errors import UsageError
from lastgood.producers.lightning import SealedModelCheckpoint


class Pair(lightning.LightningModule):
    """Two lines through the same noise."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.kind = kind
        self.lines = torch.nn.ModuleList([torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)])

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor | None:
        inputs, wanted = batch
        loss = torch.stack([(line(inputs) - wanted).square().mean() for line in self.lines]).sum()
        optimizers = self.optimizers()
        self.manual_backward(loss)
        for place, optimizer in enumerate(optimizers if isinstance(optimizers, list) else [optimizers]):
            if self.kind != "turns" or place == number % 2:
                optimizer.step()
            optimizer.zero_grad()
        return None if self.kind == "silent" else loss

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        lines = self.lines[:1] if self.kind == "silent" else self.lines
        return [torch.optim.AdamW(line.parameters(), lr=0.05) for line in lines]


def fit(kind: str, *directories: Path, steps: int = 4) -> None:
    """Train that many steps, with one callback a directory, which saves every 4 or 5 of them."""
    inputs = torch.randn(64, 8)
    # Lightning takes several of them only where each saves at steps of its own.
    saving = [
        SealedModelCheckpoint(dirpath=one, filename="{step}", every_n_train_steps=4 + place, save_top_k=-1)
        for place, one in enumerate(directories)
    ]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        callbacks=saving,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Pair(kind), DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8))


def main() -> None:
    """Train the four, and begin the fifth."""
    root = Path(sys.argv[1])
    for kind in ("turns", "both", "silent"):
        fit(kind, root / kind)
    fit("turns", root / "shared", root / "shared", steps=8)
    os.environ |= {"LASTGOOD_REPLICA": "1", "LASTGOOD_FAMILY": str(root / "turns")}
    try:
        fit("turns", root / "turns", root / "elsewhere")
    except UsageError as error:
        sys.stdout.write(f"refused: {error.message}\n")


if __name__ == "__main__":
    main()
