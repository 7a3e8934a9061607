"""Hugging Face Trainer on a GPT-2 of a few thousand parameters.

Variants: `""` one safetensors file; `sharded` several with an index; `peft` a LoRA adapter; `deepspeed` ZeRO stage 2
inside the Trainer.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from tests.corpus.job import (
    BATCH_SAMPLES,
    LAST_STEP,
    LEARNING_RATE,
    SAMPLE_TOKENS,
    SAMPLES,
    SAVED_STEPS,
    SEED,
    VOCABULARY,
    WARMUP_STEPS,
    Job,
    tokens,
)
from tests.corpus.observing import Observer

SHARD_BYTES = 20_000
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": BATCH_SAMPLES,
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
    "zero_allow_untested_optimizer": True,
}


class Sharding(GPT2LMHeadModel):
    """Saves in shards, which Trainer does by itself beyond some gigabytes only."""

    def save_pretrained(self, *args: Any, **settings: Any) -> None:
        super().save_pretrained(*args, **{**settings, "max_shard_size": SHARD_BYTES})


class Reporting(TrainerCallback):
    """Tells the observer, and stops where the job ends."""

    def __init__(self, job: Job, observer: Observer) -> None:
        self._job = job
        self._observer = observer
        self.trainer: Trainer | None = None
        self._rates: list[float] = []

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        assert self.trainer is not None
        assert self.trainer.optimizer is not None
        self._rates = [group["lr"] for group in self.trainer.optimizer.param_groups]
        if not self._observer.has_loaded:
            model = self.trainer.model.state_dict()
            optimizer = self.trainer.optimizer.state_dict()
            self._observer.loaded(step=state.global_step, model=model, optimizer=optimizer)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        self._observer.step(completed=state.global_step, rates=self._rates)
        if state.global_step >= self._job.until:
            control.should_training_stop = True


def _model(variant: str) -> PreTrainedModel:
    size = {"vocab_size": VOCABULARY, "n_positions": SAMPLE_TOKENS, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**size, bos_token_id=0, eos_token_id=0)
    model = (Sharding if variant == "sharded" else GPT2LMHeadModel)(config)
    if variant == "peft":
        from peft import LoraConfig, get_peft_model

        return get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.1))
    return model


def _prepare_deepspeed() -> None:
    """Let Accelerate count DeepSpeed's ranks where there is no GPU; it would take each for a process alone."""
    import deepspeed.ops
    from accelerate.state import DistributedType, PartialState

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # as in deepspeed_engine.py
    del os.environ["ACCELERATE_USE_CPU"]
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_CPU)


def train(job: Job, observer: Observer) -> None:
    """Train, saving after the steps that the job says, or resume from the newest checkpoint of the output directory."""
    set_seed(SEED)
    if job.variant == "deepspeed":
        _prepare_deepspeed()
    arguments = TrainingArguments(
        output_dir=str(job.root),
        max_steps=LAST_STEP,
        per_device_train_batch_size=BATCH_SAMPLES,
        learning_rate=LEARNING_RATE,
        warmup_steps=WARMUP_STEPS,
        save_strategy="steps" if job.save else "no",
        save_steps=SAVED_STEPS[0],
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=job.variant != "deepspeed",  # told to use the CPU, it would leave DeepSpeed out without a word
        seed=SEED,
        deepspeed=DEEPSPEED if job.variant == "deepspeed" else None,
    )
    model = _model(job.variant)
    model.register_forward_pre_hook(
        lambda module, args, inputs: observer.consumed(inputs["input_ids"]), with_kwargs=True
    )
    samples = [{"input_ids": torch.tensor(tokens(i)), "labels": torch.tensor(tokens(i))} for i in range(SAMPLES)]
    reporting = Reporting(job, observer)
    trainer = Trainer(model=model, args=arguments, train_dataset=samples, callbacks=[reporting])
    reporting.trainer = trainer
    trainer.train(resume_from_checkpoint=True if job.resume else None)
    observer.finished(trainer.model.state_dict())
