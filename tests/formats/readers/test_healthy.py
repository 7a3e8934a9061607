"""Nothing healthy raises a reason, each file that is gone is named, and no bytes make a reader raise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastgood.formats.description import Framework
from lastgood.testing.foreign import ForeignScene
from tests.formats.readers.judging import judge
from tests.formats.readers.layouts import BUILT, build

if TYPE_CHECKING:
    from tests.corpus import Corpus

WHOSE = {
    "hf_": Framework.TRANSFORMERS,
    "accelerate": Framework.ACCELERATE,
    "lightning": Framework.LIGHTNING,
    "torch_save": Framework.TORCH_SAVE,
    "safetensors": Framework.SAFETENSORS,
}
"""Beginning of a specimen's name → who wrote it."""
WRITTEN = (
    "hf_trainer",
    "hf_trainer_2_ranks",
    "hf_trainer_sharded",
    "hf_trainer_peft",
    "accelerate",
    "accelerate_2_ranks",
    "lightning",
    "lightning_fsdp",
    "torch_save",
    "safetensors",
)
"""What the frameworks themselves write for the corpus."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ForeignScene]:
    """Every layout, once; damaged are copies."""
    root = tmp_path_factory.mktemp("layouts")
    return {name: build(name, root / name / "out") for name in BUILT}


def written(corpus: Corpus, specimen: str, target: Path) -> ForeignScene:
    """A copy of what the framework itself wrote."""
    copied = corpus[specimen].copy(target)
    older, newest = (str(path.relative_to(copied.root)) for path in copied.checkpoints)
    return ForeignScene(root=copied.root, name=newest, older=older)


@pytest.mark.parametrize("specimen", BUILT)
def test_a_healthy_layout_raises_nothing(built: dict[str, ForeignScene], specimen: str) -> None:
    """Whatever a damaged copy raises comes from its damage only if the undamaged one raises nothing at all."""
    scene = built[specimen]
    for name in (scene.older, scene.name):
        judged = judge(scene.root / name)
        assert judged.findings == ()
        assert judged.description.framework is next(one for begin, one in WHOSE.items() if specimen.startswith(begin))


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_makes_a_reader_raise(built: dict[str, ForeignScene], data: st.DataObject) -> None:
    """A reader that raises on what a stranger wrote takes a sweep over thousands of checkpoints down with it."""
    scene = built[data.draw(st.sampled_from(sorted(built)))]
    everything = [scene.checkpoint, *scene.checkpoint.rglob("*")]
    path = data.draw(st.sampled_from(sorted(path for path in everything if path.is_file())))
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    gone = data.draw(st.integers(0, 64))
    try:
        path.write_bytes(whole[:start] + data.draw(st.binary(max_size=64)) + whole[start + gone :])
        judge(scene.checkpoint)
    finally:
        path.write_bytes(whole)


@pytest.mark.slow
@pytest.mark.parametrize("specimen", WRITTEN)
def test_each_file_of_a_checkpoint_is_missed_or_said_to_be_needless(
    corpus: Corpus, tmp_path: Path, specimen: str
) -> None:
    """A file whose loss nobody would mention is a fault that nobody would see."""
    healthy = corpus[specimen].newest
    needless = {one.path for one in judge(healthy).description.needless}
    if healthy.is_file():
        return
    for number, path in enumerate(sorted(path for path in healthy.rglob("*") if path.is_file())):
        relative = str(path.relative_to(healthy))
        scene = written(corpus, specimen, tmp_path / str(number) / "out")
        scene.delete(relative)
        found = {finding.offender for finding in judge(scene.checkpoint).findings}
        assert relative in found or (relative in needless and not found), relative
