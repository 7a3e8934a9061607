"""Checkpoints built from the layouts, not written by the frameworks: fast, and the only ones of what cannot run here.

Every name gives two checkpoints, after steps 4 and 8, of a tiny model whose optimizer and scheduler really took those
steps. The names are those of the corpus, where the corpus has one.
"""

from __future__ import annotations

import json
import random
import sys
import types
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from lastgood.testing.foreign import ForeignScene

STEPS = (4, 8)


@cache
def states(steps: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """State dictionaries of a model, its optimizer and its scheduler after so many steps."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
        for _ in range(steps):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return model.state_dict(), optimizer.state_dict(), scheduler.state_dict()


def streams(rank: int) -> dict[str, Any]:
    """Random states of one rank."""
    return {
        "python": random.Random(rank).getstate(),
        "numpy": np.random.RandomState(rank).get_state(),
        "cpu": torch.Generator().manual_seed(rank).get_state(),
    }


def stranger(module: str, name: str, **attributes: Any) -> Any:
    """An object of a class of somebody else's library, to be pickled inside `strangers`."""
    found = type(name, (), {"__module__": module})()
    vars(found).update(attributes)
    return found


def save_with_strangers(value: Any, path: Path, *objects: Any) -> None:
    """`torch.save` while the classes of these objects can be found where they say they are."""
    modules: dict[str, types.ModuleType] = {}
    for one in objects:
        name = type(one).__module__
        for known in (name.partition(".")[0], name):
            modules.setdefault(known, types.ModuleType(known))
        setattr(modules[name], type(one).__name__, type(one))
    with mock.patch.dict(sys.modules, modules):
        torch.save(value, path)


# Trainer


def trainer(directory: Path, steps: int, *, ranks: int = 1, form: str = "whole", is_half: bool = False) -> None:
    """One `checkpoint-<step>` of Trainer; `form` is `whole`, `sharded`, `adapter`, `fsdp`, `split` or `engine`."""
    directory.mkdir(parents=True)
    model, optimizer, scheduler = states(steps)
    _trainer_weights(directory, model, form)
    if form == "engine":
        engine(directory, f"global_step{steps}", steps, ranks)
    elif form == "split":
        split(directory / "pytorch_model_fsdp_0", {"model": model})
        split(directory / "optimizer_0", {"optimizer": optimizer})
    elif form == "fsdp":
        torch.save(model, directory / "pytorch_model_fsdp.bin")
        torch.save(optimizer, directory / "optimizer.bin")
    else:
        torch.save(optimizer, directory / "optimizer.pt")
    torch.save(scheduler, directory / "scheduler.pt")
    if is_half:
        torch.save(torch.amp.GradScaler("cpu").state_dict(), directory / "scaler.pt")
    for rank in range(ranks):
        torch.save(streams(rank), directory / (f"rng_state_{rank}.pth" if ranks > 1 else "rng_state.pth"))
    state = stranger("accelerate.state", "PartialState", num_processes=ranks)
    arguments = stranger(
        "transformers.training_args",
        "TrainingArguments",
        fp16=is_half,
        save_only_model=False,
        distributed_state=state,
    )
    save_with_strangers(arguments, directory / "training_args.bin", arguments, state)
    log = [{"step": 2, "loss": float("nan")}, {"step": steps, "loss": 0.5}]
    text = json.dumps({"global_step": steps, "epoch": 0.5, "max_steps": 12, "log_history": log})
    (directory / "trainer_state.json").write_text(text, encoding="utf-8")


def split(directory: Path, state: dict[str, Any]) -> None:
    """A directory of torch DCP."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process, which is what is wanted
        dcp.save(state, storage_writer=dcp.FileSystemWriter(directory))


def _trainer_weights(directory: Path, model: dict[str, Any], form: str) -> None:
    if form in ("whole", "sharded"):
        (directory / "config.json").write_text('{"transformers_version": "5.24.0"}', encoding="utf-8")
    if form == "whole":
        save_file(model, directory / "model.safetensors")
    elif form == "sharded":
        sharded(directory, model)
    elif form == "adapter":
        save_file(model, directory / "adapter_model.safetensors")
        (directory / "adapter_config.json").write_text('{"peft_type": "LORA"}', encoding="utf-8")
        (directory / "README.md").write_text("an adapter", encoding="utf-8")


def sharded(directory: Path, model: dict[str, Any]) -> None:
    """Weights in two shards with an index."""
    names = sorted(model)
    parts = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for file, held in parts.items():
        save_file({name: model[name] for name in held}, directory / file)
    index = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, held in parts.items() for name in held}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def engine(directory: Path, tag: str, steps: int, ranks: int, **client: Any) -> None:
    """What DeepSpeed writes for ZeRO stage 2: the engine's state once, the optimizer's for each rank."""
    (directory / tag).mkdir(parents=True)
    model, optimizer, _ = states(steps)
    stated = {"dp_world_size": ranks, "mp_world_size": 1, "global_steps": steps, "ds_version": "0.19.8"}
    config = {"ds_config": {"zero_optimization": {"stage": 2}}, "lr_scheduler": None}
    torch.save(
        {"module": model, "optimizer": None, **stated, **config, **client}, directory / tag / _states("mp_rank_00")
    )
    for rank in range(ranks):
        state = {"loss_scaler": None, "zero_stage": 2, "base_optimizer_state": optimizer["state"]}
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": state, "ds_version": "0.19.8"}, directory / tag / name)
    (directory / "latest").write_text(tag, encoding="utf-8")
    (directory / "zero_to_fp32.py").write_text("# a script", encoding="utf-8")


def _states(rank: str) -> str:
    return f"{rank}_model_states.pt"


# Accelerate


def accelerate(directory: Path, steps: int, *, ranks: int = 1) -> None:
    """One directory of `save_state`; with several ranks, the loader keeps its position."""
    directory.mkdir(parents=True)
    model, optimizer, scheduler = states(steps)
    save_file(model, directory / "model.safetensors")
    torch.save(optimizer, directory / "optimizer.bin")
    torch.save(scheduler, directory / "scheduler.bin")
    if ranks > 1:
        torch.save({"_snapshot": {"_snapshot_step": steps}}, directory / "dl_state_dict.bin")
    for rank in range(ranks):
        torch.save({"step": steps, **streams(rank)}, directory / f"random_states_{rank}.pkl")
    torch.save({"step": steps}, directory / "custom_checkpoint_0.pkl")


# Lightning


def dump(steps: int, **changes: Any) -> dict[str, Any]:
    """What Lightning's Trainer dumps; a change to None takes a key out."""
    model, optimizer, scheduler = states(steps)
    counted = {"total": {"ready": steps, "completed": steps}, "current": {"ready": steps, "completed": steps}}
    fit = {
        "epoch_loop.batch_progress": counted,
        "epoch_loop.scheduler_progress": counted,
        "epoch_loop.automatic_optimization.optim_progress": {"optimizer": {"step": counted}},
        "epoch_loop.manual_optimization.optim_step_progress": {"total": {"ready": 0, "completed": 0}},
    }
    whole = {
        "epoch": 0,
        "global_step": steps,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": model,
        "loops": {"fit_loop": fit},
        "callbacks": {"ModelCheckpoint": {"best_model_path": "elsewhere"}},
        "optimizer_states": [optimizer],
        "lr_schedulers": [scheduler],
        **changes,
    }
    return {key: value for key, value in whole.items() if value is not None}


def lightning(path: Path, steps: int) -> None:
    """One `.ckpt` file, and `last.ckpt` beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dump(steps), path)
    torch.save(dump(steps), path.parent / "last.ckpt")


def lightning_engine(directory: Path, steps: int) -> None:
    """One `.ckpt` directory that DeepSpeed wrote, the dump among the engine's state."""
    rest = dump(steps, state_dict=None, optimizer_states=None)
    engine(directory, "checkpoint", steps, 2, **rest)


# Bare


def torch_save(path: Path, steps: int) -> None:
    """One file of a loop of somebody's own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model, optimizer, scheduler = states(steps)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "rng": streams(0), "step": steps}
    torch.save(parts, path)


def bare(path: Path, steps: int) -> None:
    """One safetensors file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(states(steps)[0], path)


def bare_sharded(directory: Path, steps: int) -> None:
    """One directory of shards with an index."""
    directory.mkdir(parents=True)
    sharded(directory, states(steps)[0])


def _trainer(**settings: Any) -> tuple[str, Callable[[Path, int], None]]:
    return "checkpoint-{step}", lambda path, steps: trainer(path, steps, **settings)


def _accelerate(ranks: int) -> tuple[str, Callable[[Path, int], None]]:
    return "checkpoints/checkpoint_{number}", lambda path, steps: accelerate(path, steps, ranks=ranks)


BUILT: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "hf_trainer": _trainer(),
    "hf_trainer_2_ranks": _trainer(ranks=2),
    "hf_trainer_sharded": _trainer(form="sharded"),
    "hf_trainer_peft": _trainer(form="adapter"),
    "hf_trainer_half": _trainer(is_half=True),
    "hf_trainer_fsdp": _trainer(ranks=2, form="fsdp"),
    "hf_trainer_fsdp_split": _trainer(ranks=2, form="split"),
    "hf_trainer_deepspeed": _trainer(ranks=2, form="engine"),
    "accelerate": _accelerate(1),
    "accelerate_2_ranks": _accelerate(2),
    "lightning": ("step={step}.ckpt", lightning),
    "lightning_deepspeed": ("step={step}.ckpt", lightning_engine),
    "torch_save": ("step-{step}.pt", torch_save),
    "safetensors": ("model-{step}.safetensors", bare),
    "safetensors_sharded": ("weights-{step}", bare_sharded),
}
"""Name → pattern of a checkpoint's path, and what writes one."""


def build(name: str, root: Path) -> ForeignScene:
    """Both checkpoints of a name below a directory."""
    pattern, write = BUILT[name]
    older, newest = (pattern.format(step=step, number=number) for number, step in enumerate(STEPS))
    for path, steps in zip((older, newest), STEPS, strict=True):
        write(root / path, steps)
    return ForeignScene(root=root, name=newest, older=older)
