"""Rewriting saved files on purpose, so that each test damages exactly one thing in otherwise lawful bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lastgood.state.storage import INDEX_KEY
from lastgood.state.tensorfile import TensorFile, write_tensor_file


def rewrite_tensors(path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> None:
    """Let `change` edit entries (name → tensor) and index in place, and write a lawful file of the result."""
    with TensorFile(path, path.name) as file:
        entries = {name: file.tensor(name) for name in file.entries}
        index = json.loads(file.metadata[INDEX_KEY])
    change(entries, index)
    path.unlink()
    write_tensor_file(path, list(entries.items()), {INDEX_KEY: json.dumps(index)})


def rewrite_document(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Let `change` edit a JSON document in place."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def drop_tensor(key: str) -> Callable[[dict[str, torch.Tensor], dict[str, Any]], None]:
    """Forget one tensor in entries and index alike."""

    def change(entries: dict[str, torch.Tensor], index: dict[str, Any]) -> None:
        for chunk in index["tensors"].pop(key)["chunks"]:
            del entries[chunk["entry"]]

    return change


def put_tensor(key: str, tensor: torch.Tensor, dtype: str) -> Callable[[dict[str, torch.Tensor], dict[str, Any]], None]:
    """Add one tensor, or replace it by another, in entries and index alike."""

    def change(entries: dict[str, torch.Tensor], index: dict[str, Any]) -> None:
        entries[key] = tensor
        chunk = {"entry": key, "offsets": [0] * tensor.ndim, "sizes": list(tensor.shape)}
        index["tensors"][key] = {"shape": list(tensor.shape), "dtype": dtype, "chunks": [chunk]}

    return change
