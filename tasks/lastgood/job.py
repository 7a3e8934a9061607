"""Which job is running, and whether a checkpoint is one of its own.

Decides what of a manifest's job description must agree with the running one before anything is loaded: the identities
of model, tokenizer and dataset, whose change makes a resume meaningless, are findings; code, configuration, environment
and topology, which a restart may change on purpose, are notes. `describe_job` makes the description, and refuses one
that no checkpoint could be resumed with. Source: docs/architecture.md
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping

import lastgood
from lastgood.digest import Algorithm, hash_bytes
from lastgood.errors import UsageError
from lastgood.manifest import (
    REQUIRED_COMPONENTS,
    AbsentComponent,
    Component,
    ComponentPromise,
    Counter,
    CounterMeaning,
    Determinism,
    Environment,
    ExplainedKey,
    Identity,
    JobDescription,
    Purpose,
    Topology,
)
from lastgood.verdict import Finding, Note, NoteReason, Reason

__all__ = ["compare_jobs", "component_promises", "content_id", "current_environment", "describe_job"]

# What a sum that is ordered otherwise reaches; positions, counters and streams stay exact.
_NUMERIC = frozenset({Component.MODEL, Component.OPTIMIZER, Component.EMA, Component.SCALER})


def current_environment(
    *, torch: str | None = None, cuda: str | None = None, device: str | None = None, image_digest: str | None = None
) -> Environment:
    """The software of this process; what only a tensor library knows is handed in."""
    return Environment(
        python=platform.python_version(),
        lastgood=lastgood.__version__,
        torch=None if torch is None else str(torch),  # torch's own is a subclass that no document holds
        cuda=cuda,
        image_digest=image_digest,
        device=device,
    )


def content_id(content: bytes) -> str:
    """An id that changes with its content, for code, configurations, models and datasets."""
    return str(hash_bytes(content, Algorithm.BLAKE3))


UNMEASURED = "nobody has measured yet that this job resumes bit for bit"


def describe_job(
    step: int,
    *,
    run: str,
    code: str,
    configuration: str,
    model: Identity,
    dataset: Identity,
    saved: Collection[Component],
    absent: Mapping[Component, str] | Iterable[AbsentComponent] = (),
    tokenizer: Identity | None = None,
    topology: Topology | None = None,
    environment: Environment | None = None,
    explained: Iterable[ExplainedKey] = (),
    inexact: str | None = UNMEASURED,
    tolerance: float = 0.01,
) -> JobDescription:
    """Describe a resumable checkpoint of this process's job, for its manifest.

    Args:
        step: Completed optimizer steps.
        run: The training lineage; the same across restarts.
        code: A commit or an image tag; `content_id` of the sources where there is neither.
        configuration: `content_id` of what the run was configured with.
        model: A name, and a revision that changes with the architecture; a difference refuses to resume.
        dataset: Likewise.
        saved: What the artifacts hold: one file may hold several components.
        absent: Component → why the run has none; what a resume needs is in `saved` or here.
        tokenizer: Likewise; None where the model reads no tokens.
        topology: How the run is spread; one process if None.
        environment: The software; this process's, with torch where it is loaded, if None.
        explained: Keys that a strict load accepts.
        inexact: Why a resumed run may round otherwise than an uninterrupted one. None promises equal bits: say so once
            it was measured for this job, for a restore that differs then fails and quarantines the family.
        tolerance: Largest relative difference of losses and norms; counts only with `inexact`.

    Raises:
        UsageError: A component is in both `saved` and `absent`, or one that a resume needs is in neither.
    """
    reasons = absent if isinstance(absent, Mapping) else {entry.component: entry.reason for entry in absent}
    missing = [component for component in REQUIRED_COMPONENTS if component not in (*saved, *reasons)]
    if missing:
        raise UsageError(
            f"component neither saved nor absent: {', '.join(missing)}",
            hint="save it, or say in `absent` why this run needs none; nothing could resume the checkpoint otherwise",
        )
    both = [component for component in saved if component in reasons]
    if both:
        raise UsageError(f"component both saved and absent: {', '.join(both)}")
    torch = sys.modules.get("torch")
    return JobDescription(
        run=run,
        counters=(Counter(name="optimizer_step", value=step, names=CounterMeaning.COMPLETED),),
        code=code,
        configuration=configuration,
        environment=environment or current_environment(torch=getattr(torch, "__version__", None)),
        topology=topology or Topology(world_size=1, strategy="single", layout={}),
        model=model,
        tokenizer=tokenizer,
        dataset=dataset,
        purpose=Purpose.RESUMABLE,
        promises=component_promises(saved, inexact=inexact, tolerance=tolerance),
        absent=tuple(AbsentComponent(component=component, reason=reason) for component, reason in reasons.items()),
        explained=tuple(explained),
    )


def component_promises(
    saved: Collection[Component], *, inexact: str | None, tolerance: float
) -> tuple[ComponentPromise, ...]:
    """What is promised of each component that a save holds; see `describe_job`."""
    return tuple(
        ComponentPromise(component=component, determinism=Determinism.EXACT)
        if inexact is None or component not in _NUMERIC
        else ComponentPromise(
            component=component, determinism=Determinism.TOLERANCE, tolerance=tolerance, reason=inexact
        )
        for component in saved
    )


def compare_jobs(saved: JobDescription, running: JobDescription) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """What refuses to resume `saved` in `running`, and what is worth saying about it."""
    return tuple(_findings(saved, running)), tuple(_notes(saved, running))


def _findings(saved: JobDescription, running: JobDescription) -> Iterator[Finding]:
    if saved.model is None:
        return  # a sealed checkpoint, which names none of them
    for name, reason, before, now in (
        ("model", Reason.MODEL_IDENTITY_CHANGED, saved.model, running.model),
        ("tokenizer", Reason.TOKENIZER_IDENTITY_CHANGED, saved.tokenizer, running.tokenizer),
        ("dataset", Reason.DATASET_IDENTITY_CHANGED, saved.dataset, running.dataset),
    ):
        if before != now:
            expected, found = _spelled(before), _spelled(now)
            yield Finding(
                reason=reason,
                message=f"{name} identity changed: the checkpoint was saved with {expected}, {found} is running",
                offender=name,
                expected=expected,
                found=found,
            )


def _notes(saved: JobDescription, running: JobDescription) -> Iterator[Note]:
    if saved.model is None:
        message = "identity not stated: nothing in the checkpoint names model, tokenizer or dataset"
        yield Note(reason=NoteReason.IDENTITY_NOT_STATED, message=message, offender="model")
    for name, reason, before, now in (
        ("code", NoteReason.CODE_CHANGED, saved.code, running.code),
        ("configuration", NoteReason.CONFIGURATION_CHANGED, saved.configuration, running.configuration),
        *(
            (f"environment.{field}", NoteReason.ENVIRONMENT_CHANGED, before, getattr(running.environment, field))
            for field in saved.environment.__struct_fields__
            for before in (getattr(saved.environment, field),)
        ),
        ("topology", NoteReason.TOPOLOGY_CHANGED, _ranks(saved), _ranks(running)),
    ):
        if before != now and not (before is None and saved.model is None):
            yield Note(reason=reason, message=f"{name} changed: saved with {before}, running {now}", offender=name)


def _spelled(identity: Identity | None) -> str:
    return "none" if identity is None else f"{identity.name}@{identity.revision}"


def _ranks(job: JobDescription) -> str:
    return f"{job.topology.strategy} on {job.topology.world_size}"
