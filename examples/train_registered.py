"""A small MLP with AdamW and a schedule, all of it registered: strict loads, an audit, and restores that pass.

    python examples/train_registered.py runs/registered --steps 100

Run it, kill it, run it again. What lastgood adds is marked with `# lastgood`. For several ranks: hand `TorchGroup()` of
`lastgood.state.group` to `Run.start`, wrap the model before it is registered, tell `RunTrace.of` its `rank` and
`world_size`, and `describe_job` a topology; the rest stays.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from lastgood.errors import ResumeRefused
from lastgood.identity import GenerationId
from lastgood.job import compare_jobs, content_id, describe_job
from lastgood.manifest import Component, Identity, JobDescription
from lastgood.replica.contract import ReplicaEnvironment
from lastgood.replica.events import Phase, StopReason
from lastgood.replica.tracing import RunTrace
from lastgood.run import ResumedGeneration, Run, SoloGroup
from lastgood.state import CursorSampler, RankIdentity, Registry

SAVE_EVERY = 10
BATCH = 16
CONFIGURATION = {"hidden": 16, "learning_rate": 0.01, "batch": BATCH}
NOT_USED = {Component.SCALER: "float32 throughout", Component.ACCUMULATION: "every microbatch is a step"}


class Trainer:
    """Everything whose value changes the next step, and the registry that knows all of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        inputs = torch.randn(512, 8)
        identity = RankIdentity.current()  # lastgood
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=1000)
        self.cursor = CursorSampler(len(inputs), global_batch=BATCH, identity=identity)  # lastgood: knows its place
        data = TensorDataset(torch.arange(len(inputs)), inputs, inputs.sum(dim=1, keepdim=True))
        self.loader: StatefulDataLoader[tuple[torch.Tensor, ...]] = StatefulDataLoader(
            data, batch_size=BATCH, sampler=self.cursor
        )
        self.registry = registry = Registry(identity)  # lastgood, to the end
        registry.model(self.model)
        registry.optimizer(self.optimizer, self.model)
        registry.scheduler(self.scheduler)
        registry.rng()
        registry.data(self.cursor, loader=self.loader)
        registry.configuration(CONFIGURATION)
        registry.topology("single", {})
        for component, why in NOT_USED.items():
            registry.absent(component, why)
        registry.audit(roots=[self])

    def train_step(self, sample_ids: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
        """One update; what is returned is what a restore compares with this run."""
        rates = self.rates()
        loss = (self.model(inputs) - targets).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        updates = int(self.optimizer.state[next(self.model.parameters())]["step"])
        return {
            "loss": loss.item(),
            "grad_norm": norm.item(),
            "learning_rates": rates,
            "sample_ids": (tuple(sample_ids.tolist()),),  # one tuple a microbatch
            "optimizer_steps": {"group-0": updates},
        }

    def rates(self) -> dict[str, float]:
        """Group → the rate of the next update, under the names that the registry gives to groups without one."""
        return {f"group-{number}": group["lr"] for number, group in enumerate(self.optimizer.param_groups)}

    def describe(self, step: int) -> JobDescription:
        """What the manifest says of this job."""
        with open(__file__, "rb") as source:
            code = content_id(source.read())
        return describe_job(
            step,
            run="registered",
            code=code,
            configuration=content_id(repr(CONFIGURATION).encode()),
            model=Identity(name="mlp", revision="8-16-1"),
            dataset=Identity(name="sums", revision="512 of seed 0"),
            saved=self.registry.components,
            absent=NOT_USED,
            inexact=None,  # measured: one thread on a CPU repeats itself bit for bit (tests/test_examples.py)
        )

    def load(self, resumed: ResumedGeneration, trace: RunTrace) -> int:
        """Load strictly or refuse, and return the step that is completed."""  # lastgood
        step = resumed.manifest.step
        keys: Mapping[str, int] = {}
        with trace.timeline.phase(Phase.LOAD):
            findings, notes = compare_jobs(resumed.manifest.job, self.describe(step))
            if not findings:
                report = self.registry.load(resumed.directory)
                findings, notes = report.findings, (*notes, *report.notes)
                keys = {part.value: count for part, count in report.keys.items()}
        observed = None if findings else self.registry.observe(step).expectations
        trace.loaded(resumed, keys=keys, observed=observed, findings=findings, notes=notes)
        if findings:
            trace.refused(findings, findings[0].message)
            raise ResumeRefused(f"not loaded: {resumed.generation}: {findings[0].message}", findings=findings)
        return step

    def save(self, run: Run, step: int) -> GenerationId:
        """Publish, and return the generation that is durable now."""  # lastgood
        snapshot = self.registry.capture(step)
        staging = run.stage(step)
        written = snapshot.write(staging.payload)
        expectations = snapshot.observation.expectations
        return run.publish(staging, written, job=self.describe(step), expectations=expectations).generation


def main() -> None:
    """Learn to add."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="?", help="<root>/<family>; the root must exist")
    parser.add_argument("--steps", type=int, default=100)
    asked = parser.parse_args()
    told = ReplicaEnvironment.from_environ(os.environ)  # lastgood: what a restore or a drill asks for
    stop_step = asked.steps if told.stop_step is None else told.stop_step
    family = told.family or asked.family

    trainer = Trainer()
    run = Run.start(family, SoloGroup(), resume=told.resume, allow_fresh=True)  # lastgood
    with RunTrace.of(run) as trace:  # lastgood
        step = trainer.load(run.resumed, trace) if run.resumed is not None else 0
        while step < stop_step:
            for batch in trainer.cursor.follow(trainer.loader):  # lastgood: counts what was handed out
                reported = trainer.train_step(*batch)
                step += 1
                trace.step(step, **reported)  # lastgood
                if step % SAVE_EVERY == 0 or step == stop_step:
                    trace.saved(trainer.save(run, step))
                if step == stop_step:
                    break
        trace.stopped(StopReason.FINISHED, step)
    run.close()  # lastgood


if __name__ == "__main__":
    main()
