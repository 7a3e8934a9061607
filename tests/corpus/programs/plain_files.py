"""The loop that people write themselves: one dictionary through `torch.save`, or weights alone as safetensors.

Variants: `""` `torch.save` of all state, random streams included; `safetensors` weights only.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.corpus.job import LEARNING_RATE, SAVED_STEPS, Job, rate_factor
from tests.corpus.observing import Observer
from tests.corpus.programs.tiny import Tiny, batch_of, seed_everything


def train(job: Job, observer: Observer) -> None:
    """Train, saving after the steps that the job says, or resume from the file of the largest number."""
    seed_everything()
    model = Tiny(observer.consumed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_factor)
    step = 0
    if job.resume and job.variant == "safetensors":
        model.load_state_dict(load_file(newest(job.root, "safetensors")))
    elif job.resume:
        step = _load(newest(job.root, "pt"), model, optimizer, scheduler)
    observer.loaded(step=step, model=model.state_dict(), optimizer=optimizer.state_dict())
    while step < job.until:
        rates = [group["lr"] for group in optimizer.param_groups]
        model(batch_of(step, 0, 1)).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        observer.step(completed=step, rates=rates)
        if job.save and step in SAVED_STEPS:
            job.root.mkdir(parents=True, exist_ok=True)
            _save(job, step, model, optimizer, scheduler)
    observer.finished(model.state_dict())


def newest(root: Path, ending: str) -> Path:
    """The file of the largest number."""
    return max(root.glob(f"*.{ending}"), key=lambda path: int(re.findall(r"\d+", path.name)[-1]))


def _save(job: Job, step: int, model: Any, optimizer: Any, scheduler: Any) -> None:
    if job.variant == "safetensors":
        save_file(model.state_dict(), job.root / f"model-{step}.safetensors")
        return
    streams = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save({**state, "rng": streams, "step": step}, job.root / f"step-{step}.pt")


def _load(path: Path, model: Any, optimizer: Any, scheduler: Any) -> int:
    state = torch.load(path, weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    random.setstate(state["rng"]["python"])
    np.random.set_state(state["rng"]["numpy"])
    torch.set_rng_state(state["rng"]["torch"])
    return int(state["step"])
