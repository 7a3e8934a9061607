"""Checkpoints that cannot be produced here by their frameworks, built file by file from their layouts.

Built from the layout, not written by the framework: each holds the names and structure that the framework's source
says, in containers that torch itself wrote. Two saves each, of steps 4 and 8.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter

STEPS = (4, 8)


def _dcp(directory: Path, state: dict[str, Any], *, planner: DefaultSavePlanner | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process, which is what is wanted
        dcp.save(state, storage_writer=FileSystemWriter(directory, thread_count=2), planner=planner)


class _Objects(DefaultSavePlanner):
    """Stores objects that are serialised already as they are, which is what Megatron does."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False)

    def transform_object(self, write_item: Any, object: Any) -> Any:  # noqa: A002 - named so by torch
        return object


def _serialised(value: Any) -> io.BytesIO:
    data = io.BytesIO()
    torch.save(value, data)
    return data


def _moments(step: int) -> dict[str, Any]:
    names = ("layers.0.weight", "layers.1.weight")
    return {
        "state": {
            name: {"step": torch.tensor(float(step)), "exp_avg": torch.randn(8, 8), "exp_avg_sq": torch.rand(8, 8)}
            for name in names
        },
        "param_groups": {name: {"lr": 0.1} for name in names},
    }


def torchtitan(root: Path) -> tuple[str, ...]:
    """Two data-parallel ranks."""
    for step in STEPS:
        state = {
            "layers.0.weight": torch.randn(8, 8),
            "layers.1.weight": torch.randn(8, 8),
            "optimizer": _moments(step),
            "lr_scheduler": {"last_epoch": step},
            "dataloader": {
                "dp_rank_0": pickle.dumps({"sample": step}),
                "dp_rank_1": pickle.dumps({"sample": step + 1}),
                "world_size": 2,
            },
            "train_state": {"step": step, "ntokens_seen": 100 * step},
        }
        _dcp(root / f"step-{step}", state)
    return tuple(f"step-{step}" for step in STEPS)


def torch_dcp_each_rank(root: Path) -> tuple[str, ...]:
    """Two ranks that saved without collectives: each has metadata of its own."""
    for step in STEPS:
        for rank in range(2):
            state = {"model": {f"part_{rank}": torch.randn(8, 8)}, "optimizer": _moments(step)}
            apart = root / f"apart_{step}_{rank}"
            _dcp(apart, state)
            # torch needs a process group for this; the files are the same but for the rank in their names.
            data = (apart / ".metadata").read_bytes()
            target = root / f"step_{step}"
            target.mkdir(exist_ok=True)
            for path in apart.glob("*.distcp"):
                name = path.name.replace("__0_", f"__{rank}_")
                data = data.replace(path.name.encode(), name.encode())
                path.rename(target / name)
            (target / f"__{rank}.metadata").write_bytes(data)
            (apart / ".metadata").unlink()
            apart.rmdir()
    return tuple(f"step_{step}" for step in STEPS)


def _arguments(step: int) -> argparse.Namespace:
    return argparse.Namespace(
        world_size=4,
        data_parallel_size=2,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=1,
        expert_model_parallel_size=1,
        consumed_train_samples=16 * step,
        use_distributed_optimizer=False,
        seq_length=128,
    )


def _random_state(rank: int) -> list[dict[str, Any]]:
    return [
        {"torch_rng_state": torch.full((5056,), rank, dtype=torch.uint8), "random_rng_state": (3, (1, 2, rank), None)}
    ]


def megatron(root: Path) -> tuple[str, ...]:
    """Two tensor-parallel and two data-parallel ranks."""
    for step in STEPS:
        directory = root / f"iter_{step:07d}"
        state: dict[str, Any] = {
            "decoder.layers.weight": torch.randn(16, 8),
            "optimizer.state.exp_avg.decoder.layers.weight": torch.randn(16, 8),
            "optimizer.state.exp_avg_sq.decoder.layers.weight": torch.rand(16, 8),
            "rng_state/shard_0.0_1.2": _serialised(_random_state(0)),
            "rng_state/shard_0.1_1.2": _serialised(_random_state(1)),
            "rerun_state_machine_state/shard_0_1": _serialised({"mode": "disabled"}),
        }
        _dcp(directory, state, planner=_Objects())
        common = {
            "args": _arguments(step),
            "checkpoint_version": 3.0,
            "iteration": step,
            "opt_param_scheduler": {"num_steps": 16 * step},
            "num_floating_point_operations_so_far": 1e9,
            "optimizer": {"param_groups": [{"step": step}]},
        }
        torch.save(common, directory / "common.pt")
        config = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
        (directory / "metadata.json").write_text(json.dumps(config))
    (root / "latest_checkpointed_iteration.txt").write_text(str(STEPS[-1]))
    return tuple(f"iter_{step:07d}" for step in STEPS)


def megatron_legacy(root: Path) -> tuple[str, ...]:
    """Two tensor-parallel ranks."""
    for step in STEPS:
        for rank in range(2):
            directory = root / f"iter_{step:07d}/mp_rank_{rank:02d}"
            directory.mkdir(parents=True)
            state = {
                "args": _arguments(step),
                "checkpoint_version": 3.0,
                "iteration": step,
                "model": {"layer.weight": torch.randn(8, 8)},
                "optimizer": {"state": {0: {"exp_avg": torch.randn(8, 8)}}, "param_groups": [{"lr": 0.1}]},
                "opt_param_scheduler": {"num_steps": 16 * step},
                "rng_state": _random_state(rank),
            }
            torch.save(state, directory / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(str(STEPS[-1]))
    return tuple(f"iter_{step:07d}" for step in STEPS)


def _engine(step: int, **more: Any) -> dict[str, Any]:
    return {
        "module": None,
        "optimizer": None,
        "lr_scheduler": {"last_batch_iteration": step},
        "data_sampler": None,
        "skipped_steps": 0,
        "global_steps": step,
        "global_samples": 8 * step,
        "dp_world_size": 2,
        "mp_world_size": 1,
        "ds_version": "0.19.8",
        "ds_config": {"zero_optimization": {"stage": 0}},
        **more,
    }


def deepspeed_moe(root: Path) -> tuple[str, ...]:
    """Two layers of two experts, on two ranks."""
    for step in STEPS:
        directory = root / f"global_step{step}"
        directory.mkdir(parents=True)
        torch.save(
            _engine(step, module={"gate.weight": torch.randn(4, 4)}, num_experts=[2, 2]),
            directory / "mp_rank_00_model_states.pt",
        )
        for layer in range(2):
            for expert in range(2):
                name = f"layer_{layer}_expert_{expert}_mp_rank_00_model_states.pt"
                torch.save({"weight": torch.randn(32, 32)}, directory / name)
        for rank in range(2):
            optimizer = {"state": {0: {"step": step, "exp_avg": torch.randn(32, 32)}}}
            torch.save({"optimizer": optimizer}, directory / f"expp_rank_{rank}_mp_rank_00_optim_states.pt")
    (root / "latest").write_text(f"global_step{STEPS[-1]}")
    return tuple(f"global_step{step}" for step in STEPS)


def deepspeed_pipeline(root: Path) -> tuple[str, ...]:
    """Two stages; the layer between them has no parameters and no file."""
    for step in STEPS:
        directory = root / f"global_step{step}"
        directory.mkdir(parents=True)
        for layer in (0, 2):
            torch.save({"weight": torch.randn(8, 8)}, directory / f"layer_{layer:02d}-model_00-model_states.pt")
        for stage, layer in enumerate((0, 2)):
            shapes = [{f"{layer}.weight": torch.Size((8, 8))}]
            optimizer = {"state": {0: {"step": step, "exp_avg": torch.randn(8, 8)}}}
            engine = _engine(step, param_shapes=shapes, optimizer=optimizer, dp_world_size=1, mp_world_size=2)
            torch.save(engine, directory / f"mp_rank_{stage:02d}_model_states.pt")
    (root / "latest").write_text(f"global_step{STEPS[-1]}")
    return tuple(f"global_step{step}" for step in STEPS)


def deepspeed_universal(root: Path) -> tuple[str, ...]:
    """Three parameters."""
    names = ("layer.weight", "layer.bias", "embedding.weight")
    for step in STEPS:
        directory = root / f"global_step{step}_universal"
        for name in names:
            (directory / "zero" / name).mkdir(parents=True)
            for state in ("fp32", "exp_avg", "exp_avg_sq"):
                torch.save({"param": torch.randn(8, 8)}, directory / "zero" / name / f"{state}.pt")
        torch.save({"param_groups": [{"lr": 0.1}]}, directory / "zero/optimizer_state.pt")
        shapes = [{name: torch.Size((8, 8)) for name in names}]
        torch.save(_engine(step, param_shapes=shapes), directory / "mp_rank_00_model_states.pt")
    (root / "latest_universal").write_text(f"global_step{STEPS[-1]}_universal")
    return tuple(f"global_step{step}_universal" for step in STEPS)


BUILT: Mapping[str, Callable[[Path], tuple[str, ...]]] = {
    build.__name__: build
    for build in (
        torchtitan,
        torch_dcp_each_rank,
        megatron,
        megatron_legacy,
        deepspeed_moe,
        deepspeed_pipeline,
        deepspeed_universal,
    )
}
"""Name → what builds it below a directory and returns its checkpoints, the oldest first."""
