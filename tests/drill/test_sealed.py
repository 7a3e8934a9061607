"""Tier 3 that begins with a checkpoint that was sealed, not published."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from lastgood.drill import drill
from lastgood.formats.sealing import seal
from lastgood.identity import GenerationId
from lastgood.location import locate_place
from lastgood.verdict import Outcome
from tests.drill.test_supervisor import fault
from tests.drill.test_supervisor import settings as fake_settings
from tests.foreign import toy_known, write_toy


def test_a_drill_begins_with_a_sealed_checkpoint_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    """The copy holds no life at all; the replica's first is number 1, and what it saves is newer than the seal."""
    directory = write_toy(tmp_path / "runs" / "llm", 20)
    (directory / "model").mkdir()
    for rank in range(2):
        (directory / "model" / f"rank-{rank:05d}").write_bytes(b"x")
    with toy_known():
        location = seal(locate_place(str(directory))).location
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    (tmp_path / "scratch").mkdir()
    # A replica inherits no search path, and must run the code that is tested.
    path = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    settings = msgspec.structs.replace(fake_settings(), environment=path)
    result = drill(location, settings, fault=fault(steps=3), scratch=tmp_path / "scratch")
    assert result.verdict.outcome is Outcome.PASS, [*result.verdict.checks, result.log_tail]
    assert result.resumed is not None
    assert result.resumed > GenerationId(1, 20)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == before
