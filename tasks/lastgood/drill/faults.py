"""Faults by coordinates: what is killed, at which step, inside a publish or not; and the proof that it was.

Decides when a kill lands and whether it did. Leaves recovery to others. Rules: a fault is drawn from a seed before the
job starts, never by what would be convenient; the victims are stopped first, looked at, and only killed if they stand
where the fault says, else let go on; a kill that did not land is a `FaultMissed`, and a drill without a landed kill
has shown nothing.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lastgood.documents import Document
from lastgood.drill.launcher import Launcher
from lastgood.drill.watch import Life, Watch
from lastgood.errors import LastgoodError
from lastgood.identity import GenerationId
from lastgood.replica.processes import ProcessIdentity
from lastgood.replica.trace import Phase
from lastgood.text import counted

__all__ = ["Fault", "FaultKind", "FaultMissed", "Shot", "inject", "random_fault"]

DEATH_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.002
MOST_STEPS_AFTER_SAVE: Final = 20


class FaultKind(StrEnum):
    """What is killed with SIGKILL."""

    RANK = "rank"
    """One rank; its launcher must notice, stop the others and restart them all."""
    JOB = "job"
    """The launcher and everything that it started, at once, as when a machine dies; a scheduler starts it again."""


class FaultMissed(LastgoodError):
    """The kill did not land where the fault says; nothing about recovery was shown."""

    exit_code = 2


class Fault(Document, frozen=True, kw_only=True):
    """Where a kill lands.

    Args:
        kind: What is killed.
        rank: Which rank, for `FaultKind.RANK`.
        steps_after_save: The kill lands once the victim has completed this many steps after the first save.
        inside_publish: And not before a publish has begun whose outcome nobody has been told.
        publish_ratio: How far into the publish, as a part of the duration of the one before it; 0 to below 1.
    """

    kind: FaultKind
    rank: int = 0
    steps_after_save: int = 0
    inside_publish: bool = False
    publish_ratio: float = 0.0

    def __str__(self) -> str:
        what = f"rank {self.rank}" if self.kind is FaultKind.RANK else "the whole job"
        when = f"{counted(self.steps_after_save, 'step')} after the first save"
        return f"SIGKILL {what}, {f'inside a publish, from {when} on' if self.inside_publish else when}"


def random_fault(
    seed: int,
    *,
    world_size: int,
    kind: FaultKind | None = None,
    inside_publish: bool | None = None,
    most_steps: int = MOST_STEPS_AFTER_SAVE,
) -> Fault:
    """Draw a fault; the same seed draws the same one.

    Args:
        seed: Of the draw.
        world_size: How many ranks there are to choose from.
        kind: What is killed; None draws it.
        inside_publish: Whether the kill lands inside a publish; None draws it.
        most_steps: The kill lands at most so many steps after the first save.
    """
    draw = random.Random(seed)
    drawn_kind, drawn_inside = draw.choice(tuple(FaultKind)), draw.random() < 0.5
    return Fault(
        kind=drawn_kind if kind is None else kind,
        rank=draw.randrange(world_size),
        steps_after_save=draw.randint(0, most_steps),
        inside_publish=drawn_inside if inside_publish is None else inside_publish,
        publish_ratio=draw.random(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A kill that landed.

    Args:
        kill_ns: When the victims were stopped for it, on the machine's monotonic clock: they did nothing after that.
        incarnation: The life that was hit.
        step: The last step that the victim had completed by its own trace.
        publishing: The generation whose publish it interrupted, or None.
        victims: What was killed.
    """

    kill_ns: int
    incarnation: int
    step: int
    publishing: GenerationId | None
    victims: tuple[ProcessIdentity, ...]


def inject(
    fault: Fault,
    launcher: Launcher,
    watch: Watch,
    incarnation: int,
    ranks: Mapping[int, ProcessIdentity],
    *,
    pause: Callable[[str], None],
) -> Shot:
    """Wait for the fault's moment, kill, and prove it.

    Args:
        fault: Where.
        launcher: Runs the job.
        watch: Follows its traces.
        incarnation: The life that is to be hit; it has saved once.
        ranks: Its ranks' processes.
        pause: Called between two looks, with what is waited for; raises when it has waited too long or in vain.

    Raises:
        FaultMissed: The victim is not there, ended before the kill, or did not end by it.
    """
    if fault.kind is FaultKind.RANK and fault.rank not in ranks:
        raise FaultMissed(f"no rank {fault.rank} to kill: the job has ranks {', '.join(map(str, sorted(ranks)))}")
    moment = (watch.life(incarnation).first_saved_step or 0) + fault.steps_after_save
    while _last_step(fault, watch.life(incarnation)) < moment:
        pause(f"step {moment}")
    ratio = fault.publish_ratio
    while True:
        if fault.inside_publish:
            while watch.publishing(incarnation) is None:
                pause("a publish")
            time.sleep(ratio * _publish_seconds(watch.life(incarnation)))
        shot = _shoot(fault, launcher, watch, incarnation, ranks)
        if shot is not None:
            _prove(fault, launcher, watch, shot)
            return shot
        # Its outcome was told while the victims were being stopped; the next publish is hit earlier.
        ratio /= 2


def _shoot(
    fault: Fault, launcher: Launcher, watch: Watch, incarnation: int, ranks: Mapping[int, ProcessIdentity]
) -> Shot | None:
    """Stop the victims, look where they stand, and kill them; None if they stood elsewhere and were let go on."""
    kill_ns = time.monotonic_ns()
    agent = launcher.agent()
    victims = [ranks[fault.rank]] if fault.kind is FaultKind.RANK else [agent, *ranks.values()]
    for process in victims:
        launcher.signal(process, signal.SIGSTOP)
    publishing = watch.publishing(incarnation)
    if fault.inside_publish and publishing is None:
        for process in victims:
            launcher.signal(process, signal.SIGCONT)
        return None
    while fault.kind is FaultKind.JOB and (more := [one for one in launcher.processes() if one not in victims]):
        for process in more:
            launcher.signal(process, signal.SIGSTOP)
        victims.extend(more)
    hit = tuple(process for process in victims if launcher.signal(process, signal.SIGKILL))
    target = ranks[fault.rank] if fault.kind is FaultKind.RANK else agent
    if target not in hit:
        raise FaultMissed(f"victim ended before it was killed: process {target.pid}")
    return Shot(
        kill_ns=kill_ns,
        incarnation=incarnation,
        step=_last_step(fault, watch.life(incarnation)),
        publishing=publishing,
        victims=hit,
    )


def _prove(fault: Fault, launcher: Launcher, watch: Watch, shot: Shot) -> None:
    """The victims are dead, and by nothing else than the kill."""
    deadline = time.monotonic() + DEATH_SECONDS
    while alive := set(shot.victims).intersection(launcher.processes()):
        if time.monotonic() > deadline:
            raise FaultMissed(f"killed but alive: {', '.join(str(process.pid) for process in alive)}")
        time.sleep(LOOK_SECONDS)
    while fault.kind is FaultKind.JOB and (status := launcher.exit_status()) != -signal.SIGKILL:
        # Dead comes before reaped, and the status is known only then.
        if status is not None or time.monotonic() > deadline:
            raise FaultMissed(f"the launcher ended by something else: status {status}")
        time.sleep(LOOK_SECONDS)
    trace = watch.life(shot.incarnation).ranks.get(fault.rank)
    if fault.kind is FaultKind.RANK and trace is not None and (trace.stopped or trace.refused):
        raise FaultMissed(f"rank {fault.rank} ended of its own accord: {watch.life(shot.incarnation).last_words}")


def _last_step(fault: Fault, life: Life) -> int:
    if fault.kind is FaultKind.JOB:
        return life.last_step
    trace = life.ranks.get(fault.rank)
    return max(trace.steps, default=0) if trace is not None else 0


def _publish_seconds(life: Life) -> float:
    """How long the last publish kept training waiting."""
    saves = [saved for trace in life.ranks.values() for saved in trace.saved]
    spans = [span for saved in saves for span in saved.spans if span.phase is Phase.SAVE]
    return max(spans, key=lambda span: span.end_ns).seconds if spans else 0.0
