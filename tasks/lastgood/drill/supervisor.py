"""One drill from beginning to end: start, let publish, kill, wait for the recovery and the save after it, stop, judge.

Decides the order of a drill and how long each part may take. Leaves when and what to kill to `faults`, restarts to the
launcher, figures to `timeline`, the verdict to `judgement`. Rules: production is only read; the replica is told no
generation to resume, for its launcher re-runs the same arguments; whatever happens, nothing of it is left running; what
goes wrong before the kill says nothing about recovery and is inconclusive. Recording is for the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from lastgood import documents
from lastgood.config import Objectives, ReplicaSettings
from lastgood.drill.faults import Fault, FaultKind, FaultMissed, Shot, inject
from lastgood.drill.judgement import Observed, judge_drill, loss_steps, resumed_generation
from lastgood.drill.launcher import CommandLauncher, Launcher
from lastgood.drill.timeline import DrillPhase, Recovery, has_recovered, measure_recovery
from lastgood.drill.watch import Departures, Life, Watch
from lastgood.errors import FormatError, LastgoodError, StoreError, UsageError
from lastgood.identity import MAXIMUM_STEP, FamilyKeys, GenerationId
from lastgood.location import Location
from lastgood.markers import Claim
from lastgood.protocol import choose, perform
from lastgood.records import Measurements
from lastgood.replica.contract import ReplicaEnvironment
from lastgood.replica.processes import ProcessIdentity
from lastgood.restore.cancel import Cancel, Cancelled, cancelled_verdict, heed, heeding, never
from lastgood.restore.materialize import Copy, Scratch, make_copy, open_scratch
from lastgood.restore.supervisor import without_secrets
from lastgood.stores import LocalStore
from lastgood.stores.port import Progress
from lastgood.verdict import Check, Tier, Verdict
from lastgood.verify import inspector, verify_generation

__all__ = ["DrillResult", "Stage", "drill"]

FRESH_FAMILY: Final = "drill"
LOOK_SECONDS: Final = 0.005
# A replica is told to stop some day, so that a lost one would; no drill comes near it.
MOST_STEPS: Final = 1_000_000
RESTART_VARIABLE: Final = "TORCHELASTIC_RESTART_COUNT"


class Stage(StrEnum):
    """How far a drill has come, for whoever watches."""

    COPY = "copy"
    START = "start"
    TRAIN = "train"
    KILLED = "killed"
    RECOVERED = "recovered"
    SAVED = "saved"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """What a drill showed and how long it took.

    Args:
        verdict: Of tier 3.
        measurements: RPO loss, RTO and phases, `unaccounted` among them.
        fault: What was to be killed, and when.
        recovery: The timeline with its marks, or None.
        attempts: Starts until the job had recovered; 1 is the first try; None if it did not.
        resumed: What the recovered job resumed, or None.
        log_tail: The last lines that the replica printed.
        scratch: Where everything still lies, if it was to be kept.
    """

    verdict: Verdict
    measurements: Measurements
    fault: Fault
    recovery: Recovery | None
    attempts: int | None
    resumed: GenerationId | None
    log_tail: str
    scratch: Path | None


def drill(
    location: Location | None,
    settings: ReplicaSettings,
    *,
    fault: Fault,
    objectives: Objectives | None = None,
    scratch: Path | None = None,
    keep: bool = False,
    stage: Callable[[Stage], None] = lambda stage: None,
    progress: Progress | None = None,
    cancel: Cancel = never,
) -> DrillResult:
    """Kill a disposable replica and recover it through its own launcher (tier 3).

    Args:
        location: The generation that the replica begins with, as a private copy; or a family, or None: it begins at
            step zero in an empty family of that name, and its command must allow that.
        settings: How the family's replica is started; `drill_timeout_seconds` bounds each part of the drill.
        fault: What to kill, and when; see `random_fault`.
        objectives: What the recovery must achieve.
        scratch: Where the replica trains; None for the system's temporary directory.
        keep: Leave the family, its traces and the log.
        stage: Told how far the drill has come.
        progress: Told how many bytes have been copied so far.
        cancel: Asked whether to end at once; then the verdict is inconclusive, and nothing of the replica is left.

    Raises:
        UsageError: No such generation, a command that cannot be started, a scratch that cannot be used.
        StoreError: Our own scratch cannot be written.
    """
    began = time.monotonic()
    name = location.keys.family if location is not None else FRESH_FAMILY
    generation = location.generation if location is not None else None
    subject = f"{name}/{generation}" if generation is not None else name
    with open_scratch(location, scratch, keep=keep, purpose="drill") as place:
        home = Location(store=LocalStore(place.root), keys=FamilyKeys(name), generation=None)
        with _launcher(settings, home, place, generation.step if generation is not None else 0) as launcher:
            observed, copy = Observed(subject=subject, fault=fault), None
            try:
                checks: tuple[Check, ...] = ()
                if location is not None and generation is not None:
                    stage(Stage.COPY)
                    copy = make_copy(location, place, progress=heeding(cancel, progress))
                    checks = copy.checks
                    if copy.manifest is None:
                        observed = Observed(subject=subject, fault=fault, missed="the copy to begin with is not whole")
                if observed.missed is None:
                    observed = _Drill(home, settings, fault, launcher, subject, stage, cancel).run()
                verdict = judge_drill(observed, objectives or Objectives(), checks=checks)
            except Cancelled as error:
                verdict = cancelled_verdict(Tier.DRILL, subject, error.message)
            return DrillResult(
                verdict=without_secrets(verdict, settings),
                measurements=_measurements(observed, copy, time.monotonic() - began),
                fault=fault,
                recovery=observed.recovery,
                attempts=observed.attempts or None,
                resumed=resumed_generation(observed.recovered) if observed.recovered is not None else None,
                log_tail=launcher.log_tail(),
                scratch=place.directory if keep else None,
            )


class _Drill:
    """One replica, from its first launch to its end.

    Args:
        home: Its family, in our scratch.
        settings: For the deadlines.
        fault: What to kill, and when.
        launcher: Runs it.
        subject: For the verdict.
        stage: Told how far it has come.
        cancel: Asked whether to end at once.
    """

    def __init__(
        self,
        home: Location,
        settings: ReplicaSettings,
        fault: Fault,
        launcher: Launcher,
        subject: str,
        stage: Callable[[Stage], None],
        cancel: Cancel,
    ) -> None:
        self._home = home
        self._budget_seconds = settings.drill_timeout_seconds
        self._fault = fault
        self._launcher = launcher
        self._stage = stage
        self._cancel = cancel
        self._watch = Watch(home)
        self._subject = subject
        self._shot: Shot | None = None
        self._recovered: Life | None = None
        self._recovery: Recovery | None = None
        self._survivors: tuple[ProcessIdentity, ...] = ()
        self._missed: str | None = None
        self._failure: str | None = None
        self._save_failure: str | None = None

    def run(self) -> Observed:
        """Everything that happened; nothing of the replica is left.

        Raises:
            Cancelled: The drill shall end; whoever holds the launcher stops it.
        """
        try:
            life, ranks = self._begin()
            with Departures(ranks.values()) as departures:
                self._shot = inject(
                    self._fault, self._launcher, self._watch, life.incarnation, ranks, pause=self._pause()
                )
                self._stage(Stage.KILLED)
                self._recover(self._shot, departures)
            if self._recovered is not None:
                self._await_save(self._recovered)
        except (FaultMissed, FormatError, StoreError) as error:
            self._blame(error.message)
        leftovers = self._end()
        try:
            return self._observed(leftovers)
        except (FormatError, StoreError) as error:
            # What was done stands, whatever can no longer be read of what came of it.
            return self._seen(leftovers, unread=error.message)

    def _blame(self, message: str) -> None:
        """Say what went wrong, of the part of the drill in which it did."""
        if self._shot is None:
            self._missed = message
        elif self._recovered is None:
            self._failure = message
        else:
            self._save_failure = message

    # Before the kill.

    def _begin(self) -> tuple[Life, Mapping[int, ProcessIdentity]]:
        """Start the job and wait until it has saved once."""
        self._stage(Stage.START)
        self._launcher.launch()
        pause = self._pause()
        while not (lives := self._watch.lives()) or not lives[-1].is_complete:
            pause("every rank's trace")
        life = lives[-1]
        self._stage(Stage.TRAIN)
        while life.first_saved_step is None:
            pause("the first save")
            life = self._watch.life(life.incarnation)
        return life, self._processes(life)

    def _processes(self, life: Life) -> dict[int, ProcessIdentity]:
        """The ranks' processes: those of ours whose pid the trace names."""
        ours = {process.pid: process for process in self._launcher.processes()}
        found = {}
        for rank, trace in sorted(life.ranks.items()):
            pid = trace.started.pid if trace.started is not None else 0
            if pid not in ours:
                raise FaultMissed(f"rank {rank} is not a process of this job: its trace names pid {pid}")
            found[rank] = ours[pid]
        return found

    def _pause(self) -> Callable[[str], None]:
        """A pause between two looks that ends the drill when the job has ended, or when its time is over."""
        deadline = time.monotonic() + self._budget_seconds

        def pause(awaited: str) -> None:
            time.sleep(LOOK_SECONDS)
            over = self._over(deadline, awaited)
            if over is not None:
                raise FaultMissed(over)

        return pause

    def _over(self, deadline: float, awaited: str) -> str | None:
        """Why waiting has no sense any more, or None.

        Raises:
            Cancelled: The drill shall end.
        """
        heed(self._cancel)
        status = self._launcher.exit_status()
        if status is not None:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            return f"the launcher {how} before {awaited}"
        if time.monotonic() > deadline:
            return f"no sign of {awaited} within {self._budget_seconds:g} s"
        return None

    # After the kill.

    def _recover(self, shot: Shot, departures: Departures) -> None:
        """Wait until every rank of a later life has completed a step, or until that cannot be expected any more."""
        deadline = time.monotonic() + self._budget_seconds
        relaunched = self._fault.kind is FaultKind.RANK
        while self._recovered is None:
            departures.wait(LOOK_SECONDS)
            if not relaunched and not departures.left:
                self._launcher.launch()
                relaunched = True
            # Asked before the traces are read: what a job did last counts although it has ended since.
            over = self._over(deadline, "a first step on every rank") if relaunched else None
            later = [life for life in self._watch.lives() if life.incarnation > shot.incarnation]
            self._recovered = next((life for life in later if has_recovered(life.ranks)), None)
            if self._recovered is None and over is not None:
                words = later[-1].last_words if later else None
                self._failure = f"{over}; {words}" if words else over
                return
        self._survivors = departures.left
        self._recovery = measure_recovery(shot.kill_ns, departures.last_ns, self._recovered.ranks)
        self._stage(Stage.RECOVERED)

    def _await_save(self, recovered: Life) -> None:
        deadline = time.monotonic() + self._budget_seconds
        while True:
            over = self._over(deadline, "a save after the resume")
            life = self._watch.life(recovered.incarnation)
            if life.first_saved_step is not None:
                self._stage(Stage.SAVED)
                return
            if over is not None:
                self._save_failure = f"{over}; {life.last_words}" if life.last_words else over
                return
            time.sleep(LOOK_SECONDS)

    # The end.

    def _end(self) -> tuple[ProcessIdentity, ...]:
        """Stop everything; what could not be stopped."""
        try:
            self._launcher.stop()
        except LastgoodError:
            # What is left is looked for here, whatever the launcher believes.
            pass
        return self._launcher.processes()

    def _seen(self, leftovers: tuple[ProcessIdentity, ...], *, unread: str | None = None) -> Observed:
        """What is known without reading anything more."""
        return Observed(
            subject=self._subject,
            fault=self._fault,
            missed=self._missed,
            shot=self._shot,
            failure=self._failure,
            save_failure=self._save_failure,
            survivors=self._survivors,
            leftovers=leftovers,
            unread=unread,
        )

    def _observed(self, leftovers: tuple[ProcessIdentity, ...]) -> Observed:
        """Everything, what the dead left behind included."""
        shot = self._shot
        killed = self._watch.settled(shot.incarnation) if shot is not None else None
        if shot is None or self._recovered is None:
            return replace(self._seen(leftovers), killed=killed)
        recovered = self._watch.settled(self._recovered.incarnation)
        saved = self._verify_save(recovered)
        return replace(
            self._seen(leftovers),
            killed=killed,
            recovered=recovered,
            recovery=self._recovery,
            attempts=self._attempts(shot, recovered),
            offered=self._offered(recovered),
            saved=saved,
        )

    def _attempts(self, shot: Shot, recovered: Life) -> int:
        """Starts that the recovery took, as far as claims tell; torchrun also counts those that died before a claim."""
        restarts = self._restarts(recovered.incarnation)
        if restarts is not None and self._fault.kind is FaultKind.RANK:
            restarts -= self._restarts(shot.incarnation) or 0
        elif restarts is not None:
            restarts += 1
        return max(restarts or 1, recovered.incarnation - shot.incarnation)

    def _restarts(self, incarnation: int) -> int | None:
        """How often torchrun had restarted its workers when one of them made this claim; None for other launchers."""
        key = self._home.keys.claim(incarnation)
        data = self._home.store.get(key, limit_bytes=documents.MAXIMUM_DOCUMENT_BYTES)
        told = documents.parse(Claim, data, key).launcher.get(RESTART_VARIABLE, "") if data is not None else ""
        return int(told) if told.isascii() and told.isdigit() else None

    def _offered(self, recovered: Life) -> GenerationId | None:
        """The newest candidate among what older lives had committed."""
        store, keys = self._home.store, self._home.keys
        steps = choose(keys, below=recovered.incarnation)
        return perform(store, steps, inspect=inspector(store, keys)).generation

    def _verify_save(self, recovered: Life) -> Verdict | None:
        """Tier 1 of the first save after the resume."""
        saves = [saved.generation for trace in recovered.ranks.values() for saved in trace.saved]
        if not saves:
            return None
        try:
            return verify_generation(self._home.store, self._home.keys, GenerationId.parse(min(saves)))
        except (FormatError, UsageError) as error:
            self._save_failure = f"{min(saves)} was reported: {error.message}"
            return None


def _launcher(settings: ReplicaSettings, home: Location, place: Scratch, base_step: int) -> CommandLauncher:
    told = ReplicaEnvironment(
        is_replica=True,
        family=home.family_uri,
        resume=None,
        stop_step=min(base_step + MOST_STEPS, MAXIMUM_STEP),
        trace=True,
    )
    return CommandLauncher(settings, told, home=place.home, logs=place.directory)


def _measurements(observed: Observed, copy: Copy | None, seconds: float) -> Measurements:
    recovery = observed.recovery
    read = Measurements(
        seconds=seconds,
        read_bytes=copy.read_bytes if copy is not None else None,
        read_seconds=copy.read_seconds if copy is not None else None,
    )
    if recovery is None or observed.killed is None or observed.recovered is None:
        return read
    phases = {phase.phase.value: phase.seconds for phase in recovery.phases}
    return msgspec.structs.replace(
        read,
        discovery_seconds=recovery.seconds(DrillPhase.DISCOVER),
        load_seconds=recovery.seconds(DrillPhase.LOAD),
        first_step_seconds=recovery.seconds(DrillPhase.FIRST_STEP),
        rpo_loss_steps=loss_steps(observed.killed, observed.recovered),
        rto_seconds=recovery.rto_seconds,
        phases={**phases, "unaccounted": recovery.unaccounted_ns / 1e9},
    )
