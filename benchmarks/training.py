"""The contenders that need torch, in a process of their own: saving, loading and tracing the reference trainer.

    python -m benchmarks.training SUBJECT HOW --workspace DIRECTORY

prints one JSON value: of `load` the seconds of one contender, of the others contender → seconds of each judged round.
The state is the reference trainer's own, all of it
registered: 41 million parameters in float32 with AdamW's moments, 496 MB, in 470 tensors. Each contender runs as
training code would call it, and is checked to have done its work, outside of the time that counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer imports it anyway, and here nobody is timed for it
from torch.nn import functional

from benchmarks.harness import in_turn, wall
from lastgood.location import locate
from lastgood.manifest import Expectations, JobDescription
from lastgood.publish import Published, StagedArtifact
from lastgood.replica.events import Timeline
from lastgood.replica.trace import TraceReader
from lastgood.replica.trainer.build import Training, build, fast_forward
from lastgood.replica.trainer.description import describe
from lastgood.replica.trainer.parallel import World
from lastgood.replica.trainer.report import HostCopy, Reporter, StepReport
from lastgood.replica.trainer.settings import Settings, parse_settings
from lastgood.restore.materialize import make_copy, open_scratch
from lastgood.run import Run, SoloGroup
from lastgood.state import Snapshot, WrittenArtifact

LARGE = ("--width", "512", "--layers", "13", "--heads", "8", "--context", "256", "--fast-forward", "100")
# A step of about 50 ms on one core, as the trainer takes it: four microbatches of eight samples.
TRACED = ("--width", "96", "--layers", "2", "--context", "64")
STEPS_A_ROUND = 20
LOADED = ("model", "optimizer")
PLAIN = "state.pt"
SAVED = "saved.json"
WORLD = World(rank=0, world_size=1, device=torch.device("cpu"))


class Job:
    """A reference trainer of one rank, built and registered, and its run.

    Args:
        root: Where its family goes; made here.
        shape: Arguments of the trainer's command line.
    """

    def __init__(self, root: Path, shape: Sequence[str]) -> None:
        root.mkdir()
        self.settings = _settings(root / "family", shape)
        self.training: Training = build(self.settings, WORLD)
        if self.settings.fast_forward:
            fast_forward(self.training, self.settings.fast_forward)
        self.run = Run.start(self.settings.family, SoloGroup(), allow_fresh=True)
        self.newest: Published | None = None

    def plain_state(self) -> dict[str, object]:
        """The same state as a script without lastgood saves it."""
        return {"model": self.training.model.state_dict(), "optimizer": self.training.optimizer.state_dict()}

    def publish(self) -> None:
        """Save and wait for the acknowledgement."""
        self.training.step += 1
        snapshot = self.training.registry.capture(self.training.step)
        staging = self.run.stage(self.training.step)
        written = _staged(snapshot.write(staging.payload))
        self.newest = self.run.publish(staging, written, job=self._job(snapshot), expectations=_expected(snapshot))

    def publish_in_background(self) -> None:
        """Save, and go on as soon as the state is copied."""
        self.training.step += 1
        snapshot = self.training.registry.capture(self.training.step, asynchronous=True)
        self.run.publish_in_background(
            self.run.stage(self.training.step),
            lambda payload: _staged(snapshot.write(payload)),
            job=self._job(snapshot),
            expectations=_expected(snapshot),
            then=self._acknowledge,
        )

    def artifacts(self) -> Path:
        """Where the newest generation lies."""
        assert self.newest is not None, "nothing was published"
        location = self.run.location
        return location.local_family / self.newest.generation.directory

    def _acknowledge(self, published: Published) -> None:
        self.newest = published

    def _job(self, snapshot: Snapshot) -> JobDescription:
        return describe(
            self.training,
            self.settings,
            WORLD,
            run="bench",
            components=snapshot.components,
            absent=snapshot.absent,
            explained=snapshot.explained,
        )


def _settings(family: Path, shape: Sequence[str]) -> Settings:
    return parse_settings(("--family", str(family), "--strategy", "single", "--workers", "0", *shape), {})


def save(workspace: Path, _: str) -> None:
    """What the contenders of `load` read: one generation, and the same state as a plain file."""
    job = Job(workspace / "root", LARGE)
    job.publish()
    torch.save(job.plain_state(), workspace / PLAIN)
    digests = {name: job.training.digests()[name] for name in LOADED}
    (workspace / SAVED).write_text(json.dumps({"generation": job.artifacts().name, "digests": digests}))


def load(workspace: Path, contender: str) -> float:
    """Seconds of one contender. A load happens once in a process, right after it built its model, so it does here."""
    saved = json.loads((workspace / SAVED).read_text())
    family = workspace / "root" / "family"
    generation = locate(f"{family}/{saved['generation']}")
    training = build(_settings(family, LARGE[: LARGE.index("--fast-forward")]), WORLD)

    def ours(directory: Path) -> None:
        report = training.registry.load(directory)
        assert report.loaded, report.findings

    def with_copy() -> None:
        with open_scratch(generation, workspace, keep=False, purpose="restore") as scratch:
            copy = make_copy(generation, scratch)
            assert copy.manifest is not None, copy.checks
            ours(copy.location.local_family / generation.require_generation().directory)

    def theirs(*, mmap: bool) -> None:
        state = torch.load(workspace / PLAIN, weights_only=True, mmap=mmap)
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])

    work: dict[str, Callable[[], None]] = {
        "ours": lambda: ours(family / saved["generation"]),
        "ours with copy": with_copy,
        "theirs": lambda: theirs(mmap=False),
        "theirs mapped": lambda: theirs(mmap=True),
    }
    seconds = wall(work[contender])
    found = training.digests()
    assert {name: found[name] for name in LOADED} == saved["digests"], "another state was loaded"
    return seconds


def publish(workspace: Path, rounds: str) -> dict[str, tuple[float, ...]]:
    job = Job(workspace / "root", LARGE)

    def timed(work: Callable[[], None]) -> float:
        seconds = wall(work)
        job.run.wait()
        shutil.rmtree(job.artifacts())  # only the newest needs to fit
        return seconds

    def theirs() -> float:
        path = workspace / "state.pt"

        def save() -> None:
            with path.open("xb") as file:
                torch.save(job.plain_state(), file)
                file.flush()
                os.fsync(file.fileno())

        seconds = wall(save)
        path.unlink()
        return seconds

    taken = in_turn(
        {
            "ours": lambda: timed(job.publish),
            "theirs": theirs,
            "ours in background": lambda: timed(job.publish_in_background),
        },
        int(rounds),
    )
    job.run.close()
    return taken


def trace(workspace: Path, rounds: str) -> dict[str, tuple[float, ...]]:
    pairs = int(rounds) * STEPS_A_ROUND
    job = Job(workspace / "root", TRACED)
    training = job.training
    reporter = Reporter(Timeline(), WORLD.device)
    reporter.started(job.run.location, job.run.incarnation, WORLD, {})
    batches = training.batches()

    tracing: list[float] = []

    def traced() -> None:
        begin_ns = time.monotonic_ns()
        losses, norm, ids = _step(job, batches)
        started = time.process_time()
        report = StepReport(
            step=training.step,
            begin_ns=begin_ns,
            numbers=HostCopy(torch.stack(losses).mean(), norm),
            learning_rates=training.learning_rates(),
            sample_ids=tuple(tuple(one.tolist()) for one in ids),
            draws=training.augmentation.take_draws(),
            optimizer_steps=training.optimizer_steps(),
            skipped=False,
            digests={},
        )
        reporter.step(report)
        tracing.append(time.process_time() - started)

    def untraced() -> None:
        _step(job, batches)
        training.augmentation.take_draws()  # or they would pile up

    # One round is one pair of steps: neighbours' bursts are longer than that, and meet both.
    taken = in_turn({"traced": lambda: _cpu(traced), "untraced": lambda: _cpu(untraced)}, pairs)
    steps = TraceReader(job.run.location.local_family).steps(job.run.incarnation, WORLD.rank)
    assert len(steps) == pairs + 1, f"a step left no line: {len(steps)}"
    return {**taken, "tracing": tuple(tracing)}


def _step(
    job: Job, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[list[torch.Tensor], torch.Tensor, list[torch.Tensor]]:
    training, losses, seen = job.training, [], []
    for ids, windows in itertools.islice(batches, job.settings.microbatches):
        tokens = training.augmentation(windows)
        logits = training.model(tokens[:, :-1])
        loss = functional.cross_entropy(logits, tokens[:, 1:].flatten())
        training.scaler.scale(loss / job.settings.microbatches).backward()
        losses.append(loss.detach())
        seen.append(ids)
    training.scaler.unscale_(training.optimizer)
    norm = torch.nn.utils.clip_grad_norm_(training.parameters, 1.0)
    training.scaler.step(training.optimizer)
    training.scaler.update()
    training.optimizer.zero_grad(set_to_none=True)
    training.scheduler.step()
    training.step += 1
    return losses, norm, seen


def _cpu(work: Callable[[], None]) -> float:
    """Seconds of CPU that a call takes: a step waits for nothing, so only neighbours would come in by the wall."""
    started = time.process_time()
    work()
    return time.process_time() - started


def _staged(written: Sequence[WrittenArtifact]) -> list[StagedArtifact]:
    return [StagedArtifact(path=one.path, component=one.component, rank=one.rank) for one in written]


def _expected(snapshot: Snapshot) -> Expectations:
    observed = snapshot.observation
    return Expectations(
        learning_rates=dict(observed.learning_rates),
        optimizer_steps=dict(observed.optimizer_steps),
        scalars=dict(observed.scalars),
        ranks=(observed.rank,),
    )


SUBJECTS: dict[str, Callable[[Path, str], object]] = {"save": save, "load": load, "publish": publish, "trace": trace}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training")
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("how", help="load: the contender; publish, trace: the rounds to judge; save: nothing")
    parser.add_argument("--workspace", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # as torchrun would set it
    json.dump(SUBJECTS[asked.subject](asked.workspace, asked.how), sys.stdout)


if __name__ == "__main__":
    # torchdata 0.11 calls a function that torch 2.13 deprecates; may go with the release that does not.
    warnings.filterwarnings("ignore", category=UserWarning, module="torchdata")
    main()
