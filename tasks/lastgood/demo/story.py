"""The demo, step by step: train, verify every save, restore, kill and recover, refuse damaged copies, sum up.

Everything here is the ordinary path: the reference trainer under torchrun, the three tiers as the command line calls
them, the public damage catalogue on copies. What must be true after each step is in `checks`; a step whose check fails
is reported and the demo fails.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lastgood.config import Objectives, ReplicaSettings
from lastgood.demo.checks import check_drill, check_nothing_left, check_refusals, check_restore, check_saves
from lastgood.drill import DrillResult, Fault, FaultKind, drill
from lastgood.errors import LastgoodError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location, locate
from lastgood.reasons import Reason
from lastgood.replica.contract import ReplicaEnvironment, render_command, replica_environ
from lastgood.replica.keeper import send_signal
from lastgood.replica.processes import ProcessIdentity, ReplicaProcess
from lastgood.restore.supervisor import RestoreResult, restore
from lastgood.testing.damage import CATALOGUE, Judge, Scene
from lastgood.verdict import Verdict
from lastgood.verify import verify_family, verify_generation

__all__ = ["DAMAGES", "DemoOutcome", "run_demo"]

FAMILY = "demo"
WORLD_SIZE = 2
STEPS, SAVE_EVERY = 40, 10
TRAINING_TIMEOUT = timedelta(minutes=4)
OBJECTIVES = Objectives(rpo_steps=2 * SAVE_EVERY, rto_seconds=120.0)
DAMAGES = ("shard_deleted", "byte_flipped", "active_pointer_lags", "format_version_newer")
"""The boundary faults: a missing shard, corrupt bytes, a stale pointer, another format version."""

TRAINER = (
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node={world_size}",
    "--max-restarts=3",
    "--monitor-interval=0.1",
    "-m",
    "lastgood.replica.trainer",
    "--allow-fresh",
    "--strategy=fsdp2",
    "--workers=1",
    f"--save-every={SAVE_EVERY}",
    "--step-delay=0.05",
    # The learning-rate schedule spans the whole course, so training and its replicas must be told the same length.
    "--steps=400",
)


@dataclass(kw_only=True)
class DemoOutcome:
    """What the demo saw.

    Args:
        problems: Everything that was not as it must be; empty means that the demo did what it says.
        verdicts: Tier 1, per generation.
        restored: Tier 2.
        drilled: Tier 3.
        refused: Verdict per damaged copy.
        seconds: Step → how long it took.
    """

    problems: list[str] = field(default_factory=list)
    verdicts: dict[GenerationId, Verdict] = field(default_factory=dict)
    restored: RestoreResult | None = None
    drilled: DrillResult | None = None
    refused: dict[str, Verdict] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def run_demo(directory: Path, tell: Callable[[str], None]) -> DemoOutcome:
    """Run the whole story under a directory; nothing that it started is left when it returns.

    Args:
        directory: Empty; holds the family, scratch copies and logs.
        tell: Hears of each event, a line at a time.
    """
    (directory / "runs").mkdir()
    story = _Story(
        directory=directory,
        location=locate(str(directory / "runs" / FAMILY)),
        settings=ReplicaSettings(
            command=TRAINER,
            directory=str(directory),
            world_size=WORLD_SIZE,
            drill_timeout_seconds=120.0,
        ),
        tell=tell,
    )
    outcome = story.outcome
    for step in (story.train, story.restore, story.drill, story.damage):
        begin = time.monotonic()
        try:
            outcome.problems.extend(step())
        except LastgoodError as error:
            outcome.problems.append(f"{step.__name__}: {error.message}")
        outcome.seconds[step.__name__] = time.monotonic() - begin
        if outcome.problems:
            # What follows would fail for the same cause.
            break
    return outcome


@dataclass(kw_only=True)
class _Story:
    """The steps, each returning its problems."""

    directory: Path
    location: Location
    settings: ReplicaSettings
    tell: Callable[[str], None]
    outcome: DemoOutcome = field(default_factory=DemoOutcome)

    def train(self) -> tuple[str, ...]:
        """A production run: not a replica. Tier 1 judges each save as it appears, while training goes on."""
        told = ReplicaEnvironment(family=self.location.family_uri, stop_step=STEPS)
        command = render_command(
            (*TRAINER, "--family={family}", "--stop-step={stop_step}"), told, world_size=WORLD_SIZE
        )
        home = self.directory / "home"
        home.mkdir()
        environment = replica_environ(told, base=os.environ, home=home, declared={})
        self.tell(f"training {WORLD_SIZE} ranks for {STEPS} steps, a save every {SAVE_EVERY}")
        seen: set[ProcessIdentity] = set()
        with ReplicaProcess.start(command, environment, self.directory, self.directory / "train.log") as trainer:
            deadline = time.monotonic() + TRAINING_TIMEOUT.total_seconds()
            while trainer.poll() is None and time.monotonic() < deadline:
                seen.update(trainer.descendants())
                self._verify_new()
                time.sleep(0.1)
            code = trainer.poll()
            tail = trainer.log_tail()
        self._verify_new()
        if code != 0:
            return (f"training ended with {code}: {tail}",)
        expected = list(range(SAVE_EVERY, STEPS + 1, SAVE_EVERY))
        return (
            *check_saves(expected, self.outcome.verdicts),
            *check_nothing_left([str(process.pid) for process in seen if send_signal(process, 0)]),
        )

    def _verify_new(self) -> None:
        family = Family(self.location)
        if not family.exists():
            return
        for generation in sorted(family.survey().candidates):
            if generation not in self.outcome.verdicts:
                verdict = family.verify(generation)
                self.outcome.verdicts[generation] = verdict
                self.tell(f"tier 1  step {generation.step:>3}  {verdict.outcome}")

    def restore(self) -> tuple[str, ...]:
        # The one before the newest: the live run's own trace of the steps after it is the control.
        generation = sorted(self.outcome.verdicts)[-2]
        self.tell(f"restoring step {generation.step} in {WORLD_SIZE} fresh processes and training on")
        begin, family = datetime.now(UTC), Family(self.location)
        result = restore(self.location.of(generation), self.settings, scratch=self.directory)
        self.outcome.restored = result
        family.keep(result.verdict, generation, begin, result.measurements)
        self.tell(f"tier 2  step {generation.step:>3}  {result.verdict.outcome}  {len(result.verdict.checks)} checks")
        for finding in result.verdict.findings[:5]:
            self.tell(f"        {finding.reason}: {finding.message}")
        return check_restore(result.verdict, last_good=family.survey().newest_proven, generation=generation)

    def drill(self) -> tuple[str, ...]:
        generation = max(self.outcome.verdicts)
        fault = Fault(kind=FaultKind.RANK, rank=WORLD_SIZE - 1, steps_after_save=SAVE_EVERY // 2)
        self.tell(f"drill: a disposable replica begins with a copy of step {generation.step}; {fault}")
        begin = datetime.now(UTC)
        result = drill(
            self.location.of(generation), self.settings, fault=fault, objectives=OBJECTIVES, scratch=self.directory
        )
        self.outcome.drilled = result
        Family(self.location).keep(result.verdict, generation, begin, result.measurements)
        self.tell(f"tier 3  step {generation.step:>3}  {result.verdict.outcome}")
        for finding in result.verdict.findings[:5]:
            self.tell(f"        {finding.reason}: {finding.message}")
        return check_drill(result.verdict, result.measurements.phases, rto_seconds=result.measurements.rto_seconds)

    def damage(self) -> tuple[str, ...]:
        expected: dict[str, Reason] = {}
        for name in DAMAGES:
            damage = CATALOGUE[name]
            expected[name] = damage.reason
            root = self.directory / f"copy-{name}"
            shutil.copytree(self.directory / "runs", root)
            scene = Scene(root=root, family=FAMILY, generation=max(self.outcome.verdicts), stranger=FAMILY)
            damage.apply(scene)
            if damage.judge is Judge.FAMILY:
                verdict = verify_family(scene.store, scene.keys)
            else:
                verdict = verify_generation(scene.store, scene.keys, scene.generation)
            self.outcome.refused[name] = verdict
            seen = f"{verdict.findings[0].reason}: {verdict.findings[0].message}" if verdict.findings else "no finding"
            self.tell(f"damage  {name:<22}  {verdict.outcome}  {seen}")
            shutil.rmtree(root)
        return check_refusals(expected, self.outcome.refused)


def summary(outcome: DemoOutcome) -> Mapping[str, str]:
    """The measured figures, for the closing table."""
    figures = {"saves verified (tier 1)": str(len(outcome.verdicts))}
    if outcome.restored is not None:
        spent = outcome.restored.measurements
        figures["restore (tier 2)"] = ", ".join(
            f"{name} {value:.2f} s"
            for name, value in (
                ("discovery", spent.discovery_seconds),
                ("load", spent.load_seconds),
                ("first step", spent.first_step_seconds),
            )
            if value is not None
        )
    if outcome.drilled is not None:
        measured = outcome.drilled.measurements
        figures["RPO loss (tier 3)"] = f"{measured.rpo_loss_steps} steps"
        figures["RTO (tier 3)"] = f"{measured.rto_seconds or 0.0:.2f} s"
        figures |= {f"  {phase}": f"{value:.3f} s" for phase, value in measured.phases.items()}
    figures["damaged copies refused"] = (
        f"{sum(v.outcome == 'fail' for v in outcome.refused.values())} of {len(DAMAGES)}"
    )
    figures |= {f"time for {title}": f"{spent:.0f} s" for title, spent in outcome.seconds.items()}
    return figures
