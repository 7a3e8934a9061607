"""Hostile files: none runs, none crashes or exhausts the reader, each is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.testing.hostile import HOSTILE, Answer

HERE = Path(__file__).parent
MEMORY_BYTES = 512 * 2**20
SECONDS = 2.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every hostile file, each with a marker of its own."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "files").mkdir()
    for hostile in HOSTILE.values():
        hostile.write(root / "files", marker(root, hostile.name))
    return root


def marker(root: Path, name: str) -> Path:
    return root / f"ran-{name}"


@pytest.fixture(scope="module")
def answers(folder: Path) -> Iterator[dict[str, Any]]:
    """What a process without torch, under the limit of memory, said of each."""
    command = [sys.executable, str(HERE / "hostile_reader.py"), str(folder), str(MEMORY_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    yield {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert sorted(path.name for path in folder.glob("ran-*")) == [], "code of a hostile file ran"


def test_there_are_enough_of_them() -> None:
    """A catalogue that lost its entries would let every test here pass."""
    assert len(HOSTILE) >= 140
    assert sum(hostile.fires for hostile in HOSTILE.values()) >= 25


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_file_is_refused_or_named(answers: dict[str, Any], name: str) -> None:
    """Each gets its answer, with the file or the offender in it, within two seconds of processor time and 512 MiB."""
    answer = answers[name]
    assert answer["said"] == HOSTILE[name].answer, answer["text"]
    assert answer["seconds"] <= SECONDS
    assert answer["peak_bytes"] <= MEMORY_BYTES
    assert answer["said"] == Answer.GLOBAL_NAMED or name in answer["text"]
    assert len(answer["text"]) < 1_000


def test_no_name_in_a_file_is_imported(answers: dict[str, Any]) -> None:
    """A reader that so much as imported a module because a file names it could be made to run that module."""
    loaded = set(answers[""]["modules"])
    assert loaded & {"torch", "numpy", "antigravity", "runpy", "this"} == set()


@pytest.mark.slow
def test_hostile_files_are_hostile(folder: Path, tmp_path: Path) -> None:
    """A canary that could not sing proves nothing: an unrestricted loader runs each of those that claim it."""
    firing = [hostile for hostile in HOSTILE.values() if hostile.fires]
    for hostile in firing:
        hostile.write(tmp_path, tmp_path / f"ran-{hostile.name}")
    command = [sys.executable, str(HERE / "hostile_loader.py"), str(tmp_path), *(hostile.name for hostile in firing)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    silent = [hostile.name for hostile in firing if not (tmp_path / f"ran-{hostile.name}").exists()]
    assert silent == [], done.stdout
