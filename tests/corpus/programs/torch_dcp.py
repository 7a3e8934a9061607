"""torch's distributed checkpoint of a model under FSDP2, its AdamW, a scheduler and the step.

torch has no rule for the newest checkpoint; the one that its users write is the largest number.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from tests.corpus.job import LEARNING_RATE, SAVED_STEPS, Job, rate_factor
from tests.corpus.observing import Observer
from tests.corpus.programs.tiny import Tiny, batch_of, seed_everything


class State:
    """All that is saved, as torch's documentation writes it."""

    def __init__(self, model: torch.nn.Module, optimizer: Any, scheduler: Any) -> None:
        self.model, self.optimizer, self.scheduler, self.step = model, optimizer, scheduler, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "scheduler": self.scheduler.state_dict(), "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.step = state["step"]


def train(job: Job, observer: Observer) -> None:
    """Train, saving after the steps that the job says, or resume from the directory of the largest number."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    seed_everything()
    model = Tiny(observer.consumed)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    state = State(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate_factor))
    if job.resume:
        dcp.load({"app": state}, checkpoint_id=str(newest(job.root)))
    observer.loaded(step=state.step, model=dict(model.named_parameters()), optimizer=_numbered(optimizer))
    while state.step < job.until:
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        model(batch_of(state.step, rank, job.ranks)).backward()
        optimizer.step()
        state.scheduler.step()
        optimizer.zero_grad()
        state.step += 1
        observer.step(completed=state.step, rates=rates)
        if job.save and state.step in SAVED_STEPS:
            dcp.save({"app": state}, checkpoint_id=str(job.root / f"step_{state.step}"))
    observer.finished(dict(model.named_parameters()))
    torch.distributed.barrier()  # a rank that is done early must not look like one that died


def newest(root: Path) -> Path:
    """The directory of the largest number."""
    return max((path for path in root.iterdir() if re.fullmatch(r"step_\d+", path.name)), key=_number)


def _number(path: Path) -> int:
    return int(path.name.rpartition("_")[2])


def _numbered(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"state": dict(enumerate(optimizer.state.values())), "groups": [g["lr"] for g in optimizer.param_groups]}
