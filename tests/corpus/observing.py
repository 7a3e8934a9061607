"""What a rank tells of its run: what it held when it had loaded, what each step used, what it ended with.

Decides how state becomes comparable: digests of bytes for what must be equal, the values themselves for weights, since
how far they are off is what people ask. Leaves every judgement to whoever compares two observations.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer step."""

    completed: int
    """Steps completed once this one is."""
    rates: tuple[float, ...]
    """Learning rate of each parameter group in this step."""
    samples: tuple[int, ...]
    draws: str
    """Digest of the random streams of Python, NumPy and torch after the step."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank held right before its first step."""

    step: int
    """Completed steps, as the framework says."""
    model: str
    optimizer: str
    optimizer_entries: int
    """How many parameters have optimizer state."""
    counters: dict[str, int] = {}
    """What else the framework counts, by its own name."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank observed of its run; a rank that was killed leaves none."""

    rank: int
    loaded: Loaded | None = None
    steps: tuple[Step, ...] = ()
    finished: bool = False
    raised: str = ""
    """Type of what ended the run, empty if nothing did."""
    message: str = ""


class Observer:
    """Collects one rank's observation and writes it; weights lie beside it, as NumPy arrays."""

    def __init__(self, report: Path, rank: int) -> None:
        self._report = report
        self._rank = rank
        self._loaded: Loaded | None = None
        self._steps: list[Step] = []
        self._samples: list[int] = []
        self._finished = False

    @property
    def has_loaded(self) -> bool:
        """Whether the first step was reached."""
        return self._loaded is not None

    def loaded(
        self,
        *,
        step: int,
        model: Mapping[str, Any],
        optimizer: Mapping[str, Any],
        counters: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Right before the first step: completed steps, named tensors, the optimizer's state dictionary."""
        entries = optimizer.get("state", optimizer)
        self._loaded = Loaded(
            step=int(step),
            model=digest_of(model),
            optimizer=digest_of(optimizer),
            optimizer_entries=sum(1 for value in entries.values() if value) if isinstance(entries, Mapping) else 0,
            counters=dict(counters),
        )

    def consumed(self, batch: Any) -> None:
        """A batch of tokens, `[batch, tokens]`, went into the model."""
        self._samples.extend(int(first) for first in batch[:, 0])

    def step(self, *, completed: int, rates: Iterable[float]) -> None:
        """A step is done; samples consumed since the last one belong to it."""
        used = tuple(float(rate) for rate in rates)
        drawn = digest_of(_streams())
        self._steps.append(Step(completed=int(completed), rates=used, samples=tuple(self._samples), draws=drawn))
        self._samples.clear()

    def finished(self, model: Mapping[str, Any]) -> None:
        """The run ended as it should; these are its weights, or this rank's part of them."""
        arrays = [_array(value).astype(np.float64).ravel() for _, value in sorted(model.items())]
        np.save(weights_path(self._report, self._rank), np.concatenate(arrays))
        self._finished = True

    def write(self, error: BaseException | None) -> None:
        """Leave the observation where `read` finds it."""
        observation = Observation(
            rank=self._rank,
            loaded=self._loaded,
            steps=tuple(self._steps),
            finished=self._finished,
            raised=type(error).__name__ if error is not None else "",
            message=str(error) if error is not None else "",
        )
        (self._report / f"rank-{self._rank}.json").write_bytes(msgspec.json.encode(observation))


def read(report: Path, rank: int) -> Observation | None:
    """What a rank left, or None if it was ended before it could."""
    path = report / f"rank-{rank}.json"
    return msgspec.json.decode(path.read_bytes(), type=Observation) if path.exists() else None


def weights_path(report: Path, rank: int) -> Path:
    """Where a rank leaves its last weights."""
    return report / f"weights-{rank}.npy"


def log_path(report: Path, rank: int) -> Path:
    """Where all that a rank printed lies."""
    return report / f"rank-{rank}.log"


def digest_of(state: Any) -> str:
    """SHA-256 of nested state, the same for equal values whatever holds them."""
    digest = hashlib.sha256()
    for piece in _pieces(state, ""):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(state: Any, place: str) -> Iterable[bytes]:
    if isinstance(state, Mapping):
        for key in sorted(state, key=str):
            yield from _pieces(state[key], f"{place}/{key}")
    elif isinstance(state, list | tuple):
        for index, value in enumerate(state):
            yield from _pieces(value, f"{place}/{index}")
    elif hasattr(state, "detach") or isinstance(state, np.ndarray):
        array = _array(state)
        yield f"{place} {array.dtype} {array.shape}".encode() + array.tobytes()
    else:
        yield f"{place} {json.dumps(state, default=repr)}".encode()


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "to_local"):
        value = value.to_local()  # this rank's part of a sharded tensor
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if value.is_floating_point() else value.numpy()
    return np.ascontiguousarray(value)


def _streams() -> dict[str, Any]:
    import torch

    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
