"""What real frameworks wrote, adopted: every specimen is sealed, judged, chosen and told when a byte is wrong."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastgood.errors import SealRefused
from lastgood.family import Family
from lastgood.formats.description import Certainty, Restorability
from lastgood.formats.examination import examine, open_place
from lastgood.formats.sealing import Wish, seal
from lastgood.formats.structural import choose_structurally
from lastgood.formats.verdicts import judge_checkpoint
from lastgood.location import locate, locate_place
from lastgood.manifest import Purpose
from lastgood.verdict import Outcome, Reason, Rung
from tests.corpus.specimens import SPECIMENS, Corpus, Specimen

pytestmark = pytest.mark.slow
NAMES = sorted(SPECIMENS)
EXPORTS = ("safetensors",)


@pytest.fixture
def specimen(corpus: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Specimen:
    (tmp_path / "runs").mkdir()
    copied: Specimen = corpus[request.param].copy(tmp_path / "runs" / "llm")
    numbered = copied.newest.parent
    if numbered.name != "checkpoints":
        return copied
    # What Accelerate numbers by itself is not sealed where it lies.
    kept = numbered.rename(numbered.with_name("kept"))
    return replace(copied, checkpoints=tuple(kept / path.name for path in copied.checkpoints))


def wish_for(path: Path, step: int) -> Wish:
    """What the files of some frameworks do not tell, as their operator would say it."""
    examined = examine(open_place(locate_place(str(path))))
    layout, told = examined.description.layout, examined.step
    return Wish(
        step=step if told is None else None,
        world_size=1 if layout.certainty is Certainty.UNKNOWN else None,
        weights_only=examined.restorability is Restorability.WEIGHTS_ONLY,
    )


@pytest.mark.parametrize("specimen", NAMES, indirect=True)
def test_a_healthy_checkpoint_is_sealed_and_holds(specimen: Specimen) -> None:
    """Nothing that a framework wrote and nobody touched is refused, before or after."""
    for path, step in zip(specimen.checkpoints, specimen.steps, strict=True):
        place = locate_place(str(path))
        judged = judge_checkpoint("x", examine(open_place(place)))
        is_export = specimen.kind.name in EXPORTS
        assert judged.rung is Rung.STRUCTURAL
        assert [finding for finding in judged.findings if finding.reason is not Reason.PURPOSE_NOT_RESUMABLE] == []
        sealed = seal(place, wish_for(path, step))
        assert sealed.manifest.step == step
        assert (sealed.manifest.job.purpose is Purpose.WEIGHTS_ONLY) == is_export
        verdict = Family(sealed.location).verify(sealed.manifest.id)
        assert verdict.outcome is (Outcome.FAIL if is_export else Outcome.PASS)
        assert {finding.reason for finding in verdict.findings} <= {Reason.PURPOSE_NOT_RESUMABLE}
        assert not seal(place, wish_for(path, step)).is_new
    offer = Family(locate(str(specimen.newest.parent))).latest()
    assert offer.uri == (None if is_export else str(specimen.newest))


def test_what_accelerate_numbers_is_not_sealed_where_it_lies(corpus: Corpus, tmp_path: Path) -> None:
    """`.lastgood` has no number, and Accelerate raises an IndexError at its next save and its next load."""
    copied = corpus["accelerate"].copy(tmp_path / "run")
    with pytest.raises(SealRefused, match="numbers itself"):
        seal(locate_place(str(copied.newest)), wish_for(copied.newest, copied.steps[-1]))
    assert sorted(path.name for path in copied.newest.parent.iterdir()) == ["checkpoint_0", "checkpoint_1"]


@pytest.mark.parametrize("specimen", NAMES, indirect=True)
def test_a_flipped_byte_of_any_file_is_caught_once_it_is_sealed(specimen: Specimen) -> None:
    """Whatever no checksum inside covers, safetensors above all."""
    path = specimen.newest
    sealed = seal(locate_place(str(path)), wish_for(path, specimen.steps[-1]))
    for artifact in sealed.manifest.artifacts:
        file = path if sealed.manifest.is_single_file else path / artifact.path
        if not artifact.bytes:
            continue
        healthy = file.read_bytes()
        data = bytearray(healthy)
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        judged = Family(sealed.location).judge(sealed.manifest.id).verdict
        file.write_bytes(healthy)
        wrong = [finding for finding in judged.findings if finding.reason is not Reason.PURPOSE_NOT_RESUMABLE]
        assert [(one.reason, one.offender) for one in wrong] == [(Reason.DIGEST_MISMATCH, artifact.path)]


@pytest.mark.parametrize("specimen", [name for name in NAMES if name not in EXPORTS], indirect=True)
def test_the_newest_whole_one_is_chosen_without_a_seal(specimen: Specimen) -> None:
    """And when the newest is torn, the one before it, with the reason said."""
    root, newest = locate_place(str(specimen.newest.parent)), specimen.newest
    twins = [one for one in newest.parent.iterdir() if one.name.startswith("last")]  # a second name of the newest
    for twin in twins:
        shutil.rmtree(twin) if twin.is_dir() and not twin.is_symlink() else twin.unlink()
    assert choose_structurally(root).name == newest.name
    largest = max((one for one in _files(newest)), key=lambda one: one.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    offer = choose_structurally(root)
    assert offer.name == specimen.checkpoints[0].name
    assert offer.passed_over[0].name == newest.name


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
