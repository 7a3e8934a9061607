"""The model and data of programs whose framework brings none: dropout makes the random streams matter."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from tests.corpus.job import BATCH_SAMPLES, SAMPLES, SEED, VOCABULARY, tokens


class Tiny(nn.Module):
    """Predicts the next token from the one before; tells `consumed` of every batch that it trains on."""

    def __init__(self, consumed: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._consumed = consumed
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.hidden = nn.Linear(16, 32)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, batch: Tensor) -> Tensor:
        """Loss of a batch, `[batch, tokens]`, int64."""
        self._consumed(batch)
        logits = self.head(self.dropout(torch.relu(self.hidden(self.embedding(batch[:, :-1])))))
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


class Samples(torch.utils.data.Dataset[Tensor]):
    """All samples, each `[tokens]`, int64."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(tokens(index))


def seed_everything() -> None:
    """Start all random streams."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def batch_of(step: int, rank: int, ranks: int) -> Tensor:
    """The batch of the step after `step` completed ones: every epoch in an order of its own, ranks taking turns."""
    steps_an_epoch = SAMPLES // (BATCH_SAMPLES * ranks)
    epoch, position = divmod(step, steps_an_epoch)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(SEED + epoch)).tolist()
    first = (position * ranks + rank) * BATCH_SAMPLES
    return torch.tensor([tokens(index) for index in order[first : first + BATCH_SAMPLES]])
