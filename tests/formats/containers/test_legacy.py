"""Files of `torch.save` from before the zip: described alike, covered exactly."""

from __future__ import annotations

import pytest
import torch

from lastgood.errors import FormatError
from lastgood.formats.containers import legacy
from lastgood.formats.containers.reading import BytesReader, ProblemKind
from lastgood.formats.containers.torchfile import Container, read_torch_file
from tests.formats.containers.counting import CountingReader
from tests.formats.containers.samples import saved, training_state


def legacy_bytes(value: object, **options: object) -> bytes:
    return saved(value, _use_new_zipfile_serialization=False, **options)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_legacy_and_zip_describe_the_same_object(protocol: int) -> None:
    """Which of the two forms a file has must change nothing of what is said about it, but for storage keys."""
    value = training_state()
    old = read_torch_file(BytesReader(legacy_bytes(value, pickle_protocol=protocol)), "x")
    new = read_torch_file(BytesReader(saved(value)), "x")
    assert (old.container, old.problems, old.byteorder) == (Container.TORCH_LEGACY, (), "little")
    assert old.payload_bytes == new.payload_bytes
    shapes = [[(tensor.dtype, tensor.shape, tensor.stride) for tensor in file.pickled.tensors] for file in (old, new)]
    assert shapes[0] == shapes[1]
    assert old.value["optimizer"]["param_groups"] == new.value["optimizer"]["param_groups"]


def test_only_the_pickles_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says how long the pickles are; finding out must not read the payload."""
    monkeypatch.setattr(legacy, "_FIRST_HEAD_BYTES", 1_000)
    reader = CountingReader(BytesReader(legacy_bytes({str(i): torch.zeros(100_000) for i in range(10)})))
    assert read_torch_file(reader, "x").problems == ()
    assert reader.bytes_read < 20_000


def test_a_storage_that_was_cut_is_named() -> None:
    """There is no checksum, but the lengths must add up to the file."""
    data = legacy_bytes({"a": torch.ones(10), "b": torch.ones(10)})
    problems = read_torch_file(BytesReader(data[:-1]), "x").problems
    assert [problem.kind for problem in problems] == [ProblemKind.STORAGE_SIZE]
    longer = read_torch_file(BytesReader(data + b"xy"), "x").problems
    assert [problem.kind for problem in longer] == [ProblemKind.UNCOVERED_BYTES]


def test_a_count_that_contradicts_the_object_is_named() -> None:
    """The count of elements in front of a storage is checked against the tensors that use it."""
    data = bytearray(legacy_bytes({"a": torch.ones(10)}))
    data[-48] = 11
    problems = read_torch_file(BytesReader(bytes(data)), "x").problems
    assert [problem.message.partition(": x: ")[2] for problem in problems] == ["expected 10 elements, found 11"]


def test_a_file_cut_within_its_pickles_is_refused() -> None:
    """Then nothing of it can be described."""
    with pytest.raises(FormatError, match="pickle refused"):
        read_torch_file(BytesReader(legacy_bytes(training_state())[:300]), "x")
