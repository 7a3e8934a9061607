"""A healthy family with a stranger beside it, built once; each test damages a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lastgood.testing.build import BuiltFamily, build_family
from lastgood.testing.damage import Scene


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltFamily:
    root = tmp_path_factory.mktemp("built")
    build_family(root, "llm-13b")
    return build_family(root, "llm-7b")


@pytest.fixture
def healthy(built: BuiltFamily, tmp_path: Path) -> BuiltFamily:
    shutil.copytree(built.root, tmp_path / "root")
    return built.at(tmp_path / "root")


@pytest.fixture
def scene(healthy: BuiltFamily) -> Scene:
    return Scene(root=healthy.root, family="llm-7b", generation=healthy.newest, stranger="llm-13b")
