"""A byte-level transformer, small enough that a step takes tens of milliseconds on one CPU core.

Decides the network alone. It has what makes a resume hard: dropout (the torch stream), a persistent buffer that every
training forward changes, and parameters of both weight-decay kinds. Attention is spelled out, because fused kernels
have backward passes that are not deterministic on every device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Block", "ByteTransformer", "ModelShape"]

VOCABULARY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What determines the parameters.

    Args:
        width: Residual width; divisible by `heads`.
        layers: Number of blocks.
        heads: Attention heads.
        context: Bytes that the model sees.
        dropout: Probability, 0 up to below 1.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 32
    dropout: float = 0.1


class Block(nn.Module):
    """Pre-norm attention and feed-forward; maps float `[batch, time, width]` to the same."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = nn.Dropout(shape.dropout)
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention_in = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.feed_forward_norm = nn.LayerNorm(shape.width)
        self.feed_forward_in = nn.Linear(shape.width, 4 * shape.width)
        self.feed_forward_out = nn.Linear(4 * shape.width, shape.width)

    def forward(self, hidden: Tensor, future: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self._attend(self.attention_norm(hidden), future))
        inner = functional.gelu(self.feed_forward_in(self.feed_forward_norm(hidden)))
        out: Tensor = hidden + self.dropout(self.feed_forward_out(inner))
        return out

    def _attend(self, hidden: Tensor, future: Tensor) -> Tensor:
        batch, time, width = hidden.shape
        parts = self.attention_in(hidden).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / (width // self.heads) ** 0.5
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        mixed = (self.dropout(weights) @ value.to(weights.dtype)).transpose(1, 2).reshape(batch, time, width)
        out: Tensor = self.attention_out(mixed)
        return out


class ByteTransformer(nn.Module):
    """Next-byte prediction.

    `forward` takes int64 `[batch, time]` on the model's device, time ≤ context, and returns logits
    `[batch × time, 256]`.
    """

    tokens_seen: Tensor
    future: Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.bytes = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY)
        self.register_buffer("tokens_seen", torch.zeros((), dtype=torch.int64))
        # Recomputed at every start, hence not in the checkpoint.
        future = torch.ones(shape.context, shape.context, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        if self.training:
            self.tokens_seen += tokens.numel()
        positions = torch.arange(time, device=tokens.device)
        hidden = self.dropout(self.bytes(tokens) + self.positions(positions))
        for block in self.blocks:
            hidden = block(hidden, self.future[:time, :time])
        logits: Tensor = self.head(self.norm(hidden).flatten(0, 1))
        return logits
