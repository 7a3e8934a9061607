"""A replica without torch: one process whose ranks are threads, training a number.

    python fake_replica.py --family URI --world-size N --stop-step N [--save-every N] [--misbehave HOW]

It goes through the ordinary start, load, trace and publish of lastgood, so that a restore of it is a restore, in a
second. Each rank holds a weight, a momentum, a random stream and a place in its data; the rate falls with the step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from lastgood.digest import hash_bytes
from lastgood.errors import LastgoodError
from lastgood.job import current_environment
from lastgood.manifest import (
    Component,
    ComponentPromise,
    Counter,
    CounterMeaning,
    Determinism,
    Expectations,
    Identity,
    JobDescription,
    Purpose,
    RankExpectations,
    SampleIds,
    Topology,
)
from lastgood.publish import StagedArtifact
from lastgood.replica.contract import ReplicaEnvironment
from lastgood.replica.trace import (
    TRACE_VERSION,
    Discovered,
    Loaded,
    Mark,
    Phase,
    Refused,
    Saved,
    Span,
    Started,
    Step,
    Stopped,
    StopReason,
    Timeline,
    TraceWriter,
    host_name,
    measured,
)
from lastgood.run import Run
from lastgood.verdict import Finding, Reason

MICROBATCHES = 4
LINGER_SECONDS = "6131"
"""So odd that whoever sleeps as long is ours."""


class ThreadGroup:
    """Ranks that are threads of one process."""

    def __init__(self, rank: int, world_size: int, barrier: threading.Barrier, box: dict[str, bytes]) -> None:
        self.rank, self.world_size, self._barrier, self._box = rank, world_size, barrier, box

    def broadcast(self, data: bytes | None) -> bytes:
        if data is not None:
            self._box["data"] = data
        self._barrier.wait()
        return self._box["data"]


class Training:
    """One rank's state, and what an update does to it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.step = 0
        self.weight = 1.0 + rank
        self.momentum = 0.0
        self.draws = random.Random(rank)
        self.consumed = 0

    def rate(self) -> float:
        return 0.1 / (1 + self.step)

    def ids(self, count: int) -> tuple[int, ...]:
        return tuple(1000 * self.rank + self.consumed + offset for offset in range(count))

    def update(self) -> dict[str, Any]:
        rate, ids = self.rate(), self.ids(MICROBATCHES)
        noise = self.draws.random()
        gradient = self.weight - noise
        self.momentum = 0.9 * self.momentum + gradient
        self.weight -= rate * self.momentum
        self.consumed += MICROBATCHES
        self.step += 1
        return {"loss": gradient**2, "norm": abs(gradient), "rate": rate, "ids": ids, "noise": noise}

    def expectations(self) -> Expectations:
        peek = random.Random()
        peek.setstate(self.draws.getstate())
        return Expectations(
            learning_rates={"default": self.rate()},
            optimizer_steps={"default": self.step},
            scalars={"scheduler.last_epoch": self.step, "data.consumed": self.consumed},
            ranks=(
                RankExpectations(
                    rank=self.rank,
                    sample_ids=SampleIds(ids=self.ids(4 * MICROBATCHES)),
                    rng_draws={"python": (peek.random(), peek.random())},
                    tensor_digests={
                        "model.weight": str(hash_bytes(repr(self.weight).encode())),
                        "optimizer.momentum": str(hash_bytes(repr(self.momentum).encode())),
                    },
                ),
            ),
        )


def write(training: Training, payload: Path) -> list[StagedArtifact]:
    own = f"rank-{training.rank:05d}.json"
    files: list[tuple[str, Component, int | None, Any]] = [
        (f"model/{own}", Component.MODEL, training.rank, training.weight),
        (f"optimizer/{own}", Component.OPTIMIZER, training.rank, [training.momentum, training.step]),
        (f"rng/{own}", Component.RNG, training.rank, training.draws.getstate()),
    ]
    if training.rank == 0:
        files += [
            ("scheduler.json", Component.SCHEDULER, None, training.step),
            ("scaler.json", Component.SCALER, None, 1.0),
            ("data.json", Component.DATA, None, training.consumed),
            ("config.json", Component.CONFIG, None, {"microbatches": MICROBATCHES}),
        ]
    for path, _, _, value in files:
        (payload / path).parent.mkdir(parents=True, exist_ok=True)
        (payload / path).write_text(json.dumps(value))
    return [StagedArtifact(path=path, component=component, rank=rank) for path, component, rank, _ in files]


def load(training: Training, directory: Path) -> None:
    own = f"rank-{training.rank:05d}.json"
    training.weight = json.loads((directory / "model" / own).read_text())
    training.momentum, training.step = json.loads((directory / "optimizer" / own).read_text())
    version, words, gauss = json.loads((directory / "rng" / own).read_text())
    training.draws.setstate((version, tuple(words), gauss))
    training.consumed = json.loads((directory / "data.json").read_text())


def job(step: int, world_size: int) -> JobDescription:
    present = [one for one in Component if one not in (Component.EMA, Component.OTHER)]
    return JobDescription(
        run="fake",
        counters=(Counter(name="optimizer_step", value=step, names=CounterMeaning.COMPLETED),),
        code="fake",
        configuration="fake",
        environment=current_environment(),
        topology=Topology(world_size=world_size, strategy="threads", layout={"data_parallel": world_size}),
        model=Identity(name="a number", revision="1"),
        tokenizer=None,
        dataset=Identity(name="numbers", revision="1"),
        purpose=Purpose.RESUMABLE,
        promises=tuple(ComponentPromise(component=one, determinism=Determinism.EXACT) for one in present),
    )


class Life:
    """One life of one rank."""

    def __init__(self, asked: argparse.Namespace, group: ThreadGroup) -> None:
        self.asked, self.group = asked, group
        self.training = Training(group.rank)
        self.timeline = Timeline()

    def live(self) -> int:
        asked, group = self.asked, self.group
        with self.timeline.phase(Phase.DISCOVER):
            run = Run.start(asked.family, group, allow_fresh=True, patience=timedelta(seconds=20))
        if asked.misbehave == "no-trace":
            return 0
        family = run.location.store.local_directory(run.location.keys.family)
        with TraceWriter(family, run.incarnation, group.rank) as self.trace:
            self.begin(run)
            if run.resumed is not None and not self.load(run):
                return 1
            while self.training.step < asked.stop_step:
                self.step()
                if self.training.step % asked.save_every == 0 or self.training.step == asked.stop_step:
                    self.save(run)
            run.close()
            self.trace.write(Stopped(at=Mark.now(), spans=(), reason=StopReason.FINISHED, step=self.training.step))
        return 0

    def begin(self, run: Run) -> None:
        resumed = run.resumed
        self.trace.write(
            Started(
                at=Mark.now(),
                spans=(),
                version=TRACE_VERSION,
                incarnation=run.incarnation,
                rank=self.group.rank,
                world_size=self.group.world_size,
                pid=os.getpid(),
                host=host_name(),
                lag_steps=0,
                settings={},
            )
        )
        self.trace.write(
            Discovered(
                at=Mark.now(),
                spans=self.timeline.take(),
                generation=str(resumed.generation) if resumed else None,
                step=resumed.generation.step if resumed else None,
            )
        )

    def load(self, run: Run) -> bool:
        assert run.resumed is not None
        misbehave = self.asked.misbehave
        if misbehave == "refuse":
            finding = Finding(reason=Reason.SHAPE_MISMATCH, message="shape mismatch: weight", offender="model.weight")
            self.trace.write(Refused(at=Mark.now(), spans=(), findings=(finding,), message="not loaded"))
            return False
        if misbehave == "crash":
            os.abort()
        if misbehave == "hang":
            subprocess.Popen(["sleep", LINGER_SECONDS], start_new_session=True)
            time.sleep(600)
        with self.timeline.phase(Phase.LOAD):
            load(self.training, run.resumed.directory)
        if misbehave == "reset-rng" and self.group.rank == 1:
            self.training.draws = random.Random(99)
        observed = self.training.expectations()
        self.trace.write(
            Loaded(
                at=Mark.now(),
                spans=self.timeline.take(),
                generation=str(run.resumed.generation),
                step=self.training.step,
                keys=dict.fromkeys(("model", "optimizer", "rng", "data", "scheduler", "scaler"), 1),
                expectations=observed.ranks[0],
                learning_rates=observed.learning_rates,
                optimizer_steps=observed.optimizer_steps,
                scalars=observed.scalars,
            )
        )
        return True

    def step(self) -> None:
        begin = time.monotonic_ns()
        done = self.training.update()
        loss = float("nan") if self.asked.misbehave == "nan" else done["loss"]
        self.trace.write(
            Step(
                at=Mark.now(),
                spans=(Span(phase=Phase.STEP, begin_ns=begin, end_ns=time.monotonic_ns()),),
                step=self.training.step,
                loss=measured(loss),
                grad_norm=done["norm"],
                learning_rates={"default": done["rate"]},
                sample_ids=tuple((one,) for one in done["ids"]),
                draws={"python": (done["noise"],)},
                optimizer_steps={"default": self.training.step},
            )
        )

    def save(self, run: Run) -> None:
        staging = run.stage(self.training.step)
        expectations = self.training.expectations()
        if self.asked.misbehave == "fill-disk":
            (staging.payload / "fill").write_bytes(bytes(self.asked.fill_bytes))
        published = run.publish(
            staging,
            write(self.training, staging.payload),
            job=job(self.training.step, self.group.world_size),
            expectations=expectations,
        )
        if self.asked.misbehave != "no-save":
            self.trace.write(
                Saved(at=Mark.now(), spans=(), generation=str(published.generation), step=self.training.step)
            )


def main() -> int:
    told = ReplicaEnvironment.from_environ(os.environ)
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", default=told.family)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--stop-step", type=int, default=told.stop_step)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--fill-bytes", type=int, default=0)
    parser.add_argument("--misbehave", default="")
    asked = parser.parse_args()
    print(f"fake replica of {asked.world_size} ranks")
    if asked.misbehave == "linger":
        subprocess.Popen(["sleep", LINGER_SECONDS], start_new_session=True)
    if asked.misbehave == "tell-secret":
        print(f"token is {os.environ['FAKE_TOKEN']}", flush=True)
        return 3
    barrier = threading.Barrier(asked.world_size)
    box: dict[str, bytes] = {}
    results: dict[int, int] = {}

    def live(rank: int) -> None:
        try:
            results[rank] = Life(asked, ThreadGroup(rank, asked.world_size, barrier, box)).live()
        except LastgoodError as error:
            print(f"rank {rank}: {error.message}", file=sys.stderr)
            results[rank] = error.exit_code

    ranks = [threading.Thread(target=live, args=(rank,)) for rank in range(asked.world_size)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    return max((results.get(rank, 70) for rank in range(asked.world_size)), default=70)


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stdout.flush()
    os._exit(code)
