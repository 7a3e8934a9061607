"""The checks of the steps after the load that need nothing to compare with: did the next update happen, is it sound?

Decides when a step counts as done, as finite and as an update. Rules: loss and gradient norm are finite in every step;
the optimizer's counter rises by exactly one a step, or as the live run's did; a step that the gradient scaler skipped
is lawful where the live run skipped it too, or, without a live trace, where a later step was an update (a scale that
grew must first overflow); a replica that ends early by its own word made no smoke run. Source: docs/architecture.md,
what a restore answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lastgood.manifest import Component
from lastgood.replica.trace import NotFinite, Step, StopReason
from lastgood.restore.after_load import subject
from lastgood.restore.divergence import Comparing, not_run, span
from lastgood.restore.evidence import Evidence, RankTrace, Request
from lastgood.text import counted
from lastgood.verdict import Check, Finding, Reason

__all__ = ["save_check", "smoke_checks"]


def smoke_checks(request: Request, evidence: Evidence) -> list[Check]:
    """Everything that is asked of the steps themselves."""
    missing = _unreached(request, evidence)
    return [
        _reached(request, evidence, missing),
        _accumulation(request, evidence, missing),
        _finite_loss(request, evidence, missing),
        _finite_gradient(request, evidence, missing),
        _advanced(request, evidence, missing),
    ]


def _steps(request: Request, evidence: Evidence) -> Iterator[tuple[int, Step]]:
    """Rank and record of every smoke step that was made."""
    for rank, trace in sorted(evidence.ranks.items()):
        for number in request.smoke_steps:
            if number in trace.steps:
                yield rank, trace.steps[number]


def _unreached(request: Request, evidence: Evidence) -> str:
    """Why not every rank made every step; empty when all did."""
    short = [
        rank
        for rank in request.ranks
        if rank not in evidence.ranks or any(number not in evidence.ranks[rank].steps for number in request.smoke_steps)
    ]
    if not short:
        return ""
    ends = [evidence.ranks[rank].stopped if rank in evidence.ranks else None for rank in short]
    if all(
        end is not None and end.reason is StopReason.FINISHED and end.step >= request.smoke_steps[-1] for end in ends
    ):
        why = "its framework shows no loss, or counts several updates in one go"
        return f"{span(short, 'rank')} reached step {request.smoke_steps[-1]} without telling each step: {why}"
    done = min((_last(request, evidence.ranks.get(rank)) for rank in short), default=request.manifest.step)
    return f"{span(short, 'rank')} stopped after step {done} of {request.smoke_steps[-1]}"


def _last(request: Request, trace: RankTrace | None) -> int:
    made = [number for number in request.smoke_steps if trace is not None and number in trace.steps]
    return made[-1] if made else request.manifest.step


def _reached(request: Request, evidence: Evidence, missing: str) -> Check:
    """Every step that was asked for; a run that trains nothing and ends well is caught where the live run went on."""
    comparing = Comparing("smoke_steps", "steps", subject(request.manifest))
    for rank, trace in sorted(evidence.ranks.items()):
        if trace.stopped is None or trace.stopped.reason is not StopReason.FINISHED or not trace.has_loaded:
            continue
        last = _last(request, trace)
        beyond = [number for number in evidence.control.steps.get(rank, {}) if last < number <= request.smoke_steps[-1]]
        if beyond:
            comparing.refuse(
                Reason.OPTIMIZER_NOT_STEPPED,
                f"step {last + 1}",
                f"made, as the live run did up to step {max(beyond)}",
                f"ended by its own word at step {trace.stopped.step}",
                rank=rank,
            )
    steps = span(request.smoke_steps, "step")
    return comparing.check(f"{steps} on {counted(request.world_size, 'rank')}", missing=missing)


def _accumulation(request: Request, evidence: Evidence, missing: str) -> Check:
    """Every step accumulates as many microbatches as the run does, on every rank."""
    comparing = Comparing("accumulation_window", Component.ACCUMULATION, subject(request.manifest))
    made = list(_steps(request, evidence))
    stated = request.manifest.expectations.scalars if request.manifest.expectations else {}
    window = stated.get("accumulation.microbatches")
    for rank, step in made:
        live = evidence.control.step(rank, step.step)
        expected = window or (live.microbatches if live and live.microbatches else made[0][1].microbatches)
        if step.microbatches:
            comparing.expect(
                Reason.ACCUMULATION_DIVERGED,
                f"microbatches of step {step.step}",
                int(expected),
                step.microbatches,
                rank=rank,
            )
    if not comparing.compared:
        return not_run(comparing.name, missing or "the replica reports no sample ids by microbatch")
    return comparing.check(f"{made[0][1].microbatches} microbatches a step", missing=missing)


def _finite_loss(request: Request, evidence: Evidence, missing: str) -> Check:
    comparing = Comparing("loss_finite", "loss", subject(request.manifest))
    shown: dict[int, str] = {}
    for rank, step in _steps(request, evidence):
        if isinstance(step.loss, NotFinite):
            comparing.refuse(
                Reason.LOSS_NOT_FINITE, f"of step {step.step}", "a finite number", str(step.loss), rank=rank
            )
        elif rank == 0:
            shown[step.step] = f"{step.loss:.6g}"
    return comparing.check(_shown(shown), missing=missing)


def _finite_gradient(request: Request, evidence: Evidence, missing: str) -> Check:
    comparing = Comparing("gradient_norm_finite", "gradient norm", subject(request.manifest))
    shown: dict[int, str] = {}
    for rank, step in _steps(request, evidence):
        if isinstance(step.grad_norm, NotFinite) and not is_skipped(step):
            comparing.refuse(
                Reason.GRADIENT_NOT_FINITE, f"of step {step.step}", "a finite number", str(step.grad_norm), rank=rank
            )
        elif rank == 0 and step.grad_norm is not None:
            shown[step.step] = "skipped by the scaler" if is_skipped(step) else f"{step.grad_norm:.6g}"
    if not missing and not shown and not any(step.grad_norm is not None for _, step in _steps(request, evidence)):
        return not_run(comparing.name, "the loop computes no gradient norm")
    return comparing.check(_shown(shown), missing=missing)


def _shown(values: Mapping[int, str]) -> str:
    """The first values of rank 0 by step, or that there are none."""
    if not values:
        return "rank 0 has no finite one"
    return "rank 0: " + ", ".join(f"{number}: {value}" for number, value in list(values.items())[:8])


def is_skipped(step: Step) -> bool:
    """Whether the gradient scaler left this update out, because a gradient overflowed."""
    return step.scalars.get("skipped") == 1


def _advanced(request: Request, evidence: Evidence, missing: str) -> Check:
    """From the load on, each update counts once."""
    comparing = Comparing("optimizer_advanced_once", Component.OPTIMIZER, subject(request.manifest))
    pace = "by one"
    for rank, trace in sorted(evidence.ranks.items()):
        if trace.loaded is None or not trace.has_loaded:
            continue
        counters = dict(trace.loaded.optimizer_steps)
        made = [trace.steps[number] for number in request.smoke_steps if number in trace.steps]
        for step in made:
            rise = 0 if _may_skip(step, made, evidence) else 1
            for group, before in counters.items():
                after = step.optimizer_steps.get(group)
                if after is not None:
                    live = evidence.control.step(rank, step.step)
                    expected = before + rise
                    if after != expected and _may_rise_so(request, step, live, group, counters):
                        expected, pace = after, "as the loop does it"
                    comparing.expect(
                        Reason.OPTIMIZER_NOT_STEPPED, f"{group} after step {step.step}", expected, after, rank=rank
                    )
            counters.update(step.optimizer_steps)
    if not comparing.compared:
        return not_run(comparing.name, missing or "the replica reports no optimizer counters")
    return comparing.check(f"{pace} in each of {span(request.smoke_steps, 'step')}", missing=missing)


def _may_rise_so(request: Request, step: Step, live: Step | None, group: str, before: Mapping[str, int]) -> bool:
    """Whether a count may rise otherwise than by one: to where the live run's stood; or, of a loop that nobody here
    knows, as long as any rises: it may step several optimizers in turn, or one of them several times.
    """
    after = step.optimizer_steps[group]
    if live is not None and group in live.optimizer_steps:
        return live.optimizer_steps[group] == after
    has_any_risen = any(step.optimizer_steps.get(name, 0) > count for name, count in before.items())
    return request.manifest.seal is not None and has_any_risen and after >= before[group]


def _may_skip(step: Step, made: list[Step], evidence: Evidence) -> bool:
    if not is_skipped(step):
        return False
    live = [steps[step.step] for steps in evidence.control.steps.values() if step.step in steps]
    if live:
        return any(is_skipped(other) for other in live)
    return any(later.step > step.step and not is_skipped(later) for later in made)


def save_check(request: Request, evidence: Evidence, *, ended_well: bool, undecided: str = "") -> Check:
    """The resumed job publishes, and what it published passes tier 1.

    Args:
        request: What was asked for.
        evidence: What it left behind.
        ended_well: Its command did.
        undecided: Why a save that is missing says nothing about the checkpoint; empty: it does.
    """
    name = "save_after_resume"
    if not request.steps:
        return not_run(name, "no step was asked for")
    if not all(trace.has_loaded for trace in evidence.ranks.values()) or not evidence.ranks:
        return not_run(name, "nothing was loaded")
    last = request.smoke_steps[-1]
    unsaved = [rank for rank in request.ranks if not _has_saved(evidence.ranks.get(rank), request)]
    comparing = Comparing(name, "save", subject(request.manifest))
    excuse = evidence.starved or undecided or _unreached(request, evidence)
    if unsaved and excuse:
        return not_run(name, excuse)
    if unsaved:
        said = [trace.stopped.message for trace in evidence.ranks.values() if trace.stopped and trace.stopped.message]
        found = said[0] if said else "no rank says that it saved" if ended_well else "the replica ended before it"
        for rank in unsaved:
            comparing.refuse(
                Reason.SAVE_AFTER_RESUME_FAILED, f"after step {last}", "a committed generation", found, rank=rank
            )
        return comparing.check(f"step {last}")
    if evidence.saved is None:
        return not_run(name, "the generation that was saved could not be verified")
    broken = tuple(_nested(finding, request) for finding in evidence.saved.findings)
    detail = f"{evidence.saved.subject}: tier 1 {evidence.saved.outcome}"
    check = comparing.check(detail, missing="" if evidence.saved.outcome.is_conclusive else detail)
    return Check(name=name, state=check.state, detail=detail, findings=broken)


def _has_saved(trace: RankTrace | None, request: Request) -> bool:
    return trace is not None and any(saved.step in request.smoke_steps for saved in trace.saved)


def _nested(finding: Finding, request: Request) -> Finding:
    return Finding(
        reason=Reason.SAVE_AFTER_RESUME_FAILED,
        message=f"save after resume failed: after {subject(request.manifest)}: {finding.message}",
        offender=finding.offender,
        expected=finding.expected,
        found=f"{finding.reason}: {finding.found or ''}".rstrip(": "),
    )
