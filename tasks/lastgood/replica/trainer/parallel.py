"""How ranks find each other and share one model: alone, DDP or FSDP2, over gloo on CPUs and NCCL on GPUs.

Decides process group and wrapping. Rule (measured, tests/replica/test_resume.py): DDP rebuilds its buckets after the
first backward, which changes the order of gloo's sums and with it the bits on more than two ranks, unless unused
parameters are searched for. `description` says what that does to the promise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from lastgood.errors import UsageError
from lastgood.replica.trainer.model import ByteTransformer
from lastgood.replica.trainer.settings import Settings, Strategy

__all__ = ["World", "join", "local", "share", "synchronise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among the others.

    Args:
        rank: 0 ≤ rank < world_size.
        world_size: Number of ranks.
        device: Where this rank computes.
    """

    rank: int
    world_size: int
    device: torch.device


@contextlib.contextmanager
def join(settings: Settings, environ: Mapping[str, str]) -> Iterator[World]:
    """Form the process group that torchrun's variables describe, and leave it at the end.

    Raises:
        UsageError: The variables are not whole numbers, or the strategy is for one rank and there are more.
    """
    rank, world_size = _whole(environ, "RANK", 0), _whole(environ, "WORLD_SIZE", 1)
    if settings.strategy is Strategy.SINGLE and world_size > 1:
        raise UsageError(f"strategy single is for one rank: {world_size} were started")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", _whole(environ, "LOCAL_RANK", 0) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if settings.strategy is Strategy.SINGLE:
        yield World(rank=0, world_size=1, device=device)
        return
    # Objects of state and of decisions travel over gloo also where tensors travel over NCCL.
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    alone = torch.distributed.HashStore() if "MASTER_ADDR" not in environ else None
    torch.distributed.init_process_group(backend, store=alone, rank=rank, world_size=world_size)
    yield World(rank=rank, world_size=world_size, device=device)
    # Not in a `finally`: after a failure a rank must not wait for peers that are gone.
    torch.distributed.destroy_process_group()


def share(model: ByteTransformer, settings: Settings, world: World) -> nn.Module:
    """The model as this rank trains it; its parameters are on the rank's device."""
    model = model.to(world.device)
    match settings.strategy:
        case Strategy.SINGLE:
            return model
        case Strategy.DDP:
            return DistributedDataParallel(
                model,
                find_unused_parameters=world.world_size > 2 and not settings.stock_ddp,
            )
        case Strategy.FSDP2:
            mesh = init_device_mesh(world.device.type, (world.world_size,))
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
            return model


def synchronise(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """The context of one microbatch's backward: gradients are exchanged in the last one of the window only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(model, DistributedDataParallel) and not last:
        unsynchronised: AbstractContextManager[None] = model.no_sync()
        return unsynchronised
    return contextlib.nullcontext()


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor, or the tensor."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part.detach()


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name} is not a whole number: found {text!r}")
    return int(text)
