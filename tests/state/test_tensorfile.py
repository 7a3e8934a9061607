"""safetensors files byte for byte: what we write others read, and no hostile file is taken or kills the reader."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from lastgood.errors import FormatError, StorePermanentError, UsageError
from lastgood.state import tensorfile
from lastgood.state.tensorfile import DTYPES, TensorFile, tensor_bytes, write_tensor_file


def filled(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor whose bytes all differ."""
    count = max(1, torch.Size(shape).numel()) * dtype.itemsize
    raw = torch.arange(count, dtype=torch.int64).remainder(251).to(torch.uint8)
    return (
        (raw % 2 == 0).view(shape) if dtype is torch.bool else raw.view(dtype)[: torch.Size(shape).numel()].view(shape)
    )


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype == other.dtype and one.shape == other.shape and bytes(tensor_bytes(one)) == bytes(tensor_bytes(other))
    )


TENSORS = {code: filled(dtype, 3, 5) for code, dtype in DTYPES.items()}


def test_every_element_type_survives(tmp_path: Path) -> None:
    """bf16, fp8 and 64-bit integers must come back bit for bit, in our reader and in safetensors' own."""
    tensors = {**TENSORS, "scalar": torch.tensor(2**62 + 1), "empty": torch.zeros(0, 4), "ünï": torch.ones(1)}
    write_tensor_file(tmp_path / "a", list(tensors.items()), {"note": "x"})
    with TensorFile(tmp_path / "a", "a") as file:
        assert file.metadata == {"note": "x"}
        for name, tensor in tensors.items():
            assert same_bytes(file.tensor(name), tensor), name
    with safe_open(tmp_path / "a", framework="pt") as theirs:
        for name in ("F32", "BF16", "I64", "scalar", "empty", "ünï"):
            assert same_bytes(theirs.get_tensor(name), tensors[name]), name


def test_tensors_larger_and_smaller_than_one_write_follow_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes are cut and gathered, and the kernel may take less than it is given; no byte may be lost between two."""
    monkeypatch.setattr(tensorfile, "_WRITE_BYTES", 1000)
    monkeypatch.setattr(tensorfile, "_WRITE_VECTOR", 7)
    monkeypatch.setattr(tensorfile, "_EARLY_BYTES", 3000)
    whole = os.writev

    def some(descriptor: int, views: list[memoryview]) -> int:
        return whole(descriptor, views[:1] if len(views) % 2 else [views[0][: len(views[0]) // 2 + 1]])

    monkeypatch.setattr(tensorfile.os, "writev", some)
    tensors = {f"t{size}": filled(torch.uint8, size) for size in (5000, 1, 2, 3, 999, 1000, 1001, *range(10, 40))}
    length = write_tensor_file(tmp_path / "a", list(tensors.items()), {})
    assert (tmp_path / "a").stat().st_size == length
    with TensorFile(tmp_path / "a", "a") as file:
        assert [name for name, tensor in tensors.items() if not same_bytes(file.tensor(name), tensor)] == []


def test_what_safetensors_writes_is_read(tmp_path: Path) -> None:
    """Any tool may have written a foreign file."""
    save_file({"w": torch.arange(6.0).view(2, 3), "n": torch.tensor([7])}, tmp_path / "a", metadata={"format": "pt"})
    with TensorFile(tmp_path / "a", "a") as file:
        assert file.tensor("w").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file.tensor("n").tolist() == [7]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A second writer of a name is an error, and the first one's bytes stay."""
    (tmp_path / "a").write_bytes(b"first")
    with pytest.raises(FileExistsError):
        write_tensor_file(tmp_path / "a", [("w", torch.ones(1))], {})
    assert (tmp_path / "a").read_bytes() == b"first"


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    """The second would silently cover the first."""
    with pytest.raises(UsageError, match="share one name"):
        write_tensor_file(tmp_path / "a", [("w", torch.ones(1)), ("w", torch.ones(1))], {})


def file_of(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """The bytes of a file with this header (JSON-able, or text as it is)."""
    text = header if isinstance(header, str) else json.dumps(header)
    encoded = text.encode("utf-8", "surrogatepass")
    return (len(encoded) if length is None else length).to_bytes(8, "little") + encoded + data


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


HOSTILE = {
    "nothing": b"",
    "seven bytes": b"1234567",
    "header length 2**63": file_of({}, length=2**63),
    "header beyond the file": file_of({}, length=99),
    "a header of 65 MiB": file_of({}, length=65 * 2**20),
    "no JSON": file_of("{"),
    "a list": file_of([]),
    "depth": file_of("[" * 100_000 + "]" * 100_000),
    "duplicate key": file_of('{"w": {}, "w": {}}'),
    "NaN": file_of('{"w": NaN}'),
    "lone surrogate": file_of('{"\\ud800": 1}'),
    "overlap": file_of({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"x" * 12),
    "hole": file_of({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"x" * 12),
    "trailing": file_of({"a": entry([1], 0, 4)}, b"x" * 5),
    "truncated": file_of({"a": entry([2], 0, 8)}, b"x" * 7),
    "reversed": file_of({"a": entry([1], 4, 0)}, b"x" * 4),
    "negative dimension": file_of({"a": entry([-1], 0, 4)}, b"x" * 4),
    "float dimension": file_of({"a": entry([1.0], 0, 4)}, b"x" * 4),
    "true dimension": file_of({"a": entry([True], 0, 4)}, b"x" * 4),
    "wrong size": file_of({"a": entry([3], 0, 4)}, b"x" * 4),
    "overflowing size": file_of({"a": entry([2**62, 2**62], 0, 4)}, b"x" * 4),
    "unknown type": file_of({"a": entry([1], 0, 4, "F33")}, b"x" * 4),
    "type without a place in torch": file_of({"a": entry([2], 0, 1, "F4")}, b"x"),
    "unknown field": file_of({"a": entry([1], 0, 4, surprise=1)}, b"x" * 4),
    "too many dimensions": file_of({"a": entry([1] * 65, 0, 4)}, b"x" * 4),
    "metadata not text": file_of({"__metadata__": {"a": 1}}),
    "metadata a list": file_of({"__metadata__": []}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    """Each ends in a FormatError that names the file, never in another exception, a crash or a huge allocation."""
    (tmp_path / "a").write_bytes(HOSTILE[name])
    with pytest.raises(FormatError, match="model/rank-00000"):
        TensorFile(tmp_path / "a", "model/rank-00000")


def test_names_are_keys_and_never_paths(tmp_path: Path) -> None:
    """A name like a path is lawful text and opens nothing."""
    write_tensor_file(tmp_path / "a", [("../../etc/passwd", torch.ones(1)), ("<script>", torch.zeros(1))], {})
    with TensorFile(tmp_path / "a", "a") as file:
        assert file.tensor("../../etc/passwd").tolist() == [1.0]


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A pipe would hang the reader, a link lead out of the verified copy."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="not a regular file"):
        TensorFile(tmp_path / "pipe", "pipe")
    write_tensor_file(tmp_path / "a", [("w", torch.ones(1))], {})
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(StorePermanentError, match="cannot open: link"):
        TensorFile(tmp_path / "link", "link")


def test_a_file_that_shrinks_while_open_is_an_error(tmp_path: Path) -> None:
    """A mapped file would kill the process with SIGBUS here."""
    write_tensor_file(tmp_path / "a", [("w", torch.ones(1000))], {})
    with TensorFile(tmp_path / "a", "a") as file:
        os.truncate(tmp_path / "a", 100)
        with pytest.raises(StorePermanentError, match="file ended early: a"):
            file.tensor("w")


@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_one_changed_byte_of_a_header_is_never_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    """Either it still is a lawful file, or it is a FormatError."""
    path = tmp_path_factory.mktemp("mutants") / "a"
    write_tensor_file(path, [("w", torch.ones(2, 3)), ("b", torch.zeros(4))], {"lastgood": "{}"})
    data = bytearray(path.read_bytes())
    data[position % (len(data) - 40)] = value
    path.write_bytes(data)
    try:
        with TensorFile(path, "a") as file:
            for name in file.entries:
                file.tensor(name)
    except FormatError:
        pass
