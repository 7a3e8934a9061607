"""DeepSpeed's engine with torch's AdamW; the variant is the ZeRO stage, `0` to `3`."""

from __future__ import annotations

from typing import Any

import deepspeed
import deepspeed.ops
import torch

from tests.corpus.job import BATCH_SAMPLES, LEARNING_RATE, SAVED_STEPS, Job, rate_factor
from tests.corpus.observing import Observer
from tests.corpus.programs.tiny import Tiny, batch_of, seed_everything

# A faster all-reduce in shared memory that DeepSpeed compiles on first use, for minutes; no checkpoint knows of it.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def train(job: Job, observer: Observer) -> None:
    """Train, saving after the steps that the job says, or resume from the tag that `latest` names."""
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    rank = torch.distributed.get_rank()
    seed_everything()
    model = Tiny(observer.consumed)
    settings = {
        "train_micro_batch_size_per_gpu": BATCH_SAMPLES,
        "zero_optimization": {"stage": int(job.variant), "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_factor)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=settings)
    if job.resume:
        engine.load_checkpoint(str(job.root))
    observer.loaded(step=engine.global_steps, model=_weights(engine), optimizer=_optimizer(engine))
    while engine.global_steps < job.until:
        rates = engine.get_lr()
        engine.backward(engine(batch_of(engine.global_steps, rank, job.ranks)))
        engine.step()
        observer.step(completed=engine.global_steps, rates=rates)
        if job.save and engine.global_steps in SAVED_STEPS:
            engine.save_checkpoint(str(job.root), client_state={"step": engine.global_steps})
    observer.finished(_weights(engine))


def _weights(engine: Any) -> dict[str, torch.Tensor]:
    """All weights; partitioned ones are gathered."""
    named = dict(engine.module.named_parameters())
    if engine.zero_optimization_stage() < 3:
        return named
    with deepspeed.zero.GatheredParameters(list(named.values())):
        return {name: value.detach().clone() for name, value in named.items()}


def _optimizer(engine: Any) -> dict[str, Any]:
    """State of the optimizer below DeepSpeed's, which holds this rank's part."""
    below = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return {"state": dict(enumerate(below.state.values())), "rates": engine.get_lr()}
