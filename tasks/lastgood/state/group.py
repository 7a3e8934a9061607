"""The ranks of a torch job, as `run.Run` asks for them.

Decides nothing. Rule: what travels is bytes in tensors, never a pickle.
"""

from __future__ import annotations

import torch
import torch.distributed

from lastgood.state.ranks import RankIdentity

__all__ = ["TorchGroup"]


class TorchGroup:
    """A process group that spans the job, or a job of one rank where there is none.

    Args:
        group: The default group if None.
        device: Where tensors must lie for the group's backend: `cpu` for gloo, this rank's device for NCCL.
    """

    def __init__(
        self, group: torch.distributed.ProcessGroup | None = None, *, device: str | torch.device = "cpu"
    ) -> None:
        identity = RankIdentity.current()
        self.rank = identity.rank
        self.world_size = identity.world_size
        self._group = group
        self._device = device

    def broadcast(self, data: bytes | None) -> bytes:
        """Give rank 0's bytes to every rank; every rank calls it."""
        if self.world_size == 1:
            if data is None:
                raise AssertionError("rank 0 broadcasts its own bytes")
            return data
        length = torch.tensor([0 if data is None else len(data)], dtype=torch.int64, device=self._device)
        torch.distributed.broadcast(length, group=self._group, group_src=0)
        if not length.item():
            return b""
        if data is None:
            content = torch.empty(int(length.item()), dtype=torch.uint8, device=self._device)
        else:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)
        torch.distributed.broadcast(content, group=self._group, group_src=0)
        return content.cpu().numpy().tobytes()
