"""The text that ships with Python, cut into samples, and the augmentation of each step.

Decides what sample `i` of epoch `e` is: a window of `pydoc_data.topics`, corrupted by a generator seeded from (seed,
epoch, sample id). A worker's own stream would differ after a resume (measured), for its position depends on how many
samples that worker had fetched. Which samples come when is decided by the cursor (`lastgood.state`).

What the main process draws, it draws from the global Python and NumPy streams and from a NumPy generator of this rank,
all three of which are saved; the draws are reported, so that a trace can be compared draw by draw.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pydoc_data import topics

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lastgood.digest import Algorithm, hash_bytes
from lastgood.errors import UsageError
from lastgood.manifest import Identity

__all__ = ["Augmentation", "Corpus"]

MARGIN = 8
"""Bytes beyond context and target, so that the main process can shift the window."""


class Corpus(Dataset[tuple[Tensor, Tensor]]):
    """Map-style dataset: index → sample id (int64, 0-d) and uint8 `[context + 1 + MARGIN]`.

    Args:
        context: Bytes that the model sees.
        samples: Length of an epoch.
        seed: Of the augmentation.

    Raises:
        UsageError: There is less text than that many samples.
    """

    def __init__(self, *, context: int, samples: int, seed: int) -> None:
        text = "\n".join(f"{name}\n{topics.topics[name]}" for name in sorted(topics.topics)).encode()
        window = context + 1 + MARGIN
        if not 0 < samples <= len(text) - window:
            raise UsageError(f"samples out of range: expected 1..{len(text) - window}, found {samples}")
        self._window = window
        self._samples = samples
        self._stride = (len(text) - window) // samples
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._seed = seed
        self.epoch = 0
        digest = hash_bytes(text + f"/{window}/{samples}".encode(), Algorithm.BLAKE3)
        self.identity = Identity(name="pydoc_data.topics", revision=str(digest))

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        stream = random.Random(f"{self._seed}/{self.epoch}/{index}")
        start = index * self._stride
        window = self._text[start : start + self._window].clone()
        window[stream.randrange(self._window)] = stream.randrange(256)
        return torch.tensor(index), window


class Augmentation:
    """Shift and noise of one microbatch, drawn in the main process.

    Args:
        noise: This rank's own generator, registered with the other streams.
    """

    def __init__(self, noise: numpy.random.Generator) -> None:
        self.noise = noise
        self._draws: dict[str, list[int]] = {}

    def __call__(self, windows: Tensor) -> Tensor:
        """uint8 `[batch, context + 1 + MARGIN]` → int64 `[batch, context + 1]`, on the host."""
        batch, width = windows.shape[0], windows.shape[1] - MARGIN
        shift = random.randrange(MARGIN + 1)
        positions = numpy.random.randint(0, width, size=batch)
        values = self.noise.integers(0, 256, size=batch)
        self._note("python", [shift])
        self._note("numpy", positions.tolist())
        self._note("noise", values.tolist())
        tokens = windows[:, shift : shift + width].to(torch.int64)
        tokens[torch.arange(batch), torch.from_numpy(positions)] = torch.from_numpy(values)
        return tokens

    def take_draws(self) -> dict[str, tuple[float | int, ...]]:
        """Stream → everything drawn since the last call, in order."""
        draws: dict[str, tuple[float | int, ...]] = {name: tuple(values) for name, values in self._draws.items()}
        self._draws = {}
        return draws

    def _note(self, stream: str, values: Sequence[int]) -> None:
        self._draws.setdefault(stream, []).extend(values)
