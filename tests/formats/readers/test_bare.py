"""What a file of `torch.save` and bare weights are, where no framework says what belongs to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lastgood.formats.description import Framework, Restorability
from lastgood.manifest import Component
from lastgood.reasons import Reason
from tests.formats.readers import layouts
from tests.formats.readers.judging import judge


def saved(tmp_path: Path, value: object, name: str = "model.pt", **settings: bool) -> Path:
    path = tmp_path / "out" / name
    path.parent.mkdir(exist_ok=True)
    torch.save(value, path, **settings)  # type: ignore[arg-type]
    return path


def test_parts_are_told_by_what_is_in_them(tmp_path: Path) -> None:
    """Nobody agrees on names, so the content decides; what is not there is said to be left out."""
    model, optimizer, scheduler = layouts.states(8)
    value = {
        "net": model,
        "averaged_ema": model,
        "opt": optimizer,
        "sched": scheduler,
        "amp": torch.amp.GradScaler("cpu").state_dict(),
        "misc": {"rng": torch.get_rng_state(), "train_loader": {"position": 3}},
        "args": {"lr": 0.1},
        "step": 8,
    }
    judged = judge(saved(tmp_path, value))
    assert {(one.component, one.within) for one in judged.description.components} == {
        (Component.MODEL, "net"),
        (Component.EMA, "averaged_ema"),
        (Component.OPTIMIZER, "opt"),
        (Component.SCHEDULER, "sched"),
        (Component.SCALER, "amp"),
        (Component.RNG, "misc.rng"),
        (Component.DATA, "misc.train_loader"),
        (Component.CONFIG, "args"),
    }
    assert (judged.findings, judged.restorability) == ((), Restorability.RESUMABLE)
    assert judged.description.never_saved == ()


@pytest.mark.parametrize(("written", "is_known"), [(8, True), (9, False), (7, False)])
def test_a_counter_is_completed_only_where_the_optimizer_agrees(tmp_path: Path, written: int, is_known: bool) -> None:
    """A loop may write down the step that is done or the one that comes next, and both are healthy."""
    model, optimizer, _ = layouts.states(8)
    description = judge(saved(tmp_path, {"model": model, "optimizer": optimizer, "step": written})).description
    assert description.step == 8
    assert any(one.name == "step" for one in description.counters) is is_known
    assert any("comes next" in text for text in description.unknowable) is not is_known
    assert description.findings == ()


def test_a_state_dictionary_alone_is_weights(tmp_path: Path) -> None:
    """An export for inference cannot resume, and nothing of it is missing."""
    judged = judge(saved(tmp_path, layouts.states(8)[0]))
    assert (judged.findings, judged.restorability) == ((), Restorability.WEIGHTS_ONLY)


def test_the_form_before_zip_is_read_too(tmp_path: Path) -> None:
    """`torch.load` still takes it, and it has no checksums."""
    model, optimizer, _ = layouts.states(8)
    value = {"model": model, "optimizer": optimizer}
    judged = judge(saved(tmp_path, value, _use_new_zipfile_serialization=False))
    assert judged.restorability is Restorability.RESUMABLE


def test_weights_name_no_step(tmp_path: Path) -> None:
    """What cannot be known of them is said and not guessed from the name."""
    path = tmp_path / "out" / "model-8.safetensors"
    layouts.bare(path, 8)
    judged = judge(path)
    assert (judged.description.framework, judged.description.step) == (Framework.SAFETENSORS, None)
    assert (judged.findings, judged.restorability) == ((), Restorability.WEIGHTS_ONLY)
    assert judged.description.unknowable


@pytest.mark.parametrize("stem", ["model", "diffusion_pytorch_model"])
def test_a_directory_of_shards_is_held_against_its_index(tmp_path: Path, stem: str) -> None:
    """Weights are laid out so under any name."""
    path = tmp_path / "out" / "weights"
    layouts.bare_sharded(path, 8)
    for found in list(path.iterdir()):
        text = found.read_bytes()
        if found.suffix == ".json":
            text = text.replace(b"model-0", f"{stem}-0".encode())
        found.unlink()
        found.with_name(found.name.replace("model", stem, 1)).write_bytes(text)
    (path / "config.json").write_text("{}", encoding="utf-8")
    assert (judge(path).findings, judge(path).restorability) == ((), Restorability.WEIGHTS_ONLY)
    shard = f"{stem}-00002-of-00002.safetensors"
    (path / shard).unlink()
    assert [(one.reason, one.offender) for one in judge(path).findings] == [(Reason.SHARD_MISSING, shard)]


def test_shards_without_an_index_tell_how_many_they_were(tmp_path: Path) -> None:
    """The index and a shard may be lost together; the names still count."""
    path = tmp_path / "out" / "weights"
    layouts.bare_sharded(path, 8)
    gone = ("model.safetensors.index.json", "model-00001-of-00002.safetensors")
    for name in gone:
        (path / name).unlink()
    assert {one.offender for one in judge(path).findings} == set(gone)


def test_a_directory_of_unrelated_weights_is_no_checkpoint(tmp_path: Path) -> None:
    """A folder of exports is not one model, and each file of it is judged by itself."""
    path = tmp_path / "out" / "exports"
    path.mkdir(parents=True)
    for name in ("one", "two"):
        save_file({"x": torch.ones(1)}, path / f"{name}.safetensors")
    with pytest.raises(AssertionError, match="nobody recognises"):
        judge(path)
    assert judge(path / "one.safetensors").findings == ()
