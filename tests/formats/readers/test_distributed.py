"""Checkpoints of many ranks: what they are, that healthy ones raise nothing, and that what is gone is named."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest
import torch

from lastgood.documents import canonical_bytes
from lastgood.formats.description import Certainty, Framework, Restorability
from lastgood.formats.source import open_source
from lastgood.manifest import Component
from lastgood.reasons import Reason
from lastgood.stores import LocalStore
from lastgood.testing.foreign import ForeignScene
from tests.corpus import Corpus
from tests.formats.readers.built import BUILT
from tests.formats.readers.judging import judge, reader_of

REAL = ("deepspeed_0", "deepspeed_1", "deepspeed_2", "deepspeed_3", "torch_dcp")
"""Written by the frameworks themselves; the others are built from their layouts."""
FRAMEWORKS = {
    "torchtitan": Framework.TORCHTITAN,
    "torch_dcp": Framework.TORCH_DCP,
    "torch_dcp_each_rank": Framework.TORCH_DCP,
    "megatron": Framework.MEGATRON,
    "megatron_legacy": Framework.MEGATRON_LEGACY,
    "deepspeed_universal": Framework.DEEPSPEED_UNIVERSAL,
}
UNKNOWABLE = {"deepspeed_moe": {"expp_rank_1_mp_rank_00_optim_states.pt"}}
"""Nothing in the checkpoint counts expert-parallel ranks; the description says so."""
STAGES = {"deepspeed_0": 0, "deepspeed_1": 1, "deepspeed_2": 2, "deepspeed_3": 3}
SPECIMENS = [*BUILT, *(pytest.param(name, marks=pytest.mark.slow) for name in REAL)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built specimens, each made once; whoever damages one works on a copy."""
    return tmp_path_factory.mktemp("built")


@pytest.fixture
def scene(request: pytest.FixtureRequest, kept: Path, tmp_path: Path) -> ForeignScene:
    """A copy of the specimen that the test names."""
    name = request.getfixturevalue("name")
    if name in BUILT:
        older, newest = build(kept, name)
        root = kept / name
    else:
        corpus: Corpus = request.getfixturevalue("corpus")
        specimen = corpus[name]
        root = specimen.root
        older, newest = (path.name for path in specimen.checkpoints)
    copy = tmp_path / name
    shutil.copytree(root, copy, symlinks=True)
    return ForeignScene(root=copy, name=newest, older=older)


def build(kept: Path, name: str) -> tuple[str, str]:
    marker = kept / f"{name}.done"
    if not marker.exists():
        (kept / name).mkdir()
        marker.write_text("\n".join(BUILT[name](kept / name)))
    older, newest = marker.read_text().split("\n")
    return older, newest


@pytest.mark.parametrize("name", SPECIMENS)
def test_nothing_is_found_on_a_healthy_one(name: str, scene: ForeignScene) -> None:
    """A verifier that rejects good checkpoints is an outage of its own."""
    judged = judge(scene.checkpoint)
    assert judged.findings == ()
    assert judged.integrity.unread == ()
    assert judged.restorability is Restorability.RESUMABLE
    assert judged.description.framework is FRAMEWORKS.get(name, Framework.DEEPSPEED)
    assert judged.integrity.coverage.pending == 0
    if judged.choice is not None:
        assert judged.choice.picked == scene.name


@pytest.mark.parametrize("name", SPECIMENS)
def test_each_file_that_is_gone_is_named_or_needless(name: str, scene: ForeignScene) -> None:
    """Which file is missing decides whether somebody can still find it on another disk."""
    healthy = judge(scene.checkpoint)
    needless = {one.path for one in healthy.description.needless}
    if len(healthy.source.files) == 1:
        pytest.skip("without its only file there is no checkpoint")
    for path in healthy.source.files:
        kept = scene.path(path).read_bytes()
        scene.path(path).unlink()
        judged = judge(scene.checkpoint)
        named = {one.offender for one in judged.findings}
        assert path in named | needless | UNKNOWABLE.get(name, set()), (path, judged.findings)
        assert judged.restorability is not Restorability.RESUMABLE or path not in named
        scene.path(path).write_bytes(kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STAGES))
def test_deepspeed_says_who_saved(name: str, scene: ForeignScene) -> None:
    """Ranks, step and stage are read, not guessed."""
    description = judge(scene.checkpoint).description
    assert description.layout_name == f"ZeRO stage {STAGES[name]}"
    assert description.step == 8
    assert (description.layout.world_size, description.layout.certainty) == (2, Certainty.STATED)
    assert description.version == "0.19.8"
    assert {one.component for one in description.never_saved} >= {Component.RNG}
    optimizer = description.paths_of(Component.OPTIMIZER)
    assert len(optimizer) == (1 if STAGES[name] == 0 else 2)


@pytest.mark.parametrize("name", ["torchtitan"])
def test_the_last_save_of_torchtitan_may_hold_weights_alone(name: str, scene: ForeignScene) -> None:
    """It lies under the same name as the others, and a resume from it begins with a fresh optimizer."""
    from tests.formats.readers.built import _dcp

    last = scene.root / "step-12"
    _dcp(last, {"layers.0.weight": torch.randn(8, 8)})
    judged = judge(last)
    assert judged.restorability is Restorability.WEIGHTS_ONLY
    assert judged.findings == ()


@pytest.mark.parametrize("name", ["torchtitan"])
def test_a_newest_directory_without_metadata_is_passed_over(name: str, scene: ForeignScene) -> None:
    """Torchtitan itself takes the largest that is complete."""
    (scene.checkpoint / ".metadata").unlink()
    judged = judge(scene.root / scene.older)
    assert judged.choice is not None
    assert judged.choice.picked == scene.older
    assert [one.name for one in judged.choice.candidates] == [scene.name, scene.older]


@pytest.mark.parametrize("name", ["megatron"])
def test_without_a_tracker_megatron_trains_from_random_weights(name: str, scene: ForeignScene) -> None:
    """It says so in a log that nobody reads; the choice must say it."""
    (scene.root / "latest_checkpointed_iteration.txt").unlink()
    judged = judge(scene.checkpoint)
    assert judged.choice is not None
    assert judged.choice.picked is None
    assert "random weights" in (judged.choice.consequence or "")


@pytest.mark.parametrize("name", ["megatron"])
def test_a_tracker_over_directories_of_other_names_is_nobodys_fault(name: str, scene: ForeignScene) -> None:
    """Other frameworks write the same tracker beside `global_step_N`."""
    for number, path in enumerate((scene.root / scene.older, scene.checkpoint)):
        path.rename(scene.root / f"global_step_{number}")
    judged = judge(scene.root / "global_step_1")
    assert judged.choice is None
    assert {finding.reason for finding in judged.findings} <= {Reason.COUNTERS_DISAGREE}


ODD = (None, True, -1, 0.5, float("nan"), 2**62, 2**70, "8", [], {}, {"step": "x"}, [{"step": 2**70}], torch.zeros(2))
"""What no framework writes there."""


@pytest.mark.parametrize("name", [name for name in BUILT if name != "torch_dcp_each_rank"])
def test_no_value_stops_a_reader(name: str, scene: ForeignScene) -> None:
    """A stranger may write anything anywhere: it is described, found or passed over."""
    for path in scene.checkpoint.rglob("*.pt"):
        whole = torch.load(path, weights_only=False)
        if not isinstance(whole, dict):
            continue
        arguments = whole.get("args")
        named = vars(arguments) if isinstance(arguments, argparse.Namespace) else {}
        for odd in ODD:
            for key in whole:
                torch.save({**whole, key: odd}, path)
                describe(scene)
            for key in named:
                torch.save({**whole, "args": argparse.Namespace(**{**named, key: odd})}, path)
                describe(scene)
        torch.save(whole, path)
        if path.parent.name.startswith(("layer", "embedding", "mp_rank_01")):
            break  # one of several that are read alike


def describe(scene: ForeignScene) -> None:
    source = open_source(LocalStore(scene.root), scene.name)
    assert source is not None
    reader = reader_of(source)
    assert reader is not None
    canonical_bytes(reader.describe(source))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("deepspeed_moe", "layer_999999_expert_999999_mp_rank_999999_model_states.pt"),
        ("deepspeed_moe", "zero_pp_rank_999999_mp_rank_999999_optim_states.pt"),
        ("deepspeed_moe", f"layer_{'9' * 200}_expert_0_mp_rank_00_model_states.pt"),
        ("deepspeed_pipeline", "mp_rank_999999_model_states.pt"),
        ("megatron_legacy", "mp_rank_999999_999999_999999/model_optim_rng.pt"),
        ("torch_dcp_each_rank", "__9999999.metadata"),
        ("torchtitan", "__9999999_0.distcp"),
        ("megatron", f"__{'9' * 200}_0.distcp"),
    ],
)
def test_no_number_in_a_name_costs_an_afternoon(name: str, file: str, scene: ForeignScene) -> None:
    """A rank of a million must not make a million findings, nor a loop over them."""
    scene.path(file).parent.mkdir(exist_ok=True)
    scene.path(file).write_bytes(b"")
    judged = judge(scene.checkpoint)
    assert len(judged.findings) < 10_000
    canonical_bytes(judged.description)
