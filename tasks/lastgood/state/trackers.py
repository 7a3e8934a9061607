"""Trackers that distributed frameworks keep beside torch's own streams: Megatron's and DTensor's.

Decides how their states are saved through the interface that they show, so that neither framework is imported here. A
tracker's states live on devices and cannot be drawn from apart, so its "draws" are words of the digest of the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lastgood.errors import RegistrationError, UsageError
from lastgood.state import codec
from lastgood.state.rng import check_torch_state, digest_words

__all__ = ["DTensorTracker", "MegatronTracker"]

_PHILOX_BYTES = 16  # seed and offset, eight bytes each


class MegatronTracker:
    """Megatron-Core's `CudaRNGStatesTracker` (and Transformer Engine's): named states behind get_states / set_states.

    Args:
        tracker: What `get_cuda_rng_tracker()` returns, after its streams were added.
    """

    def __init__(self, tracker: Any) -> None:
        if not (callable(getattr(tracker, "get_states", None)) and callable(getattr(tracker, "set_states", None))):
            raise RegistrationError(
                f"not a CUDA RNG tracker: {type(tracker).__qualname__} lacks get_states or set_states"
            )
        self._tracker = tracker
        generators = tuple(state for state in tracker.get_states().values() if isinstance(state, torch.Generator))
        self.owns: tuple[object, ...] = (tracker, *generators)

    def save(self) -> Any:
        return {name: _bytes_of(state) for name, state in sorted(self._tracker.get_states().items())}

    def load(self, saved: Any) -> None:
        live = self._tracker.get_states()
        states: dict[str, Any] = {}
        for name, state in saved.items():
            if isinstance(live[name], torch.Generator):
                live[name].set_state(state)  # graph-safe trackers hold generators, whose identity graphs remember
                states[name] = live[name]
            else:
                states[name] = state.to(live[name].device)
        self._tracker.set_states(states)

    def validate(self, saved: Any) -> Iterator[str]:
        live = self.save()
        problems = list(codec.differences(live, saved, "tracker"))
        yield from problems
        for name, state in saved.items() if not problems else ():
            yield from check_torch_state(live[name], state, f"tracker.{name}")

    def peek(self) -> tuple[int | float, ...]:
        return digest_words(self.save())

    def reseed(self, seed: int) -> None:
        raise UsageError(
            f"tracker cannot be derived for another number of ranks: {type(self._tracker).__qualname__}",
            hint="its framework seeds it from the parallel layout: resume on the saved topology",
        )


class DTensorTracker:
    """DTensor's `OffsetBasedRNGTracker`: seed and offset of the device's Philox stream, in older torch under a name.

    Args:
        tracker: `torch.distributed.tensor._random._rng_tracker`, once DTensor has made it.
    """

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._named = isinstance(getattr(tracker, "rng_states", None), dict)
        if not self._named and not callable(getattr(tracker, "_get_device_state", None)):
            raise RegistrationError(f"not a DTensor RNG tracker: {type(tracker).__qualname__}")
        self.owns: tuple[object, ...] = (tracker,)

    def save(self) -> Any:
        if self._named:
            return {name: _bytes_of(state) for name, state in sorted(self._tracker.rng_states.items())}
        return {"device": _bytes_of(self._tracker._get_device_state())}

    def load(self, saved: Any) -> None:
        if self._named:
            for name, state in saved.items():
                self._tracker.rng_states[name] = state.to(self._tracker.rng_states[name].device)
        else:
            self._tracker._set_device_state(saved["device"])

    def validate(self, saved: Any) -> Iterator[str]:
        problems = list(codec.differences(self.save(), saved, "tracker"))
        yield from problems
        for name, state in saved.items() if not problems else ():
            if state.numel() != _PHILOX_BYTES:
                yield f"tracker.{name}: expected {_PHILOX_BYTES} bytes of seed and offset, found {state.numel()}"
            elif int(state[8:].view(torch.int64)) < 0 or int(state[8:].view(torch.int64)) % 4:
                # torch advances Philox in whole counters of four.
                yield f"tracker.{name}: offset out of range: {int(state[8:].view(torch.int64))}"

    def peek(self) -> tuple[int | float, ...]:
        return digest_words(self.save())

    def reseed(self, seed: int) -> None:
        raise UsageError(
            f"tracker cannot be derived for another number of ranks: {type(self._tracker).__qualname__}",
            hint="its framework seeds it from the parallel layout: resume on the saved topology",
        )


def _bytes_of(state: Any) -> torch.Tensor:
    tensor = state.get_state() if isinstance(state, torch.Generator) else state
    if not isinstance(tensor, torch.Tensor) or tensor.dtype is not torch.uint8:
        raise RegistrationError(
            f"tracker state not understood: expected uint8 bytes, found {type(tensor).__qualname__}"
        )
    return tensor.detach().cpu().clone()
