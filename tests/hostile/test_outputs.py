"""Files that a command is told to write, where no file is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lastgood.cli import run
from lastgood.testing.build import BuiltFamily, Recipe, build_family


@pytest.fixture
def built(tmp_path: Path) -> BuiltFamily:
    return build_family(tmp_path, "llm-7b", recipe=Recipe(world_size=1))


def test_junit_is_written_into_a_pipe(built: BuiltFamily, tmp_path: Path) -> None:
    """A pipe that a file takes the place of leaves its reader waiting for ever."""
    pipe = tmp_path / "results"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert run(["verify", str(built.root / built.family), "--junit", str(pipe)]) == 0
    assert pipe.is_fifo()
    reader.join(30.0)
    assert read[0].startswith(b"<?xml")


def test_a_device_is_never_replaced(built: BuiltFamily, tmp_path: Path) -> None:
    """Root, as which containers run, could put a file in the place of /dev/null and break the whole machine."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")
    assert run(["verify", str(built.root / built.family), "--junit", str(device)]) == 0
    assert device.is_char_device()
