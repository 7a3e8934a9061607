"""Damaged checkpoints: each refused under its own reason, naming the offender, and nothing live is touched."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood.errors import StorePermanentError
from lastgood.state.restoring import read_document
from lastgood.state.tensorfile import TensorFile
from lastgood.verdict import NoteReason, Reason
from tests.state.rewrite import drop_tensor, put_tensor, rewrite_document, rewrite_tensors
from tests.state.small import Small, everything, unchanged

MODEL = "model/rank-00000.safetensors"
OPTIMIZER = "optimizer/rank-00000.safetensors"
RNG = "rng/rank-00000.json"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A good checkpoint of step 4."""
    small = Small.build(1)
    small.train(4)
    small.registry.capture(4).write(tmp_path)
    return tmp_path


def refused(directory: Path) -> list[tuple[Reason, str]]:
    """Load into a fresh run that must stay as it was; every finding's reason and offender."""
    fresh = Small.build(2)
    before = everything(fresh)
    report = fresh.registry.load(directory)
    assert not report.loaded
    assert not report.changed
    assert unchanged(before, fresh)
    assert not fresh.optimizer.state, "a refused load left moments behind"
    return [(finding.reason, finding.offender) for finding in report.findings]


def test_a_good_checkpoint_raises_nothing(saved: Path) -> None:
    """Every damage below starts from this one, which must pass."""
    report = Small.build(2).registry.load(saved)
    assert report.loaded
    assert (report.findings, report.notes) == ((), ())


def test_a_missing_tensor_is_named(saved: Path) -> None:
    """Torch's planner names only the first missing key."""
    rewrite_tensors(saved / MODEL, drop_tensor("0.weight"))
    rewrite_tensors(saved / MODEL, drop_tensor("1.running_var"))
    assert refused(saved) == [(Reason.KEY_MISSING, "model.0.weight"), (Reason.KEY_MISSING, "model.1.running_var")]


def test_an_unexpected_tensor_is_named(saved: Path) -> None:
    """Torch's planner ignores keys that nobody asks for."""
    rewrite_tensors(saved / MODEL, put_tensor("adapter.weight", torch.ones(3), "F32"))
    assert refused(saved) == [(Reason.KEY_UNEXPECTED, "model.adapter.weight")]


def test_a_renamed_tensor_is_missing_and_unexpected(saved: Path) -> None:
    """A key that changed its name would leave half a model at its random start."""
    rewrite_tensors(saved / MODEL, drop_tensor("3.bias"))
    rewrite_tensors(saved / MODEL, put_tensor("head.bias", torch.ones(1), "F32"))
    assert refused(saved) == [(Reason.KEY_MISSING, "model.3.bias"), (Reason.KEY_UNEXPECTED, "model.head.bias")]


def test_another_shape_is_named(saved: Path) -> None:
    """Another configuration built the model."""
    rewrite_tensors(saved / MODEL, put_tensor("0.weight", torch.ones(5, 1), "F32"))
    assert refused(saved) == [(Reason.SHAPE_MISMATCH, "model.0.weight")]


def test_another_element_type_is_named(saved: Path) -> None:
    """A silent conversion loses bits of every weight."""
    rewrite_tensors(saved / MODEL, put_tensor("0.weight", torch.ones(12, 1, dtype=torch.bfloat16), "BF16"))
    assert refused(saved) == [(Reason.DTYPE_MISMATCH, "model.0.weight")]


def test_explained_keys_pass_with_a_note(saved: Path) -> None:
    """A difference that was declared at registration is recorded, not refused."""
    rewrite_tensors(saved / MODEL, drop_tensor("1.running_mean"))
    rewrite_tensors(saved / MODEL, put_tensor("rotary", torch.ones(2), "F32"))
    fresh = Small.build(2)
    fresh.registry.explain("model.1.running_mean", "estimated anew")
    fresh.registry.explain("model.rotary", "computed at start since version 2")
    report = fresh.registry.load(saved)
    assert report.loaded, report.findings
    assert {(note.reason, note.offender) for note in report.notes} == {
        (NoteReason.KEY_EXPLAINED, "model.1.running_mean"),
        (NoteReason.KEY_EXPLAINED, "model.rotary"),
    }


def split(
    tensor: torch.Tensor, boxes: list[tuple[int, int]]
) -> Callable[[dict[str, torch.Tensor], dict[str, Any]], None]:
    """Store `0.weight` as chunks of rows (start, length)."""

    def change(entries: dict[str, torch.Tensor], index: dict[str, Any]) -> None:
        drop_tensor("0.weight")(entries, index)
        chunks = []
        for start, length in boxes:
            entry = f"0.weight@{start},0"
            entries[entry] = tensor.narrow(0, 0, length).clone()
            chunks.append({"entry": entry, "offsets": [start, 0], "sizes": [length, 1]})
        index["tensors"]["0.weight"] = {"shape": [12, 1], "dtype": "F32", "chunks": chunks}

    return change


@pytest.mark.parametrize(
    "boxes", [[(0, 5), (7, 5)], [(0, 7), (5, 7)], [(0, 6), (7, 6)]], ids=["hole", "overlap", "beyond"]
)
def test_chunks_must_cover_a_tensor_exactly(saved: Path, boxes: list[tuple[int, int]]) -> None:
    """A hole keeps whatever the memory held; of two overlapping chunks either could win."""
    rewrite_tensors(saved / MODEL, split(torch.ones(12, 1), boxes))
    assert refused(saved) == [(Reason.TENSOR_INCOMPLETE, "model.0.weight")]


def test_chunks_that_do_cover_it_are_joined(saved: Path) -> None:
    """The same split without a hole is lawful, so the test above tests the hole."""
    rewrite_tensors(saved / MODEL, split(torch.full((12, 1), 3.0), [(0, 5), (5, 7)]))
    fresh = Small.build(2)
    assert fresh.registry.load(saved).loaded
    assert torch.equal(fresh.model.state_dict()["0.weight"], torch.full((12, 1), 3.0))


def test_a_missing_shard_is_named_once(saved: Path) -> None:
    """One lost file must not be reported as a hundred lost tensors."""

    def two_ranks(_: dict[str, torch.Tensor], index: dict[str, Any]) -> None:
        index["world_size"] = 2

    rewrite_tensors(saved / MODEL, two_ranks)
    reasons = refused(saved)
    assert (Reason.SHARD_MISSING, "model/rank-00001.safetensors") in reasons
    assert not [reason for reason, _ in reasons if reason is Reason.TENSOR_INCOMPLETE]


def test_a_rank_file_of_an_older_save_is_named(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A reused directory keeps the files of higher ranks."""
    older = tmp_path_factory.mktemp("older")
    Small.build(1).registry.capture(3).write(older)
    (older / MODEL).replace(saved / MODEL)
    assert (Reason.FOREIGN_GENERATION_FILE, "optimizer/rank-00000") in refused(saved)


def test_another_components_file_is_named(saved: Path) -> None:
    """Two files of one layout could be swapped without a digest noticing, if a manifest were rebuilt."""
    (saved / OPTIMIZER).write_bytes((saved / MODEL).read_bytes())
    assert refused(saved) == [(Reason.STATE_INVALID, OPTIMIZER)]


def test_another_ranks_streams_are_refused(saved: Path) -> None:
    """Rank 0's streams on every rank is a failure from the field that nothing but the rank's name shows."""

    def change(document: dict[str, Any]) -> None:
        document["rank"] = 1

    rewrite_document(saved / RNG, change)
    assert refused(saved) == [(Reason.RANK_DUPLICATED, RNG)]


def test_a_rank_that_moved_in_the_layout_is_refused(saved: Path) -> None:
    """The same rank number at other coordinates is another rank."""

    def change(document: dict[str, Any]) -> None:
        document["coordinates"] = {"pipeline": 1}

    rewrite_document(saved / RNG, change)
    assert refused(saved) == [(Reason.TOPOLOGY_UNSUPPORTED, RNG)]


def test_a_truncated_shard_is_refused(saved: Path) -> None:
    """The file's length must be what its header says."""
    data = (saved / MODEL).read_bytes()
    (saved / MODEL).write_bytes(data[:-1])
    assert refused(saved) == [(Reason.STATE_INVALID, MODEL)]


def test_moments_that_were_dropped_are_named(saved: Path) -> None:
    """A fresh optimizer asks for nothing, so a lost moment would simply not be loaded."""
    rewrite_tensors(saved / OPTIMIZER, drop_tensor("exp_avg_sq/0.weight"))
    assert refused(saved) == [(Reason.KEY_MISSING, "optimizer.exp_avg_sq/0.weight")]


@pytest.mark.parametrize("step", [float("nan"), -1.0, 2.5, float("inf")])
def test_an_absurd_step_counter_is_refused(saved: Path, step: float) -> None:
    """The counter scales the next update."""
    rewrite_tensors(saved / OPTIMIZER, put_tensor("step/0.weight", torch.tensor(step), "F32"))
    assert refused(saved) == [(Reason.STATE_INVALID, "optimizer.step/0.weight")]


def of_group(number: int, **values: Any) -> Callable[[dict[str, torch.Tensor], dict[str, Any]], None]:
    """Change settings of one saved parameter group."""

    def change(_: dict[str, torch.Tensor], index: dict[str, Any]) -> None:
        index["objects"]["groups"][number].update(values)

    return change


@pytest.mark.parametrize(
    ("values", "offender"),
    [
        ({"lr": {"$": "float", "text": "nan"}}, "optimizer.group.decay.lr"),
        ({"lr": -1.0}, "optimizer.group.decay.lr"),
        ({"maximize": True}, "optimizer.group.decay.maximize"),
        ({"betas": {"$": "tuple", "items": [{"$": "float", "text": "inf"}, 0.9]}}, "optimizer.group.decay.betas"),
        ({"lr": "fast"}, "optimizer.group.decay"),
        ({"surprise": 1}, "optimizer.group.decay"),
        ({"params": ["0.weight"]}, "optimizer.group.decay"),
    ],
    ids=["nan", "negative", "ascent", "infinite", "text", "unknown key", "other parameters"],
)
def test_absurd_group_settings_are_refused(saved: Path, values: dict[str, Any], offender: str) -> None:
    """`Optimizer.load_state_dict` takes each of these without a word."""
    rewrite_tensors(saved / OPTIMIZER, of_group(0, **values))
    assert refused(saved) == [(Reason.STATE_INVALID, offender)]


def test_a_changed_setting_of_the_optimizer_is_used_and_noted(saved: Path) -> None:
    """The checkpoint's settings win, as with torch, but not in silence."""
    rewrite_tensors(saved / OPTIMIZER, of_group(1, weight_decay=0.25))
    fresh = Small.build(2)
    report = fresh.registry.load(saved)
    assert report.loaded
    assert [(note.reason, note.offender) for note in report.notes] == [
        (NoteReason.CONFIGURATION_CHANGED, "optimizer.group.plain.weight_decay")
    ]
    assert fresh.optimizer.param_groups[1]["weight_decay"] == 0.25


def test_how_an_update_is_computed_stays_the_machines(saved: Path) -> None:
    """`foreach` and `fused` follow the machine; loading them would break a resume on another device."""
    rewrite_tensors(saved / OPTIMIZER, of_group(0, foreach=True))
    fresh = Small.build(2)
    assert fresh.registry.load(saved).loaded
    assert fresh.optimizer.param_groups[0]["foreach"] is None


def in_state(name: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    """Change values of one part in a document."""

    def change(document: dict[str, Any]) -> None:
        document["states"][name].update(values)

    return change


@pytest.mark.parametrize(
    ("file", "name", "values"),
    [
        ("scheduler.json", "scheduler", {"step": 3}),
        ("scheduler.json", "scheduler", {"get_lr": "x"}),
        ("scheduler.json", "scheduler", {"last_epoch": 2.5}),
        ("scheduler.json", "scheduler", {"last_epoch": -7}),
        ("scheduler.json", "scheduler", {"last_epoch": True}),
        ("scheduler.json", "scheduler", {"_last_lr": [{"$": "float", "text": "nan"}, 0.1]}),
        ("scheduler.json", "scheduler", {"_last_lr": [0.1]}),
        ("scheduler.json", "scheduler", {"base_lrs": [-0.1, 0.1]}),
        ("scaler.json", "scaler", {"scale": {"$": "float", "text": "inf"}}),
        ("scaler.json", "scaler", {"scale": 0.0}),
        ("scaler.json", "scaler", {"growth_factor": -1.0}),
        ("scaler.json", "scaler", {"backoff_factor": 1.5}),
        ("scaler.json", "scaler", {"growth_interval": 0}),
        ("scaler.json", "scaler", {"_growth_tracker": 5}),
        ("scaler.json", "scaler", {"update": "x"}),
        ("config.json", "accumulation", {"index": 1}),
    ],
)
def test_absurd_counters_are_refused(saved: Path, file: str, name: str, values: dict[str, Any]) -> None:
    """`LRScheduler.load_state_dict` overwrites methods with what it is given; a scaler takes infinity."""
    rewrite_document(saved / file, in_state(name, **values))
    assert set(refused(saved)) == {(Reason.STATE_INVALID, name)}


def test_a_scaler_that_lost_its_state_is_refused(saved: Path) -> None:
    """An empty state is what a disabled scaler saves; an enabled one would start at its initial scale."""

    def change(document: dict[str, Any]) -> None:
        document["states"]["scaler"] = {}

    rewrite_document(saved / "scaler.json", change)
    assert set(refused(saved)) == {(Reason.STATE_INVALID, "scaler")}


@pytest.mark.parametrize(
    "position",
    [
        {"epoch": -1},
        {"consumed": 3},
        {"consumed": 10**12},
        {"consumed": -8},
        {"consumed": 8.0},
        {"length": 99},
        {"seed": 4},
        {"shuffle": 1},
        {"extra": 0},
    ],
)
def test_absurd_data_positions_are_refused(saved: Path, position: dict[str, Any]) -> None:
    """A position that is silently clamped or restarted shows only as training on the wrong samples."""

    def change(document: dict[str, Any]) -> None:
        document["states"]["data.train"][0]["position"].update(position)

    rewrite_document(saved / "data.json", change)
    assert set(refused(saved)) == {(Reason.STATE_INVALID, "data.train")}


@pytest.mark.parametrize("value", [{}, None, [], [{}], [{"version": 2, "kind": "cursor", "position": {"epoch": 0}}]])
def test_an_empty_or_unknown_data_state_is_refused(saved: Path, value: Any) -> None:
    """Torchdata's loader takes `{}` and restarts the epoch with a new shuffle."""

    def change(document: dict[str, Any]) -> None:
        document["states"]["data.train"] = value

    rewrite_document(saved / "data.json", change)
    assert refused(saved) == [(Reason.STATE_INVALID, "data.train")]


def test_a_lost_stream_is_named(saved: Path) -> None:
    """A stream that is not restored diverges at the first draw."""

    def change(document: dict[str, Any]) -> None:
        del document["states"]["rng"]["generator.noise"]

    rewrite_document(saved / RNG, change)
    fresh = Small.build(2)
    report = fresh.registry.load(saved)
    assert [(one.reason, one.offender) for one in report.findings] == [(Reason.STATE_INVALID, "rng")]
    assert "generator.noise was not saved" in report.findings[0].message


def test_every_offence_is_reported_at_once(saved: Path) -> None:
    """Who repairs a checkpoint at night wants the whole list."""
    rewrite_tensors(saved / MODEL, drop_tensor("0.weight"))
    rewrite_document(saved / "scaler.json", in_state("scaler", scale=0.0))
    (saved / "data.json").unlink()
    assert {reason for reason, _ in refused(saved)} == {
        Reason.KEY_MISSING,
        Reason.STATE_INVALID,
        Reason.COMPONENT_MISSING,
    }


@pytest.mark.parametrize("text", ["", "{", '{"version": 1, "version": 1}', '{"version": 7}', "[]", '{"version": NaN}'])
def test_malformed_documents_are_refused(saved: Path, text: str) -> None:
    """Documents are read strictly, as all of ours are."""
    (saved / "scheduler.json").write_text(text)
    assert refused(saved) == [(Reason.STATE_INVALID, "scheduler.json")]


@pytest.mark.parametrize(
    "objects", [None, 3, [], {}, {"class": "AdamW"}, {"class": "AdamW", "groups": 3, "scalars": {}}]
)
def test_malformed_optimizer_values_are_refused(saved: Path, objects: Any) -> None:
    """Values of any shape must end in a finding, never in a traceback."""

    def change(_: dict[str, torch.Tensor], index: dict[str, Any]) -> None:
        index["objects"] = objects

    rewrite_tensors(saved / OPTIMIZER, change)
    assert set(refused(saved)) == {(Reason.STATE_INVALID, "optimizer")}


def test_an_unreadable_document_is_not_a_finding(saved: Path) -> None:
    """A directory in a file's place, or a medium that does not answer, says nothing about the checkpoint's values."""
    (saved / "scheduler.json").unlink()
    (saved / "scheduler.json").mkdir()
    with pytest.raises(StorePermanentError, match="cannot read: scheduler"):
        read_document(saved / "scheduler.json", "scheduler.json")


def test_counters_beyond_32_bits_come_back_exactly(tmp_path: Path) -> None:
    """A float would lose the last digits of a sample counter."""
    small = Small.build(1)
    small.train(1)
    counter = small.model.state_dict()["1.num_batches_tracked"]
    counter.fill_(2**62 + 1)
    small.scheduler.last_epoch = 2**52 + 1
    small.cursor.epoch = 2**52 + 3
    small.registry.capture(2**52 + 1).write(tmp_path)
    fresh = Small.build(2)
    report = fresh.registry.load(tmp_path)
    assert report.loaded, report.findings
    assert report.step == 2**52 + 1
    assert int(fresh.model.state_dict()["1.num_batches_tracked"]) == 2**62 + 1
    assert (fresh.scheduler.last_epoch, fresh.cursor.epoch) == (2**52 + 1, 2**52 + 3)


def test_a_load_that_skips_a_tensor_is_found_out(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentinel must survive a reader that quietly does not read; otherwise the probe proves nothing."""
    with TensorFile(saved / OPTIMIZER, "optimizer") as file:
        skipped = file.entries["exp_avg/0.weight"].start
    honest = TensorFile.read

    def lazy(self: TensorFile, start: int, destination: memoryview) -> None:
        if not (self.where.startswith("optimizer/") and start == skipped):
            honest(self, start, destination)

    monkeypatch.setattr(TensorFile, "read", lazy)
    report = Small.build(2).registry.load(saved)
    assert (Reason.STATE_NOT_RESTORED, "optimizer.exp_avg/0.weight") in [
        (one.reason, one.offender) for one in report.findings
    ]


def test_nan_weights_are_loaded_as_they_are(tmp_path: Path) -> None:
    """A diverged model is a fact about training, which the smoke step judges; the load must not confuse it with a
    tensor that was never read.
    """
    small = Small.build(1)
    with torch.no_grad():
        small.model.state_dict()["0.weight"].fill_(math.nan)
    small.registry.capture(0).write(tmp_path)
    fresh = Small.build(2)
    assert fresh.registry.load(tmp_path).loaded
    assert bool(fresh.model.state_dict()["0.weight"].isnan().all())
