"""The demo, step by step: train through a kill, see every save judged, restore, drill, refuse damaged copies, report.

Everything here is the ordinary path, on a directory or in a bucket (`place`). The reference trainer runs under torchrun
and knows no server; a rank of it is killed, and it resumes from what it had saved. A run of the gate starts because its
COMMIT appeared, in a bucket because the bucket said so; the restore and the drill are runs of their deployments on
their pools; the damages are those of the public catalogue, on copies that lie where the family lies. What must be true
after each step is in `checks`; a step whose check fails is reported and the demo fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lastgood import documents
from lastgood.errors import LastgoodError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location, locate
from lastgood.markers import ResumeRecord
from lastgood.reasons import Reason
from lastgood.records import Record, newest_record
from lastgood.replica.contract import ReplicaEnvironment, render_command, replica_environ
from lastgood.replica.keeper import descendants, send_signal
from lastgood.replica.processes import ProcessIdentity, ReplicaProcess
from lastgood.replica.shipping import traces_at_hand
from lastgood.replica.trace import TraceReader
from lastgood.stores import LocalStore
from lastgood.testing.damage import CATALOGUE, Judge, Scene
from lastgood.verdict import Outcome, Tier, Verdict
from lastgood.verify import verify_family, verify_generation
from lastgood_prefect.demo.checks import (
    check_announced,
    check_drill,
    check_nothing_left,
    check_reading,
    check_recovery,
    check_refusals,
    check_report,
    check_restore,
    check_run,
    check_saves,
    check_trainer,
)
from lastgood_prefect.demo.pipeline import FlowRun, Pipeline
from lastgood_prefect.demo.place import Place, StoreKind, bring, open_place

__all__ = ["DAMAGES", "DemoOutcome", "demo_running", "summary"]

FAMILY = "demo"
WORLD_SIZE = 2
STEPS, SAVE_EVERY = 40, 10
TRAINING_TIMEOUT = timedelta(minutes=4)
JUDGED_TIMEOUT = timedelta(minutes=2)
"""From the end of training until the last save is judged."""
LOOK_SECONDS = 0.25
FIRST_LIFE, KILLED_RANK = 1, 1
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

CONFIGURATION = f"""\
[families.{FAMILY}]
root = ROOT

[families.{FAMILY}.replica]
command = {json.dumps([*TRAINER, "--family={family}", "--stop-step={stop_step}"])}
world_size = {WORLD_SIZE}
drill_timeout_seconds = 120.0

[families.{FAMILY}.objectives]
rpo_steps = {2 * SAVE_EVERY}
rto_seconds = 120.0
proven_generations = 1            # two, for a job that lasts longer than a few minutes
creation_ratio = 0.5              # of a handful of saves, the kill may cut one off

[report]
directory = "report"
"""


@dataclass(kw_only=True)
class DemoOutcome:
    """What the demo saw.

    Args:
        problems: Everything that was not as it must be; empty means that the demo did what it says.
        place: Words for where the checkpoints lay.
        look: A command that shows them.
        resumed: What each start of the training job resumed, by its number; None: step zero.
        verdicts: Tier 1, per generation, as recorded by the runs of `save-gate`.
        lags: Generation → seconds from its COMMIT to its record.
        restored: The record of tier 2.
        drilled: The record of tier 3.
        refused: Verdict per damaged copy.
        page: The readiness page.
        seconds: Step → how long it took.
    """

    problems: list[str] = field(default_factory=list)
    place: str = ""
    look: str | None = None
    resumed: dict[int, str | None] = field(default_factory=dict)
    verdicts: dict[GenerationId, Verdict] = field(default_factory=dict)
    lags: dict[GenerationId, float] = field(default_factory=dict)
    restored: Record | None = None
    drilled: Record | None = None
    refused: dict[str, Verdict] = field(default_factory=dict)
    page: Path | None = None
    seconds: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def demo_running(
    directory: Path, store: StoreKind, tell: Callable[[str], None]
) -> Iterator[tuple[DemoOutcome, Pipeline | None]]:
    """Run the whole story under a directory, and yield what it saw while the stack is still up.

    When the context ends nothing that it started is left, or the outcome's problems name it.

    Args:
        directory: Empty; holds the family (or the server of its bucket), the stack, copies, the report and logs.
        store: What is saved to.
        tell: Hears of each event, a line at a time.
    """
    configuration = directory / "lastgood.toml"
    outcome, pipeline = DemoOutcome(), None
    begin = time.monotonic()
    with contextlib.ExitStack() as held:
        try:
            place = held.enter_context(open_place(store, directory))
            configuration.write_text(CONFIGURATION.replace("ROOT", json.dumps(place.root), 1))
            outcome.place = place.words
            reach = f". {place.outside} && " if place.outside is not None else ""
            outcome.look = f"{reach}lastgood status {place.root}/{FAMILY}"
            tell(
                f"starting a Prefect server, three workers and `lastgood {place.announcer[0]}`; saving to {place.words}"
            )
            pipeline = held.enter_context(Pipeline.start(directory, configuration, place))
        except LastgoodError as error:
            outcome.problems.append(error.message)
        else:
            outcome.seconds["start"] = time.monotonic() - begin
            tell(f"server at {pipeline.stack.ui_url}")
            story = _Story(
                directory=directory,
                place=place,
                location=locate(f"{place.root}/{FAMILY}"),
                pipeline=pipeline,
                tell=tell,
                outcome=outcome,
            )
            story.run()
        yield outcome, pipeline
    outcome.problems.extend(check_nothing_left([str(process.pid) for process in descendants(os.getpid())]))


@dataclass(kw_only=True)
class _Story:
    """The steps, each returning its problems."""

    directory: Path
    place: Place
    location: Location
    pipeline: Pipeline
    tell: Callable[[str], None]
    outcome: DemoOutcome

    def run(self) -> None:
        """Each step in turn; none after one that did not do what it says, since it would fail for the same cause."""
        for step in (self.train, self.restore, self.drill, self.damage, self.report):
            begin = time.monotonic()
            try:
                self.outcome.problems.extend(step())
            except LastgoodError as error:
                self.outcome.problems.append(f"{step.__name__}: {error.message}")
            self.outcome.seconds[step.__name__] = time.monotonic() - begin
            if self.outcome.problems:
                break

    def train(self) -> tuple[str, ...]:
        """A production run: not a replica, and outside of Prefect. Its saves are judged because they appeared.

        Once it has saved, one of its ranks is killed; torchrun starts it anew, and it resumes from where it saved to.
        """
        told = ReplicaEnvironment(family=self.location.family_uri, stop_step=STEPS)
        command = render_command(
            (*TRAINER, "--family={family}", "--stop-step={stop_step}"), told, world_size=WORLD_SIZE
        )
        home = self.directory / "home"
        home.mkdir()
        environment = replica_environ(told, base=os.environ, home=home, declared=self.place.environ)
        self.tell(f"training {WORLD_SIZE} ranks for {STEPS} steps, a save every {SAVE_EVERY}")
        seen: set[ProcessIdentity] = set()
        environments: list[Mapping[str, str]] = [environment]
        killed = False
        with ReplicaProcess.start(command, environment, self.directory, self.directory / "train.log") as trainer:
            deadline = time.monotonic() + TRAINING_TIMEOUT.total_seconds()
            while trainer.poll() is None and time.monotonic() < deadline:
                fresh = set(trainer.descendants()) - seen
                environments += filter(None, (_environment_of(process) for process in fresh))
                seen |= fresh
                self._look()
                killed = killed or self._kill_a_rank(trainer)
                time.sleep(LOOK_SECONDS)
            code = trainer.poll()
            tail = trainer.log_tail()
        if code != 0:
            return (f"training ended with {code}: {tail}",)
        expected = list(range(SAVE_EVERY, STEPS + 1, SAVE_EVERY))
        deadline = time.monotonic() + JUDGED_TIMEOUT.total_seconds()
        while len(self.outcome.verdicts) < len(expected) and time.monotonic() < deadline:
            self._look()
            time.sleep(LOOK_SECONDS)
        self._read_resumes()
        return (
            *check_saves(expected, self.outcome.verdicts),
            *check_recovery(self.outcome.resumed, self.outcome.verdicts),
            *check_trainer(environments),
            *check_nothing_left([str(process.pid) for process in seen if send_signal(process, 0)]),
        )

    def _kill_a_rank(self, trainer: ReplicaProcess) -> bool:
        """Kill a rank of the first life, by the pid that its trace names; False while that has not saved."""
        if not Family(self.location).exists() or not Family(self.location).survey().candidates:
            return False
        with traces_at_hand(self.location, FIRST_LIFE, 1, SAVE_EVERY) as family:
            started = TraceReader(family).started(FIRST_LIFE, KILLED_RANK)
        ours = {process.pid: process for process in trainer.descendants()}
        if started is None or started.pid not in ours:
            return False
        trainer.signal(ours[started.pid], signal.SIGKILL)
        self.tell(f"killed  rank {KILLED_RANK} of the training job, by SIGKILL, after its first save")
        return True

    def _read_resumes(self) -> None:
        """What each start of the job decided to resume, as its record in the family says."""
        store, keys = self.location.store, self.location.keys
        for incarnation in range(1, Family(self.location).survey().claims.newest + 1):
            key = keys.resume(incarnation)
            data = store.get(key, limit_bytes=documents.MAXIMUM_DOCUMENT_BYTES)
            if data is not None:
                self.outcome.resumed[incarnation] = documents.parse(ResumeRecord, data, key).from_generation
        for incarnation, generation in self.outcome.resumed.items():
            self.tell(f"start {incarnation}  resumed {generation or 'nothing: step zero'}")

    def _look(self) -> None:
        """Tell of each save that a run of the gate has judged since the last look."""
        family = Family(self.location)
        if not family.exists():
            return
        for generation in sorted(set(family.survey().candidates) - set(self.outcome.verdicts)):
            record = newest_record(self.location.store, self.location.keys, generation, Tier.MANIFEST)
            if record is None or not record.verdict.outcome.is_conclusive:
                continue
            lag = (record.finished_at - self._committed_at(generation)).total_seconds()
            self.outcome.verdicts[generation] = record.verdict
            self.outcome.lags[generation] = lag
            self.tell(f"tier 1  step {generation.step:>3}  {record.verdict.outcome}  {lag:.1f} s after its COMMIT")

    def _committed_at(self, generation: GenerationId) -> datetime:
        changed = self.location.store.last_changed(self.location.keys.commit(generation))
        return changed or datetime.now(UTC)

    def restore(self) -> tuple[str, ...]:
        # The one before the newest: the live run's own trace of the steps after it is the control.
        generation = sorted(self.outcome.verdicts)[-2]
        self.tell(f"restoring step {generation.step} in {WORLD_SIZE} fresh processes and training on")
        run = self.pipeline.ask("sampled-restore/ad-hoc", {"family": FAMILY, "generation": str(generation)})
        self.outcome.restored = record = self._recorded(run, generation, Tier.RESTORE)
        return (
            *check_run(run, record),
            *check_reading(record),
            *check_restore(record, last_good=Family(self.location).survey().newest_proven, generation=generation),
        )

    def drill(self) -> tuple[str, ...]:
        generation = max(self.outcome.verdicts)
        self.tell(f"drill: a disposable replica begins with a copy of step {generation.step}; a rank is killed")
        parameters = {"family": FAMILY, "generation": str(generation), "kill": "rank", "inside_publish": False}
        run = self.pipeline.ask("recovery-drill/ad-hoc", parameters)
        self.outcome.drilled = record = self._recorded(run, generation, Tier.DRILL)
        return (*check_run(run, record), *check_reading(record), *check_drill(record))

    def _recorded(self, run: FlowRun, generation: GenerationId, tier: Tier) -> Record | None:
        """The record that a run left, told of."""
        record = newest_record(self.location.store, self.location.keys, generation, tier)
        said = f"{record.verdict.outcome}  {len(record.verdict.checks)} checks" if record else "no record"
        self.tell(f"tier {int(tier)}  step {generation.step:>3}  {said}  run {run.name}: {run.state}")
        for finding in record.verdict.findings[:5] if record else ():
            self.tell(f"        {finding.reason}: {finding.message}")
        if record is None or record.verdict.outcome is not Outcome.PASS:
            self.tell(f"        {run.message}")
        return record

    def damage(self) -> tuple[str, ...]:
        expected: dict[str, Reason] = {}
        for name in DAMAGES:
            damage = CATALOGUE[name]
            expected[name] = damage.reason
            root = self.directory / name
            root.mkdir()
            bring(self.location.store, LocalStore(root), FAMILY)
            scene = Scene(root=root, family=FAMILY, generation=max(self.outcome.verdicts), stranger=FAMILY)
            damage.apply(scene)
            with self.place.holding(root, FAMILY) as store:
                if damage.judge is Judge.FAMILY:
                    verdict = verify_family(store, scene.keys)
                else:
                    verdict = verify_generation(store, scene.keys, scene.generation)
            self.outcome.refused[name] = verdict
            seen = f"{verdict.findings[0].reason}: {verdict.findings[0].message}" if verdict.findings else "no finding"
            self.tell(f"damage  {name:<22}  {verdict.outcome}  {seen}")
            shutil.rmtree(root)
        return check_refusals(expected, self.outcome.refused)

    def report(self) -> tuple[str, ...]:
        self.tell("writing the data-quality report")
        run = self.pipeline.ask("readiness-report/hourly", {})
        self.outcome.page = page = self.directory / "report" / "index.html"
        self.tell(f"report  {run.state}  {page}")
        records = [record for record in (self.outcome.restored, self.outcome.drilled) if record is not None]
        announced = self.place.announced() if self.place.metrics is not None else None
        return (*check_report(run, page, records), *check_announced(announced, len(self.outcome.verdicts)))


def _environment_of(process: ProcessIdentity) -> dict[str, str] | None:
    """What a process of the trainer was told, as the kernel knows it; None if it has ended."""
    try:
        entries = Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def summary(outcome: DemoOutcome) -> Mapping[str, str]:
    """The measured figures, for the closing table."""
    figures = {"saved to": outcome.place, "saves judged (tier 1)": str(len(outcome.verdicts))}
    if outcome.lags:
        figures["COMMIT to verdict, slowest"] = f"{max(outcome.lags.values()):.1f} s"
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
        if spent.read_bytes is not None and spent.read_bytes_per_second is not None:
            rate = f"{spent.read_bytes_per_second / 2**20:.1f} MiB/s"
            figures["  read for it"] = f"{spent.read_bytes / 2**20:.1f} MiB in {spent.read_seconds:.2f} s, {rate}"
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
