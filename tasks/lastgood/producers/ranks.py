"""The ranks of a job of another framework, which has formed their process group by itself or has none.

Decides nothing. Rules: what travels is bytes in tensors, never a pickle; torch is the job's own, which has loaded it if
there is anybody to talk to; what was told is nobody's any more once it is told. A thread of gloo still holds a tensor
for a moment after it has arrived, and aborts the process if the interpreter ends in that moment
(pytorch/pytorch#190489): a job that ended with a save would be taken for one that crashed.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final, Self

from lastgood.errors import UsageError

__all__ = ["JobRanks"]

MAXIMUM_TOLD_BYTES = 4096
LET_GO_SECONDS = 5.0
"""How long at most a rank waits until its backend holds nothing of what was told."""
SIZES: Final = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Where launchers tell a process how many of them there are: torchrun's, and those of MPI, as Accelerate reads them."""
EARLIER: Final = (
    "make SealedRun once the ranks have joined: after Accelerator(), deepspeed.init_distributed() or "
    "torch.distributed.init_process_group(), and before the group is destroyed"
)


class _Told(bytearray):
    """The memory of a tensor that travels: of this one it can be asked whether anybody holds it still."""

    __slots__ = ("__weakref__",)


class JobRanks:
    """Every rank of the job, over the default group of `torch.distributed`; a job of one rank where there is none."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self.rank: int = 0 if distributed is None else distributed.get_rank()
        self.world_size: int = 1 if distributed is None else distributed.get_world_size()

    @classmethod
    def current(cls) -> Self:
        """As the job stands now: a group that it forms later is not seen."""
        torch = sys.modules.get("torch")
        distributed = torch.distributed if torch is not None else None
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return cls(None)
        return cls(distributed)

    @classmethod
    def joined(cls, environ: Mapping[str, str]) -> Self:
        """As `current`, for what is to last as long as the job.

        Raises:
            UsageError: Its launcher started several processes, which have formed no group yet.
        """
        ranks = cls.current()
        name, told = next(((name, environ[name]) for name in SIZES if environ.get(name, "").isdecimal()), ("", "1"))
        if ranks._distributed is None and int(told) > 1:
            raise UsageError(f"process group missing: expected one of {told} ranks ({name}), found none", hint=EARLIER)
        return ranks

    def require_unchanged(self) -> None:
        """See that the job stands as it stood; every rank calls it, and of a group that came later every rank is told.

        Raises:
            UsageError: It has formed a group since, or left the one it had.
        """
        now = type(self).current()
        if now.world_size != self.world_size:
            raise UsageError(
                f"ranks changed since SealedRun was made: expected {self.world_size}, found {now.world_size}",
                hint=EARLIER,
            )

    def wait(self) -> None:
        """Return once every rank has called it."""
        if self._distributed is not None:
            self._distributed.barrier()

    def broadcast(self, text: str | None) -> str:
        """Give rank 0's text to every rank; every rank calls it. What is longer than 4 KiB of UTF-8 is cut."""
        if self._distributed is None:
            return text or ""
        torch = sys.modules["torch"]
        # gloo moves tensors of the processor; every other backend only those of its own kind of device.
        has_gloo = "gloo" in str(self._distributed.get_backend_config())
        device = "cpu" if has_gloo else torch.accelerator.current_accelerator()
        memory = _Told((text or "").encode()[:MAXIMUM_TOLD_BYTES].ljust(MAXIMUM_TOLD_BYTES, b"\0"))
        content = torch.frombuffer(memory, dtype=torch.uint8).to(device)
        self._distributed.broadcast(content, 0)
        told = bytes(content.cpu().numpy()).rstrip(b"\0").decode(errors="ignore")
        held = weakref.ref(memory)
        del memory, content
        deadline = time.monotonic() + LET_GO_SECONDS
        while held() is not None and time.monotonic() < deadline:
            time.sleep(0.001)
        return told
