"""A healthy family to ask, and the command line called as a person would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lastgood.cli import run
from lastgood.testing.build import BuiltFamily, build_family


@dataclass(frozen=True)
class Told:
    """What a command said."""

    code: int
    out: str
    err: str


@pytest.fixture
def family(tmp_path: Path) -> BuiltFamily:
    (tmp_path / "runs").mkdir()
    return build_family(tmp_path / "runs", "llm-7b")


@pytest.fixture
def uri(family: BuiltFamily) -> str:
    return str(family.root / family.family)


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    def called(*arguments: str) -> Told:
        code = run(list(arguments))
        told = capfd.readouterr()
        assert "Traceback" not in told.err
        return Told(code, told.out, told.err)

    return called
