"""Frameworks without a reader are told by what lies there, and nothing is said about their health."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lastgood.formats.classify import classify
from lastgood.formats.description import Framework, Restorability
from lastgood.formats.source import open_source
from lastgood.reasons import NoteReason
from lastgood.stores import LocalStore
from tests.formats.readers.judging import reader_of

LAYOUTS = [
    (Framework.TORCHSNAPSHOT, "snap", (".snapshot_metadata", "0/model/weight")),
    (Framework.ORBAX, "1000", ("_CHECKPOINT_METADATA", "state/manifest.ocdbt", "state/d/0a1b")),
    (Framework.ORBAX, "1000.orbax-checkpoint-tmp-17", ("state/d/0a1b",)),
    (Framework.ORBAX, "1000", ("default/_METADATA", "default/d/0a1b")),
    (Framework.COMPOSER, "ep1-ba10", (".metadata", "__0_0.distcp")),
    (Framework.COMPOSER, "last", ("composer_metadata.json", "model/.metadata", "resumption.pkl")),
    (Framework.BYTECHECKPOINT, "global_step_8", ("model/.metadata", "optimizer/.metadata", "loader/x")),
    (Framework.BYTECHECKPOINT, "global_step_8", ("model/.metadata", "extra_state/extra_state_rank_0.pt")),
]


@pytest.mark.parametrize(
    ("framework", "name", "paths"), [pytest.param(*one, id=f"{one[0]}-{n}") for n, one in enumerate(LAYOUTS)]
)
def test_a_framework_without_a_reader_is_named_and_not_judged(
    framework: Framework, name: str, paths: tuple[str, ...], tmp_path: Path
) -> None:
    """Silence about a checkpoint that nobody can read would be taken for health."""
    for path in paths:
        file = tmp_path / "run" / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    source = open_source(LocalStore(tmp_path), f"run/{name}")
    assert source is not None
    reader = reader_of(source)
    assert reader is not None
    description = reader.describe(source)
    assert description.framework is framework
    assert [note.reason for note in description.notes] == [NoteReason.FORMAT_NOT_JUDGED]
    assert classify(description).restorability is Restorability.UNKNOWN


@pytest.mark.parametrize("name", ["ep1-ba10-rank0.pt", "mine.pt"])
def test_composers_single_file_is_told_by_name_or_content(name: str, tmp_path: Path) -> None:
    """Its users choose names of their own."""
    (tmp_path / "run").mkdir()
    torch.save({"state": {"model": {"w": torch.zeros(2)}}, "rng": [{}]}, tmp_path / "run" / name)
    source = open_source(LocalStore(tmp_path), f"run/{name}")
    assert source is not None
    reader = reader_of(source)
    assert reader is not None
    assert reader.describe(source).framework is Framework.COMPOSER
