"""A loop on DeepSpeed's engine with lastgood: one call a step, and one beside `save_checkpoint`.

    mkdir -p runs
    lastgood exec runs/line --policy structural --allow-fresh -- torchrun --nproc-per-node 2 \
        examples/train_deepspeed.py runs/line --resume {generation}

Run it, kill it, run it again. ZeRO partitions the optimizer over the ranks; on gloo, so that it runs without a device.
What lastgood adds is marked with `# lastgood`.
"""

from __future__ import annotations

import argparse
import os

import deepspeed
import deepspeed.ops
import torch

from lastgood.producers import SealedRun

BATCH = 16
SETTINGS = {
    "train_micro_batch_size_per_gpu": BATCH,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


def draw(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of a step: DeepSpeed saves neither a place in the data nor random states, so the step decides."""
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    return inputs, inputs.sum(dim=1, keepdim=True)


def main() -> None:
    """Train to the last step, from the checkpoint that is named or from the first step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--resume", default="", help="the checkpoint to go on from; empty: from step zero")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=4)
    asked = parser.parse_args()

    # A faster sum in shared memory, which it would compile for minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    adam = torch.optim.AdamW(model.parameters(), lr=0.05)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=1000)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=adam, lr_scheduler=cosine, config=SETTINGS)

    run = SealedRun(asked.output)  # lastgood
    if asked.resume:
        above, tag = os.path.split(asked.resume)
        engine.load_checkpoint(above, tag)
    run.resumed(model, [optimizer], step=engine.global_steps, path=asked.resume)  # lastgood
    last = run.last_step(asked.steps)  # lastgood: earlier where a restore asks for it
    while engine.global_steps < last:
        given, wanted = draw(engine.global_steps, torch.distributed.get_rank())
        loss = (engine(given) - wanted).square().mean()
        engine.backward(loss)
        engine.step()
        run.step(engine.global_steps, loss)  # lastgood
        if engine.global_steps % asked.save_every == 0 or engine.global_steps == last:
            tag = f"step-{engine.global_steps}"
            engine.save_checkpoint(asked.output, tag=tag)
            run.save(os.path.join(asked.output, tag))  # lastgood
    run.close()  # lastgood
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
