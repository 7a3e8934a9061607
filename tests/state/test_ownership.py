"""Whose module is it? A library's own generators are no state of the training; everybody else's are."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from lastgood.state.ownership import is_library


@pytest.mark.parametrize("has_metadata", [True, False])
def test_a_package_outside_of_the_environment_is_a_library_where_an_installer_put_it(
    has_metadata: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images keep torch outside of a job's virtual environment; a working directory on the path is training code."""
    (tmp_path / "made_up_package.py").write_text("")
    if has_metadata:
        (tmp_path / "made_up_package-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("made_up_package")
    assert is_library("made_up_package", frozenset()) is has_metadata
    assert not is_library("made_up_package", frozenset({"made_up_package"}))


def test_the_standard_library_and_the_environment_s_packages_are_libraries() -> None:
    """Their generators come and go with imports; nobody could register them."""
    assert is_library("random", frozenset())
    assert is_library("torch.random", frozenset())
    assert not is_library("lastgood.state.ownership", frozenset()), "an editable checkout is code of ours"
    assert not is_library("__main__", frozenset())
