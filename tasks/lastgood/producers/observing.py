"""What can be seen of a job of another framework without its help: its optimizers' rates and counts, its losses.

Decides where each value is read. Rules: a rate is read as the update begins, for a scheduler moves it right after; a
count is the optimizer's own, never ours; nothing here waits for a device. torch is the job's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = ["Arriving", "Updates", "count_tensors", "is_on_device"]

MAXIMUM_WRAPPINGS = 16


class Updates:
    """The updates that a job's optimizers make from now on.

    Args:
        optimizers: torch's, or what a framework has wrapped around them.
    """

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._optimizers = [_innermost(one) for one in optimizers]
        self._rates: dict[str, float] = {}
        self._made = False
        self._hooks = [one.register_step_pre_hook(self._begins) for one in self._optimizers]

    def take(self) -> tuple[dict[str, float], bool]:
        """Group → the rate that its last update used, and whether any update was made since the last call.

        A gradient scaler that met an overflow makes none.
        """
        made, self._made = self._made, False
        return (dict(self._rates) if made else self.rates()), made

    def rates(self) -> dict[str, float]:
        """Group → the rate that its next update would use as things stand."""
        return {name: float(group["lr"]) for name, _, group in self._groups() if _is_at_hand(group["lr"])}

    def steps(self) -> dict[str, int]:
        """Group → completed updates, of optimizers that count them."""
        counted = {}
        for name, optimizer, group in self._groups():
            states = (optimizer.state[one] for one in group["params"] if one in optimizer.state)
            counts = (state["step"] for state in states if isinstance(state, dict) and "step" in state)
            count = next(counts, None)
            if count is not None and _is_at_hand(count):
                counted[name] = int(count)
        return counted

    def count_states(self) -> int:
        """How many parameters have a history."""
        return sum(len(one.state) for one in self._optimizers)

    def close(self) -> None:
        """Look no longer."""
        for hook in self._hooks:
            hook.remove()

    def _begins(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self._rates.update(self.rates())
        self._made = True

    def _groups(self) -> Iterator[tuple[str, Any, Any]]:
        """Name, optimizer and group; the names are those that registered state gives."""
        for place, optimizer in enumerate(self._optimizers):
            prefix = f"optimizer-{place}." if len(self._optimizers) > 1 else ""
            for number, group in enumerate(optimizer.param_groups):
                yield f"{prefix}group-{number}", optimizer, group


class Arriving:
    """The mean of some losses, on its way from the device to the host.

    Args:
        losses: Of one rank's microbatches: numbers, or tensors of one element.
    """

    def __init__(self, losses: Sequence[Any]) -> None:
        # torch.nn.DataParallel computes each on a device of its own.
        first, *others = losses
        mean = sum((_beside(first, one) for one in others), first) / len(losses)
        self._arrived: Any = None
        self._value = mean.detach() if hasattr(mean, "detach") else mean
        if _is_at_hand(mean) or mean.device.type != "cuda":
            return
        torch = sys.modules["torch"]
        value = torch.empty((), dtype=torch.float64, pin_memory=True)
        value.copy_(mean.detach().to(torch.float64).reshape(()), non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()
        self._value = value

    def get(self) -> float:
        """The value; waits for its own copy only, not for what was queued after it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return float(self._value)


def count_tensors(model: Any) -> int:
    """How many parameters and buffers a module has; of a partitioned one they are counted where they lie."""
    return sum(1 for _ in model.parameters()) + sum(1 for _ in model.buffers())


def is_on_device() -> bool:
    """Whether this job computes on a device, so that what it computed arrives later."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _innermost(optimizer: Any) -> Any:
    """The optimizer of torch below whatever a framework wrapped around it; one may name itself, or what wraps it."""
    passed = [optimizer]
    while len(passed) < MAXIMUM_WRAPPINGS:
        inner = getattr(passed[-1], "optimizer", None)
        if inner is None or any(inner is one for one in passed):
            break
        passed.append(inner)
    return passed[-1]


def _beside(first: Any, loss: Any) -> Any:
    """A loss on the device of the first one; nothing is waited for."""
    has_moved = getattr(loss, "device", None) != getattr(first, "device", None) and hasattr(loss, "to")
    return loss.to(first.device, non_blocking=True) if has_moved and hasattr(first, "device") else loss


def _is_at_hand(value: Any) -> bool:
    """Whether a number lies on the host, so that reading it waits for nothing."""
    device = getattr(value, "device", None)
    return device is None or device.type == "cpu"
