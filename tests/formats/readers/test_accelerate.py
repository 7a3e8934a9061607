"""What Accelerate's checkpoints are, what only the one beside them tells, and which one it would resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lastgood.formats.description import Certainty, Framework, Restorability
from lastgood.formats.readers.accelerate import AccelerateReader
from lastgood.formats.root import Choice, Root
from lastgood.manifest import Component
from lastgood.reasons import Reason
from lastgood.stores import LocalStore
from tests.formats.readers import layouts
from tests.formats.readers.judging import judge


def built(tmp_path: Path, *numbers: int, ranks: int = 1) -> list[Path]:
    paths = [tmp_path / "checkpoints" / f"checkpoint_{number}" for number in numbers]
    for path, number in zip(paths, numbers, strict=True):
        layouts.accelerate(path, 4 * (number + 1), ranks=ranks)
    return paths


def found(path: Path) -> set[tuple[Reason, str]]:
    return {(one.reason, one.offender) for one in judge(path).findings}


def chosen(root: Path) -> Choice | None:
    store = LocalStore(root.parent)
    return AccelerateReader().choose(Root(store=store, prefix=root.name, names=store.names(root.name)))


def test_a_plain_checkpoint_is_described_whole(tmp_path: Path) -> None:
    """The step is the optimizer's, since Accelerate counts batches and not steps."""
    (path,) = built(tmp_path, 1, ranks=2)
    judged = judge(path)
    description = judged.description
    assert (description.framework, description.step, judged.findings) == (Framework.ACCELERATE, 8, ())
    assert (description.layout.world_size, description.layout.certainty) == (2, Certainty.INFERRED)
    assert judged.restorability is Restorability.RESUMABLE
    assert description.paths_of(Component.RNG) == ("random_states_0.pkl", "random_states_1.pkl")


def test_a_loop_that_accumulates_nothing_is_at_no_step_of_accelerates_own(tmp_path: Path) -> None:
    """Only accumulate() counts it, and a 0 that is stated beside the true step reads as a run that began anew."""
    (path,) = built(tmp_path, 1)
    states = torch.load(path / "random_states_0.pkl", weights_only=False)
    torch.save({**states, "step": 0}, path / "random_states_0.pkl")
    description = judge(path).description
    assert description.step == 8
    assert [counter.name for counter in description.counters] == ["optimizer_step"]


def test_without_a_checkpoint_beside_it_nobody_can_tell_and_that_is_said(tmp_path: Path) -> None:
    """The last rank's file and the last registered object leave no trace in what remains."""
    (path,) = built(tmp_path, 1, ranks=2)
    (path / "random_states_1.pkl").unlink()
    (path / "custom_checkpoint_0.pkl").unlink()
    judged = judge(path)
    assert judged.findings == ()
    assert any("ranks or registered objects" in text for text in judged.description.unknowable)


@pytest.mark.parametrize("damaged", [0, 1])
def test_the_checkpoint_beside_it_tells_whether_it_is_older_or_newer(tmp_path: Path, damaged: int) -> None:
    """The first checkpoint of a run has none before it, and the last none after it."""
    path = built(tmp_path, 0, 1, ranks=2)[damaged]
    (path / "random_states_1.pkl").unlink()
    assert found(path) == {(Reason.SHARD_MISSING, "random_states_1.pkl")}


@pytest.mark.parametrize(
    "name", ["optimizer_1.bin", "scheduler_1.bin", "custom_checkpoint_1.pkl", "model_1.safetensors"]
)
def test_a_number_that_is_left_out_is_missed(tmp_path: Path, name: str) -> None:
    """The files of one kind are numbered without a gap."""
    (path,) = built(tmp_path, 1)
    first = name.replace("_1", "_0" if "custom" in name else "")
    for further in (name, name.replace("_1", "_2")):
        (path / further).write_bytes((path / first).read_bytes())
    assert judge(path).findings == ()
    (path / name).unlink()
    assert found(path) == {(Reason.ARTIFACT_MISSING, name)}


def test_a_scheduler_that_the_script_registered_is_not_missed(tmp_path: Path) -> None:
    """An optimizer that was driven needs its scheduler, wherever it is saved."""
    (path,) = built(tmp_path, 1)
    (path / "scheduler.bin").unlink()
    assert found(path) == {(Reason.COMPONENT_MISSING, "scheduler.bin")}
    torch.save(layouts.states(8)[2], path / "custom_checkpoint_0.pkl")
    assert found(path) == set()


def test_an_optimizer_that_nothing_drove_needs_no_scheduler(tmp_path: Path) -> None:
    """Training at a constant rate is healthy."""
    (path,) = built(tmp_path, 1)
    (path / "scheduler.bin").unlink()
    state = torch.load(path / "optimizer.bin")
    for group in state["param_groups"]:
        del group["initial_lr"]
    torch.save(state, path / "optimizer.bin")
    assert found(path) == set()


def test_a_script_may_name_its_directories_as_trainer_does(tmp_path: Path) -> None:
    """Scripts that save as `checkpoint-500` must not be taken for Trainer's."""
    path = tmp_path / "out" / "checkpoint-500"
    layouts.accelerate(path, 8, ranks=2)
    assert judge(path).description.framework is Framework.ACCELERATE


def test_a_part_that_deepspeed_wrote_is_described_by_its_reader(tmp_path: Path) -> None:
    """Accelerate names the tag itself, so a pointer that is gone harms nobody and a shard that is gone does."""
    path = tmp_path / "checkpoints" / "checkpoint_0"
    layouts.engine(path, "pytorch_model", 8, 2)
    for rank in range(2):
        torch.save({"step": 8, **layouts.streams(rank)}, path / f"random_states_{rank}.pkl")
    (path / "latest").unlink()
    judged = judge(path)
    assert (judged.findings, judged.description.layout.certainty) == ((), Certainty.STATED)
    assert judged.restorability is Restorability.RESUMABLE
    shard = "pytorch_model/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (path / shard).unlink()
    assert found(path) == {(Reason.SHARD_MISSING, shard)}


def test_accelerate_resumes_the_largest_number_whole_or_not(tmp_path: Path) -> None:
    """Its rule is told as it is: numbers compare as numbers, and nothing is looked into."""
    root = built(tmp_path, 2, 9)[0].parent
    (root / "checkpoint_10").mkdir()
    choice = chosen(root)
    assert choice is not None
    assert [one.name for one in choice.candidates] == ["checkpoint_10", "checkpoint_9", "checkpoint_2"]
    assert choice.picked == "checkpoint_10"


def test_a_name_without_a_number_stops_accelerate(tmp_path: Path) -> None:
    """A stray name makes it fail before it loads anything, with an error that names nothing."""
    root = built(tmp_path, 0)[0].parent
    (root / "notes.txt").write_text("", encoding="utf-8")
    choice = chosen(root)
    assert choice is not None
    assert choice.picked is None
    assert choice.consequence is not None
    assert "notes.txt" in choice.consequence


def test_an_absurd_rank_in_the_checkpoint_beside_it_is_not_counted_up_to(tmp_path: Path) -> None:
    """The name of a stray file next door must neither take all memory nor make a whole checkpoint look torn."""
    before, path = built(tmp_path, 0, 1, ranks=2)
    (before / f"random_states_{10**12}.pkl").write_bytes(b"")
    judged = judge(path)
    assert (judged.findings, judged.description.layout.world_size) == ((), 2)
