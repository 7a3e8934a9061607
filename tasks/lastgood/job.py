"""Which job is running, and whether a checkpoint is one of its own.

Decides what of a manifest's job description must agree with the running one before anything is loaded: the identities
of model, tokenizer and dataset, whose change makes a resume meaningless, are findings; code, configuration, environment
and topology, which a restart may change on purpose, are notes. Source: DESIGN.md §5.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

import lastgood
from lastgood.digest import Algorithm, hash_bytes
from lastgood.manifest import Environment, Identity, JobDescription
from lastgood.verdict import Finding, Note, NoteReason, Reason

__all__ = ["compare_jobs", "content_id", "current_environment"]


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


def compare_jobs(saved: JobDescription, running: JobDescription) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """What refuses to resume `saved` in `running`, and what is worth saying about it."""
    return tuple(_findings(saved, running)), tuple(_notes(saved, running))


def _findings(saved: JobDescription, running: JobDescription) -> Iterator[Finding]:
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
        if before != now:
            yield Note(reason=reason, message=f"{name} changed: saved with {before}, running {now}", offender=name)


def _spelled(identity: Identity | None) -> str:
    return "none" if identity is None else f"{identity.name}@{identity.revision}"


def _ranks(job: JobDescription) -> str:
    return f"{job.topology.strategy} on {job.topology.world_size}"
