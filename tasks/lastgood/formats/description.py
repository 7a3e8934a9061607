"""What a reader states of a foreign checkpoint, in the words of the manifest.

Decides how a checkpoint is described; leaves reading files to the readers and the class to `classify`. Rules: what is
inferred says from what; what is unknown is said so and never guessed; a component is present, missing, or never saved
by that framework, and those three are never confused.
"""

from __future__ import annotations

from enum import StrEnum

from lastgood.documents import Document
from lastgood.manifest import Component, Counter
from lastgood.verdict import Finding, Note

__all__ = [
    "Certainty",
    "Description",
    "Fingerprint",
    "Framework",
    "HeldComponent",
    "Layout",
    "NeedlessFile",
    "NeverSaved",
    "Restorability",
]


class Framework(StrEnum):
    """Who wrote a checkpoint, as recognised by what lies there."""

    LASTGOOD = "lastgood"
    TRANSFORMERS = "transformers"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    DEEPSPEED = "deepspeed"
    DEEPSPEED_UNIVERSAL = "deepspeed_universal"
    TORCH_DCP = "torch_dcp"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    MEGATRON_LEGACY = "megatron_legacy"
    TORCH_SAVE = "torch_save"
    SAFETENSORS = "safetensors"
    COMPOSER = "composer"
    TORCHSNAPSHOT = "torchsnapshot"
    ORBAX = "orbax"
    BYTECHECKPOINT = "bytecheckpoint"
    UNKNOWN = "unknown"

    @property
    def is_judged(self) -> bool:
        """Whether there is a reader that can tell a whole one from a damaged one."""
        return self not in _RECOGNISED_ONLY


_RECOGNISED_ONLY = frozenset(
    {Framework.COMPOSER, Framework.TORCHSNAPSHOT, Framework.ORBAX, Framework.BYTECHECKPOINT, Framework.UNKNOWN}
)


class Certainty(StrEnum):
    """Where a statement comes from: written in the checkpoint, concluded from what lies there, or nowhere."""

    STATED = "stated"
    INFERRED = "inferred"
    UNKNOWN = "unknown"


class Restorability(StrEnum):
    """What training can do with a checkpoint."""

    RESUMABLE = "resumable"
    WEIGHTS_ONLY = "weights_only"
    PARTIAL = "partial"
    IN_PROGRESS = "in_progress"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"


class Layout(Document, frozen=True, kw_only=True):
    """How the run that saved was spread over ranks.

    Args:
        world_size: Ranks that saved, or null.
        certainty: Of world_size.
        why: What it was read from or concluded from, or why it cannot be known.
        axes: Parallel layout, axis → size, as far as it is stated, e.g. `{"data_parallel": 2, "tensor_parallel": 1}`.
    """

    world_size: int | None
    certainty: Certainty
    why: str
    axes: dict[str, int] = {}


class HeldComponent(Document, frozen=True, kw_only=True):
    """One kind of state and the files that hold it.

    Args:
        component: The kind of state.
        paths: Relative to the checkpoint, sorted; of one file that holds several kinds it is named under each. Empty
            where a manifest of ours promises the component and does not say in which file it lies.
        within: Where in those files, e.g. `optimizer_states`; null where the files hold nothing else.
    """

    component: Component
    paths: tuple[str, ...]
    within: str | None = None


class NeverSaved(Document, frozen=True, kw_only=True):
    """A component that this framework does not put into checkpoints of this kind, and what that costs a resume."""

    component: Component
    reason: str


class NeedlessFile(Document, frozen=True, kw_only=True):
    """A file whose absence costs a resume nothing, and why."""

    path: str
    reason: str


class Fingerprint(Document, frozen=True, kw_only=True):
    """What tells one save from another: artifacts of one checkpoint with different values come from different saves.

    Args:
        kind: `dcp_save_id`, `serialization_id` (of torch), `optimizer_step`, `trainer_step`, …
        value: As text.
        path: Where it was read.
    """

    kind: str
    value: str
    path: str


class Description(Document, frozen=True, kw_only=True):
    """A foreign checkpoint, as its reader understands it.

    Args:
        framework: Who wrote it.
        version: The framework's version, where it is written; null where not.
        layout_name: Which of the framework's layouts, e.g. `sharded safetensors`, `ZeRO stage 3`.
        step: Completed optimizer steps, or null.
        counters: Every position that is written, each with what it names.
        layout: The ranks.
        components: What is held.
        never_saved: What the framework does not save.
        marker: The framework's own sign that a save is complete, and whether it is there; null where it has none.
        is_complete: What that sign says; null where there is none.
        findings: What should be here and is not, what contradicts itself, what does not belong and would be loaded.
        notes: What is worth saying and refuses nothing.
        needless: Files that no resume needs.
        fingerprints: By which mixed generations are told.
        unknowable: Sentences about what nobody can tell from the files.
        unread: Files that were left out, since one description reads no more: what they hold is not known.
        untold: Sentences about files that are more than is read here, so that nothing is known of them.
    """

    framework: Framework
    version: str | None = None
    layout_name: str
    step: int | None
    counters: tuple[Counter, ...] = ()
    layout: Layout
    components: tuple[HeldComponent, ...]
    never_saved: tuple[NeverSaved, ...] = ()
    marker: str | None = None
    is_complete: bool | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    needless: tuple[NeedlessFile, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()
    unknowable: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()

    def paths_of(self, component: Component) -> tuple[str, ...]:
        """The files that hold a component; empty where it is not there."""
        return tuple(path for held in self.components if held.component is component for path in held.paths)
