"""Real files of `torch.save` and torch DCP, made in memory."""

from __future__ import annotations

import io
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from lastgood.formats.containers.reading import BytesReader


def saved(value: Any, **options: Any) -> bytes:
    """What `torch.save` writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def reader_of(value: Any, **options: Any) -> BytesReader:
    return BytesReader(saved(value, **options))


@contextmanager
def without_checksums() -> Iterator[None]:
    """`torch.save` records no CRC-32 inside the block."""
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(True)


def training_state() -> dict[str, Any]:
    """What a training loop puts into a file: model, optimizer, scheduler, random states, counters."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    scheduler.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": {
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(),
            "python": random.getstate(),
            "generator": np.random.default_rng(3),
        },
        "step": 12,
        "epoch": 1.5,
        "seed": 2**100,
        "name": "llm-7b ünï",
        "best": np.float64(0.25),
        "done": True,
        "nothing": None,
    }


def every_kind() -> dict[str, Any]:
    """Values of every kind that the allow-list knows."""
    base = torch.arange(24.0)
    return {
        "view": base.view(4, 6)[1:, ::2],
        "transposed": base.view(4, 6).t(),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "expanded": torch.ones(1).expand(100),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
        "meta": torch.zeros(4, 4, device="meta"),
        "sparse": torch.eye(3).to_sparse(),
        "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]),
        "device": torch.device("cpu"),
        "ordered": OrderedDict(a=1, b=2),
        "counted": Counter("aab"),
        "defaulting": defaultdict(list, {"x": [1]}),
        "queue": deque([1, 2], maxlen=3),
        "set": {1, 2},
        "frozen": frozenset({"a"}),
        "bytes": b"\x00\xff",
        "array": bytearray(b"abc"),
        "path": PurePosixPath("/x/y"),
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "how_long": timedelta(seconds=3),
        "namespace": SimpleNamespace(lr=0.1),
        "numbers": np.arange(6, dtype=np.uint32).reshape(2, 3),
        "flag": np.bool_(True),
        "half": np.float16(1.5),
        "tuple": (1, (2, (3,))),
        "complex_key": {(1, "a"): 2},
        "long_list": list(range(3000)),
        "big": -(2**200),
        "nan": float("inf"),
    } | {f"as_{dtype}": torch.zeros(3, dtype=dtype) for dtype in DTYPES}


DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
