"""The life of a job whose framework saves by itself: its trace, and by which one a restore measures its checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lastgood.errors import SealRefused, StoreError, UsageError
from lastgood.formats.sealing import seal
from lastgood.location import Location, locate, locate_ours, locate_place
from lastgood.producers import SealedRun
from lastgood.producers.observing import Arriving, Updates
from lastgood.replica.trace import Discovered, Loaded, Saved, Started, Step, Stopped, StopReason, TraceReader
from lastgood.restore.evidence import Control, Request
from lastgood.restore.live import read_control
from lastgood.verdict import Rung
from lastgood.verify.reading import read_commit_marker, read_stored_manifest
from tests.foreign import toy_known, write_toy


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("REPLICA", "FAMILY", "RESUME", "STOP_STEP", "TRACE"):
        monkeypatch.delenv(f"LASTGOOD_{name}", raising=False)
    monkeypatch.setattr(SealedRun, "of_replica", None)
    with toy_known():
        yield


class ToyModel:
    def parameters(self) -> list[float]:
        return [1.0, 2.0]

    def buffers(self) -> list[float]:
        return [3.0]


class ToyOptimizer:
    """What is looked at of torch's: groups, state, and hooks before an update."""

    def __init__(self, steps: int = 0) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": 1.0 / (1 + steps), "params": ["weight"]}]
        self.state: dict[str, dict[str, int]] = {"weight": {"step": steps}} if steps else {}
        self.hooks: list[Callable[..., None]] = []

    def register_step_pre_hook(self, hook: Callable[..., None]) -> ToyOptimizer:
        self.hooks.append(hook)
        return self

    def remove(self) -> None:
        self.hooks.clear()

    def step(self) -> None:
        for hook in self.hooks:
            hook(self, (), {})
        count = self.state.setdefault("weight", {"step": 0})
        count["step"] += 1
        self.param_groups[0]["lr"] = 1.0 / (1 + count["step"])


def live(family: Path, first: int, last: int, *, saved: int | None, path: Path | None = None) -> SealedRun:
    """A life that completes the steps `first` to `last`, and saves after one of them."""
    optimizer = ToyOptimizer(first - 1)
    run = SealedRun(family)
    run.resumed(ToyModel(), [optimizer], step=first - 1, path=path)
    for step in range(first, last + 1):
        optimizer.step()
        run.step(step, step + 0.25, step + 0.75)
        if step == saved:
            run.save(write_toy(family, step, ranks=1))
    run.close()
    return run


def control_of(location: Location) -> Control:
    generation = location.require_generation()
    marker = read_commit_marker(location.store, location.keys, generation).marker
    manifest = read_stored_manifest(location.store, location.keys, generation, marker).trusted
    assert manifest is not None
    return read_control(location, Request(manifest=manifest, steps=4, rung=Rung.FULL, world_size=1))


def test_a_life_says_what_it_resumed_and_did(tmp_path: Path) -> None:
    """Rates as the updates used them, counts as the optimizer keeps them, and the seal beside them."""
    live(tmp_path / "f", 1, 6, saved=4)
    second = live(tmp_path / "f", 5, 6, saved=6, path=tmp_path / "f" / "toy-4")
    records = list(TraceReader(tmp_path / "f").records(second.nonce, 0))
    assert [type(one) for one in records] == [Started, Discovered, Loaded, Step, Step, Saved, Stopped]
    started, discovered, loaded, step, _, saved, _ = records
    assert isinstance(started, Started)
    assert started.incarnation == 0
    assert isinstance(discovered, Discovered)
    assert (discovered.generation, discovered.step) == ("00000000-0000000000000004~toy-4", 4)
    assert isinstance(loaded, Loaded)
    assert (loaded.keys, loaded.optimizer_steps) == ({"model": 3, "optimizer": 1}, {"group-0": 4})
    assert isinstance(step, Step)
    assert (step.step, step.loss, step.learning_rates, step.optimizer_steps) == (
        5,
        5.5,
        {"group-0": 0.2},
        {"group-0": 5},
    )
    assert isinstance(saved, Saved)
    assert saved.generation == "00000000-0000000000000006~toy-6"


def test_a_fresh_start_says_that_it_resumed_nothing(tmp_path: Path) -> None:
    """Otherwise a framework that begins at step zero in silence would pass for a resumed one."""
    run = live(tmp_path / "f", 1, 1, saved=None)
    records = list(TraceReader(tmp_path / "f").records(run.nonce, 0))
    assert [type(one) for one in records] == [Started, Discovered, Step, Stopped]
    assert isinstance(records[1], Discovered)
    assert records[1].generation is None


def test_every_life_has_a_trace_of_its_own(tmp_path: Path) -> None:
    """A job of another framework claims no number, and its third start must not fail on the trace of its first."""
    lives = [live(tmp_path / "f", 4 * place + 1, 4 * place + 6, saved=4 * place + 4) for place in range(3)]
    reader = TraceReader(tmp_path / "f")
    assert reader.lives() == tuple(sorted(run.nonce for run in lives))
    assert reader.incarnations() == ()
    for place, run in enumerate(lives):
        assert list(reader.steps(run.nonce, 0)) == list(range(4 * place + 1, 4 * place + 7))


def test_the_life_that_saved_is_the_control(tmp_path: Path) -> None:
    """A later one resumed from that very checkpoint: to agree with it proves nothing."""
    live(tmp_path / "f", 1, 6, saved=4)
    live(tmp_path / "f", 5, 12, saved=None, path=tmp_path / "f" / "toy-4")
    control = control_of(locate(str(tmp_path / "f" / "toy-4")))
    assert list(control.steps[0]) == [5, 6]
    assert control.settings["python"]


def test_a_life_is_no_witness_of_what_it_resumed(tmp_path: Path) -> None:
    """The one before was killed between save and seal; to seal that now must not make the resumed run the control."""
    live(tmp_path / "f", 1, 4, saved=None)
    torn = write_toy(tmp_path / "f", 4, ranks=1)
    optimizer, run = ToyOptimizer(4), SealedRun(tmp_path / "f")
    run.resumed(ToyModel(), [optimizer], step=4, path=torn)
    assert run.save(torn) is not None
    for step in range(5, 9):
        optimizer.step()
        run.step(step, 0.5)
    run.close()
    assert control_of(locate(str(torn))) == Control()


@pytest.mark.parametrize("is_told", [True, False])
def test_a_life_that_goes_back_witnesses_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_told: bool
) -> None:
    """What it does then it does after a resume, of the very checkpoint that it would be compared with."""
    optimizer, run = ToyOptimizer(), SealedRun(tmp_path / "f")
    run.resumed(ToyModel(), [optimizer], step=0)
    for step in (1, 2, 3, 4):
        run.step(step, 0.5)
    saved = run.save(write_toy(tmp_path / "f", 4, ranks=1))
    run.step(5, 0.5)
    if is_told:
        run.resumed(ToyModel(), [optimizer], step=4, path=tmp_path / "f" / "toy-4")
        assert len(optimizer.hooks) == 1
        run.step(5, 0.25)
    else:
        run.step(3, 0.25)
    for step in (6, 7, 8):
        run.step(step, 0.25)
    later = run.save(write_toy(tmp_path / "f", 8, ranks=1))
    run.close()
    assert saved is not None
    assert later is not None
    control = control_of(saved.location)
    assert {step: record.loss for step, record in control.steps[0].items()} == {5: 0.5}
    assert control_of(later.location) == Control()
    assert "no step is traced any more" in caplog.text


def test_what_somebody_else_sealed_has_no_control(tmp_path: Path) -> None:
    """Nobody knows which of the lives saved it."""
    live(tmp_path / "f", 1, 12, saved=None)
    location = seal(locate_place(str(write_toy(tmp_path / "f", 4, ranks=1)))).location
    assert control_of(location) == Control()


def test_a_trace_alone_makes_no_family(tmp_path: Path) -> None:
    """What lay there unsealed before the job's first save would otherwise be judged as a family without commits."""
    write_toy(tmp_path / "f", 2, ranks=1)
    live(tmp_path / "f", 3, 4, saved=None)
    assert locate_ours(str(tmp_path / "f")) is None
    run = live(tmp_path / "f", 3, 4, saved=4)
    ours = locate_ours(str(tmp_path / "f"))
    assert ours is not None
    assert run.family.family_uri == ours.family_uri


def test_a_replica_that_saves_elsewhere_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its framework's clean-up would remove production's checkpoints."""
    monkeypatch.setenv("LASTGOOD_REPLICA", "1")
    monkeypatch.setenv("LASTGOOD_FAMILY", str(tmp_path / "scratch"))
    with pytest.raises(UsageError, match="replica saves elsewhere") as caught:
        SealedRun(tmp_path / "production")
    assert "{family}" in (caught.value.hint or "")
    assert not (tmp_path / "production").exists()
    SealedRun((tmp_path / "scratch").as_uri()).close()


@pytest.fixture
def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process is a replica that a restore asked to stop after step 4; where it saves."""
    monkeypatch.setenv("LASTGOOD_REPLICA", "1")
    monkeypatch.setenv("LASTGOOD_FAMILY", str(tmp_path / "f"))
    monkeypatch.setenv("LASTGOOD_STOP_STEP", "4")
    return tmp_path / "f"


@pytest.mark.parametrize("directory", ["f", "elsewhere"])
def test_a_replica_that_is_done_ends_well_where_its_script_trains_again(replica: Path, directory: str) -> None:
    """A second life would look as if the first had died, and put a fail on a healthy checkpoint."""
    run = live(replica, 1, 4, saved=4)
    with pytest.raises(SystemExit) as ended:
        SealedRun(replica.with_name(directory))
    assert ended.value.code == 0
    assert TraceReader(replica).lives() == (run.nonce,)


@pytest.mark.parametrize("directory", ["f", "elsewhere"])
def test_a_replica_that_begins_two_trainings_leaves_the_checkpoint_undecided(
    replica: Path, directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows which of them the restore meant; the exit code says that the script is at fault."""
    run = live(replica, 1, 3, saved=None)
    with pytest.raises(SystemExit) as ended:
        SealedRun(replica.with_name(directory))
    assert ended.value.code == UsageError.exit_code
    assert "replica trains twice in one process" in caplog.text
    assert f"after step 3, in {replica.with_name(directory)}" in caplog.text
    assert TraceReader(replica).lives() == (run.nonce,)


def test_a_replica_that_goes_back_ends_by_name(replica: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its steps would be missing in the trace, and a restore could not say why."""
    run = SealedRun(replica)
    run.resumed(ToyModel(), [ToyOptimizer()], step=0)
    run.step(3, 0.5)
    with pytest.raises(SystemExit) as ended:
        run.step(2, 0.5)
    assert ended.value.code == UsageError.exit_code
    assert "replica goes back: step 2 comes after step 3" in caplog.text
    *_, stopped = TraceReader(replica).records(run.nonce, 0)
    assert isinstance(stopped, Stopped)
    assert stopped.message == "replica goes back: step 2 comes after step 3"


def test_a_framework_that_builds_anew_before_its_first_step_goes_on_in_one_life(replica: Path) -> None:
    """Trainer tries a smaller batch (`auto_find_batch_size`) where the first one does not fit into memory."""
    optimizer, again, run = ToyOptimizer(2), ToyOptimizer(2), SealedRun(replica)
    for one in (optimizer, again):
        run.resumed(ToyModel(), [one], step=2, path=replica / "toy-2")
    assert (len(optimizer.hooks), len(again.hooks)) == (0, 1)
    again.step()
    run.step(3, 0.5)
    run.close()
    steps = TraceReader(replica).steps(run.nonce, 0)
    assert {number: step.optimizer_steps for number, step in steps.items()} == {3: {"group-0": 3}}


def test_a_step_of_which_nothing_can_be_told_is_counted_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A restore finds how far the job came, and its user why tier 2 proves nothing."""
    run = SealedRun(tmp_path / "f")
    run.resumed(ToyModel(), [ToyOptimizer()], step=0)
    for step in (1, 1, 2):
        run.untold(step, "the model returns no loss")
    run.close()
    *_, stopped = TraceReader(tmp_path / "f").records(run.nonce, 0)
    assert isinstance(stopped, Stopped)
    assert stopped.step == 2
    assert caplog.text.count("the model returns no loss") == 1


def test_a_life_that_begins_before_its_ranks_have_joined_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process would take itself for rank 0, and all but one end with the first save, without a word."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"expected one of 2 ranks \(WORLD_SIZE\), found none") as caught:
        SealedRun(tmp_path / "f")
    assert "init_process_group" in (caught.value.hint or "")
    assert not (tmp_path / "f").exists()
    monkeypatch.setenv("WORLD_SIZE", "1")
    SealedRun(tmp_path / "f").close()


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_join_after_the_life_began_are_all_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """A launcher that says nothing of its other processes: rank 0 must not train on alone while the others die."""
    early, late = SealedRun(tmp_path / "f"), SealedRun(tmp_path / "f")
    early.resumed(ToyModel(), [ToyOptimizer()], step=0)
    formed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: rank, get_world_size=lambda: 2
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=formed))
    changed = "ranks changed since SealedRun was made: expected 1, found 2"
    with pytest.raises(UsageError, match=changed):
        late.resumed(ToyModel(), [ToyOptimizer()], step=0)
    with pytest.raises(UsageError, match=changed):
        early.save(write_toy(tmp_path / "f", 4, ranks=1))


def test_a_replica_stops_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter run than the job's own would have another schedule, so the job keeps its length and stops within."""
    run = SealedRun(tmp_path / "f")
    assert (run.last_step(100), run.stops_at(100)) == (100, False)
    run.close()
    monkeypatch.setenv("LASTGOOD_STOP_STEP", "24")
    run = SealedRun(tmp_path / "f")
    assert (run.last_step(100), run.last_step(10), run.stops_at(23), run.stops_at(24)) == (24, 10, False, True)
    run.close()


def test_a_job_that_is_told_to_write_no_trace_seals_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch of the contract."""
    monkeypatch.setenv("LASTGOOD_TRACE", "0")
    live(tmp_path / "f", 1, 4, saved=4)
    assert not (tmp_path / "f/.lastgood/traces").exists()
    assert locate(str(tmp_path / "f" / "toy-4")).require_generation().step == 4


class TwoRanks:
    """What rank 0 told, and what the other hears."""

    world_size = 2

    def __init__(self, rank: int, heard: str = "") -> None:
        self.rank, self.heard = rank, heard
        self.told: list[str | None] = []

    def require_unchanged(self) -> None:
        pass

    def broadcast(self, text: str | None) -> str:
        self.told.append(text)
        return text or self.heard


def test_a_save_that_is_refused_stops_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would wait for rank 0 in their next sum, for as long as the group's deadline."""
    run = SealedRun(tmp_path / "f")
    torn = write_toy(tmp_path / "f", 3, ranks=1)
    (torn / "unfinished").touch()
    first = TwoRanks(0)
    monkeypatch.setattr(run, "_ranks", first)
    with pytest.raises(SealRefused):
        run.save(torn)
    assert first.told[0] is not None
    monkeypatch.setattr(run, "_ranks", TwoRanks(1, heard=first.told[0]))
    monkeypatch.setattr("lastgood.producers.run.seal_save", lambda *_, **__: None)
    with pytest.raises(StoreError, match=r"rank 0 could not seal .*unfinished save"):
        run.save(torn)
    # Both say so in their traces, by which a restore reports the save that failed and not a crash.
    stops = [one for one in TraceReader(tmp_path / "f").records(run.nonce, 0) if isinstance(one, Stopped)]
    assert [one.reason for one in stops] == [StopReason.FAILED, StopReason.FAILED]
    assert all("unfinished save" in one.message for one in stops)


def test_an_update_that_a_scaler_skips_is_told(tmp_path: Path) -> None:
    """Its step counts for the loop and not for the optimizer, which is no lost history."""
    optimizer = ToyOptimizer()
    updates = Updates([optimizer])
    optimizer.step()
    assert updates.take() == ({"group-0": 1.0}, True)
    assert updates.take() == ({"group-0": 0.5}, False)
    updates.close()
    assert not optimizer.hooks


def test_several_optimizers_are_told_apart(tmp_path: Path) -> None:
    """Two groups of one name would hide each other's rate."""
    updates = Updates([ToyOptimizer(1), ToyOptimizer(3)])
    assert updates.rates() == {"optimizer-0.group-0": 0.5, "optimizer-1.group-0": 0.25}
    assert updates.steps() == {"optimizer-0.group-0": 1, "optimizer-1.group-0": 3}


@pytest.mark.parametrize("length", [1, 2])
def test_an_optimizer_that_names_itself_or_what_wraps_it_is_looked_at(length: int) -> None:
    """To look for the innermost of a circle would never end, and the job would stand still without a word."""
    torch_own, wrapper = ToyOptimizer(1), SimpleNamespace()
    wrapper.optimizer = torch_own
    torch_own.optimizer = (torch_own, wrapper)[length - 1]  # type: ignore[attr-defined]  # what some user's has
    assert Updates([wrapper]).rates() == {"group-0": 0.5}


def test_an_optimizer_without_a_count_tells_none(tmp_path: Path) -> None:
    """Plain SGD keeps none, and one of ours would say that a lost history is there."""
    optimizer = ToyOptimizer()
    optimizer.state = {"weight": {}}
    assert Updates([optimizer]).steps() == {}


def test_a_step_is_told_once_and_with_a_loss(tmp_path: Path) -> None:
    """A loop on DeepSpeed asks in every microbatch, and the engine's count stays where it was until the update."""
    run = SealedRun(tmp_path / "f")
    run.resumed(ToyModel(), [ToyOptimizer()], step=0)
    for step, loss in ((0, 0.1), (1, 0.2), (1, 0.3), (2, 0.4)):
        run.step(step, loss)
    with pytest.raises(UsageError, match="step without a loss: 3"):
        run.step(3)
    run.close()
    steps = TraceReader(tmp_path / "f").steps(run.nonce, 0)
    assert {step: record.loss for step, record in steps.items()} == {1: 0.2, 2: 0.4}


class OnDevice:
    """A loss that can be added to one of the same device only, as torch's."""

    def __init__(self, value: float, device: str) -> None:
        self.value, self.device = value, device

    def to(self, device: str, *, non_blocking: bool) -> OnDevice:
        assert non_blocking
        return OnDevice(self.value, device)

    def __add__(self, other: OnDevice) -> OnDevice:
        assert self.device == other.device
        return OnDevice(self.value + other.value, self.device)

    def __truediv__(self, count: int) -> float:
        return self.value / count


def test_losses_of_several_devices_have_a_mean() -> None:
    """torch.nn.DataParallel computes each on its own, and a trace must not end a training that would go on."""
    assert Arriving([OnDevice(1.0, "cuda:0"), OnDevice(2.0, "cuda:1")]).get() == 1.5
