"""The checks against the live run: after the same step, does the resumed run stand where the uninterrupted one stood?

Decides which values of two steps are compared, and how closely. Rules: the tolerance is the manifest's promise, fixed
before either run made the step; positions and ids are equal or not; sums are as close as the weakest component that
enters them promises; rates and update counts of a sealed checkpoint are equal although its framework promises nothing,
for they are what a resume is for; where the live trace ends, the comparison is not run and is named; in another
environment than the live run's, what kernels computed is noted and refuses nothing, for other sums are not the
checkpoint's fault. The first place where two runs part is what matters, so one item is reported once, at its first
step. Source: docs/architecture.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from lastgood.manifest import Component, Determinism, Manifest
from lastgood.replica.trace import Step
from lastgood.restore.after_load import subject
from lastgood.restore.divergence import Comparing, not_run, span
from lastgood.restore.evidence import Evidence, Request
from lastgood.restore.promises import EXACT, Agreement, Promise, agreement, promise_of, weakest
from lastgood.text import counted
from lastgood.verdict import Check, Note, NoteReason, Reason, Rung

__all__ = ["CONTROL_CHECKS", "control_checks", "went_on_alike"]

Values = Mapping[str, object]


class _Comparison(NamedTuple):
    """One check: what it is about, what refuses, how closely, and the values of a step."""

    component: Component | str
    reason: Reason
    promise: Callable[[Manifest], Promise]
    values: Callable[[Step], Values]
    first: int = 1
    """The first step after the load that is compared; 2 where the step before decides the value."""
    is_computed: bool = False
    """Whether kernels computed it: another device, thread count or release of torch may order its sums otherwise."""
    is_position: bool = False
    """Whether it only says how far training is: equal wherever the state was brought back, whoever promised what."""


def _of(component: Component) -> Callable[[Manifest], Promise]:
    def promise(manifest: Manifest) -> Promise:
        if any(entry.component is component for entry in manifest.job.absent):
            return weakest(manifest)
        return promise_of(manifest, component)

    return promise


def _exact_or_nothing(manifest: Manifest) -> Promise:
    """Digests cannot be nearly equal."""
    promise = weakest(manifest)
    if promise.determinism is Determinism.TOLERANCE:
        return Promise(determinism=Determinism.NONE, reason=f"digests cannot be nearly equal, and {promise.reason}")
    return promise


def _norm(step: Step) -> Values:
    return {} if step.grad_norm is None else {"value": step.grad_norm}


_COMPARISONS: Mapping[str, _Comparison] = {
    "control_sample_ids": _Comparison(
        Component.DATA,
        Reason.SAMPLE_IDS_DIVERGED,
        _of(Component.DATA),
        lambda step: {"ids": step.sample_ids} if step.sample_ids else {},
    ),
    "control_rng_draws": _Comparison(
        Component.RNG, Reason.RNG_DIVERGED, _of(Component.RNG), lambda step: dict(step.draws)
    ),
    "learning_rate_after_step": _Comparison(
        Component.SCHEDULER,
        Reason.LEARNING_RATE_DIVERGED,
        _of(Component.SCHEDULER),
        lambda step: dict(step.learning_rates),
        first=2,
        is_position=True,
    ),
    "control_optimizer_steps": _Comparison(
        Component.OPTIMIZER,
        Reason.OPTIMIZER_STEP_DIVERGED,
        lambda manifest: weakest(manifest),
        lambda step: dict(step.optimizer_steps),
        is_position=True,
    ),
    "control_loss": _Comparison(
        "loss",
        Reason.TRACE_DIVERGED,
        lambda manifest: weakest(manifest),
        lambda step: {"value": step.loss},
        is_computed=True,
    ),
    "control_gradient_norm": _Comparison(
        "gradient norm", Reason.TRACE_DIVERGED, lambda manifest: weakest(manifest), _norm, is_computed=True
    ),
    "control_scalars": _Comparison(
        Component.SCALER, Reason.TRACE_DIVERGED, _of(Component.SCALER), lambda step: dict(step.scalars)
    ),
    "control_digests": _Comparison(
        "digests", Reason.TRACE_DIVERGED, _exact_or_nothing, lambda step: dict(step.digests), is_computed=True
    ),
}

CONTROL_CHECKS = tuple(_COMPARISONS)
"""Names of the checks that need a live trace; none of them is required, and each says whether it ran."""


def control_checks(request: Request, evidence: Evidence) -> tuple[list[Check], list[Note]]:
    """Compare every smoke step with the live run's own, as far as that goes."""
    checks: list[Check] = []
    notes: dict[Note, None] = {}
    changed = {note.offender.rpartition(".")[2]: note for note in _environment_notes(request.manifest, evidence)}
    for name, comparison in _COMPARISONS.items():
        promise = comparison.promise(request.manifest)
        if comparison.is_position and request.manifest.seal is not None:
            promise = EXACT
        elif comparison.is_computed and changed:
            promise = Promise(determinism=Determinism.NONE, reason=f"the environment changed: {', '.join(changed)}")
        check, said = _compare(request, evidence, name, comparison, promise)
        checks.append(check)
        notes.update(dict.fromkeys(said))
    notes.update(dict.fromkeys(changed.values()))
    live = {number for steps in evidence.control.steps.values() for number in steps}
    ended = [number for number in request.smoke_steps if number not in live]
    if ended:
        notes[
            Note(
                reason=NoteReason.CONTROL_NOT_AVAILABLE,
                message=f"live trace does not hold {span(ended, 'step')} of {subject(request.manifest)}",
                offender="traces",
            )
        ] = None
    return checks, list(notes)


def went_on_alike(request: Request, evidence: Evidence) -> bool:
    """Whether every rank made every smoke step as the live run did, value for value.

    For a checkpoint of which nothing is promised: another loss cannot fail it, so only agreement can speak for it.
    """
    for rank in request.ranks:
        own = evidence.ranks[rank].steps if rank in evidence.ranks else {}
        for place, number in enumerate(request.smoke_steps, start=1):
            live, made = evidence.control.step(rank, number), own.get(number)
            if live is None or made is None:
                return False
            for comparison in _COMPARISONS.values():
                if place < comparison.first:
                    continue
                expected, found = comparison.values(live), comparison.values(made)
                if any(
                    agreement(expected[item], found[item], EXACT) is not Agreement.SAME
                    for item in expected.keys() & found.keys()
                ):
                    return False
    return True


def _compare(
    request: Request, evidence: Evidence, name: str, comparison: _Comparison, promise: Promise
) -> tuple[Check, tuple[Note, ...]]:
    if request.rung is Rung.TOPOLOGY_CHANGE:
        return not_run(name, "the live run had another world size"), ()
    comparing = Comparing(name, comparison.component, subject(request.manifest))
    parted: set[tuple[int, str]] = set()
    compared: set[int] = set()
    for rank, live, own in _pairs(request, evidence, comparison.first):
        expected, found = comparison.values(live), comparison.values(own)
        for item in sorted(expected.keys() & found.keys()):
            compared.add(own.step)
            if (rank, item) in parted:
                continue
            if agreement(expected[item], found[item], promise) is not Agreement.SAME:
                parted.add((rank, item))
            comparing.expect(
                comparison.reason, f"{item} of step {own.step}", expected[item], found[item], rank=rank, promise=promise
            )
    if not compared:
        return not_run(name, _nothing(request, evidence, comparison)), ()
    told = str(promise)
    if promise.determinism is Determinism.NONE:
        # Of a pass this is read first: that nothing was promised must not look like something amiss.
        told = f"not equal, and {promise}" if parted else "equal, although nothing was promised"
    detail = f"{span(compared, 'step')} on {counted(len(evidence.control.steps), 'rank')}: {told}"
    return comparing.check(detail), comparing.notes


def _pairs(request: Request, evidence: Evidence, first: int) -> Iterator[tuple[int, Step, Step]]:
    """Rank, the live run's step, the resumed run's same step; in the order of steps."""
    for number in request.smoke_steps[first - 1 :]:
        for rank in request.ranks:
            live = evidence.control.step(rank, number)
            own = evidence.ranks[rank].steps.get(number) if rank in evidence.ranks else None
            if live is not None and own is not None:
                yield rank, live, own


def _nothing(request: Request, evidence: Evidence, comparison: _Comparison) -> str:
    if evidence.control.trouble is not None:
        return f"the live trace cannot be read: {evidence.control.trouble}"
    if not any(evidence.control.steps.values()):
        return f"the live trace ends before step {request.manifest.step + 1}"
    if not any(True for _ in _pairs(request, evidence, comparison.first)):
        return f"the live trace and the replica share no step from {request.manifest.step + comparison.first} on"
    return f"the steps hold no {comparison.component} to compare"


def _environment_notes(manifest: Manifest, evidence: Evidence) -> Iterator[Note]:
    """What decides determinism and was another in the live run: where to look first when the two part."""
    started = next((trace.started for trace in evidence.ranks.values() if trace.started), None)
    own = started.settings if started else {}
    saved = msgspec.structs.asdict(manifest.job.environment)
    live = {**{name: value for name, value in saved.items() if value is not None}, **evidence.control.settings}
    for name in sorted(live.keys() & own.keys()):
        if live[name] != own[name]:
            message = f"{name} changed: the live run had {live[name][:80]}, the replica {own[name][:80]}"
            yield Note(reason=NoteReason.ENVIRONMENT_CHANGED, message=message, offender=f"settings.{name}")
    for trace in evidence.ranks.values():
        for note in trace.loaded.notes if trace.loaded is not None else ():
            # The replica's own word; another release of lastgood computes nothing.
            if note.reason is NoteReason.ENVIRONMENT_CHANGED and note.offender != "environment.lastgood":
                yield note
