"""The registry as training code uses it: register, capture, load, continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood.errors import RegistrationError, UsageError
from lastgood.manifest import REQUIRED_COMPONENTS, Component
from lastgood.state import RankIdentity, Registry
from lastgood.verdict import NoteReason, Reason
from tests.state.small import Small, everything, unchanged

ALL_FILES = {
    "model/rank-00000.safetensors",
    "optimizer/rank-00000.safetensors",
    "rng/rank-00000.json",
    "scheduler.json",
    "scaler.json",
    "data.json",
    "config.json",
}


@pytest.mark.parametrize("steps", [0, 7, 12], ids=["before the first step", "inside an epoch", "at an epoch's end"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path, steps: int, workers: int) -> None:
    """Losses, sample ids, rates and weights after a load equal those of the run that was never interrupted."""
    live = Small.build(1, workers=workers)
    live.train(steps)
    live.registry.capture(steps).write(tmp_path)
    uninterrupted = live.train(20)
    weights = {key: value.clone() for key, value in live.model.state_dict().items()}

    resumed = Small.build(2, workers=workers)
    report = resumed.registry.load(tmp_path)
    assert report.loaded, report.findings
    assert (report.step, report.world_size) == (steps, 1)
    assert resumed.train(20) == uninterrupted
    assert all(torch.equal(weights[key], value) for key, value in resumed.model.state_dict().items())


def test_a_save_is_one_file_for_each_thing_and_nothing_else(tmp_path: Path) -> None:
    """The manifest lists what `write` returns, so files and return value must be the same set."""
    small = Small.build(1)
    small.train(2)
    snapshot = small.registry.capture(2)
    written = snapshot.write(tmp_path)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == ALL_FILES == {artifact.path for artifact in written}
    assert {artifact.component for artifact in written if artifact.path == "config.json"} == {Component.CONFIG}
    assert set(snapshot.components) == set(REQUIRED_COMPONENTS)
    assert written == snapshot.artifacts


def test_an_observation_after_a_load_equals_the_one_before_the_save(tmp_path: Path) -> None:
    """A supervisor compares the two by plain equality, so the same state must be observed alike in another process."""
    live = Small.build(1)
    live.train(5)
    snapshot = live.registry.capture(5)
    snapshot.write(tmp_path)
    resumed = Small.build(2)
    assert resumed.registry.observe(5) != snapshot.observation
    assert resumed.registry.load(tmp_path).loaded
    assert resumed.registry.observe(5) == snapshot.observation


def test_observing_consumes_nothing() -> None:
    """An observation before each save must not make the saved run differ from one that never saves."""
    watched, alone = Small.build(1), Small.build(1)
    expected = alone.train(6)
    watched = Small.build(1)
    found = []
    for step in range(6):
        assert watched.registry.observe(step) == watched.registry.observe(step)
        found.extend(watched.train(1))
    assert found == expected


def test_the_next_rate_ids_and_counters_are_those_of_the_next_step() -> None:
    """Expectations name the next update: what the next step then really uses must be what was said."""
    small = Small.build(1)
    small.train(3)
    observed = small.registry.observe(3)
    assert observed.optimizer_steps == {"decay": 3, "plain": 3}
    assert observed.scalars["scheduler.last_epoch"] == 3
    log = small.train(1)
    assert log[0][2] == [observed.learning_rates["decay"], observed.learning_rates["plain"]]
    ids = [one for entry in log for one in entry[1]]
    assert tuple(ids) == observed.rank.sample_ids.ids[: len(ids)]


def test_an_asynchronous_capture_is_not_moved_by_training(tmp_path: Path) -> None:
    """Training goes on while the snapshot is written: the files must hold the captured step."""
    small = Small.build(1)
    small.train(4)
    small.registry.capture(4).write(tmp_path / "at once")
    snapshot = small.registry.capture(4, asynchronous=True)
    small.train(3)
    snapshot.write(tmp_path / "later")
    for path in ALL_FILES:
        assert (tmp_path / "at once" / path).read_bytes() == (tmp_path / "later" / path).read_bytes(), path


def test_two_asynchronous_snapshots_in_flight_share_no_memory(tmp_path: Path) -> None:
    """Host buffers are kept between saves; one that is still being written must not be handed out again."""
    small = Small.build(1)
    small.train(1)
    small.registry.capture(1).write(tmp_path / "expected")
    first = small.registry.capture(1, asynchronous=True)
    small.train(1)
    second = small.registry.capture(2, asynchronous=True)
    first.write(tmp_path / "first")
    second.write(tmp_path / "second")
    name = "model/rank-00000.safetensors"
    assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    assert (tmp_path / "second" / name).read_bytes() != (tmp_path / "expected" / name).read_bytes()


def test_a_snapshot_is_written_once(tmp_path: Path) -> None:
    """Its host memory goes back to the next capture, so a second write would save other bytes."""
    snapshot = Small.build(1).registry.capture(0)
    snapshot.write(tmp_path / "one")
    with pytest.raises(UsageError, match="snapshot written twice"):
        snapshot.write(tmp_path / "two")


def test_a_payload_directory_is_never_overwritten(tmp_path: Path) -> None:
    """Two saves into one directory would mix their files."""
    small = Small.build(1)
    small.registry.capture(0).write(tmp_path)
    with pytest.raises(FileExistsError):
        small.registry.capture(0).write(tmp_path)


@pytest.mark.parametrize("component", [component.value for component in REQUIRED_COMPONENTS])
def test_a_component_left_out_is_refused_by_name(tmp_path: Path, component: str) -> None:
    """Nothing whose value changes the next step may be forgotten, in code or on storage."""
    small = Small.build(1, leave_out=component)
    with pytest.raises(RegistrationError, match=component):
        small.registry.capture(0)
    small.registry.absent(Component(component), "left out on purpose")
    snapshot = small.registry.capture(0)
    snapshot.write(tmp_path)
    assert [absent.component for absent in snapshot.absent] == [component]

    whole = Small.build(2)
    before = everything(whole)
    report = whole.registry.load(tmp_path)
    name = {"data": "data.train", "config": "configuration"}.get(component, component)
    assert (Reason.COMPONENT_MISSING, name) in [(one.reason, one.offender) for one in report.findings]
    assert not report.changed
    assert unchanged(before, whole)


def test_the_checkpoint_of_a_richer_run_is_refused(tmp_path: Path) -> None:
    """State that nobody loads would be dropped in silence."""
    rich = Small.build(1)
    rich.registry.component("counter", save=lambda: {"n": 1}, load=lambda _: None, validate=lambda _: ())
    rich.registry.capture(0).write(tmp_path)
    poor = Small.build(2, leave_out="accumulation")
    poor.registry.absent(Component.ACCUMULATION, "one microbatch a step")
    report = poor.registry.load(tmp_path)
    assert [(one.reason, one.offender) for one in report.findings] == [(Reason.KEY_UNEXPECTED, "accumulation")]


def test_own_components_are_saved_validated_and_loaded(tmp_path: Path) -> None:
    """Whatever a run invents goes through the same three functions."""
    value = {"n": 5}

    def problems(saved: Any) -> Iterator[str]:
        if saved["n"] < 0:
            yield "n is negative"

    def load(saved: Any) -> None:
        value.update(saved)

    def build(seed: int) -> Small:
        small = Small.build(seed)
        small.registry.component("curriculum", save=lambda: dict(value), load=load, validate=problems)
        return small

    build(1).registry.capture(0).write(tmp_path)
    value["n"] = 9
    assert build(2).registry.load(tmp_path).loaded
    assert value == {"n": 5}
    damaged = json.loads((tmp_path / "other/curriculum.json").read_text())
    damaged["states"]["curriculum"]["n"] = -1
    (tmp_path / "other/curriculum.json").write_text(json.dumps(damaged))
    report = build(3).registry.load(tmp_path)
    assert [(one.reason, one.offender) for one in report.findings] == [(Reason.STATE_INVALID, "curriculum")]
    assert value == {"n": 5}


def test_a_component_that_drops_what_it_loads_is_found_out(tmp_path: Path) -> None:
    """`state_dict(load(x)) == x` for every component: a load function that does nothing must not pass."""
    for number in (1, 2):
        small = Small.build(number)
        small.registry.component("lost", save=lambda n=number: {"n": n}, load=lambda _: None, validate=lambda _: ())
        if number == 1:
            small.registry.capture(0).write(tmp_path)
    report = small.registry.load(tmp_path)
    assert [(one.reason, one.offender) for one in report.findings] == [(Reason.STATE_NOT_RESTORED, "lost")]
    assert report.changed
    assert not report.loaded


@pytest.mark.parametrize("missing", ["save", "load", "validate"])
def test_a_component_without_all_three_cannot_be_registered(missing: str) -> None:
    """A component that is saved and never validated is the one that fails at night."""
    functions: dict[str, Any] = {"save": dict, "load": lambda _: None, "validate": lambda _: (), missing: None}
    with pytest.raises(RegistrationError, match=f"component incomplete: thing does not say how it is {missing[:4]}"):
        Registry(RankIdentity(rank=0, world_size=1)).component("thing", **functions)


def test_registering_twice_or_also_absent_is_an_error() -> None:
    """Two writers of one file, or a component that is there and not there, are mistakes of the training code."""
    small = Small.build(1)
    with pytest.raises(RegistrationError, match="registered twice: scaler"):
        small.registry.scaler(small.scaler)
    with pytest.raises(RegistrationError, match="both registered and absent: rng"):
        small.registry.absent(Component.RNG, "none")
    with pytest.raises(RegistrationError, match="reason missing"):
        small.registry.explain("model.x", " ")


def test_a_save_inside_an_accumulation_window_is_refused() -> None:
    """Half a window's gradients are nowhere on storage, so nothing could resume there."""
    small = Small.build(1)
    small.accumulation.advance()
    with pytest.raises(UsageError, match="inside an accumulation window: 1 of 2"):
        small.registry.capture(0)


def test_a_changed_configuration_is_a_note(tmp_path: Path) -> None:
    """Configurations change on purpose; a refusal would be an outage, silence a trap."""
    small = Small.build(1, leave_out="config")
    small.registry.configuration({"seed": 4, "rates": [0.1, 0.2]})
    small.registry.capture(0).write(tmp_path)
    report = Small.build(2).registry.load(tmp_path)
    assert report.loaded
    assert [(one.reason, one.offender) for one in report.notes] == [
        (NoteReason.CONFIGURATION_CHANGED, "configuration.seed")
    ]


def test_files_of_two_saves_are_not_mixed(tmp_path: Path) -> None:
    """One rank's file from an older save is the classic silent mixture."""
    small = Small.build(1)
    small.registry.capture(0).write(tmp_path / "old")
    small.train(1)
    small.registry.capture(1).write(tmp_path / "new")
    (tmp_path / "old/scheduler.json").replace(tmp_path / "new/scheduler.json")
    report = Small.build(2).registry.load(tmp_path / "new")
    assert [(one.reason, one.offender) for one in report.findings] == [
        (Reason.FOREIGN_GENERATION_FILE, "scheduler.json")
    ]
