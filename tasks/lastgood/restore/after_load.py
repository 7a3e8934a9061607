"""The checks right after the load: what the live objects say, against what the manifest's said before they were saved.

Decides one check a row of what a restore must answer (docs/architecture.md). Rules: what was loaded must be what was
saved, whatever is promised of the steps after it; only random streams and data positions that promise nothing are let
off; every rank is compared with its own expectations. On another world size only what does not belong to a rank is
compared. Source: docs/architecture.md, what a restore answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lastgood.manifest import Component, Determinism, Expectations, Manifest
from lastgood.replica.trace import Loaded
from lastgood.restore.divergence import Comparing, not_run, span
from lastgood.restore.evidence import Evidence, RankTrace, Request
from lastgood.restore.promises import EXACT, Promise, promise_of
from lastgood.text import counted
from lastgood.verdict import Check, CheckState, Finding, Note, NoteReason, Reason, Rung

__all__ = ["component_of", "loaded_checks", "subject"]

COUNTED_COMPONENTS = (Component.MODEL, Component.OPTIMIZER, Component.EMA)
"""Components whose tensors a load counts; one that counted no key of one of them left it out. What the others hold is
a few values, which the expectations name one by one."""


NOTHING_EXPECTED = Expectations(learning_rates={}, optimizer_steps={}, scalars={}, ranks=())
"""Of a sealed checkpoint, of which nobody asked the live objects; what step it is at is known all the same."""


def subject(manifest: Manifest) -> str:
    """How messages and verdicts name the generation."""
    return f"{manifest.family}/{manifest.generation}"


def component_of(key: str, manifest: Manifest) -> Component:
    """The component that an expectation's key belongs to: its first word names a component, or an artifact of one."""
    word = key.partition(".")[0]
    try:
        return Component(word)
    except ValueError:
        pass
    for artifact in manifest.artifacts:
        if artifact.path.partition("/")[0].partition(".")[0] == word:
            return artifact.component
    return Component.OTHER


@dataclass(frozen=True, slots=True)
class _Context:
    """What every check below looks at: the ranks that have loaded, with their records."""

    request: Request
    expected: Expectations
    traces: Mapping[int, tuple[RankTrace, Loaded]]
    missing: str

    @property
    def manifest(self) -> Manifest:
        return self.request.manifest

    @property
    def same_ranks(self) -> bool:
        return self.request.rung is not Rung.TOPOLOGY_CHANGE

    def comparing(self, name: str, component: Component) -> Comparing:
        return Comparing(name, component, subject(self.manifest))

    def is_absent(self, component: Component) -> str | None:
        """Why a component was left out on purpose, or None."""
        return next((entry.reason for entry in self.manifest.job.absent if entry.component is component), None)


def loaded_checks(request: Request, evidence: Evidence) -> tuple[list[Check], list[Note]]:
    """Everything that is asked between the load and the first step."""
    traces = {
        rank: (trace, trace.loaded)
        for rank, trace in sorted(evidence.ranks.items())
        if trace.loaded is not None and trace.has_loaded
    }
    absent = [rank for rank in request.ranks if rank not in traces]
    missing = f"{span(absent, 'rank')} loaded nothing" if absent else ""
    strict, notes = _strict_load(request, evidence, missing)
    checks = [strict]
    expected = request.manifest.expectations
    context = _Context(request, expected or NOTHING_EXPECTED, traces, missing)
    for name, question in _QUESTIONS.items():
        if expected is None and name != "completed_step":
            checks.append(not_run(name, "the manifest states no expectations"))
            continue
        check, said = question(context, name)
        checks.append(check)
        notes.extend(said)
    return checks, notes


_Answer = tuple[Check, tuple[Note, ...]]


def _strict_load(request: Request, evidence: Evidence, missing: str) -> tuple[Check, list[Note]]:
    """Every key that should load did, and nothing else, on every rank."""
    found: dict[Finding, list[int]] = {}
    notes: dict[Note, None] = {}
    for rank, trace in sorted(evidence.ranks.items()):
        said = (*(trace.refused.findings if trace.refused else ()), *(trace.loaded.findings if trace.loaded else ()))
        for finding in said:
            ranks = found.setdefault(finding, [])
            if rank not in ranks:
                ranks.append(rank)
        notes.update(dict.fromkeys(trace.loaded.notes if trace.loaded else ()))
    findings = [_on_ranks(finding, ranks, request) for finding, ranks in found.items()]
    for component in _uncounted(request, evidence):
        findings.append(
            Finding(
                reason=Reason.STATE_NOT_RESTORED,
                message=f"state not restored: {component} in {subject(request.manifest)}: no key of it was loaded",
                offender=str(component),
            )
        )
    refusals = [trace.refused.message for trace in evidence.ranks.values() if trace.refused and trace.refused.message]
    detail = refusals[0] if refusals else _counted(evidence)
    state = CheckState.NOT_RUN if missing and not findings else CheckState.RAN
    return (
        Check(
            name="strict_load",
            state=state,
            detail=missing if state is CheckState.NOT_RUN else detail,
            findings=tuple(findings),
        ),
        list(notes),
    )


def _on_ranks(finding: Finding, ranks: list[int], request: Request) -> Finding:
    if len(ranks) == request.world_size:
        return finding
    return Finding(
        reason=finding.reason,
        message=f"{finding.message} (on {span(ranks, 'rank')})",
        offender=finding.offender,
        expected=finding.expected,
        found=finding.found,
    )


def _uncounted(request: Request, evidence: Evidence) -> Iterator[Component]:
    """Components that lie on storage and that some rank's load counted no key of."""
    stored = {artifact.component for artifact in request.manifest.artifacts}
    loads = [trace.loaded for trace in evidence.ranks.values() if trace.loaded is not None and trace.has_loaded]
    for component in COUNTED_COMPONENTS:
        if component in stored and any(not loaded.keys.get(component) for loaded in loads):
            yield component


def _counted(evidence: Evidence) -> str:
    counts = {
        component: count
        for trace in evidence.ranks.values()
        if trace.loaded is not None
        for component, count in trace.loaded.keys.items()
    }
    keys = ", ".join(f"{component} {count}" for component, count in sorted(counts.items()))
    return f"{span(evidence.ranks, 'rank')}; keys: {keys}"


def _tensors(component: Component) -> Callable[[_Context, str], _Answer]:
    """Sampled digests of one component's tensors; how many there are is the manifest's choice."""

    def ask(context: _Context, name: str) -> _Answer:
        absent = context.is_absent(component)
        if absent or component not in context.manifest.present:
            return not_run(name, f"absent on purpose: {absent}" if absent else f"the run has no {component}"), ()
        comparing = context.comparing(name, component)
        anywhere = {key: digest for entry in context.expected.ranks for key, digest in entry.tensor_digests.items()}
        stated = 0
        for rank, (_, loaded) in context.traces.items():
            # On another world size a tensor is cut elsewhere, and another version samples others: what both sides have
            # can be compared. That nothing is missing is the strict load's word.
            own = context.expected.ranks[rank].tensor_digests if context.same_ranks else anywhere
            found = loaded.expectations.tensor_digests if loaded.expectations else {}
            wanted = {key: digest for key, digest in own.items() if component_of(key, context.manifest) is component}
            stated += len(wanted)
            both = {key: digest for key, digest in wanted.items() if key in found}
            comparing.expect_all(Reason.TENSOR_DIGEST_DIVERGED, both, found, rank=rank)
        if stated and not comparing.compared and context.same_ranks and not context.missing:
            return not_run(name, "the replica sampled none of the tensors that the manifest did"), ()
        keys = sum(loaded.keys.get(component, 0) for _, loaded in context.traces.values())
        held = f"{counted(keys, 'key')} on {counted(len(context.traces), 'rank')}"
        detail = f"{held}, {comparing.compared} of {stated} sampled digests"
        return comparing.check(detail, missing=context.missing), ()

    return ask


def _scalars(component: Component, reason: Reason) -> Callable[[_Context, str], _Answer]:
    """Exact values of one component, the same on every rank."""

    def ask(context: _Context, name: str) -> _Answer:
        wanted = {
            key: value
            for key, value in context.expected.scalars.items()
            if component_of(key, context.manifest) is component
        }
        if not wanted:
            absent = context.is_absent(component)
            why = f"absent on purpose: {absent}" if absent else f"the manifest states no values of {component}"
            return not_run(name, why), ()
        comparing = context.comparing(name, component)
        promise = _at_load(context.manifest, component)
        for rank, (_, loaded) in context.traces.items():
            comparing.expect_all(reason, wanted, loaded.scalars, rank=rank, promise=promise)
        shown = ", ".join(f"{key}={value}" for key, value in sorted(wanted.items())[:6])
        return comparing.check(shown, missing=context.missing), comparing.notes

    return ask


def _at_load(manifest: Manifest, component: Component) -> Promise:
    if component in (Component.RNG, Component.DATA):
        promise = promise_of(manifest, component)
        if promise.determinism is Determinism.NONE:
            return promise
    return EXACT


def _optimizer_steps(context: _Context, name: str) -> _Answer:
    if not context.expected.optimizer_steps:
        return not_run(name, "the manifest states no optimizer steps"), ()
    comparing = context.comparing(name, Component.OPTIMIZER)
    for rank, (_, loaded) in context.traces.items():
        comparing.expect_all(
            Reason.OPTIMIZER_STEP_DIVERGED, context.expected.optimizer_steps, loaded.optimizer_steps, rank=rank
        )
    shown = ", ".join(f"{group}={count}" for group, count in sorted(context.expected.optimizer_steps.items())[:6])
    return comparing.check(f"completed updates: {shown}", missing=context.missing), ()


def _learning_rates(context: _Context, name: str) -> _Answer:
    """The rate that the next update will use, and the one that the first update did use.

    Without a scheduler the loop sets its rates before each update, so what its groups hold at a save is the last one's.
    """
    if not context.expected.learning_rates:
        return not_run(name, "the manifest states no learning rates"), ()
    comparing = context.comparing(name, Component.SCHEDULER)
    sets_its_own = context.is_absent(Component.SCHEDULER) is not None
    first = context.manifest.step + 1
    for rank, (trace, loaded) in context.traces.items():
        rates = context.expected.learning_rates
        comparing.expect_all(Reason.LEARNING_RATE_DIVERGED, rates, loaded.learning_rates, rank=rank)
        step = trace.steps.get(first)
        if step is not None and loaded.learning_rates == rates and not sets_its_own:
            used = {f"{group} used in step {first}": rate for group, rate in step.learning_rates.items()}
            wanted = {f"{group} used in step {first}": rate for group, rate in rates.items()}
            comparing.expect_all(Reason.LEARNING_RATE_DIVERGED, wanted, used, rank=rank)
    shown = ", ".join(f"{group}={rate:g}" for group, rate in sorted(context.expected.learning_rates.items())[:6])
    return comparing.check(f"next update: {shown}", missing=context.missing), ()


def _random_draws(context: _Context, name: str) -> _Answer:
    absent = context.is_absent(Component.RNG)
    if absent:
        return not_run(name, f"absent on purpose: {absent}"), ()
    if not context.same_ranks:
        return not_run(name, "random streams belong to ranks: another world size begins them anew"), ()
    comparing = context.comparing(name, Component.RNG)
    promise = _at_load(context.manifest, Component.RNG)
    streams: set[str] = set()
    for rank, (_, loaded) in context.traces.items():
        own = context.expected.ranks[rank].rng_draws
        streams.update(own)
        found = loaded.expectations.rng_draws if loaded.expectations else {}
        comparing.expect_all(Reason.RNG_DIVERGED, own, found, rank=rank, promise=promise)
    if not comparing.compared and not context.missing:
        return not_run(name, "the manifest states no draws"), ()
    drawn = f"{counted(len(streams), 'stream')} on {counted(len(context.traces), 'rank')}"
    detail = f"{drawn}: {', '.join(sorted(streams)[:8])}"
    return comparing.check(detail, missing=context.missing), comparing.notes


def _sample_ids(context: _Context, name: str) -> _Answer:
    """The next sample ids: as peeked after the load, and as consumed by the steps."""
    absent = context.is_absent(Component.DATA)
    if absent:
        return not_run(name, f"absent on purpose: {absent}"), ()
    unpeekable = next(
        (entry.sample_ids.from_trace for entry in context.expected.ranks if entry.sample_ids.from_trace), None
    )
    if unpeekable:
        note = Note(
            reason=NoteReason.EXPECTATION_FROM_TRACE,
            message=f"next sample ids cannot be peeked: {unpeekable}",
            offender=str(Component.DATA),
        )
        return not_run(name, f"decided by the live trace: {unpeekable}"), (note,)
    comparing = context.comparing(name, Component.DATA)
    if not context.same_ranks:
        return _sample_multiset(context, comparing), ()
    promise = _at_load(context.manifest, Component.DATA)
    for rank, (trace, loaded) in context.traces.items():
        ids = context.expected.ranks[rank].sample_ids.ids
        peeked = loaded.expectations.sample_ids.ids if loaded.expectations else ()
        comparing.expect(Reason.SAMPLE_IDS_DIVERGED, "next ids", ids, peeked, rank=rank, promise=promise)
        consumed = _consumed(context.request, trace)[: len(ids)]
        if consumed and peeked == ids:
            comparing.expect(
                Reason.SAMPLE_IDS_DIVERGED,
                "consumed ids",
                ids[: len(consumed)],
                consumed,
                rank=rank,
                promise=promise,
            )
    count = max((len(entry.sample_ids.ids) for entry in context.expected.ranks), default=0)
    detail = f"next {counted(count, 'id')} of {counted(len(context.traces), 'rank')}"
    return comparing.check(detail, missing=context.missing), comparing.notes


def _sample_multiset(context: _Context, comparing: Comparing) -> Check:
    """On another world size the first step consumes the same samples, spread over the ranks differently."""
    first = context.manifest.step + 1
    steps = [trace.steps.get(first) for trace, _ in context.traces.values()]
    found = sorted(str(one) for step in steps if step for microbatch in step.sample_ids for one in microbatch)
    saved_ranks = context.manifest.job.topology.world_size
    share = len(found) // saved_ranks
    whole = [str(one) for entry in context.expected.ranks for one in entry.sample_ids.ids[:share]]
    if not found or context.missing:
        return not_run(comparing.name, context.missing or "no step was made")
    if len(whole) != len(found):
        return not_run(comparing.name, f"the manifest states fewer ids than step {first} consumed")
    item = f"ids of step {first} over all ranks"
    comparing.expect(Reason.SAMPLE_IDS_DIVERGED, item, tuple(sorted(whole)), tuple(found), rank=0)
    return comparing.check(f"{len(found)} samples of step {first}, as a multiset")


def _consumed(request: Request, trace: RankTrace) -> tuple[str | int, ...]:
    """The ids of the rank's steps in order, as far as they follow one another without a gap."""
    ids: list[str | int] = []
    for number in request.smoke_steps:
        if number not in trace.steps:
            break
        ids.extend(one for microbatch in trace.steps[number].sample_ids for one in microbatch)
    return tuple(ids)


def _position(context: _Context, name: str) -> _Answer:
    """The completed step that every rank stands at."""
    comparing = Comparing(name, "counters", subject(context.manifest))
    for rank, (_, loaded) in context.traces.items():
        comparing.expect(Reason.COUNTER_DIVERGED, "completed step", context.manifest.step, loaded.step, rank=rank)
    stated = ", ".join(f"{c.name}={c.value} ({c.names})" for c in context.manifest.job.counters[:6])
    return comparing.check(f"step {context.manifest.step}; stated: {stated or 'none'}", missing=context.missing), ()


_QUESTIONS: Mapping[str, Callable[[_Context, str], _Answer]] = {
    "model_tensors": _tensors(Component.MODEL),
    "optimizer_tensors": _tensors(Component.OPTIMIZER),
    "moving_average_tensors": _tensors(Component.EMA),
    "optimizer_steps": _optimizer_steps,
    "gradient_scaler": _scalars(Component.SCALER, Reason.STATE_NOT_RESTORED),
    "scheduler_position": _scalars(Component.SCHEDULER, Reason.COUNTER_DIVERGED),
    "learning_rate_before_step": _learning_rates,
    "rng_draws": _random_draws,
    "sample_ids": _sample_ids,
    "data_position": _scalars(Component.DATA, Reason.COUNTER_DIVERGED),
    "completed_step": _position,
}
"""Name of the check → who answers it, in the order of the report."""
