"""Families by their names, from the file that the worker's environment names."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.errors import UsageError
from lastgood_prefect.settings import configured_families, configured_family


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "lastgood.toml"
    path.write_text(
        '[families.llm-7b]\nroot = "runs"\n[families.llm-7b.objectives]\nrpo_steps = 7\n'
        '[[families.llm-7b.ignore]]\ncheck = "chain"\nreason = "sealed by another tool"\n'
        '[families.vit]\nroot = "runs"\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("LASTGOOD_CONFIG", str(path))
    return path


def test_a_name_means_a_place_and_its_demands(file: Path) -> None:
    """Root, objectives and accepted checks come from the file, never from whoever starts a run."""
    found = configured_family("llm-7b")
    assert found.location.family_uri == f"{file.parent}/runs/llm-7b"
    assert found.settings.objectives.rpo_steps == 7
    assert found.family.location is found.location


def test_families_come_in_the_order_asked_each_once(file: Path) -> None:
    """Without a name, every one of the file."""
    assert [one.name for one in configured_families(["vit", "llm-7b", "vit"])] == ["vit", "llm-7b"]
    assert [one.name for one in configured_families()] == ["llm-7b", "vit"]


@pytest.mark.parametrize("name", ["llm-8b", "", "runs/llm-7b", "/etc", "file:///etc"])
def test_a_name_that_is_not_in_the_file_is_refused(file: Path, name: str) -> None:
    """Nobody who can start a run can point a worker at a path."""
    with pytest.raises(UsageError, match="family not configured"):
        configured_family(name)


def test_a_file_without_families_is_refused(file: Path) -> None:
    """A run over nothing would be green and prove nothing."""
    file.write_text("")
    with pytest.raises(UsageError, match="no family configured"):
        configured_families()


def test_an_unset_variable_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the worker's environment that lacks it, not the command line of whoever started the run."""
    monkeypatch.setenv("LASTGOOD_CONFIG", "")
    with pytest.raises(UsageError, match="LASTGOOD_CONFIG is not set"):
        configured_families()


def test_a_file_that_is_not_there_or_wrong_is_named(file: Path) -> None:
    """The message carries the path and the place in it."""
    file.write_text("[families.llm-7b]\nrooot = 1\n")
    with pytest.raises(UsageError, match=r"lastgood\.toml: families\.llm-7b"):
        configured_family("llm-7b")
    file.unlink()
    with pytest.raises(UsageError, match="configuration not found"):
        configured_family("llm-7b")
