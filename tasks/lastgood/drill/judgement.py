"""From what a drill observed to its verdict; touches nothing.

Decides what a recovery must have achieved. Rules (docs/architecture.md): a drill in which no kill landed has shown
nothing and is inconclusive; a job that did not come back in time fails, whatever the reason; no finding of a drill
blames the generation that the replica began with, except those that tier 1 made while it was copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lastgood.checks import DRILL_CHECKS
from lastgood.config import Objectives
from lastgood.drill.faults import Fault, Shot
from lastgood.drill.timeline import Recovery
from lastgood.drill.watch import Life
from lastgood.identity import GenerationId
from lastgood.replica.processes import ProcessIdentity
from lastgood.text import counted
from lastgood.verdict import Check, CheckState, Finding, Note, NoteReason, Reason, Rung, Tier, Verdict, judge

__all__ = ["Observed", "judge_drill", "loss_steps", "resumed_generation"]

MAXIMUM_UNACCOUNTED_RATIO: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that a drill saw; None where it did not get that far.

    Args:
        subject: `<family>` or, when the replica began with a copy of a generation, `<family>/<generation>`.
        fault: What was to be killed, and when.
        missed: Why the kill did not land.
        shot: The kill that landed.
        killed: The life that was hit, as it stood when all of it was dead.
        recovered: The life in which every rank completed a step again.
        recovery: Its timeline.
        attempts: Starts that it took; 1 is a recovery at the first try.
        failure: Why there was no recovery.
        offered: The newest candidate of those that the recovered life could choose from.
        saved: Tier 1 of its first save.
        save_failure: Why there is no such save.
        survivors: Processes of the killed life that were alive when the job had recovered.
        leftovers: Processes that outlived the end of the drill.
        unread: Why what the job left behind cannot be read, if it cannot.
    """

    subject: str
    fault: Fault
    missed: str | None = None
    shot: Shot | None = None
    killed: Life | None = None
    recovered: Life | None = None
    recovery: Recovery | None = None
    attempts: int = 0
    failure: str | None = None
    offered: GenerationId | None = None
    saved: Verdict | None = None
    save_failure: str | None = None
    survivors: tuple[ProcessIdentity, ...] = ()
    leftovers: tuple[ProcessIdentity, ...] = ()
    unread: str | None = None


def judge_drill(observed: Observed, objectives: Objectives, *, checks: Iterable[Check] = ()) -> Verdict:
    """The verdict of tier 3.

    Args:
        observed: What the drill saw.
        objectives: What the family demands of a recovery.
        checks: Made before the drill, of the copy that it began with.
    """
    return judge(
        tier=Tier.DRILL,
        rung=Rung.FULL,
        subject=observed.subject,
        checks=(
            *checks,
            _fault_fired(observed),
            _recovered(observed),
            _resumed_newest(observed),
            _rpo(observed, objectives.rpo_steps),
            _rto(observed, objectives.rto_seconds),
            _phases_accounted(observed),
            _save_after_resume(observed),
            _no_orphans(observed),
        ),
        notes=_notes(observed),
        required=DRILL_CHECKS,
    )


def loss_steps(killed: Life, recovered: Life) -> int:
    """Completed steps that the recovery lost: the last one in the killed life's trace less the resumed one.

    A trace may lag behind its loop (`Started.lag_steps`), so the true loss may be that much larger; and a save may name
    a step that the trace does not hold yet, so it is never below zero.
    """
    resumed = resumed_generation(recovered)
    return max(0, killed.last_step - (resumed.step if resumed is not None else 0))


def resumed_generation(life: Life) -> GenerationId | None:
    """What a life resumed, by its ranks' word; None for a fresh start."""
    told = [trace.discovered.generation for _, trace in sorted(life.ranks.items()) if trace.discovered is not None]
    return GenerationId.find(told[0]) if told and told[0] is not None else None


def _fault_fired(observed: Observed) -> Check:
    shot = observed.shot
    if shot is None:
        detail = f"no kill landed: {observed.missed or 'nothing was tried'}"
        return Check(name="fault_fired", state=CheckState.INCONCLUSIVE, detail=detail)
    where = f"inside the publish of {shot.publishing}" if shot.publishing else "between publishes"
    dead = counted(len(shot.victims), "process", "processes")
    detail = f"{observed.fault}: at step {shot.step}, {where}; {dead} dead by SIGKILL"
    return Check(name="fault_fired", state=CheckState.RAN, detail=detail)


def _recovered(observed: Observed) -> Check:
    if observed.shot is None:
        return _not_run("recovered", _why(observed))
    if observed.unread is not None:
        return Check(name="recovered", state=CheckState.INCONCLUSIVE, detail=_why(observed))
    if observed.recovered is None:
        message = f"not recovered: {observed.subject}: after {observed.fault}: {observed.failure}"
        finding = Finding(reason=Reason.DRILL_NOT_RECOVERED, message=message, offender=observed.subject)
        return Check(name="recovered", state=CheckState.RAN, detail=observed.failure or "", findings=(finding,))
    tries = "at the first try" if observed.attempts == 1 else f"after {observed.attempts} tries"
    ranks = counted(len(observed.recovered.ranks), "rank")
    detail = f"{ranks} stepped again in incarnation {observed.recovered.incarnation}"
    return Check(name="recovered", state=CheckState.RAN, detail=f"{detail}, {tries}")


def _resumed_newest(observed: Observed) -> Check:
    """What was resumed is the newest candidate, and nothing that was acknowledged before the kill is newer."""
    if observed.recovered is None or observed.killed is None:
        return _not_run("resumed_newest", _why(observed))
    resumed = resumed_generation(observed.recovered)
    acknowledged = max(_acknowledged(observed.killed), default=None)
    expected = max((g for g in (observed.offered, acknowledged) if g is not None), default=None)
    told = {trace.discovered.generation for trace in observed.recovered.ranks.values() if trace.discovered}
    findings = []
    if len(told) != 1 or resumed != expected:
        found = ", ".join(sorted(str(one or "a fresh start") for one in told)) or "nothing reported"
        message = (
            f"resumed another generation: {observed.subject}: expected {expected or 'a fresh start'}, found {found}"
        )
        findings.append(
            Finding(
                reason=Reason.RECOVERED_FROM_WRONG_GENERATION,
                message=message,
                offender=found,
                expected=str(expected),
                found=found,
            )
        )
    detail = f"{expected or 'a fresh start'}; last acknowledged before the kill: {acknowledged or 'none'}"
    return Check(name="resumed_newest", state=CheckState.RAN, detail=detail, findings=tuple(findings))


def _rpo(observed: Observed, objective: int | None) -> Check:
    if observed.recovered is None or observed.killed is None:
        return _not_run("rpo", _why(observed))
    loss = loss_steps(observed.killed, observed.recovered)
    findings = []
    if objective is not None and loss > objective:
        message = f"too many steps lost: {observed.subject}: objective {objective} steps, lost {loss}"
        findings.append(
            Finding(
                reason=Reason.RPO_EXCEEDED,
                message=message,
                offender=observed.subject,
                expected=f"at most {objective}",
                found=str(loss),
            )
        )
    demanded = "no objective" if objective is None else f"objective {objective}"
    detail = f"{counted(loss, 'step')} lost of {observed.killed.last_step}; {demanded}"
    return Check(name="rpo", state=CheckState.RAN, detail=detail, findings=tuple(findings))


def _rto(observed: Observed, objective: float | None) -> Check:
    if observed.recovery is None:
        return _not_run("rto", _why(observed))
    seconds = observed.recovery.rto_seconds
    findings = []
    if objective is not None and seconds > objective:
        message = f"recovery took too long: {observed.subject}: objective {objective:g} s, took {seconds:.3f} s"
        findings.append(
            Finding(
                reason=Reason.RTO_EXCEEDED,
                message=message,
                offender=observed.subject,
                expected=f"at most {objective:g}",
                found=f"{seconds:.3f}",
            )
        )
    demanded = "no objective" if objective is None else f"objective {objective:g} s"
    detail = f"{seconds:.3f} s from the kill to every rank's first step; {demanded}"
    return Check(name="rto", state=CheckState.RAN, detail=detail, findings=tuple(findings))


def _phases_accounted(observed: Observed) -> Check:
    recovery = observed.recovery
    if recovery is None:
        return _not_run("phases_accounted", _why(observed))
    if recovery.trouble is not None:
        detail = f"marks of rank {recovery.rank} contradict each other: {recovery.trouble}"
        return Check(name="phases_accounted", state=CheckState.INCONCLUSIVE, detail=detail)
    detail = f"{len(recovery.phases)} phases of rank {recovery.rank}; unaccounted {recovery.unaccounted_ratio:.2%}"
    return Check(name="phases_accounted", state=CheckState.RAN, detail=detail)


def _save_after_resume(observed: Observed) -> Check:
    name = "save_after_resume"
    if observed.recovered is None:
        return _not_run(name, _why(observed))
    if observed.saved is None:
        why = observed.save_failure or "no save was reported"
        message = f"save after resume failed: {observed.subject}: {why}"
        finding = Finding(reason=Reason.SAVE_AFTER_RESUME_FAILED, message=message, offender=observed.subject)
        return Check(name=name, state=CheckState.RAN, detail=why, findings=(finding,))
    detail = f"{observed.saved.subject}: tier 1 {observed.saved.outcome}"
    state = CheckState.RAN if observed.saved.outcome.is_conclusive else CheckState.INCONCLUSIVE
    # Nested: the broken save is the replica's, and must not bar the generation that the replica began with.
    findings = tuple(
        Finding(
            reason=Reason.SAVE_AFTER_RESUME_FAILED,
            message=f"save after resume failed: {observed.saved.subject}: {finding.message}",
            offender=finding.offender,
            expected=finding.expected,
            found=f"{finding.reason}: {finding.found or ''}".rstrip(": "),
        )
        for finding in observed.saved.findings
    )
    return Check(name=name, state=state, detail=detail, findings=findings)


def _no_orphans(observed: Observed) -> Check:
    if observed.shot is None:
        return _not_run("no_orphans", _why(observed))
    findings = []
    for what, processes in (
        ("of the killed life when the job had recovered", observed.survivors),
        ("after the end of the drill", observed.leftovers),
    ):
        if processes:
            pids = ", ".join(str(process.pid) for process in processes)
            message = f"still alive {what}: {observed.subject}: processes {pids}"
            findings.append(Finding(reason=Reason.ORPHANS_SURVIVED, message=message, offender=pids))
    detail = "none of the killed life survived it, nothing is left running"
    return Check(name="no_orphans", state=CheckState.RAN, detail=detail, findings=tuple(findings))


def _notes(observed: Observed) -> tuple[Note, ...]:
    recovery = observed.recovery
    if recovery is None or recovery.trouble or recovery.unaccounted_ratio <= MAXIMUM_UNACCOUNTED_RATIO:
        return ()
    message = (
        f"phases unaccounted: {observed.subject}: {recovery.unaccounted_ns / 1e9:.3f} s "
        f"({recovery.unaccounted_ratio:.1%}) of the recovery lie in no phase"
    )
    return (Note(reason=NoteReason.PHASES_UNACCOUNTED, message=message, offender="traces"),)


def _acknowledged(life: Life) -> list[GenerationId]:
    """What this life resumed, and every save that it was told had been kept."""
    saves = [saved.generation for trace in life.ranks.values() for saved in trace.saved]
    resumed = resumed_generation(life)
    return [g for g in (resumed, *map(GenerationId.find, saves)) if g is not None]


def _why(observed: Observed) -> str:
    if observed.shot is None:
        return "nothing was killed"
    if observed.unread is not None:
        return f"what the job left behind cannot be read: {observed.unread}"
    return "the job did not recover"


def _not_run(name: str, why: str) -> Check:
    return Check(name=name, state=CheckState.NOT_RUN, detail=why)
