"""A stranger's checkpoint is reached by its listing alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lastgood.errors import FormatError
from lastgood.formats.source import open_source
from lastgood.formats.texts import number_of, parse_json
from lastgood.reasons import Reason
from lastgood.stores import LocalStore


def write(root: Path, **files: bytes) -> LocalStore:
    for name, data in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return LocalStore(root)


def test_a_directory_shows_its_files_and_none_of_ours(tmp_path: Path) -> None:
    """What lastgood put beside a checkpoint is no part of it."""
    store = write(tmp_path, out__step__model=b"12", out__step__deep__x=b"3", out__step___=b"")
    ours = tmp_path / "out/step/.lastgood/commits/x"
    ours.parent.mkdir(parents=True)
    ours.write_bytes(b"")
    source = open_source(store, "out/step")
    assert source is not None
    assert sorted(source.files) == ["_", "deep/x", "model"]
    assert (source.name, source.parent, source.read("model")) == ("step", "out", b"12")
    assert source.below("deep").read("x") == b"3"


def test_a_single_file_is_a_checkpoint_of_one(tmp_path: Path) -> None:
    """Lightning's checkpoint is one file, and its siblings are other checkpoints."""
    source = open_source(write(tmp_path, out__a=b"12", out__b=b"3"), "out/a")
    assert source is not None
    assert (source.is_file, list(source.files), source.parent) == (True, ["a"], "out")
    with source.open("a") as reader:
        assert reader.read_at(1, 1) == b"2"


def test_nothing_is_not_an_empty_checkpoint(tmp_path: Path) -> None:
    """A wrong path must be told from a directory that is there and empty."""
    (tmp_path / "out/empty").mkdir(parents=True)
    assert open_source(LocalStore(tmp_path), "out/absent") is None
    empty = open_source(LocalStore(tmp_path), "out/empty")
    assert empty is not None
    assert not empty.files


@pytest.mark.parametrize("path", ["../secret", "absent", "link", "pipe", "linked/x"])
def test_no_name_from_a_file_leads_out(tmp_path: Path, path: str) -> None:
    """An index may name anything; only what was listed as a regular file is opened."""
    store = write(tmp_path, secret=b"s", out__model=b"1", elsewhere__x=b"s")
    os.symlink("../secret", tmp_path / "out/link")
    os.symlink("../elsewhere", tmp_path / "out/linked")
    os.mkfifo(tmp_path / "out/pipe")
    source = open_source(store, "out")
    assert source is not None
    with pytest.raises(FormatError, match="no file of this checkpoint"):
        source.read(path)
    with pytest.raises(FormatError, match="no file of this checkpoint"), source.open(path):
        pass


def test_a_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    """A pointer of a terabyte must cost nothing."""
    source = open_source(write(tmp_path, out__index=b"12345"), "out")
    assert source is not None
    assert source.read("index", limit_bytes=5) == b"12345"
    with pytest.raises(FormatError, match="expected at most 4 bytes, found 5"):
        source.read("index", limit_bytes=4)


@pytest.mark.parametrize("data", [b'{"a": 1, "a": 2}', b"{", b"\xff", b"[" * 100_000, b""])
def test_json_that_can_be_read_two_ways_is_not_read(data: bytes) -> None:
    """Torn text, and keys that loaders disagree on, are named as what they are."""
    with pytest.raises(FormatError, match=r"index\.json") as refused:
        parse_json(data, "index.json")
    assert refused.value.reason is Reason.CONTAINER_MALFORMED


def test_a_log_with_nan_is_json_here() -> None:
    """Python's own writer puts NaN into a trainer's log, and the checkpoint is healthy."""
    value = parse_json(b'{"loss": NaN, "step": 8, "epoch": 8.0, "part": 0.5, "flag": true, "less": -1}', "x")
    names = ("step", "epoch", "part", "flag", "less", "loss", "absent")
    assert [number_of(value, name) for name in names] == [8, 8, None, None, None, None, None]
