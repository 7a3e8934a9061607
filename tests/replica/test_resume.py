"""Resumed equals uninterrupted, bit for bit, with real processes and real kills."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
import safetensors.numpy

from lastgood.identity import GenerationId
from lastgood.job import content_id
from lastgood.manifest import Determinism, parse_manifest
from lastgood.replica.trace import Discovered, Loaded, Started, Step, TraceReader, TraceRecord
from tests.replica.fleet import Fleet, at_save, at_step, train

# 6 steps an epoch: 30 steps cross four ends of one.
STEPS_PER_EPOCH = 6
STEPS = 30
COURSE = (
    *("--steps", str(STEPS), "--samples", str(32 * STEPS_PER_EPOCH), "--save-every", "2", "--digest-every", "1"),
    *("--workers", "1", "--allow-fresh"),
)
PROOF = os.environ.get("LASTGOOD_PROOF") == "1"

Kill = tuple[str, Callable[[TraceRecord], bool], float]


def kills(count: int, draw: random.Random) -> list[Kill]:
    """Where to kill: two inside one epoch, one at an epoch's end, the rest at random steps, all rising."""
    inside = sorted(draw.sample(range(STEPS_PER_EPOCH + 1, 2 * STEPS_PER_EPOCH), 2))
    end = 2 * STEPS_PER_EPOCH
    later = sorted(draw.choices(range(end + 1, STEPS), k=count - 3))
    plan: list[Kill] = [(f"at step {step}", at_step(step), draw.random() * 0.02) for step in inside]
    plan.append((f"after the save of step {end}", at_save(end), 0.0))
    return plan + [(f"at step {step}", at_step(step), draw.random() * 0.05) for step in later]


def course(step: Step) -> dict[str, object]:
    """Everything of a step that must not depend on restarts."""
    values: dict[str, object] = msgspec.structs.asdict(step)
    return {name: value for name, value in values.items() if name not in ("at", "spans")}


def compare_with_control(control: Path, resumed: Path, world_size: int) -> int:
    """Compare every step of every life with the uninterrupted run's; the number of steps compared."""
    compared = 0
    for rank in range(world_size):
        expected = TraceReader(control).steps(1, rank)
        for incarnation in TraceReader(resumed).incarnations():
            for number, step in TraceReader(resumed).steps(incarnation, rank).items():
                assert course(step) == course(expected[number]), f"incarnation {incarnation} rank {rank} step {number}"
                compared += 1
    return compared


def stored(family: Path, step: int) -> dict[str, list[bytes]]:
    """Every document, and every tensor's pieces over all ranks, of the newest generation of that step."""
    newest = max(path for path in family.iterdir() if path.name.endswith(f"-{step:016d}"))
    content: dict[str, list[bytes]] = {}
    for path in sorted(newest.rglob("*")):
        if path.suffix == ".safetensors":
            # Which rank writes a tensor that all hold, and in which order, is the save's own business.
            for key, tensor in safetensors.numpy.load(path.read_bytes()).items():
                content.setdefault(f"{path.parent.name}:{key}", []).append(tensor.tobytes())
        elif path.is_file():
            content[str(path.relative_to(newest))] = [path.read_bytes()]
    return content


def resumed_steps(family: Path) -> list[int | None]:
    """What each life resumed, from the first."""
    reader = TraceReader(family)
    return [
        record.step
        for incarnation in reader.incarnations()
        for record in reader.records(incarnation, 0)
        if isinstance(record, Discovered)
    ]


def run_through_kills(family: Path, world_size: int, arguments: Sequence[str], plan: Sequence[Kill]) -> None:
    """Train to the end although killed according to plan."""
    for name, condition, delay_seconds in plan:
        with Fleet(family, world_size, [*arguments, "--step-delay", str(delay_seconds)]) as fleet:
            record = fleet.kill_when(condition)
            assert not isinstance(record, Started), name
    train(family, world_size, arguments)


def check_bit_identical(
    directory: Path, arguments: Sequence[str], *, world_size: int, count: int, seed: int
) -> tuple[int, list[int | None]]:
    """Train a control and a killed run; compare all steps and the stored bytes of the last generation."""
    control, resumed = directory / "control", directory / "resumed"
    train(control, world_size, arguments)
    run_through_kills(resumed, world_size, arguments, kills(count, random.Random(seed)))
    starts = resumed_steps(resumed)
    assert len(starts) == count + 1, "a kill that killed nothing proves nothing"
    assert starts[0] is None
    assert None not in starts[1:]
    assert starts[3] == 2 * STEPS_PER_EPOCH, "one life must begin exactly at an epoch's end"
    compared = compare_with_control(control, resumed, world_size)
    assert stored(resumed, STEPS) == stored(control, STEPS)
    return compared, starts


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_killed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, strategy: str, record_property: Callable[[str, object], None]
) -> None:
    """This is the promise `exact`: loss, weights, optimizer, sample ids and draws, over kills and epochs."""
    arguments = [*COURSE, "--strategy", strategy, "--ema"]
    compared, starts = check_bit_identical(tmp_path, arguments, world_size=2, count=3, seed=20)
    record_property(f"{strategy}, 2 ranks: steps compared, resumed at", (compared, starts))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_killed_run_ends_like_an_uninterrupted_one_after_many_kills(
    tmp_path: Path, strategy: str, world_size: int, record_property: Callable[[str, object], None]
) -> None:
    """The promise holds on more than two ranks too, where the order of sums matters."""
    count = 20 if PROOF else 8
    arguments = [*COURSE, "--strategy", strategy]
    compared, starts = check_bit_identical(tmp_path, arguments, world_size=world_size, count=count, seed=world_size)
    record_property(f"{strategy}, {world_size} ranks: steps compared, resumed at", (compared, starts))


@pytest.mark.slow
def test_stock_ddp_on_four_ranks_shows_why_only_a_tolerance_is_promised(tmp_path: Path) -> None:
    """DDP's rebuilt buckets reorder sums: weights differ in their last bits, losses stay within the promise."""
    control, resumed = tmp_path / "control", tmp_path / "resumed"
    arguments = [*COURSE, "--strategy", "ddp", "--stock-ddp"]
    train(control, 4, arguments)
    train(resumed, 4, [*arguments, "--stop-step", "8"])
    train(resumed, 4, [*arguments, "--stop-step", "12"])
    check_only_a_tolerance_is_promised_and_needed(control, resumed, 8, because="buckets")


def test_another_thread_count_shows_why_only_a_tolerance_is_promised(tmp_path: Path) -> None:
    """Threads split sums: the same checkpoint trains on to other weights, so a job that leaves their number to its
    host may not promise equal bits; the same number again gives the same bits.
    """
    control, same, other = tmp_path / "control", tmp_path / "same", tmp_path / "other" / "same"
    arguments = [*COURSE, "--strategy", "single", "--threads", "0"]
    one, two = {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}
    train(control, 1, [*arguments, "--stop-step", "8"], environ=one)
    train(same, 1, [*arguments, "--stop-step", "4"], environ=one)
    shutil.copytree(same, other)
    for family, threads in ((same, one), (other, two)):
        train(family, 1, [*arguments, "--stop-step", "8"], environ=threads)
    assert compare_with_control(control, same, 1) == 8
    check_only_a_tolerance_is_promised_and_needed(control, other, 4, because="number of threads is not pinned")


def check_only_a_tolerance_is_promised_and_needed(control: Path, resumed: Path, saved: int, *, because: str) -> None:
    """The second life's weights are not the control's, its losses as near as the manifest promised, all else equal."""
    expected, found = TraceReader(control).steps(1, 0), TraceReader(resumed).steps(2, 0)
    assert list(found) == list(range(saved + 1, saved + 5))
    assert any(found[k].digests["model"] != expected[k].digests["model"] for k in found)
    name = GenerationId(1, saved)
    manifest = parse_manifest((resumed / f".lastgood/manifests/{name}.json").read_bytes(), str(name))
    model = next(promise for promise in manifest.job.promises if promise.component == "model")
    assert model.determinism is Determinism.TOLERANCE
    assert model.tolerance is not None
    assert because in (model.reason or "")
    for k, step in found.items():
        assert float(step.loss) == pytest.approx(float(expected[k].loss), rel=model.tolerance)
        assert (step.sample_ids, step.draws) == (expected[k].sample_ids, expected[k].draws)


def load_and_digest(arguments: Sequence[str], environ: Mapping[str, str], log: str) -> None:
    """Load a generation on these ranks, and let rank 0 write digests of the whole tensors beside the log."""
    os.environ.update(environ)
    import torch
    from torch.distributed.tensor import DTensor

    from lastgood.replica.trainer.build import build
    from lastgood.replica.trainer.parallel import join
    from lastgood.replica.trainer.settings import parse_settings

    settings = parse_settings(arguments, environ)
    with join(settings, environ) as world:
        training = build(settings, world)
        report = training.registry.load(Path(settings.family), allow_topology_change=True)
        assert not report.findings, report.findings
        tensors: dict[str, torch.Tensor] = dict(training.model.state_dict())
        for number, parameter in enumerate(training.parameters):
            state = training.optimizer.state[parameter]
            tensors.update({f"optimizer.{number}.{name}": value for name, value in state.items()})
        whole = {key: one.full_tensor() if isinstance(one, DTensor) else one for key, one in tensors.items()}
        digests = {
            key.removeprefix("module."): content_id(one.detach().numpy().tobytes()) for key, one in whole.items()
        }
        if world.rank == 0:
            Path(log).with_suffix(".json").write_text(json.dumps(digests))


@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp2"])
def test_other_world_sizes_load_the_same_tensors_and_see_the_same_samples(tmp_path: Path, strategy: str) -> None:
    """Resharding must lose nothing, and the rest of the epoch belongs to all ranks together."""
    saved, step = tmp_path / "saved", STEPS_PER_EPOCH + 2
    train(saved, 2, [*COURSE, "--strategy", strategy, "--stop-step", str(step)])
    digests, samples = {}, {}
    for world_size in (1, 2, 4):
        generation = tmp_path / f"loaded-{world_size}"
        shutil.copytree(saved / str(GenerationId(1, step)), generation)
        with Fleet(generation, world_size, [*COURSE, "--strategy", strategy], target=load_and_digest) as fleet:
            fleet.finish()
        digests[world_size] = json.loads((tmp_path / f"loaded-{world_size}.json").read_text())
        family = tmp_path / f"on-{world_size}" / saved.name
        shutil.copytree(saved, family)
        end = ["--allow-topology-change", "--stop-step", str(2 * STEPS_PER_EPOCH)]
        train(family, world_size, [*COURSE, "--strategy", strategy, *end])
        samples[world_size] = rest_of_epoch(family, range(step + 1, 2 * STEPS_PER_EPOCH + 1), world_size)
    assert len(digests[1]) > 80
    assert digests[1] == digests[2] == digests[4]
    assert samples[1] == samples[2] == samples[4]
    assert len(set(samples[1])) == 32 * (STEPS_PER_EPOCH - 2), "no sample twice"
    for world_size, changed in ((1, True), (2, False), (4, True)):
        assert ("topology_changed" in notes_of_load(tmp_path / f"on-{world_size}" / saved.name)) is changed


def rest_of_epoch(family: Path, steps: range, world_size: int) -> list[int]:
    """All sample ids of these steps of the second life, over all ranks, sorted."""
    reader = TraceReader(family)
    found = [reader.steps(2, rank)[step] for rank in range(world_size) for step in steps]
    return sorted(int(one) for step in found for batch in step.sample_ids for one in batch)


def notes_of_load(family: Path) -> set[str]:
    """Reasons and offenders of the notes that the second life's load made."""
    loads = [record for record in TraceReader(family).records(2, 0) if isinstance(record, Loaded)]
    return {text for record in loads for note in record.notes for text in (note.reason.value, note.offender)}


def test_other_number_of_workers_resumes_exactly_and_says_so(tmp_path: Path) -> None:
    """With a cursor for the data position, loader workers are no part of the state: refusing would be a false alarm."""
    control, resumed = tmp_path / "control", tmp_path / "resumed"
    train(control, 1, [*COURSE, "--strategy", "single", "--stop-step", "10"])
    train(resumed, 1, [*COURSE, "--strategy", "single", "--stop-step", "4"])
    train(resumed, 1, [*COURSE, "--strategy", "single", "--stop-step", "8", "--workers", "2"])
    train(resumed, 1, [*COURSE, "--strategy", "single", "--stop-step", "10", "--workers", "0"])
    assert compare_with_control(control, resumed, 1) == 10
    assert "configuration.workers" in notes_of_load(resumed)


def test_save_at_step_zero_resumes_like_a_start(tmp_path: Path) -> None:
    """Nothing was trained yet: no fake step may be counted, and the first update must be the same."""
    control, resumed = tmp_path / "control", tmp_path / "resumed"
    train(control, 2, [*COURSE, "--strategy", "fsdp2", "--stop-step", "4"])
    with Fleet(resumed, 2, [*COURSE, "--strategy", "fsdp2", "--save-first", "--step-delay", "5"]) as fleet:
        fleet.kill_when(at_save(0))
    train(resumed, 2, [*COURSE, "--strategy", "fsdp2", "--stop-step", "4"])
    assert resumed_steps(resumed) == [None, 0]
    assert compare_with_control(control, resumed, 2) == 8
    loaded = [record for record in TraceReader(resumed).records(2, 0) if isinstance(record, Loaded)]
    assert loaded[0].optimizer_steps == {"decay": 0, "no_decay": 0}
