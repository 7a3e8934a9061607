"""One rank of `fake_job`: the ordinary start, trace and publish of lastgood over numbers instead of tensors."""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from datetime import timedelta
from pathlib import Path

from lastgood.errors import LastgoodError
from lastgood.identity import GenerationId
from lastgood.manifest import Component
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
    process_started_ns,
)
from lastgood.run import Run
from lastgood.testing.build import Recipe, build_job
from lastgood.verdict import Finding, Reason

STEP_SECONDS = 0.01
PATIENCE = timedelta(seconds=30)
ODD_SECONDS = "7177"
"""So odd that whoever sleeps as long is ours."""
OWN = (Component.MODEL, Component.OPTIMIZER, Component.RNG)
SHARED = (Component.SCHEDULER, Component.SCALER, Component.DATA, Component.CONFIG)


class FileGroup:
    """Ranks that meet in a directory of this attempt."""

    def __init__(self, rank: int, world_size: int, place: Path) -> None:
        self.rank, self.world_size, self._place = rank, world_size, place

    def broadcast(self, data: bytes | None) -> bytes:
        told = self._place / "told"
        if data is not None:
            (self._place / "telling").write_bytes(data)
            (self._place / "telling").rename(told)
        while not told.exists():
            time.sleep(0.002)
        return told.read_bytes()


class FakeRank:
    def __init__(self, asked: argparse.Namespace, timeline: Timeline) -> None:
        self.asked, self.timeline = asked, timeline
        self.number = int(os.environ["RANK"])
        self.misbehave = asked.rank
        self.step = 0

    def live(self) -> int:
        asked = self.asked
        told = ReplicaEnvironment.from_environ(os.environ)
        assert told.is_replica
        assert told.family is not None
        place = Path(os.environ["MEETING"])
        launcher = {"TORCHELASTIC_RESTART_COUNT": os.environ["TORCHELASTIC_RESTART_COUNT"]}
        begin_ns = time.monotonic_ns()
        run = Run.start(
            told.family,
            FileGroup(self.number, asked.world_size, place),
            resume=asked.resume or told.resume,
            allow_fresh=True,
            launcher=launcher,
            patience=PATIENCE,
        )
        discovered_ns = time.monotonic_ns()
        if run.incarnation > 1 and asked.once_dead:
            self.misbehave = asked.once_dead
        family = run.location.store.local_directory(run.location.keys.family)
        with TraceWriter(family, run.incarnation, self.number) as self.trace:
            self.started(run)
            self.timeline.add(Phase.DISCOVER, begin_ns, discovered_ns)
            self.discovered(run)
            if run.resumed is not None and not self.load(run):
                return 1
            return self.train(run)

    def train(self, run: Run) -> int:
        asked = self.asked
        while self.step < asked.steps:
            begin_ns = time.monotonic_ns()
            time.sleep(STEP_SECONDS)
            self.step += 1
            if self.misbehave == "hangs" and self.step > 3:
                time.sleep(1000)
            self.stepped(begin_ns)
            if self.misbehave == "crashes":
                return self.crash()
            if self.step % asked.save_every == 0 and self.misbehave != "never saves":
                self.save(run)
                if self.misbehave == "hangs after its save":
                    time.sleep(1000)
        run.close()
        self.trace.write(Stopped(at=Mark.now(), spans=(), reason=StopReason.FINISHED, step=self.step))
        return 0

    def crash(self) -> int:
        """Once every rank has stepped, for before that the job would not have recovered."""
        place = Path(os.environ["MEETING"])
        (place / f"stepped-{self.number}").touch()
        while not all((place / f"stepped-{number}").exists() for number in range(self.asked.world_size)):
            time.sleep(0.002)
        return 5

    def started(self, run: Run) -> None:
        self.trace.write(
            Started(
                at=Mark.now(),
                spans=self.take(),
                version=TRACE_VERSION,
                incarnation=run.incarnation,
                rank=self.number,
                world_size=self.asked.world_size,
                pid=self.asked.wrong_pid or os.getpid(),
                host=host_name(),
                lag_steps=0,
                settings={},
            )
        )

    def discovered(self, run: Run) -> None:
        generation = run.resumed.generation if run.resumed else None
        if self.misbehave == "resumes an older one":
            assert generation is not None
            generation = GenerationId(generation.incarnation, generation.step - self.asked.save_every)
        if self.misbehave == "starts afresh":
            generation = None
        self.step = generation.step if generation is not None else 0
        self.trace.write(
            Discovered(
                at=Mark.now(),
                spans=self.take(),
                generation=str(generation) if generation else None,
                step=self.step if generation else None,
            )
        )

    def load(self, run: Run) -> bool:
        assert run.resumed is not None
        if self.misbehave == "refuses":
            finding = Finding(reason=Reason.SHAPE_MISMATCH, message="shape mismatch: weight", offender="model.weight")
            message = f"weight does not fit {os.environ.get('FAKE_TOKEN', '')}".strip()
            print(message, flush=True)
            self.trace.write(Refused(at=Mark.now(), spans=(), findings=(finding,), message=message))
            return False
        with self.timeline.phase(Phase.LOAD):
            assert (run.resumed.directory / f"model/rank-{self.number:05d}").exists()
        if self.misbehave == "overlaps":
            now = time.monotonic_ns()
            self.timeline.add(Phase.BUILD, now - 5 * 10**7, now)
        self.trace.write(
            Loaded(
                at=Mark.now(),
                spans=self.take(),
                generation=str(run.resumed.generation),
                step=self.step,
                keys={},
                expectations=None,
                learning_rates={},
                optimizer_steps={},
                scalars={},
            )
        )
        return True

    def stepped(self, begin_ns: int) -> None:
        at = Mark.now()
        self.timeline.add(Phase.STEP, begin_ns, at.monotonic_ns)
        self.trace.write(
            Step(at=at, spans=self.take(), step=self.step, loss=0.5, grad_norm=1.0, learning_rates={"default": 0.1})
        )

    def save(self, run: Run) -> None:
        begin_ns = time.monotonic_ns()
        staging = run.stage(self.step)
        time.sleep(self.asked.save_seconds)
        own = [(f"{one.value}/rank-{self.number:05d}", one, self.number) for one in OWN]
        shared = [(one.value, one, None) for one in SHARED] if self.number == 0 else []
        artifacts = [StagedArtifact(path=path, component=one, rank=rank) for path, one, rank in (*own, *shared)]
        for artifact in artifacts:
            (staging.payload / artifact.path).parent.mkdir(exist_ok=True)
            (staging.payload / artifact.path).write_text(f"{artifact.path} {self.step}")
        job = build_job(run.location.keys.family, self.step, Recipe(world_size=self.asked.world_size))
        published = run.publish(staging, artifacts, job=job)
        if self.misbehave == "spoils its save" and self.number == 0:
            generation = run.location.keys.artifacts(published.generation)
            model = run.location.store.local_directory(generation) / "model" / "rank-00001"
            model.write_bytes(bytes(model.stat().st_size))
        self.timeline.add(Phase.SAVE, begin_ns, time.monotonic_ns())
        self.trace.write(Saved(at=Mark.now(), spans=self.take(), generation=str(published.generation), step=self.step))

    def take(self) -> tuple[Span, ...]:
        spans = self.timeline.take()
        return () if self.misbehave == "reports no phases" else spans


def live(asked: argparse.Namespace, began_ns: int) -> int:
    timeline = Timeline()
    timeline.add(Phase.LAUNCH, min(process_started_ns(), began_ns), began_ns)
    timeline.add(Phase.IMPORT, began_ns, time.monotonic_ns())
    if asked.rank == "leaves a child":
        subprocess.Popen(["sleep", ODD_SECONDS], start_new_session=True)
    try:
        return FakeRank(asked, timeline).live()
    except LastgoodError as error:
        print(f"rank {os.environ['RANK']}: {error.message}", flush=True)
        return error.exit_code
