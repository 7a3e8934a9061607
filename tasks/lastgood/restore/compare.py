"""From what a restore left behind to the checks of tier 2. Pure: no file, no clock, no tensor.

Decides how the replica's end is read, which checks a rung requires, and that a check without evidence did not run.
Leaves the state to `after_load`, the steps to `smoke`, the live run to `control`. Rules: a crash, a deadline or a
restart on verified bytes is a fail, once the replica has asked for a checkpoint; what ends it before is not about one,
nor are exit codes that mean usage or store trouble: they leave it undecided; a refusal or a failed save is reported
once, by its own check; a job of another framework that ends itself, since nobody can tell which of its trainings was
meant, leaves all of that undecided, however often its launcher starts it again. Source: docs/architecture.md
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lastgood.errors import UsageError
from lastgood.manifest import Component, Manifest
from lastgood.replica.trace import StopReason
from lastgood.restore.after_load import loaded_checks, subject
from lastgood.restore.control import control_checks, went_on_alike
from lastgood.restore.divergence import Comparing, not_run, span
from lastgood.restore.evidence import Evidence, RankTrace, Request
from lastgood.restore.smoke import save_check, smoke_checks
from lastgood.text import counted
from lastgood.verdict import Check, CheckState, Finding, Note, NoteReason, Reason, Rung

__all__ = ["Comparison", "compare", "required_checks", "rung_of"]

EXIT_CODES_OF_OTHERS = {
    2: "its store or its command line failed",
    64: "its command line or environment is wrong",
    126: "its program may not be executed",
    127: "its program was not found",
}
"""Exit codes that say nothing about the checkpoint (sysexits.h, shells, and lastgood's own: docs/architecture.md)."""

# torchrun ends with 1 whatever its workers ended with, and prints their codes in its table of failures.
_WORKER_EXIT = re.compile(r"^\s*exitcode\s*:\s*(-?\d+)", re.MULTILINE)

_STATE_CHECKS = {
    "model_tensors": Component.MODEL,
    "optimizer_tensors": Component.OPTIMIZER,
    "optimizer_steps": Component.OPTIMIZER,
    "learning_rate_before_step": Component.OPTIMIZER,
    "rng_draws": Component.RNG,
    "sample_ids": Component.DATA,
}
_STATED_CHECKS = {
    "gradient_scaler": Component.SCALER,
    "scheduler_position": Component.SCHEDULER,
    "data_position": Component.DATA,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was asked and answered, and which of it a pass needs."""

    checks: tuple[Check, ...]
    notes: tuple[Note, ...]
    required: tuple[str, ...]


def compare(request: Request, evidence: Evidence) -> Comparison:
    """Judge one restore by its traces.

    Args:
        request: What was asked for.
        evidence: What it left behind.
    """
    # A replica may leave anything behind; only the ranks that were asked for are listened to.
    evidence = replace(evidence, ranks={rank: evidence.ranks[rank] for rank in request.ranks if rank in evidence.ranks})
    ended = _ended(request, evidence)
    checks = [ended, _traced(request, evidence, ended), _discovered(request, evidence)]
    notes: list[Note] = []
    # Of another size, or of another checkpoint, a replica says nothing about this one.
    if checks[1].state is not CheckState.INCONCLUSIVE and not checks[2].findings:
        loaded, said = loaded_checks(request, evidence)
        checks.extend(loaded)
        notes.extend(said)
        if request.steps:
            checks.extend(smoke_checks(request, evidence))
            live, said = control_checks(request, evidence)
            checks.extend(live)
            notes.extend(said)
        undecided = _ended_itself(request, evidence)
        checks.append(save_check(request, evidence, ended_well=evidence.end.exit_status == 0, undecided=undecided))
    notes.extend(_rung_notes(request))
    return Comparison(
        checks=tuple(checks), notes=tuple(dict.fromkeys(notes)), required=tuple(required_checks(request, checks))
    )


def rung_of(request: Request, evidence: Evidence) -> Rung:
    """How far up a restore climbed; of a sealed checkpoint only to the top if it went on as the live run did."""
    is_witnessed = request.manifest.seal is None or went_on_alike(request, evidence)
    return request.rung if is_witnessed or request.rung is not Rung.FULL else Rung.UNWITNESSED


def required_checks(request: Request, checks: Iterable[Check]) -> Iterator[str]:
    """The checks that a pass needs: whatever the manifest does not leave out on purpose, and the whole smoke run.

    A source whose next ids cannot be peeked is proven by the live trace or not at all. Of a sealed checkpoint nobody
    could state expectations, so that the state is left to the live trace; `rung_of` says where that does not agree.
    """
    made = {check.name: check for check in checks}
    manifest = request.manifest
    absent = {entry.component for entry in manifest.job.absent}
    yield from ("replica_ended", "traces_written", "generation_discovered", "strict_load", "completed_step")
    for name, component in _STATE_CHECKS.items():
        if component in absent or _is_step_zero(name, manifest) or manifest.seal is not None:
            continue
        if request.rung is Rung.TOPOLOGY_CHANGE and name in ("rng_draws", "sample_ids"):
            continue
        yield "control_sample_ids" if name == "sample_ids" and _is_unpeekable(manifest) else name
    for name in _STATED_CHECKS:
        if name in made and made[name].state is CheckState.RAN:
            yield name
    if request.steps:
        yield from ("smoke_steps", "loss_finite", "optimizer_advanced_once", "save_after_resume")
        if Component.ACCUMULATION not in absent:
            yield "accumulation_window"
        if "no gradient norm" not in made["gradient_norm_finite"].detail if "gradient_norm_finite" in made else True:
            yield "gradient_norm_finite"


def _is_step_zero(name: str, manifest: Manifest) -> bool:
    """An optimizer that never stepped has no tensors and may have no counters."""
    stated = manifest.expectations.optimizer_steps if manifest.expectations else {}
    return name == "optimizer_steps" and manifest.step == 0 and not stated


def _is_unpeekable(manifest: Manifest) -> bool:
    return manifest.expectations is not None and any(
        entry.sample_ids.from_trace for entry in manifest.expectations.ranks
    )


def _ended(request: Request, evidence: Evidence) -> Check:
    """The replica's command ended by itself, once, and well, or badly in what it did once every rank had finished."""
    name, end = "replica_ended", evidence.end
    detail = _spoken(evidence)
    if end.exit_status == 0 and evidence.lives <= 1:
        return Check(name=name, state=CheckState.RAN, detail=detail)
    if end.exit_status is not None and evidence.lives <= 1 and _have_finished(request, evidence):
        return Check(name=name, state=CheckState.RAN, detail=f"every rank had finished what was asked for; {detail}")
    if evidence.starved:
        return Check(name=name, state=CheckState.INCONCLUSIVE, detail=f"{evidence.starved}; {detail}")
    itself = _ended_itself(request, evidence)
    if end.exit_status is not None and not itself and _has_spoken_for_itself(request, evidence):
        return not_run(name, f"another check says why; {detail}")
    others = itself or _fault_of_others(evidence)
    if others:
        return Check(name=name, state=CheckState.INCONCLUSIVE, detail=f"{others}; {detail}")
    return Check(name=name, state=CheckState.RAN, detail=detail, findings=(_failure(request, evidence),))


def _spoken(evidence: Evidence) -> str:
    end = evidence.end
    status = "still running" if end.exit_status is None else f"exit status {end.exit_status}"
    tail = f"; its log ends:\n{end.log_tail.rstrip()}" if end.log_tail and end.exit_status != 0 else ""
    return f"{status} after {end.seconds:.1f} s{tail}"


def _have_finished(request: Request, evidence: Evidence) -> bool:
    """Whether each rank ended of its own accord after the last step that was asked for: the checkpoint has no part in
    what its script does then, nor in how its libraries are taken down.
    """
    last = request.manifest.step + request.steps
    ends = [evidence.ranks[rank].stopped if rank in evidence.ranks else None for rank in request.ranks]
    return all(end is not None and end.reason is StopReason.FINISHED and end.step >= last for end in ends)


def _has_spoken_for_itself(request: Request, evidence: Evidence) -> bool:
    """Whether the ranks refused what they loaded, or made every step and could not save: then the exit code follows."""
    traces = evidence.ranks.values()
    if any(trace.refused is not None or (trace.loaded and trace.loaded.findings) for trace in traces):
        return True
    made = evidence.ranks and all(
        rank in evidence.ranks and all(number in evidence.ranks[rank].steps for number in request.smoke_steps)
        for rank in request.ranks
    )
    failed_saving = any(trace.stopped is not None and trace.stopped.message for trace in traces)
    return bool(made and request.steps and failed_saving and not any(trace.saved for trace in traces))


def _fault_of_others(evidence: Evidence) -> str | None:
    """Why the replica's end says nothing about the checkpoint, or None."""
    if not evidence.has_asked and not evidence.ranks:
        return "the replica never asked for a checkpoint"
    known = [EXIT_CODES_OF_OTHERS[code] for code in sorted(_exit_codes(evidence)) if code in EXIT_CODES_OF_OTHERS]
    return f"the replica says that {known[0]}" if known and evidence.lives <= 1 else None


def _ended_itself(request: Request, evidence: Evidence) -> str:
    """Why a job of another framework ended itself: it trains twice, or goes back (`producers.run`); else empty.

    Its launcher may have started it again (`--max-restarts`), to the same end: of that the checkpoint is no cause.
    """
    if request.manifest.seal is None or UsageError.exit_code not in _exit_codes(evidence):
        return ""
    return f"the replica says that {EXIT_CODES_OF_OTHERS[UsageError.exit_code]}"


def _exit_codes(evidence: Evidence) -> set[int]:
    """What the replica's command ended with, and of a launcher of several processes what those did."""
    status = evidence.end.exit_status
    codes = {status} if status is not None else set()
    if status == 1:
        codes.update(int(code) for code in _WORKER_EXIT.findall(evidence.end.log_tail))
    return codes


def _failure(request: Request, evidence: Evidence) -> Finding:
    end, where = evidence.end, subject(request.manifest)
    said = [trace.stopped.message for trace in evidence.ranks.values() if trace.stopped and trace.stopped.message]
    last_line = said[0] if said else next((line for line in reversed(end.log_tail.splitlines()) if line.strip()), "")
    progress = _progress(request, evidence)
    if end.exit_status is None:
        expected = f"its end within {end.deadline_seconds:g} s"
        return Finding(
            reason=Reason.RESTORE_TIMED_OUT,
            message=f"restore timed out: {where}: expected {expected}, found it {progress}",
            offender="replica",
            expected=expected,
            found=progress,
        )
    if evidence.lives > 1:
        found = f"{evidence.lives} starts"
        message = f"restore crashed: {where}: expected one start, found {found}: it died and was started again"
        return Finding(
            reason=Reason.RESTORE_CRASHED, message=message, offender="replica", expected="one start", found=found
        )
    status = f"killed by signal {-end.exit_status}" if end.exit_status < 0 else f"exit status {end.exit_status}"
    said_last = f": {last_line.strip()[:300]}" if last_line else ""
    return Finding(
        reason=Reason.RESTORE_CRASHED,
        message=f"restore crashed: {where}: {status}, {progress}{said_last}",
        offender="replica",
        expected="exit status 0",
        found=status,
    )


def _progress(request: Request, evidence: Evidence) -> str:
    if not evidence.ranks:
        return "before any rank wrote a trace"
    steps = [max(trace.steps, default=None) for trace in evidence.ranks.values()]
    reached = [step for step in steps if step is not None]
    if reached:
        return f"at step {min(reached)} of {request.manifest.step + request.steps}"
    loaded = all(trace.has_loaded for trace in evidence.ranks.values())
    return "after the load, before its first step" if loaded else "before every rank had loaded"


def _traced(request: Request, evidence: Evidence, ended: Check) -> Check:
    """Every rank reported what it did, and as many ranks as were asked for."""
    name = "traces_written"
    missing = [rank for rank in request.ranks if rank not in evidence.ranks or evidence.ranks[rank].started is None]
    other = {
        trace.started.world_size
        for trace in evidence.ranks.values()
        if trace.started is not None and trace.started.world_size != request.world_size
    }
    if other:
        detail = f"the replica ran as {sorted(other)} ranks, {request.world_size} were asked for: use {{world_size}}"
        return Check(name=name, state=CheckState.INCONCLUSIVE, detail=detail)
    if not missing and evidence.trouble is None:
        return Check(name=name, state=CheckState.RAN, detail=span(evidence.ranks, "rank"))
    if ended.findings or ended.state is not CheckState.RAN:
        return not_run(name, "the replica did not end well")
    comparing = Comparing(name, "traces", subject(request.manifest))
    if evidence.trouble is not None:
        comparing.refuse(Reason.TRACE_MISSING, "of the replica", "lawful records", evidence.trouble, rank=0)
    for rank in missing if evidence.trouble is None else ():
        comparing.refuse(Reason.TRACE_MISSING, "of the replica", "a trace", "none", rank=rank)
    return comparing.check(f"{len(evidence.ranks)} of {counted(request.world_size, 'rank')}")


def _discovered(request: Request, evidence: Evidence) -> Check:
    """The ordinary start chose this very generation, out of the copy that held nothing else."""
    comparing = Comparing("generation_discovered", "discovery", subject(request.manifest))
    for rank, trace in sorted(evidence.ranks.items()):
        generation = _resumed(trace)
        if generation is not None:
            comparing.expect(
                Reason.RECOVERED_FROM_WRONG_GENERATION, "generation", request.manifest.generation, generation, rank=rank
            )
    absent = [rank for rank in request.ranks if rank not in evidence.ranks or not evidence.ranks[rank].discovered]
    return comparing.check(
        request.manifest.generation, missing=f"{span(absent, 'rank')} discovered nothing" if absent else ""
    )


def _resumed(trace: RankTrace) -> str | None:
    if trace.discovered is None:
        return None
    return trace.discovered.generation or "a fresh start"


def _rung_notes(request: Request) -> Iterator[Note]:
    saved = request.manifest.job.topology.world_size
    if request.rung is Rung.TOPOLOGY_CHANGE:
        yield Note(
            reason=NoteReason.TOPOLOGY_CHANGED,
            message=f"restored on {counted(request.world_size, 'rank')}, saved by {saved}: proves only that change",
            offender="topology",
        )
