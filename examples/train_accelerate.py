"""A loop on Accelerate with lastgood: one call a step, and one beside `save_state`.

    mkdir -p runs
    lastgood exec runs/line --policy structural --allow-fresh -- accelerate launch examples/train_accelerate.py \
        runs/line --resume {generation}

Run it, kill it, run it again; it also runs as `python examples/train_accelerate.py`. What lastgood adds is marked with
`# lastgood`.
"""

from __future__ import annotations

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

from lastgood.producers import SealedRun


class Progress:
    """Completed steps, which Accelerate saves with the rest once they are registered."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def main() -> None:
    """Train to the last step, from the checkpoint that is named or from the first step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--resume", default="", help="the checkpoint to go on from; empty: from step zero")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=4)
    asked = parser.parse_args()

    set_seed(0)
    # A loader that keeps its place is saved with the rest; another one begins its samples anew.
    data_loading = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=data_loading, step_scheduler_with_optimizer=False)
    inputs = torch.randn(512, 8)
    plain = torch.nn.Linear(8, 1)
    adam = torch.optim.AdamW(plain.parameters(), lr=0.05)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=1000)
    data = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=16)
    model, optimizer, scheduler, loader = accelerator.prepare(plain, adam, cosine, data)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)

    run = SealedRun(asked.output)  # lastgood
    if asked.resume:
        accelerator.load_state(asked.resume)
    run.resumed(model, [optimizer], step=progress.step, path=asked.resume)  # lastgood
    last = run.last_step(asked.steps)  # lastgood: earlier where a restore asks for it
    while progress.step < last:
        for given, wanted in loader:
            loss = (model(given) - wanted).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            progress.step += 1
            run.step(progress.step, loss)  # lastgood
            if progress.step % asked.save_every == 0 or progress.step == last:
                path = os.path.join(asked.output, f"step-{progress.step}")
                accelerator.save_state(path)
                run.save(path, step=progress.step)  # lastgood
            if progress.step == last:
                break
    run.close()  # lastgood


if __name__ == "__main__":
    main()
