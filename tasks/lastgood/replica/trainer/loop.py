"""The training loop: resume, step, save, stop.

Decides the order of events that a resume depends on; what is trained is `build`'s, how is `step`'s, what is said is
`report`'s. Rules:

- Everything is built, registered and audited before the run claims an incarnation; the claim comes before discovery,
  discovery before the load, the load before the first draw.
- A save is taken between two steps, when the accumulation window is closed and the schedule already stands at the next
  rate; what is expected of a restore is observed before anything is serialised.
- A finding ends the rank before the first step; training never goes on from a state that was only partly restored.
- The last step is always saved, unless it was what this life began with.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed

from lastgood.errors import PublishError, ResumeRefused, UsageError
from lastgood.job import compare_jobs
from lastgood.manifest import Component, Expectations, JobDescription
from lastgood.publish import Published
from lastgood.replica.events import Phase, StopReason
from lastgood.replica.trainer.build import Training, fast_forward
from lastgood.replica.trainer.description import describe
from lastgood.replica.trainer.faults import Fault, FaultKind
from lastgood.replica.trainer.parallel import World
from lastgood.replica.trainer.report import HostCopy, Reporter, StepReport
from lastgood.replica.trainer.settings import Settings
from lastgood.replica.trainer.step import Batches, train_step
from lastgood.run import ResumedGeneration, Run
from lastgood.state import Snapshot

__all__ = ["Loop"]


class Loop:
    """One life of one rank, after its run has started.

    Args:
        training: Built, registered and audited.
        settings: What was asked for.
        world: This rank among the others.
        run: Claimed and decided.
        reporter: Its trace is open, unless the contract says that there is none.
        fault: How to spoil every save, for negative controls.
    """

    def __init__(
        self,
        training: Training,
        settings: Settings,
        world: World,
        run: Run,
        reporter: Reporter,
        fault: Fault | None = None,
    ) -> None:
        if fault is not None and settings.asynchronous:
            raise UsageError("a fault spoils foreground saves only: leave out --asynchronous")
        self.training = training
        self.run = run
        self._settings = settings
        self._world = world
        self._reporter = reporter
        self._fault = fault
        self._lineage = secrets.token_hex(8)
        self._saved_step: int | None = None
        self._acknowledged: deque[Published] = deque()

    def begin(self) -> None:
        """Stand where this life begins: at the resumed step, or at the first one.

        Raises:
            ResumeRefused: The checkpoint does not fit what is running, or did not load whole.
        """
        if self.run.resumed is not None:
            self._load(self.run.resumed)
        elif self._settings.fast_forward:
            fast_forward(self.training, self._settings.fast_forward)
        if self._settings.save_first and self.run.resumed is None:
            self._save(None)

    def train(self) -> None:
        """Step until the stop step, saving on the way and at the end.

        Raises:
            Fenced: A newer incarnation exists.
            PublishError: A save was not published.
        """
        settings, training = self._settings, self.training
        with ExitStack() as stack:
            batches = training.batches()
            stack.callback(batches.close)  # ends the loader's workers
            while training.step < settings.stop_step:
                saves = self._saves(training.step + 1)
                before = self._capture_before() if saves else None
                report = self.step(batches)
                self._acknowledge()
                self._reporter.step(report)
                if saves:
                    self._save(before)
        self.run.close()
        self._acknowledge()
        self._reporter.stopped(StopReason.FINISHED, training.step)

    def step(self, batches: Batches) -> StepReport:
        """Train one step and say what it did."""
        begin_ns = time.monotonic_ns()
        training, every = self.training, self._settings.digest_every
        updates, rates = training.updates, training.learning_rates()
        scale = training.scaler.get_scale() if self._world.device.type == "cpu" else None
        window = train_step(training, self._settings, self._world, batches)
        return StepReport(
            step=training.step,
            begin_ns=begin_ns,
            numbers=HostCopy(torch.stack(window.losses).mean(), window.grad_norm),
            learning_rates=rates,
            sample_ids=tuple(tuple(ids.tolist()) for ids in window.sample_ids),
            draws=training.augmentation.take_draws(),
            optimizer_steps=training.optimizer_steps(),
            skipped=training.updates == updates,
            digests=training.digests() if every and training.step % every == 0 else {},
            scale=scale,
        )

    def _saves(self, step: int) -> bool:
        every = self._settings.save_every
        return step == self._settings.stop_step or (every > 0 and step % every == 0)

    # Loading and saving

    def _load(self, resumed: ResumedGeneration) -> None:
        begin_ns = time.monotonic_ns()
        job = resumed.manifest.job
        findings, notes = compare_jobs(job, self._describe(None))
        keys: Mapping[Component, int] = {}
        observed: Expectations | None = None
        if not findings:
            report = self.training.registry.load(
                resumed.directory, allow_topology_change=self._settings.allow_topology_change
            )
            findings, notes, keys = report.findings, (*notes, *report.notes), report.keys
        if not findings:
            self.training.step = self._saved_step = resumed.manifest.step
            self._lineage = job.run
            observed = self.training.registry.observe(resumed.manifest.step).expectations
        self._reporter.timeline.add(Phase.LOAD, begin_ns, time.monotonic_ns())
        self._reporter.loaded(resumed, keys, observed, findings, notes)
        if findings:
            message = f"checkpoint not loaded: {resumed.generation}: {findings[0].message} ({len(findings)} findings)"
            self._reporter.refused(findings, message)
            raise ResumeRefused(message, findings=findings, hint=findings[0].hint)

    def _save(self, before: Path | None) -> None:
        training = self.training
        if training.step == self._saved_step:
            return
        begin_ns = time.monotonic_ns()
        snapshot = training.registry.capture(training.step, asynchronous=self._settings.asynchronous)
        job = self._describe(snapshot)
        expectations = snapshot.observation.expectations
        staging = self.run.stage(training.step)
        if self._settings.asynchronous:
            self.run.publish_in_background(
                staging, snapshot.write, job=job, expectations=expectations, then=self._acknowledged.append
            )
        else:
            try:
                written = snapshot.write(staging.payload)
            except OSError as error:
                self.run.abandon(staging, str(error))
                raise PublishError(f"cannot write step {training.step}: {staging.payload}: {error}") from error
            if self._fault is not None:
                written = self._fault.spoil(
                    staging.payload, written, before=before, rank=self._world.rank, barrier=_barrier
                )
                if before is not None:
                    shutil.rmtree(before)
            published = self.run.publish(staging, written, job=job, expectations=expectations)
            self._acknowledged.append(published)
        self._saved_step = training.step
        self._reporter.saving(begin_ns)
        self._acknowledge()

    def _acknowledge(self) -> None:
        """Report what was committed, on this thread: the trace belongs to it."""
        while self._acknowledged:
            self._reporter.saved(self._acknowledged.popleft().generation)

    def _capture_before(self) -> Path | None:
        """For a stale save: what this rank would write before the step that the save will name."""
        if self._fault is None or self._fault.kind is not FaultKind.STALE:
            return None
        directory = Path(tempfile.mkdtemp(prefix="lastgood-stale-"))
        self.training.registry.capture(self.training.step + 1).write(directory)
        return directory

    def _describe(self, snapshot: Snapshot | None) -> JobDescription:
        components = self.training.registry.components
        return describe(
            self.training,
            self._settings,
            self._world,
            run=self._lineage,
            components=components if self._fault is None else self._fault.promised(components),
            absent=snapshot.absent if snapshot else (),
            explained=snapshot.explained if snapshot else (),
        )


def _barrier() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
