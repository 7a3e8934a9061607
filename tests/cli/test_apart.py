"""A tree that may only be read, from the configuration to the last command: nothing of it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.stores.filesystem import FileSystem
from tests.foreign import toy_known, write_toy

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with toy_known():
        yield


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two saves of a run in a tree that refuses every write, and a file that says where evidence goes."""
    run = tmp_path / "mnt" / "llm"
    for step in (100, 200):
        write_toy(run, step)
    (tmp_path / "evidence").mkdir()
    (tmp_path / "lastgood.toml").write_text(
        '[families.llm]\nroot = "mnt"\n[stores.mnt]\nevidence = "evidence"\n', encoding="utf-8"
    )
    monkeypatch.setenv("LASTGOOD_CONFIG", str(tmp_path / "lastgood.toml"))
    monkeypatch.setattr("lastgood.stores.local.FileSystem", lambda: _OnlyRead(tmp_path / "mnt"))
    return run


class _OnlyRead(FileSystem):
    """A file system of which one tree refuses every change, as a mount that may only be read does."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_"):
            return found

        def guarded(*arguments: Any) -> Any:
            for one in arguments:
                if isinstance(one, Path) and one.is_relative_to(self._tree):
                    raise OSError(30, "read-only file system", str(one))
            return found(*arguments)

        return guarded


def inventory(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (root, *root.rglob("*"))
    }


def test_the_guard_refuses_what_a_mount_would(root: Path, tmp_path: Path, call: Call) -> None:
    """Without the key every command fails at its first write, so passing with it proves something."""
    (tmp_path / "lastgood.toml").write_text("", encoding="utf-8")
    told = call("seal", str(root / "toy-100"))
    assert told.code == 2
    assert "read-only file system" in told.err


def test_a_tree_that_is_only_read_is_sealed_judged_and_resumed(root: Path, tmp_path: Path, call: Call) -> None:
    """Every command finds by path and by name what was sealed elsewhere; the tree is the same to the last byte."""
    before = inventory(root)
    for step in (100, 200):
        told = call("seal", str(root / f"toy-{step}"))
        assert (told.code, told.err) == (0, "")
    assert (tmp_path / "evidence/llm/.lastgood/commits/00000000-0000000000000200~toy-200").is_file()
    assert call("verify", "llm", "--all").code == 0
    assert call("verify", str(root / "toy-200")).code == 0
    assert len(list((tmp_path / "evidence/llm/.lastgood/records").rglob("*.json"))) == 3
    for what in ("llm", str(root)):
        assert call("latest", what).out == f"{root}/toy-200\n"
        assert call("latest", what, "--policy", "structural").out == f"{root}/toy-200\n"
    assert "sealed      as 00000000-0000000000000200~toy-200" in call("inspect", str(root / "toy-200")).out
    assert call("quarantine", str(root), "toy-200", "--reason", "loss spiked").code == 0
    assert call("latest", str(root)).code == 1
    assert call("latest", str(root), "--policy", "structural").code == 1
    assert call("release", "llm", "--reason", "that one alone").code == 0
    assert call("latest", str(root)).out == f"{root}/toy-100\n"
    assert call("rollback", "llm", "toy-100", "--reason", "from here").code == 0
    assert "REFUSED" in call("inspect", str(root / "toy-200")).out
    assert call("reconcile", "llm").code == 0
    assert call("status", "llm").code == 0
    assert inventory(root) == before


def test_a_family_by_path_is_never_taken_for_an_empty_one(root: Path, tmp_path: Path, call: Call) -> None:
    """With a file that cannot be read nobody knows where its commits lie, and a start at step zero would lose them."""
    assert call("seal", str(root / "toy-100")).code == 0
    with (tmp_path / "lastgood.toml").open("a") as file:
        file.write("[families.llm\n")
    told = call("exec", str(root), "--allow-fresh", "--", "false")
    assert told.code == 64
    assert "configuration cannot be read" in told.err


def test_a_configuration_that_was_named_and_cannot_be_read_is_not_passed_over(
    root: Path, tmp_path: Path, call: Call
) -> None:
    """Nobody knows what it says of evidence: a mistyped name must not begin at step zero over what was sealed."""
    assert call("seal", str(root / "toy-100")).code == 0
    (tmp_path / "wide.toml").write_text((tmp_path / "lastgood.toml").read_text(), encoding="utf-16")
    for name, said in (("mistyped.toml", "configuration not found"), ("wide.toml", "configuration cannot be read")):
        told = call("exec", str(root), "--config", str(tmp_path / name), "--allow-fresh", "--", "false")
        assert told.code == 64
        assert said in told.err


def test_a_tree_that_is_not_mounted_bars_nothing(root: Path, tmp_path: Path, call: Call) -> None:
    """Its evidence is at hand and every checkpoint seems deleted, which must not stay on record for good."""
    for step in (100, 200):
        assert call("seal", str(root / f"toy-{step}")).code == 0
    (tmp_path / "mnt").rename(tmp_path / "away")
    (tmp_path / "mnt" / "llm").mkdir(parents=True)
    for command in (("verify", "llm", "--all"), ("latest", "llm"), ("exec", "llm", "--allow-fresh", "--", "false")):
        told = call(*command)
        assert told.code == 2
        assert f"nothing lies there: {root}, of which evidence lies below {tmp_path}/evidence" in told.err
    assert not (tmp_path / "evidence/llm/.lastgood/records").exists()
    (tmp_path / "mnt" / "llm").rmdir()
    (tmp_path / "mnt").rmdir()
    (tmp_path / "away").rename(tmp_path / "mnt")
    assert call("latest", "llm").out == f"{root}/toy-200\n"


@pytest.mark.parametrize("command", ["verify", "latest", "status", "inspect", "seal"])
def test_evidence_is_no_family(command: str, root: Path, tmp_path: Path, call: Call) -> None:
    """Whoever follows a path from a record's would bar every checkpoint, for none of their files lies there."""
    assert call("seal", str(root / "toy-200")).code == 0
    (tmp_path / "link").symlink_to(tmp_path / "evidence")
    for around in (f"{tmp_path}/evidence/llm", f"file://{tmp_path}/link/llm/toy-200"):
        told = call(command, around)
        assert told.code == 64
        assert f"it is of {root}" in told.err + told.out
    assert not (tmp_path / "evidence/llm/.lastgood/records").exists()


def test_a_way_around_is_refused(root: Path, tmp_path: Path, call: Call) -> None:
    """Through a link above it what is barred would be offered as if nobody had sealed anything."""
    assert call("seal", str(root / "toy-200")).code == 0
    assert call("quarantine", str(root), "toy-200", "--reason", "loss spiked").code == 0
    (tmp_path / "link").symlink_to(tmp_path / "mnt")
    (tmp_path / "mnt" / "within").symlink_to(tmp_path / "mnt")
    for around in (f"{tmp_path}/link/llm", f"{tmp_path}/mnt/within/llm"):
        for command in (("latest", "--policy=structural", around), ("latest", around), ("seal", f"{around}/toy-100")):
            told = call(*command)
            assert (told.code, told.out) == (64, "")
            assert "named through a link" in told.err


def test_evidence_in_both_places_is_told(root: Path, call: Call) -> None:
    """A file that says where evidence goes must not lift what is barred beside the checkpoints."""
    (root / ".lastgood" / "refusals").mkdir(parents=True)
    for command in (("latest", str(root)), ("verify", "llm"), ("seal", str(root / "toy-200"))):
        told = call(*command)
        assert (told.code, told.out) == (2, "")
        assert "evidence in two places" in told.err


def test_doctor_asks_both(root: Path, tmp_path: Path, call: Call) -> None:
    """The tree for reading, the other root for everything that evidence needs."""
    told = call("doctor", str(root.parent))
    assert told.code == 0
    assert f"nothing is written here: evidence lies at {tmp_path}/evidence" in told.out
    assert any(line.split()[:2] == ["ok", "tree"] for line in told.out.splitlines())
    (tmp_path / "evidence").rmdir()
    assert call("doctor", str(root.parent)).code == 2


@pytest.mark.parametrize("outer", ["", '[stores.mnt]\nevidence = "outer"\n'])
def test_a_walk_over_trees_asks_each_where_its_evidence_lies(
    outer: str, root: Path, tmp_path: Path, call: Call
) -> None:
    """From the directory above, what was barred elsewhere looked as if nobody had sealed it, and could be resumed."""
    (tmp_path / "outer").mkdir()
    tables = f'[stores."mnt/llm"]\nevidence = "evidence"\n{outer}'
    (tmp_path / "lastgood.toml").write_text(tables, encoding="utf-8")
    for step in (100, 200):
        assert call("seal", str(root / f"toy-{step}")).code == 0
    assert call("quarantine", str(root), "toy-200", "--reason", "loss spiked").code == 0
    told = call("inspect", "--recursive", str(tmp_path / "mnt"))
    assert (told.code, "1 barred, 1 quarantined" in told.out) == (1, True)
    assert list((tmp_path / "outer").iterdir()) == []
