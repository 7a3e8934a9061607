"""What Trainer's checkpoints are, where its loader would be silent, and which one it would resume."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lastgood.formats.description import Certainty, Framework, Restorability
from lastgood.formats.readers.transformers import TransformersReader
from lastgood.formats.root import Choice, Root
from lastgood.manifest import Component
from lastgood.reasons import NoteReason, Reason
from lastgood.stores import LocalStore
from tests.corpus import Corpus
from tests.formats.readers import layouts
from tests.formats.readers.judging import Judged, judge

FULL = {Component.MODEL, Component.OPTIMIZER, Component.SCHEDULER, Component.RNG, Component.OTHER}


def built(tmp_path: Path, steps: int = 8, **settings: object) -> Path:
    path = tmp_path / "out" / f"checkpoint-{steps}"
    layouts.trainer(path, steps, **settings)  # type: ignore[arg-type]
    return path


def held(judged: Judged) -> set[Component]:
    return {one.component for one in judged.description.components}


def chosen(root: Path) -> Choice | None:
    store = LocalStore(root.parent)
    return TransformersReader().choose(Root(store=store, prefix=root.name, names=store.names(root.name)))


def test_a_plain_checkpoint_is_described_whole(tmp_path: Path) -> None:
    """Step, ranks, version and every kind of state come from what is written, none from a guess."""
    judged = judge(built(tmp_path))
    found = judged.description
    assert (found.framework, found.version, found.step) == (Framework.TRANSFORMERS, "5.24.0", 8)
    assert (found.layout.world_size, found.layout.certainty) == (1, Certainty.STATED)
    assert held(judged) == FULL
    assert {(one.name, one.value) for one in found.counters} == {
        ("global_step", 8),
        ("optimizer_step", 8),
        ("scheduler_step", 8),
    }
    assert {one.component for one in found.never_saved} == {Component.DATA, Component.ACCUMULATION}
    assert judged.restorability is Restorability.RESUMABLE


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"form": "sharded"}, "sharded safetensors"),
        ({"form": "adapter"}, "adapter as safetensors"),
        ({"form": "engine", "ranks": 2}, "ZeRO stage 2"),
        ({"form": "fsdp", "ranks": 2}, "FSDP, whole"),
        ({"form": "split", "ranks": 2}, "FSDP, split by torch DCP"),
        ({"is_half": True}, "safetensors"),
    ],
)
def test_each_layout_is_named_and_resumable(tmp_path: Path, settings: dict[str, object], name: str) -> None:
    """A layout that is whole is called so, whatever lies inside of it."""
    judged = judge(built(tmp_path, **settings))
    assert judged.findings == ()
    assert judged.restorability is Restorability.RESUMABLE
    assert judged.description.layout_name == name


@pytest.mark.parametrize(
    ("steps", "drop", "ranks", "certainty"),
    [
        (8, "nothing", 2, Certainty.STATED),
        (8, "training_args.bin", 2, Certainty.INFERRED),
    ],
)
def test_the_number_of_ranks_is_stated_or_said_to_be_inferred(
    tmp_path: Path, steps: int, drop: str, ranks: int, certainty: Certainty
) -> None:
    """Which of the two it is decides how much the absence of a rank's file can be trusted."""
    path = built(tmp_path, steps, ranks=2)
    (path / drop).unlink(missing_ok=True)
    layout = judge(path).description.layout
    assert (layout.world_size, layout.certainty) == (ranks, certainty)
    assert layout.why


def test_a_lone_first_rank_has_lost_the_others(tmp_path: Path) -> None:
    """Several ranks number their files and a single one does not, so a numbered one alone is a remnant."""
    path = built(tmp_path, ranks=2)
    (path / "training_args.bin").unlink()
    (path / "rng_state_1.pth").unlink()
    assert [(one.reason, one.offender) for one in judge(path).findings] == [(Reason.SHARD_MISSING, "rng_state_1.pth")]


def test_a_checkpoint_saved_with_only_the_model_is_no_damaged_one(tmp_path: Path) -> None:
    """`save_only_model` is a choice: it is named as what it is, and nothing is missed."""
    path = built(tmp_path)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        (path / name).unlink()
    judged = judge(path)
    assert judged.findings == ()
    assert judged.restorability is Restorability.WEIGHTS_ONLY


def test_arguments_that_say_otherwise_tell_deleted_state_from_a_choice(tmp_path: Path) -> None:
    """All state of training deleted at once looks like `save_only_model`, but for what the arguments say."""
    path = built(tmp_path)
    gone = {"optimizer.pt", "scheduler.pt", "rng_state.pth"}
    for name in gone:
        (path / name).unlink()
    judged = judge(path)
    assert {(one.reason, one.offender) for one in judged.findings} == {
        (Reason.COMPONENT_MISSING, name) for name in gone
    }


def test_what_save_model_writes_is_an_export_and_not_an_unfinished_save(tmp_path: Path) -> None:
    """The model that a finished training leaves beside its checkpoints must not raise an alarm for ever."""
    path = tmp_path / "out" / "final"
    layouts.trainer(path, 8)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"):
        (path / name).unlink()
    judged = judge(path)
    assert judged.findings == ()
    assert judged.description.marker is None
    assert judged.restorability is Restorability.WEIGHTS_ONLY


def _older_pair(path: Path) -> None:
    _, optimizer, scheduler = layouts.states(4)
    torch.save(optimizer, path / "optimizer.pt")
    torch.save(scheduler, path / "scheduler.pt")


def test_state_that_began_anew_is_said_and_refuses_nothing(tmp_path: Path) -> None:
    """An earlier resume that lost optimizer and scheduler together leaves a checkpoint that is what training now is."""
    path = built(tmp_path)
    _older_pair(path)
    judged = judge(path)
    assert judged.findings == ()
    assert [note.reason for note in judged.description.notes] == [NoteReason.STATE_RESTARTED]


def test_steps_that_a_scaler_skipped_are_no_contradiction(tmp_path: Path) -> None:
    """In half precision the optimizer lags behind the trainer by every skipped step, on every healthy run."""
    path = built(tmp_path, is_half=True)
    _older_pair(path)
    judged = judge(path)
    assert judged.findings == ()
    assert judged.description.notes == ()


@pytest.mark.parametrize(("steps", "is_lawful"), [(16, True), (12, False)])
def test_a_trainer_may_take_several_steps_for_each_that_it_counts(tmp_path: Path, steps: int, is_lawful: bool) -> None:
    """Policy optimization takes several for each batch of experience: a multiple is healthy, another number is not."""
    path = built(tmp_path)
    torch.save(layouts.states(steps)[1], path / "optimizer.pt")
    found = {(one.reason, one.offender) for one in judge(path).findings}
    assert found == (set() if is_lawful else {(Reason.COUNTERS_DISAGREE, "optimizer.pt")})


def test_a_loss_scale_is_not_missed_of_a_version_that_left_it_out(tmp_path: Path) -> None:
    """Versions before 5 did not always save it, so its absence tells nothing there."""
    path = built(tmp_path, is_half=True)
    (path / "scaler.pt").unlink()
    assert {one.offender for one in judge(path).findings} == {"scaler.pt"}
    (path / "config.json").write_text('{"transformers_version": "4.40.0"}', encoding="utf-8")
    judged = judge(path)
    assert judged.findings == ()
    assert any("loss scale" in text for text in judged.description.unknowable)


def test_a_scheduler_that_waits_for_a_metric_is_not_held_against_steps(tmp_path: Path) -> None:
    """It counts evaluations, so its counter says nothing about steps."""
    path = built(tmp_path)
    torch.save({"best": 0.1, "num_bad_epochs": 0, "last_epoch": 2, "_step_count": 3}, path / "scheduler.pt")
    assert judge(path).findings == ()


def test_an_optimizer_without_counters_is_not_held_against_steps(tmp_path: Path) -> None:
    """Plain SGD counts nothing, and its checkpoint is healthy."""
    path = built(tmp_path)
    torch.save({"state": {}, "param_groups": [{"lr": 0.1, "initial_lr": 0.1}]}, path / "optimizer.pt")
    assert judge(path).findings == ()


def test_parameters_that_are_frozen_for_a_while_are_no_contradiction(tmp_path: Path) -> None:
    """A parameter counts the steps in which it had a gradient, so parameters may differ."""
    path = built(tmp_path)
    state = torch.load(path / "optimizer.pt")
    state["state"][0]["step"] = torch.tensor(3.0)
    torch.save(state, path / "optimizer.pt")
    assert judge(path).findings == ()


def test_a_log_that_runs_ahead_gives_an_edited_step_away(tmp_path: Path) -> None:
    """A renamed directory and an edited step agree with each other; the log still tells."""
    path = built(tmp_path)
    state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
    (path / "trainer_state.json").write_text(json.dumps(state | {"global_step": 4}), encoding="utf-8")
    renamed = path.rename(path.with_name("checkpoint-4"))
    assert {(one.reason, one.offender) for one in judge(renamed).findings} == {
        (Reason.COUNTERS_DISAGREE, "trainer_state.json")
    }


def test_weights_by_torch_save_are_read_too(tmp_path: Path) -> None:
    """Older versions wrote `pytorch_model.bin`, whole or in shards."""
    path = built(tmp_path)
    (path / "model.safetensors").unlink()
    model = layouts.states(8)[0]
    names = sorted(model)
    files = {name: f"pytorch_model-0000{place % 2 + 1}-of-00002.bin" for place, name in enumerate(names)}
    for file in set(files.values()):
        torch.save({name: model[name] for name in names if files[name] == file}, path / file)
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}), encoding="utf-8")
    judged = judge(path)
    assert (judged.findings, judged.description.layout_name) == ((), "sharded torch.save")
    (path / "pytorch_model-00002-of-00002.bin").unlink()
    assert [(one.reason, one.offender) for one in judge(path).findings] == [
        (Reason.SHARD_MISSING, "pytorch_model-00002-of-00002.bin")
    ]


def test_weights_that_the_loader_passes_over_are_only_said(tmp_path: Path) -> None:
    """A converted copy beside the weights harms nobody."""
    path = built(tmp_path)
    torch.save(layouts.states(8)[0], path / "pytorch_model.bin")
    judged = judge(path)
    assert judged.findings == ()
    assert [(note.reason, note.offender) for note in judged.description.notes] == [
        (NoteReason.STRAY_FILE, "pytorch_model.bin")
    ]


@pytest.mark.parametrize("missing", ["pytorch_model_fsdp.bin", "optimizer.bin"])
def test_what_fsdp_splits_is_missed_under_its_own_name(tmp_path: Path, missing: str) -> None:
    """Model and optimizer are saved the same way, so one of them tells of the other."""
    path = built(tmp_path, form="fsdp", ranks=2)
    (path / missing).unlink()
    assert (Reason.COMPONENT_MISSING, missing) in {(one.reason, one.offender) for one in judge(path).findings}


@pytest.mark.parametrize(
    ("missing", "reasons"),
    [
        ("pytorch_model_fsdp_0", {Reason.COMPONENT_MISSING}),
        ("optimizer_0", {Reason.COMPONENT_MISSING}),
        ("optimizer_0/.metadata", {Reason.SAVE_UNFINISHED}),
        ("optimizer_0/__0_0.distcp", {Reason.SHARD_MISSING}),
    ],
)
def test_what_fsdp_gave_to_torch_dcp_is_judged_by_its_reader(
    tmp_path: Path, missing: str, reasons: set[Reason]
) -> None:
    """A directory inside is as good a place for a fault as the top."""
    path = built(tmp_path, form="split", ranks=2)
    (shutil.rmtree if (path / missing).is_dir() else os.unlink)(path / missing)
    judged = judge(path)
    assert {one.reason for one in judged.findings} == reasons
    assert missing in {one.offender for one in judged.findings}


@pytest.mark.parametrize("text", ["../checkpoint-4/global_step4", "global_step4", "", "a/b"])
def test_a_pointer_of_the_engine_that_leads_nowhere_is_found(tmp_path: Path, text: str) -> None:
    """DeepSpeed would fail with an empty message, or load what is not of this checkpoint."""
    path = built(tmp_path, form="engine", ranks=2)
    (path / "latest").write_text(text, encoding="utf-8")
    found = {(one.reason, one.offender) for one in judge(path).findings}
    assert found in ({(Reason.POINTER_DANGLING, "latest")}, {(Reason.POINTER_MALFORMED, "latest")})


@pytest.mark.slow
def test_directories_that_both_frameworks_wrote_are_read_together(corpus: Corpus, tmp_path: Path) -> None:
    """Put together from a Trainer's checkpoint and DeepSpeed's own, as Trainer lays them out."""
    path = corpus["hf_trainer_2_ranks"].copy(tmp_path / "out").newest
    engine = corpus["deepspeed_2"].copy(tmp_path / "engine")
    for name in ("model.safetensors", "optimizer.pt"):
        (path / name).unlink()
    engine.newest.rename(path / engine.newest.name)
    (engine.root / "latest").rename(path / "latest")
    judged = judge(path)
    assert (judged.findings, judged.restorability) == ((), Restorability.RESUMABLE)
    assert judged.description.layout_name == "ZeRO stage 2"
    for shard in sorted((path / engine.newest.name).iterdir()):
        data = shard.read_bytes()
        shard.unlink()
        assert {one.offender for one in judge(path).findings} == {str(shard.relative_to(path))}
        shard.write_bytes(data)


def test_trainer_resumes_the_largest_number_whole_or_not(tmp_path: Path) -> None:
    """Its rule is told as it is, so that ours can differ from it."""
    built(tmp_path, 4)
    newest = built(tmp_path, 8)
    empty = newest.with_name("checkpoint-16")
    empty.mkdir()
    choice = chosen(empty.parent)
    assert choice is not None
    assert (choice.picked, [one.step for one in choice.candidates]) == ("checkpoint-16", [16, 8, 4])
    assert {one.reason for one in judge(empty).findings} == {Reason.SAVE_UNFINISHED}
    assert judge(empty).restorability is Restorability.IN_PROGRESS


SAVED_IN_ORDER = (
    "config.json",
    "model.safetensors",
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
)


@pytest.mark.parametrize(
    ("saved", "kept_ratio"), [(place, kept) for place in range(len(SAVED_IN_ORDER)) for kept in (0, 0.5, 1)][:-1]
)
def test_a_save_that_was_killed_anywhere_is_never_resumable(tmp_path: Path, saved: int, kept_ratio: float) -> None:
    """A kill comes between two files, or in the middle of one; before the last byte nothing may be resumed."""
    path = built(tmp_path)
    last = path / SAVED_IN_ORDER[saved]
    for name in SAVED_IN_ORDER[saved + 1 :]:
        (path / name).unlink()
    os.truncate(last, int(last.stat().st_size * kept_ratio))
    judged = judge(path)
    assert judged.description.framework is Framework.TRANSFORMERS
    assert judged.restorability in (Restorability.IN_PROGRESS, Restorability.DAMAGED)


def test_an_optimizer_that_was_emptied_is_missed(tmp_path: Path) -> None:
    """Trainer loads it in silence and goes on without moments; plain SGD lawfully keeps nothing."""
    path = built(tmp_path)
    state = torch.load(path / "optimizer.pt")
    torch.save(state | {"state": {}}, path / "optimizer.pt")
    assert [(one.reason, one.offender) for one in judge(path).findings] == [(Reason.COMPONENT_MISSING, "optimizer.pt")]
    for momentum, count in ((0, 0), (0.9, 1)):
        torch.save({"state": {}, "param_groups": [{"lr": 0.1, "momentum": momentum}]}, path / "optimizer.pt")
        assert len(judge(path).findings) == count


def test_a_state_without_a_step_is_invalid(tmp_path: Path) -> None:
    """Trainer would begin at step zero in silence."""
    path = built(tmp_path)
    state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
    del state["global_step"]
    (path / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    assert [(one.reason, one.offender) for one in judge(path).findings] == [
        (Reason.STATE_INVALID, "trainer_state.json")
    ]


def _huge_rank(path: Path) -> None:
    (path / "rng_state_999999.pth").write_bytes(b"")


def _odd_json(path: Path) -> None:
    (path / "trainer_state.json").write_text('{"global_step": "8", "log_history": {"step": []}}', encoding="utf-8")


def _list_json(path: Path) -> None:
    (path / "trainer_state.json").write_text("[1]", encoding="utf-8")


def _odd_optimizer(path: Path) -> None:
    torch.save({"state": [1, 2], "param_groups": [3]}, path / "optimizer.pt")


def _flat_optimizer(path: Path) -> None:
    torch.save([1, 2, 3], path / "optimizer.pt")


def _odd_index(path: Path) -> None:
    (path / "model.safetensors").unlink()
    save_file({"x": torch.ones(1)}, path / "model-00001-of-99999.safetensors")
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "a\\u0000b"}}', encoding="utf-8")


@pytest.mark.parametrize("harm", [_huge_rank, _odd_json, _list_json, _odd_optimizer, _flat_optimizer, _odd_index])
def test_whatever_a_stranger_wrote_is_described(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """A reader that raises takes the whole sweep down with it."""
    path = built(tmp_path)
    harm(path)
    judged = judge(path)
    assert len(judged.findings) <= 1_100


def test_an_absurd_number_of_ranks_is_found_and_not_counted_up_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One number in a file that no resume loads must not take all memory of whoever looks at it."""
    written = layouts.stranger("transformers.training_args", "TrainingArguments", fp16=False)
    state = layouts.stranger("accelerate.state", "PartialState", num_processes=10**12)
    path = built(tmp_path, ranks=2)
    written.distributed_state = state
    layouts.save_with_strangers(written, path / "training_args.bin", written, state)
    judged = judge(path)
    assert [(one.reason, one.offender, one.found) for one in judged.findings] == [
        (Reason.STATE_INVALID, "training_args.bin", str(10**12))
    ]
    assert judged.description.layout.world_size == 2
