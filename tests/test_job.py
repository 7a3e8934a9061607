"""What may differ between the job that saved and the one that resumes: identities refuse, the rest is said."""

from __future__ import annotations

import msgspec
import pytest

from lastgood.errors import UsageError
from lastgood.job import compare_jobs, content_id, describe_job
from lastgood.manifest import (
    REQUIRED_COMPONENTS,
    AbsentComponent,
    Component,
    Determinism,
    Identity,
    JobDescription,
    Topology,
)
from lastgood.testing.build import Recipe, build_job
from lastgood.verdict import NoteReason, Reason

JOB = build_job("llm-7b", 12, Recipe())


def test_the_same_job_is_resumed_without_a_word() -> None:
    """A note on every ordinary restart would teach people not to read notes."""
    assert compare_jobs(JOB, JOB) == ((), ())


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("model", Reason.MODEL_IDENTITY_CHANGED),
        ("tokenizer", Reason.TOKENIZER_IDENTITY_CHANGED),
        ("dataset", Reason.DATASET_IDENTITY_CHANGED),
    ],
)
def test_another_model_tokenizer_or_dataset_refuses(field: str, reason: Reason) -> None:
    """Tensors may still fit where their meaning does not: token 17 of another tokenizer is another word."""
    findings, notes = compare_jobs(JOB, msgspec.structs.replace(JOB, **{field: Identity(name="bytes", revision="2")}))
    assert [(f.reason, f.offender, f.expected, f.found) for f in findings] == [(reason, field, "bytes@1", "bytes@2")]
    assert notes == ()


def test_a_tokenizer_that_is_gone_refuses() -> None:
    """No tokenizer is an identity too, and not a value left out."""
    findings, _ = compare_jobs(JOB, msgspec.structs.replace(JOB, tokenizer=None))
    assert [(f.reason, f.found) for f in findings] == [(Reason.TOKENIZER_IDENTITY_CHANGED, "none")]


def test_code_configuration_environment_and_topology_are_notes() -> None:
    """A fixed bug or a new driver is why people restart; it is written down and refuses nothing."""
    running = msgspec.structs.replace(
        JOB,
        code="fixed",
        configuration="more workers",
        environment=msgspec.structs.replace(JOB.environment, torch="2.13.0"),
        topology=Topology(world_size=4, strategy="fsdp2", layout={}),
    )
    findings, notes = compare_jobs(JOB, running)
    assert findings == ()
    assert [(note.reason, note.offender) for note in notes] == [
        (NoteReason.CODE_CHANGED, "code"),
        (NoteReason.CONFIGURATION_CHANGED, "configuration"),
        (NoteReason.ENVIRONMENT_CHANGED, "environment.torch"),
        (NoteReason.TOPOLOGY_CHANGED, "topology"),
    ]


def test_a_content_id_changes_with_its_content() -> None:
    """Two configurations of one id would let a changed one pass as the same."""
    assert content_id(b"a") == content_id(b"a") != content_id(b"b")


def describe(saved: tuple[Component, ...], **more: object) -> JobDescription:
    return describe_job(
        12,
        run="llm-7b",
        code="git:4f2c",
        configuration="rev 3",
        model=Identity(name="mlp", revision="1"),
        dataset=Identity(name="sums", revision="1"),
        saved=saved,
        **more,  # type: ignore[arg-type]
    )


def test_a_description_that_nothing_could_resume_is_refused_before_it_is_saved() -> None:
    """Tier 1 bars such a checkpoint, and a run whose every save is barred finds out at its first interruption."""
    with pytest.raises(UsageError, match="neither saved nor absent: rng, data") as refused:
        describe(tuple(one for one in REQUIRED_COMPONENTS if one not in (Component.RNG, Component.DATA)))
    assert refused.value.hint
    with pytest.raises(UsageError, match="both saved and absent: rng"):
        describe(REQUIRED_COMPONENTS, absent={Component.RNG: "nothing is drawn"})


@pytest.mark.parametrize(
    "absent",
    [{Component.SCALER: "bf16"}, (AbsentComponent(component=Component.SCALER, reason="bf16"),)],
    ids=["by hand", "of a snapshot"],
)
def test_a_description_promises_what_is_saved_and_names_what_is_not(absent: object) -> None:
    """A promise by omission would be one that nobody made."""
    saved = tuple(one for one in REQUIRED_COMPONENTS if one is not Component.SCALER)
    job = describe(saved, absent=absent, inexact="threads are not pinned")
    assert [promise.component for promise in job.promises] == list(saved)
    assert job.absent == (AbsentComponent(component=Component.SCALER, reason="bf16"),)
    weaker = {promise.component for promise in job.promises if promise.determinism is Determinism.TOLERANCE}
    assert weaker == {Component.MODEL, Component.OPTIMIZER}
    assert job.counters[0].value == 12


def test_exactness_is_promised_only_by_whoever_says_so() -> None:
    """A broken promise quarantines the family, so nothing that nobody measured is promised by default."""
    silent = {promise.determinism for promise in describe(REQUIRED_COMPONENTS).promises}
    measured = {promise.determinism for promise in describe(REQUIRED_COMPONENTS, inexact=None).promises}
    assert silent == {Determinism.EXACT, Determinism.TOLERANCE}
    assert measured == {Determinism.EXACT}
