"""Trainer of transformers with lastgood: one callback seals each save, and the launcher decides where to resume.

    mkdir -p runs
    lastgood exec runs/gpt --policy structural --allow-fresh -- python examples/train_transformers.py runs/gpt \
        --resume {generation}

Run it, kill it wherever you like, run it again: it goes on from the newest checkpoint that is whole. A tiny GPT-2 on
drawn tokens; nothing is fetched. What lastgood adds is marked with `# lastgood`.
"""

from __future__ import annotations

import argparse
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from lastgood.producers.transformers import SealCallback

TOKENS = 16
VOCABULARY = 100


def main() -> None:
    """Train to the last step, from the checkpoint that is named or from the first step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--resume", default="", help="the checkpoint to go on from; empty: from step zero")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--keep", type=int, default=None, help="checkpoints that Trainer keeps")
    parser.add_argument("--unsealed", action="store_true", help="as before lastgood")
    parser.add_argument("--final", help="file for the weights at the end")
    asked = parser.parse_args()

    set_seed(0)
    size = GPT2Config(vocab_size=VOCABULARY, n_positions=TOKENS, n_embd=16, n_layer=1, n_head=2)
    draws = torch.randint(VOCABULARY, (64, TOKENS))
    arguments = TrainingArguments(
        output_dir=asked.output,
        max_steps=asked.steps,
        save_steps=asked.save_every,
        save_total_limit=asked.keep,
        per_device_train_batch_size=4,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    callbacks: list[TrainerCallback] = [] if asked.unsealed else [SealCallback()]  # lastgood
    trainer = Trainer(
        model=GPT2LMHeadModel(size),
        args=arguments,
        train_dataset=[{"input_ids": draw, "labels": draw} for draw in draws],
        callbacks=callbacks,
    )
    if asked.resume:
        sys.stdout.write(f"resuming from {asked.resume}\n")
    trainer.train(resume_from_checkpoint=asked.resume or None)
    if asked.final and trainer.is_world_process_zero():
        torch.save(trainer.model.state_dict(), asked.final)


if __name__ == "__main__":
    main()
