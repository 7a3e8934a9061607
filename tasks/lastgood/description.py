"""What is stated of a job in each of its manifests: which kinds of state there are, and what is promised of them.

Decides the vocabulary (components, purposes, promises) and the shape of a description. Leaves to `manifest` whether one
is lawful beside the artifacts that it describes, and to `job` how it is filled in. Rules: every counter says whether it
names the completed or the next step; what is left out on purpose has a reason.
Source: docs/format.md.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from lastgood.documents import Document

__all__ = [
    "MAXIMUM_RANKS",
    "REQUIRED_COMPONENTS",
    "AbsentComponent",
    "Component",
    "ComponentPromise",
    "Count",
    "Counter",
    "CounterMeaning",
    "Determinism",
    "Environment",
    "ExplainedKey",
    "Identity",
    "JobDescription",
    "Purpose",
    "Text",
    "Topology",
    "WorldSize",
]

MAXIMUM_RANKS = 1_000_000

Text = Annotated[str, Meta(min_length=1, max_length=4096)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
WorldSize = Annotated[int, Meta(ge=1, le=MAXIMUM_RANKS)]


class Component(StrEnum):
    """One kind of state whose value changes the next step."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    SCALER = "scaler"
    SCHEDULER = "scheduler"
    ACCUMULATION = "accumulation"
    RNG = "rng"
    DATA = "data"
    TOPOLOGY = "topology"
    CONFIG = "config"
    EMA = "ema"
    OTHER = "other"


REQUIRED_COMPONENTS = (
    Component.MODEL,
    Component.OPTIMIZER,
    Component.SCALER,
    Component.SCHEDULER,
    Component.ACCUMULATION,
    Component.RNG,
    Component.DATA,
    Component.TOPOLOGY,
    Component.CONFIG,
)
"""A resumable manifest holds each of these, or declares it absent with a reason."""


class Purpose(StrEnum):
    """What the checkpoint is for; a weights-only export serves inference and is never offered to a resume."""

    RESUMABLE = "resumable"
    WEIGHTS_ONLY = "weights_only"


class CounterMeaning(StrEnum):
    """Whether a counter's value names the step that is done or the one that comes next."""

    COMPLETED = "completed"
    NEXT = "next"


class Determinism(StrEnum):
    """What the training code promises about a component after a resume."""

    EXACT = "exact"
    TOLERANCE = "tolerance"
    NONE = "none"


class Counter(Document, frozen=True, kw_only=True):
    """A named position, e.g. `optimizer_step`, `epoch`, `scheduler_step`."""

    name: Text
    value: Count
    names: CounterMeaning


class Environment(Document, frozen=True, kw_only=True):
    """The software that saved. Fields that do not apply are null, never "unknown".

    Args:
        python: Null only in a seal, whose checkpoint does not say.
        lastgood: Which wrote the manifest.
    """

    python: Text | None
    lastgood: Text
    torch: Text | None = None
    cuda: Text | None = None
    image_digest: Text | None = None
    device: Text | None = None


class Topology(Document, frozen=True, kw_only=True):
    """How the run was spread over ranks.

    Args:
        world_size: Number of ranks that saved.
        layout: Parallel layout, axis → size, e.g. `{"data_parallel": 16}`; the product equals world_size.
        strategy: e.g. `single`, `ddp`, `fsdp2`.
    """

    world_size: WorldSize
    strategy: Text
    layout: dict[str, Annotated[int, Meta(ge=1)]]


class Identity(Document, frozen=True, kw_only=True):
    """Which model, tokenizer or dataset: a name for people, and a revision that changes with the content."""

    name: Text
    revision: Text


class AbsentComponent(Document, frozen=True, kw_only=True):
    """A component left out on purpose, and why that is safe."""

    component: Component
    reason: Text


class ExplainedKey(Document, frozen=True, kw_only=True):
    """A key that a strict load may find missing or unexpected, and why."""

    key: Text
    reason: Text


class ComponentPromise(Document, frozen=True, kw_only=True):
    """What is promised of a component that is present.

    Args:
        component: The kind of state.
        determinism: `exact`, `tolerance` or `none`.
        tolerance: Largest relative difference of compared scalars; only with `tolerance`.
        reason: Why not exact; required unless exact.
    """

    component: Component
    determinism: Determinism
    tolerance: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    reason: Text | None = None


class JobDescription(Document, frozen=True, kw_only=True):
    """What the coordinator knows of the job and writes into each manifest: everything but artifacts and time.

    Code, configuration, model and dataset are null only in a seal, whose checkpoint does not name them.

    Args:
        run: The training lineage across restarts.
        counters: Each says whether it names the completed or the next step.
        code: Code id (a commit, an image tag).
        configuration: Configuration id (a digest of what was configured).
        environment: The software.
        topology: Ranks and layout.
        model: Model identity.
        tokenizer: Tokenizer identity, or null where the model reads no tokens.
        dataset: Dataset snapshot.
        purpose: `resumable` or `weights_only`.
        promises: One for each present component.
        absent: Components left out on purpose.
        explained: Keys that a strict load accepts, with why.
    """

    run: Text
    counters: tuple[Counter, ...]
    code: Text | None
    configuration: Text | None
    environment: Environment
    topology: Topology
    model: Identity | None
    tokenizer: Identity | None
    dataset: Identity | None
    purpose: Purpose
    promises: tuple[ComponentPromise, ...]
    absent: tuple[AbsentComponent, ...] = ()
    explained: tuple[ExplainedKey, ...] = ()
