"""Which names and files of a directory are checkpoints of their own."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import torch

from lastgood.formats.structural import choose_structurally
from lastgood.formats.trees import find_checkpoints
from lastgood.location import locate_place


def test_a_torch_file_called_tar_is_a_checkpoint_and_an_archive_is_none(tmp_path: Path) -> None:
    """`checkpoint.pth.tar` is an old habit; shards of a data set are tars indeed."""
    root = tmp_path / "runs" / "llm"
    root.mkdir(parents=True)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    state = {"model": {"w": weight.data}, "optimizer": optimizer.state_dict()}
    torch.save(state, root / "checkpoint.pth.tar")
    with tarfile.open(root / "shard-000.tar", "w") as archive:
        data = json.dumps({"text": "x"}).encode()
        archive.addfile(member := tarfile.TarInfo("0.json"), io.BytesIO(data[: member.size]))
    place = locate_place(str(root))
    assert [one.name for one in find_checkpoints(place.store, place.key)] == ["checkpoint.pth.tar"]
    offer = choose_structurally(place)
    assert offer.name == "checkpoint.pth.tar"
