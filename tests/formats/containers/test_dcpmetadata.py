"""`.metadata` of DCP: what torch wrote is described exactly; what it contradicts is named."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from lastgood.errors import FormatError
from lastgood.formats.containers.dcpmetadata import DcpMetadata, read_dcp_metadata
from lastgood.formats.containers.reading import BytesReader, ProblemKind, Window
from lastgood.formats.containers.stubs import TensorStub
from lastgood.formats.containers.torchfile import read_torch_file
from lastgood.formats.containers.torchzip import CrcOutcome
from tests.formats.containers.samples import training_state


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One save of one rank, by torch itself."""
    folder = tmp_path_factory.mktemp("dcp") / "step-12"
    dcp.save(training_state() | {"half": torch.ones(3, 4, dtype=torch.bfloat16)}, checkpoint_id=folder, no_dist=True)
    return folder


def described(folder: Path) -> DcpMetadata:
    return read_dcp_metadata((folder / ".metadata").read_bytes(), ".metadata")


def sizes_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def metadata_of(ranks: int) -> Metadata:
    """One tensor, sharded over ranks, as their coordinator would write it."""
    properties = TensorProperties(dtype=torch.bfloat16)
    boxes = [ChunkStorageMetadata(torch.Size([4 * rank, 0]), torch.Size([4, 8])) for rank in range(ranks)]
    return Metadata(
        {"w": TensorStorageMetadata(properties, torch.Size([4 * ranks, 8]), boxes)},
        {"w": ("model", "w")},
        {
            MetadataIndex("w", box.offsets, rank): _StorageInfo(f"__{rank}_0.distcp", 0, 64)
            for rank, box in enumerate(boxes)
        },
        StorageMeta(save_id="some-save"),
    )


def test_metadata_is_described_as_torch_reads_it(checkpoint: Path) -> None:
    """Every tensor, object, chunk and place must be the one that torch's own reader finds."""
    theirs = FileSystemReader(checkpoint).read_metadata()
    ours = described(checkpoint)
    assert ours.problems == ()
    assert ours.unknown_globals == ()
    assert {*ours.tensors, *ours.objects} == set(theirs.state_dict_metadata)
    for fqn, tensor in ours.tensors.items():
        expected = theirs.state_dict_metadata[fqn]
        assert (tensor.shape, f"torch.{tensor.dtype}") == (tuple(expected.size), str(expected.properties.dtype))
        assert [tuple(chunk.sizes) for chunk in expected.chunks] == [chunk.sizes for chunk in tensor.chunks]
    places = {(index.fqn, info.relative_path, info.offset, info.length) for index, info in theirs.storage_data.items()}
    assert {(entry.fqn, entry.path, entry.offset, entry.length) for entry in ours.entries} == places
    assert ours.save_id == theirs.storage_meta.save_id
    assert ours.paths["optimizer.param_groups.0.lr"] == ("optimizer", "param_groups", 0, "lr")


def test_files_are_as_long_as_the_entries_say(checkpoint: Path) -> None:
    """The length rule needs no manifest: a healthy file ends where its last entry ends."""
    metadata = described(checkpoint)
    sizes = sizes_of(checkpoint)
    assert metadata.file_problems(sizes) == ()
    path = next(iter(metadata.file_bytes()))
    changes = {
        ProblemKind.RANGE_BEYOND_FILE: {**sizes, path: sizes[path] - 1},
        ProblemKind.UNCOVERED_BYTES: {**sizes, path: sizes[path] + 1},
        ProblemKind.FILE_MISSING: {},
    }
    for kind, changed in changes.items():
        assert [(problem.kind, problem.subject) for problem in metadata.file_problems(changed)] == [(kind, path)]


def test_every_entry_is_an_archive_that_holds(checkpoint: Path) -> None:
    """Each tensor and object of a `.distcp` file has records with checksums of its own."""
    metadata = described(checkpoint)
    for entry in metadata.entries:
        reader = BytesReader((checkpoint / entry.path).read_bytes())
        file = read_torch_file(Window(reader, entry.offset, entry.length, entry.path), entry.fqn)
        assert file.archive is not None
        assert {checked.outcome for checked in file.archive.check_crcs()} == {CrcOutcome.HELD}
        if (tensor := metadata.tensors.get(entry.fqn)) is not None:
            assert isinstance(file.value, TensorStub)
            assert (file.value.dtype, file.value.shape) == (tensor.dtype, tensor.chunks[0].sizes)


def test_shards_of_many_ranks_are_told_apart() -> None:
    """Each rank's chunk has its own place in a file of that rank."""
    metadata = read_dcp_metadata(pickle.dumps(metadata_of(4)), "x")
    assert metadata.problems == ()
    assert [entry.chunk_offsets for entry in metadata.entries] == [(0, 0), (4, 0), (8, 0), (12, 0)]
    assert metadata.file_bytes() == {f"__{rank}_0.distcp": 64 for rank in range(4)}
    assert (metadata.save_id, metadata.paths) == ("some-save", {"w": ("model", "w")})


def test_a_chunk_without_a_place_is_named() -> None:
    """A loader fails on it only when it gets there; whoever decides what to resume must know before."""
    broken = metadata_of(2)
    del broken.storage_data[next(iter(broken.storage_data))]
    problems = read_dcp_metadata(pickle.dumps(broken), "x").problems
    assert [(problem.kind, problem.subject) for problem in problems] == [(ProblemKind.ENTRY_MISSING, "w")]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"relative_path": "../__0_0.distcp"}, ProblemKind.PATH_ESCAPES),
        ({"relative_path": "/tmp/__0_0.distcp"}, ProblemKind.PATH_ESCAPES),
        ({"offset": -1}, ProblemKind.RANGE_INVALID),
        ({"length": 0}, ProblemKind.RANGE_INVALID),
        ({"relative_path": "__1_0.distcp"}, ProblemKind.RANGE_OVERLAPS),
    ],
)
def test_a_place_that_cannot_be_is_named(change: dict[str, Any], kind: ProblemKind) -> None:
    """DCP's reader joins paths and seeks unchecked; here such a place is a problem, and no entry to follow."""
    broken = metadata_of(2)
    index, info = next(iter(broken.storage_data.items()))
    broken.storage_data[index] = replace(info, **change)
    metadata = read_dcp_metadata(pickle.dumps(broken), "x")
    assert kind in {problem.kind for problem in metadata.problems}
    assert all(entry.path in {"__0_0.distcp", "__1_0.distcp"} for entry in metadata.entries)


def test_what_other_libraries_add_is_kept() -> None:
    """Megatron hangs `mcore_data` on the metadata; its reader needs it, and others must not stumble."""
    extended = metadata_of(1)
    extended.mcore_data = {"w": {"shape": (4, 8)}}  # type: ignore[attr-defined]
    assert read_dcp_metadata(pickle.dumps(extended), "x").extras == {"mcore_data": {"w": {"shape": (4, 8)}}}


@given(st.data())
def test_damaged_metadata_is_refused_or_described(data: st.DataObject) -> None:
    """One changed, cut or repeated stretch never raises anything but a FormatError."""
    start = data.draw(st.integers(0, len(DAMAGED_SOURCE) - 1))
    middle = data.draw(st.binary(max_size=6))
    length = data.draw(st.integers(0, 6))
    try:
        read_dcp_metadata(DAMAGED_SOURCE[:start] + middle + DAMAGED_SOURCE[start + length :], "x")
    except FormatError:
        pass


DAMAGED_SOURCE = pickle.dumps(metadata_of(3))
