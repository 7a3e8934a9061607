"""safetensors headers and indexes: what others write is read, what does not cover its file exactly is refused."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from lastgood.errors import FormatError, ReadLimitError
from lastgood.formats.containers import tensors
from lastgood.formats.containers.reading import BytesReader
from lastgood.formats.containers.tensors import ITEM_BITS, read_shard_index, read_tensor_header
from tests.formats.containers.counting import CountingReader
from tests.formats.containers.samples import DTYPES

SAMPLE = save({"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(7)}, {"format": "pt"})


def test_what_safetensors_writes_is_described() -> None:
    """Every element type that torch and safetensors share, scalars and empty tensors included."""
    stored = [dtype for dtype in DTYPES if dtype is not torch.complex128]
    given_ = {str(dtype): torch.zeros(2, 3, dtype=dtype) for dtype in stored}
    header = read_tensor_header(
        BytesReader(save(given_ | {"scalar": torch.tensor(1), "empty": torch.zeros(0, 4)})), "x"
    )
    for name, tensor in given_.items():
        entry = header.entries[name]
        assert (entry.shape, entry.bytes) == ((2, 3), tensor.nbytes)
        assert ITEM_BITS[entry.dtype] == 8 * tensor.element_size()
    assert header.entries["scalar"].shape == ()
    assert header.entries["empty"].bytes == 0
    assert read_tensor_header(BytesReader(SAMPLE), "x").metadata == {"format": "pt"}


def test_only_the_header_is_read() -> None:
    """No checksum covers the data, so there is nothing to be learned from it."""
    reader = CountingReader(BytesReader(save({"w": torch.zeros(1_000_000)})))
    read_tensor_header(reader, "x")
    assert reader.bytes_read < 1_000


def test_limits_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever meets a limit with a healthy file must see which one it was."""
    monkeypatch.setattr(tensors, "MAXIMUM_HEADER_BYTES", 50)
    with pytest.raises(ReadLimitError, match="header too large: x: expected at most 50 bytes"):
        read_tensor_header(BytesReader(SAMPLE), "x")
    monkeypatch.undo()
    monkeypatch.setattr(tensors, "MAXIMUM_TENSORS", 1)
    with pytest.raises(ReadLimitError, match="too many tensors: x: at most 1, found 2"):
        read_tensor_header(BytesReader(SAMPLE), "x")


@pytest.mark.parametrize("length", [0, 7, 8, 20, len(SAMPLE) - 1, len(SAMPLE) + 1])
def test_a_file_of_another_length_is_refused(length: int) -> None:
    """Safetensors covers its file exactly, so every cut and every addition shows."""
    with pytest.raises(FormatError):
        read_tensor_header(BytesReader(SAMPLE.ljust(length, b"\0")[:length]), "x")


@given(st.integers(0, len(SAMPLE) - 48), st.binary(min_size=1, max_size=6))
def test_a_damaged_header_is_refused_or_described(place: int, noise: bytes) -> None:
    """Whatever stands in the header, the only answer beside a description is a FormatError."""
    try:
        read_tensor_header(BytesReader(SAMPLE[:place] + noise + SAMPLE[place + len(noise) :]), "x")
    except FormatError:
        pass


def test_an_index_names_files_beside_itself() -> None:
    """A path that leaves the checkpoint is a problem, and nobody can follow it by mistake."""
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", "c": "../x"}
    index = read_shard_index(json.dumps({"metadata": {"total_size": 8}, "weight_map": weights}).encode(), "i.json")
    assert set(index.files) == {"a", "b"}
    assert index.total_bytes == 8
    assert [problem.message for problem in index.problems] == ["path escapes: i.json: 'c' lies in '../x'"]
