"""What a framework's own loader would make of a finding, in a sentence, as far as that was measured.

Decides which measured fault a finding is, and in which words the reaction is told. Leaves measuring to `oracle`. Rules:
what was not measured is not told; of several measurements the worst is, for whoever reads it decides whether to trust a
loader; a loader that noticed is said to have noticed.
"""

from __future__ import annotations

from collections.abc import Mapping

from lastgood.formats import oracle
from lastgood.formats.description import Framework
from lastgood.formats.oracle import Cell, Consequence, Fault, Reaction
from lastgood.reasons import Reason
from lastgood.verdict import Finding

__all__ = ["loader_says"]

_LOADERS: Mapping[Framework, tuple[str, str]] = {
    Framework.TRANSFORMERS: ("hf_trainer", "transformers"),
    Framework.ACCELERATE: ("accelerate", "accelerate"),
    Framework.LIGHTNING: ("lightning", "lightning"),
    Framework.DEEPSPEED: ("deepspeed", "deepspeed"),
    Framework.TORCH_DCP: ("torch_dcp", "torch"),
    Framework.TORCH_SAVE: ("torch_save", "torch"),
    Framework.SAFETENSORS: ("safetensors", "safetensors"),
}
"""Framework → its name in the table, and the distribution whose version was measured."""

_FAULTS: Mapping[Reason, tuple[Fault, ...]] = {
    Reason.ARTIFACT_MISSING: (Fault.FILE_DELETED,),
    Reason.SHARD_MISSING: (Fault.FILE_DELETED,),
    Reason.COMPONENT_MISSING: (Fault.FILE_DELETED, Fault.ENTRY_REMOVED, Fault.ENTRY_EMPTIED),
    Reason.SAVE_UNFINISHED: (Fault.FILE_DELETED,),
    Reason.CONTAINER_MALFORMED: (Fault.FILE_TRUNCATED, Fault.FILE_EMPTY),
    Reason.SIZE_MISMATCH: (Fault.FILE_TRUNCATED,),
    Reason.RECORD_CORRUPT: (Fault.BYTE_FLIPPED,),
    Reason.GENERATIONS_MIXED: (Fault.OLDER_FILE,),
    Reason.COUNTERS_DISAGREE: (Fault.COUNTER_EDITED,),
    Reason.RANK_DUPLICATED: (Fault.RANK_REPEATED,),
    Reason.UNEXPECTED_FILE: (Fault.RANK_LEFT_OVER,),
    Reason.POINTER_DANGLING: (Fault.POINTER_DANGLING,),
}
"""Reason → what was done on purpose to see what follows."""

_WORDS: Mapping[Consequence, str] = {
    Consequence.STEP_ZERO: "training begins at step zero",
    Consequence.STEP_DIFFERS: "it goes on at another step",
    Consequence.COUNTER_DIFFERS: "a counter of the framework is another",
    Consequence.LEARNING_RATE_RESTARTED: "the learning rate begins anew",
    Consequence.LEARNING_RATE_DIFFERS: "the learning rate is another",
    Consequence.MODEL_DIFFERS: "the model is not the one that was saved",
    Consequence.OPTIMIZER_EMPTY: "the optimizer begins anew",
    Consequence.OPTIMIZER_DIFFERS: "the optimizer's state is not the one that was saved",
    Consequence.RNG_DIFFERS: "random draws are others",
    Consequence.SAMPLES_REPEATED: "samples are trained on twice",
    Consequence.SAMPLES_DIFFER: "other samples come",
    Consequence.BATCH_DIFFERS: "a step trains on another number of samples",
    Consequence.WEIGHTS_NAN: "the weights become NaN",
    Consequence.WEIGHTS_DIFFER: "the weights end elsewhere",
    Consequence.FEWER_STEPS: "it ends after other steps than it should",
}

_WORST_FIRST = (Reaction.SILENT, Reaction.HANG, Reaction.RAISED_ON_SOME_RANKS, Reaction.LOGGED, Reaction.RAISED)
MAXIMUM_TOLD = 3
MAXIMUM_QUOTED = 120


def loader_says(framework: Framework, finding: Finding) -> str | None:
    """One sentence, or None where nobody measured it."""
    if framework not in _LOADERS or finding.reason not in _FAULTS:
        return None
    name, distribution = _LOADERS[framework]
    faults = _FAULTS[finding.reason]
    if finding.reason is Reason.SAVE_UNFINISHED and finding.found is not None:
        faults = _FAULTS[Reason.CONTAINER_MALFORMED]  # its sign is there, and breaks off
    cells = [cell for fault in faults for cell in oracle.reactions(name, fault, target=finding.offender)]
    if not cells:
        return None
    worst = min(cells, key=lambda cell: (not cell.swallowed, _WORST_FIRST.index(cell.reaction), -len(cell.effects)))
    version = oracle.measured().versions.get(distribution)
    return f"{_told(worst)} (measured with {distribution} {version})"


def _told(cell: Cell) -> str:
    effects = [_WORDS[effect.consequence] for effect in cell.effects]
    followed = "; ".join(effects[:MAXIMUM_TOLD]) + (f" and {len(effects) - MAXIMUM_TOLD} more" if effects[3:] else "")
    match cell.reaction:
        case Reaction.SILENT if effects:
            return f"it will not notice: {followed}"
        case Reaction.SILENT:
            return "it will not notice, and nothing followed from it"
        case Reaction.LOGGED:
            return f"it prints a line and goes on: {followed or 'nothing followed from it'}"
        case Reaction.HANG:
            return "it hangs"
        case Reaction.RAISED_ON_SOME_RANKS:
            return f"some ranks fail and others report success: {cell.said[:MAXIMUM_QUOTED]}"
        case Reaction.RAISED:
            return f"it refuses: {cell.said[:MAXIMUM_QUOTED]}"
