"""What Lightning's checkpoints are, where its loader would be silent, and which one it would resume."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood.formats.containers.pickles import Pickled, read_pickle
from lastgood.formats.description import Certainty, Framework, Restorability
from lastgood.formats.examination import examine
from lastgood.formats.readers.lightning import LightningFileReader
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import open_source
from lastgood.manifest import Component
from lastgood.reasons import Reason
from lastgood.stores import LocalStore
from tests.formats.readers import layouts
from tests.formats.readers.judging import judge


def built(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "out" / "step=8.ckpt"
    path.parent.mkdir(exist_ok=True)
    torch.save(layouts.dump(8, **changes), path)
    return path


def found(path: Path) -> set[tuple[Reason, str]]:
    return {(one.reason, one.offender) for one in judge(path).findings}


def chosen(root: Path) -> Choice | None:
    store = LocalStore(root.parent)
    return LightningFileReader().choose(Root(store=store, prefix=root.name, names=store.names(root.name)))


def test_a_file_is_described_whole(tmp_path: Path) -> None:
    """Each kind of state is found where it lies in the dump; what is never saved is said."""
    judged = judge(built(tmp_path))
    description = judged.description
    assert (description.framework, description.version, description.step) == (Framework.LIGHTNING, "2.6.6", 8)
    assert {(one.component, one.within) for one in description.components} == {
        (Component.MODEL, "state_dict"),
        (Component.OPTIMIZER, "optimizer_states"),
        (Component.SCHEDULER, "lr_schedulers"),
        (Component.DATA, "loops.fit_loop"),
        (Component.OTHER, "callbacks"),
    }
    assert {one.component for one in description.never_saved} == {Component.RNG, Component.ACCUMULATION}
    assert description.layout.certainty is Certainty.UNKNOWN
    assert (judged.findings, judged.restorability) == ((), Restorability.RESUMABLE)


def test_a_scaler_is_found_by_what_it_holds(tmp_path: Path) -> None:
    """Lightning names it after the class of its precision plugin, which is anybody's."""
    scaler = torch.amp.GradScaler("cpu").state_dict()
    judged = judge(built(tmp_path, MyPrecision=scaler))
    assert judged.description.paths_of(Component.SCALER) == ("step=8.ckpt",)


def test_weights_alone_are_called_so(tmp_path: Path) -> None:
    """`save_weights_only` keeps the loops, and nothing is missed."""
    judged = judge(built(tmp_path, optimizer_states=None, lr_schedulers=None, callbacks=None))
    assert (judged.findings, judged.restorability) == ((), Restorability.WEIGHTS_ONLY)


@pytest.mark.parametrize("key", ["optimizer_states", "lr_schedulers"])
def test_an_emptied_list_is_missed(tmp_path: Path, key: str) -> None:
    """Lightning goes on in silence: the optimizer or its schedule begins anew."""
    assert found(built(tmp_path, **{key: []})) == {(Reason.COMPONENT_MISSING, key)}


def test_an_optimizer_that_was_emptied_is_missed(tmp_path: Path) -> None:
    """Lightning loads it in silence and goes on without moments."""
    emptied = layouts.states(8)[1] | {"state": {}}
    assert found(built(tmp_path, optimizer_states=[emptied])) == {(Reason.COMPONENT_MISSING, "optimizer_states")}


def test_a_training_without_a_scheduler_misses_none(tmp_path: Path) -> None:
    """An empty list is healthy where the loops counted no step of a scheduler."""
    fit = dict(layouts.dump(8)["loops"]["fit_loop"])
    fit["epoch_loop.scheduler_progress"] = {"total": {"ready": 0, "completed": 0}}
    assert found(built(tmp_path, lr_schedulers=[], loops={"fit_loop": fit})) == set()


def test_several_optimizers_share_the_step(tmp_path: Path) -> None:
    """`global_step` is the sum over all optimizers, so each of them lags behind it."""
    optimizer = layouts.states(4)[1]
    assert found(built(tmp_path, optimizer_states=[optimizer, optimizer])) == set()


def test_manual_optimization_counts_elsewhere(tmp_path: Path) -> None:
    """The loops count by automatic or by manual optimization, and the other count is zero."""
    fit = dict(layouts.dump(8)["loops"]["fit_loop"])
    zero = {"total": {"ready": 0, "completed": 0}}
    fit["epoch_loop.automatic_optimization.optim_progress"] = {"optimizer": {"step": zero}}
    fit["epoch_loop.manual_optimization.optim_step_progress"] = {"total": {"ready": 8, "completed": 8}}
    assert found(built(tmp_path, loops={"fit_loop": fit})) == set()


def test_an_optimizer_ahead_of_the_trainer_contradicts_it(tmp_path: Path) -> None:
    """No history of a run gives an optimizer more steps than its trainer counted."""
    later = layouts.states(12)[1]
    assert found(built(tmp_path, optimizer_states=[later])) == {(Reason.COUNTERS_DISAGREE, "step=8.ckpt")}


def test_optimizers_that_are_stepped_past_the_loops_are_no_contradiction(tmp_path: Path) -> None:
    """Manual optimization may step torch's own optimizers, and then Lightning counts nothing at all."""
    fit = dict(layouts.dump(8)["loops"]["fit_loop"])
    zero = {"total": {"ready": 0, "completed": 0}}
    fit["epoch_loop.automatic_optimization.optim_progress"] = {"optimizer": {"step": zero}}
    assert found(built(tmp_path, global_step=0, loops={"fit_loop": fit})) == set()


def test_tensors_that_are_wrapped_are_a_model_too(tmp_path: Path) -> None:
    """Quantized and distributed tensors are pickled as objects of classes of their own."""
    path = built(tmp_path)
    wrapped = layouts.stranger("torchao.dtypes", "AffineQuantizedTensor", scale=1)
    layouts.save_with_strangers(layouts.dump(8, state_dict={"weight": wrapped}), path, wrapped)
    assert Reason.COMPONENT_MISSING not in {reason for reason, _ in found(path)}


def test_a_file_of_another_loop_is_not_lightnings(tmp_path: Path) -> None:
    """Many write `.ckpt`; what is in it tells."""
    path = tmp_path / "out" / "model.ckpt"
    layouts.torch_save(path, 8)
    assert judge(path).description.framework is Framework.TORCH_SAVE


def test_a_directory_of_deepspeed_is_described_with_its_dump(tmp_path: Path) -> None:
    """Ranks and shards are DeepSpeed's, the version and the loops Lightning's."""
    path = tmp_path / "out" / "step=8.ckpt"
    layouts.lightning_engine(path, 8)
    judged = judge(path)
    description = judged.description
    assert (description.framework, description.version, description.step) == (Framework.LIGHTNING, "2.6.6", 8)
    assert (description.layout.world_size, description.layout.certainty) == (2, Certainty.STATED)
    assert (judged.findings, judged.restorability) == ((), Restorability.RESUMABLE)
    shard = "checkpoint/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    (path / shard).unlink()
    assert found(path) == {(Reason.SHARD_MISSING, shard)}


def test_lightning_resumes_the_last_that_changed_most_recently(tmp_path: Path) -> None:
    """Without any `last` it trains from step zero, and the consequence says so."""
    path = built(tmp_path)
    choice = chosen(path.parent)
    assert choice is not None
    assert (choice.picked, choice.candidates[0].step) == (None, 8)
    assert choice.consequence is not None
    assert "step zero" in choice.consequence
    torch.save(layouts.dump(4), path.parent / "last.ckpt")
    choice = chosen(path.parent)
    assert choice is not None
    assert (choice.picked, choice.pointer, choice.consequence) == ("last.ckpt", None, None)


@pytest.mark.parametrize(
    ("target", "picked", "reasons"),
    [
        ("step=8.ckpt", "step=8.ckpt", set()),
        ("gone.ckpt", None, {Reason.POINTER_DANGLING}),
        ("../elsewhere.ckpt", None, {Reason.POINTER_DANGLING}),
    ],
)
def test_a_link_in_the_place_of_the_last_is_read_and_not_followed(
    tmp_path: Path, target: str, picked: str | None, reasons: set[Reason]
) -> None:
    """Lightning may link `last.ckpt`; a link that leads nowhere beside it is a pointer that dangles."""
    path = built(tmp_path)
    os.symlink(target, path.parent / "last.ckpt")
    choice = chosen(path.parent)
    assert choice is not None
    assert (choice.picked, {one.reason for one in choice.findings}) == (picked, reasons)


def _not_a_dictionary(dump: dict[str, Any]) -> Any:
    return [dump]


def _loops_of_text(dump: dict[str, Any]) -> Any:
    return dump | {"loops": "none"}


def _steps_of_text(dump: dict[str, Any]) -> Any:
    return dump | {"global_step": "eight", "optimizer_states": 3, "lr_schedulers": {"a": 1}}


@pytest.mark.parametrize("harm", [_not_a_dictionary, _loops_of_text, _steps_of_text])
def test_whatever_a_stranger_wrote_is_described(tmp_path: Path, harm: Callable[[dict[str, Any]], Any]) -> None:
    """A reader that raises takes the whole sweep down with it."""
    path = built(tmp_path)
    torch.save(harm(layouts.dump(8)), path)
    assert judge(path).description.components is not None


def test_one_look_parses_a_pickle_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognising, describing and checking ask for the same file; a pickle of millions of names takes seconds each."""
    path = built(tmp_path)
    parsed: list[str] = []

    def counted(data: bytes, where: str) -> Pickled:
        parsed.append(where)
        return read_pickle(data, where)

    for module in ("pickles", "torchfile"):
        monkeypatch.setattr(f"lastgood.formats.containers.{module}.read_pickle", counted)
    source = open_source(LocalStore(tmp_path), path.relative_to(tmp_path).as_posix())
    assert source is not None
    examined = examine(source)
    assert examined.restorability is Restorability.RESUMABLE
    assert len(parsed) == 1
    assert source.memory is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError(errno.ENOENT, "gone"), {"step=8.ckpt"}),
        (OSError(errno.EINVAL, "no link"), {"step=8.ckpt", "last.ckpt"}),
    ],
)
def test_a_link_that_is_replaced_meanwhile_is_gone_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, expected: set[str]
) -> None:
    """Lightning replaces `last.ckpt` at every save: whoever asks in between must get an answer all the same."""
    path = built(tmp_path)
    (path.parent / "last.ckpt").symlink_to(path.name)

    def replaced(_: object) -> str:
        raise error

    monkeypatch.setattr(os, "readlink", replaced)
    choice = chosen(path.parent)
    assert choice is not None
    assert {one.name for one in choice.candidates} == expected
    assert choice.findings == ()
