"""Accelerate: what `save_state` writes, plain or around what DeepSpeed or FSDP wrote.

Decides which of the files that Accelerate numbers are missing. Leaves weights to `weights` and nested directories to
`parts`. Rules: the numbers of one kind have no gap; nothing states how many ranks saved or how many objects were
registered, so the checkpoint before or after this one tells, where there is one; an optimizer that a scheduler drove
comes with that scheduler; the random states are written after all but the registered objects. Source: accelerate,
`save_accelerator_state`, `load_accelerator_state`, `Accelerator.load_state`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from lastgood.formats.description import Certainty, Description, Framework, Layout
from lastgood.formats.readers.draft import Draft
from lastgood.formats.readers.numbered import Numbered, numbers_in
from lastgood.formats.readers.parts import gather_deepspeed, gather_fsdp, layout_name
from lastgood.formats.readers.ranks import MAXIMUM_OPENED, RankSet, ranks_in
from lastgood.formats.readers.states import OptimizerSteps, had_scheduler, is_scheduler, optimizer_steps
from lastgood.formats.readers.weights import FORMS, gather_weights
from lastgood.formats.readers.wording import component_missing, file_missing, generations_mixed, save_unfinished
from lastgood.formats.root import Candidate, Choice, Root
from lastgood.formats.source import Source
from lastgood.manifest import Component
from lastgood.text import counted
from lastgood.verdict import Note, NoteReason

__all__ = ["AccelerateReader"]

_NAME = re.compile(r"checkpoint_(\d{1,18})")
_LAST_NUMBER = re.compile(r"(\d+)\D*")
_RANDOM = re.compile(r"random_states_(\d{1,6})")
_SCALER = "scaler.pt"

_OPTIMIZER = Numbered(component=Component.OPTIMIZER, first="optimizer.bin", further="optimizer_{}.bin")
_SCHEDULER = Numbered(component=Component.SCHEDULER, first="scheduler.bin", further="scheduler_{}.bin")
_SAMPLER = Numbered(component=Component.DATA, first="sampler.bin", further="sampler_{}.bin")
_LOADER = Numbered(component=Component.DATA, first="dl_state_dict.bin", further="dl_state_dict_{}.bin")
_OBJECTS = Numbered(component=Component.OTHER, first="custom_checkpoint_0.pkl", further="custom_checkpoint_{}.pkl")
_SAFE = Numbered(component=Component.MODEL, first="model.safetensors", further="model_{}.safetensors")
_PICKLED = Numbered(component=Component.MODEL, first="pytorch_model.bin", further="pytorch_model_{}.bin")
_KINDS = (_OPTIMIZER, _SCHEDULER, _SAMPLER, _LOADER, _OBJECTS)


class AccelerateReader:
    """One directory of `save_state`, named by Accelerate or by the training script."""

    def recognises(self, source: Source) -> bool:
        if source.is_file:
            return False
        if _ranks(source).files or _OBJECTS.found(source.files):
            return True
        own = any(kind.found(source.files) for kind in (_OPTIMIZER, _SCHEDULER, _LOADER))
        weights = any(kind.found(source.files) for kind in (_SAFE, _PICKLED))
        return own or (_NAME.fullmatch(source.name) is not None and (weights or not source.files))

    def describe(self, source: Source) -> Description:
        draft = Draft(source)
        beside = _beside(source)
        split, parts = gather_fsdp(draft, optimizer_tells=False)
        parts = (*gather_deepspeed(draft, follows_pointer=False), *parts)
        weights = _gather_models(draft)
        for kind in _KINDS:
            draft.hold(kind.component, [kind.spell(number) for number in numbers_in(kind, source.matching())])
        draft.hold(Component.SCALER, [_SCALER] if source.holds(_SCALER) else [])
        ranks = _ranks(source)
        draft.hold(Component.RNG, ranks.files.values())
        layout = _layout(ranks, parts, beside)
        if ranks.files or _OBJECTS.found(source.files):
            _check_kinds(draft, beside)
            _check_ranks(draft, ranks, layout)
        else:
            why = "Accelerate writes it after model, optimizer and scheduler"
            draft.findings = [save_unfinished("random_states_0.pkl", why)]
        steps = _read_optimizers(draft, must_be_driven=bool(ranks.files))
        _say_rest(draft, ranks, beside)
        draft.count("optimizer_step", steps.highest if steps is not None else None)
        if steps is not None:
            draft.mark("optimizer_step", steps.highest, _OPTIMIZER.first)
        return draft.describe(
            framework=Framework.ACCELERATE,
            layout_name=layout_name(split, parts, weights),
            layout=layout,
            step=steps.highest if steps is not None else _step_of(parts),
        )

    def choose(self, root: Root) -> Choice | None:
        if not any(_NAME.fullmatch(name) for name in root.names.directories):
            return None
        rule = "the entry with the largest number at the end of its name, whole or not"
        numbered = [(name, _LAST_NUMBER.search(name)) for name in (*root.names.directories, *root.names.files)]
        unnumbered = [name for name, match in numbered if match is None]
        found = sorted(((int(match[1][-18:]), name) for name, match in numbered if match), reverse=True)
        candidates = tuple(Candidate(name=name, step=None) for _, name in found)
        if unnumbered:
            consequence = f"raises an IndexError that names nothing: {unnumbered[0]} has no number in its name"
            return Choice(rule=rule, picked=None, candidates=candidates, consequence=consequence)
        return Choice(rule=rule, picked=candidates[0].name, candidates=candidates)


# Reading


def _ranks(source: Source) -> RankSet:
    return ranks_in(source, _RANDOM, lambda rank: f"random_states_{rank}.pkl")


def _beside(source: Source) -> frozenset[str]:
    """Names of the files in the checkpoint before this one, or else in the one after it; empty without either."""
    name = _NAME.fullmatch(source.name)
    for number in (int(name[1]) - 1, int(name[1]) + 1) if name else ():
        found = source.store.names(f"{source.parent}/checkpoint_{number}" if source.parent else f"checkpoint_{number}")
        if found.files:
            return frozenset(found.files)
    return frozenset()


def _gather_models(draft: Draft) -> str | None:
    """The first model as any library lays it out, further ones numbered."""
    name = gather_weights(draft)
    for kind in (_SAFE, _PICKLED):
        further = numbers_in(kind, draft.source.files) - {0}
        paths = [kind.spell(number) for number in sorted(further)]
        draft.hold(Component.MODEL, paths)
        for number in range(1, max(further, default=0)):
            if number not in further:
                draft.findings.append(file_missing(kind.spell(number), f"{paths[-1]} is numbered after it"))
        if further and name is None:
            draft.findings.append(file_missing(kind.first, f"{paths[-1]} is numbered after it"))
    return name or (FORMS[0].name if draft.has(Component.MODEL) else None)


def _read_optimizers(draft: Draft, *, must_be_driven: bool) -> OptimizerSteps | None:
    """Steps of the first optimizer.

    Args:
        draft: Gets a finding for an optimizer that was driven by a scheduler which is nowhere.
        must_be_driven: Whether the save came so far that the scheduler was written.
    """
    steps = None
    is_driven = not must_be_driven or draft.has(Component.SCHEDULER) or _object_schedules(draft)
    for path in sorted(path for path in draft.source.files if _OPTIMIZER.number(path) is not None):
        with draft.contents.torch(path) as content:
            if content is None:
                continue
            if path == _OPTIMIZER.first:
                steps = optimizer_steps(content, content.value)
            if had_scheduler(content.value) and not is_driven:
                why = f"the learning rates in {path} were set by one; a resume begins its schedule anew"
                draft.findings.append(component_missing(_SCHEDULER.first, why))
    return steps


def _object_schedules(draft: Draft) -> bool:
    """Whether an object that the script registered is a scheduler."""
    for path in sorted(path for path in draft.source.files if _OBJECTS.number(path) is not None):
        with draft.contents.torch(path) as content:
            if content is not None and is_scheduler(content.value):
                return True
    return False


# Concluding


def _layout(ranks: RankSet, parts: Iterable[Description], beside: frozenset[str]) -> Layout:
    for part in parts:
        if part.layout.certainty is Certainty.STATED:
            return part.layout
    others = max((int(m[1]) for name in beside if (m := _RANDOM.fullmatch(name.removesuffix(".pkl")))), default=-1) + 1
    if others > ranks.count:
        why = "the largest rank of random_states_<rank>.pkl in the checkpoint beside it"
        return Layout(world_size=others, certainty=Certainty.INFERRED, why=why)
    if ranks.count:
        why = "the largest rank of random_states_<rank>.pkl; Accelerate writes no number of ranks"
        return Layout(world_size=ranks.count, certainty=Certainty.INFERRED, why=why)
    return Layout(world_size=None, certainty=Certainty.UNKNOWN, why="no rank's random state lies there")


def _check_ranks(draft: Draft, ranks: RankSet, layout: Layout) -> None:
    if not ranks.files:
        why = "Accelerate goes on without it in silence, and counts its steps from zero"
        draft.findings.append(component_missing("random_states_0.pkl", why))
        return
    world_size = layout.world_size or ranks.count
    ranks.check(draft, world_size, f"{counted(world_size, 'rank')} by {layout.why}")
    ranks.check_owners(draft, world_size)
    steps: dict[str, int] = {}
    for path in list(ranks.files.values())[:MAXIMUM_OPENED]:
        with draft.contents.torch(path) as content:
            step = content.number(content.value.get("step")) if content and isinstance(content.value, dict) else None
            if step is not None:
                steps[path] = step
                draft.mark("accelerator_step", step, path)
    if not steps:
        return
    # Of two that differ the first rank's counts: it wrote the files that are there once.
    common = Counter(steps.values()).most_common(1)[0][0]
    # A loop that never calls accumulate() is counted nowhere, and a 0 beside its step would read as a fresh start.
    draft.count("accelerator_step", common or None)
    for path, step in steps.items():
        if step != common:
            why = "step of Accelerator, which all ranks count alike"
            draft.findings.append(generations_mixed(path, why, expected=str(common), found=str(step)))


def _check_kinds(draft: Draft, beside: frozenset[str]) -> None:
    for kind in _KINDS:
        kind.check(draft, beside)
    if draft.lacks(Component.MODEL):
        draft.findings.append(file_missing("model.safetensors", "Accelerate writes every prepared model"))
    if draft.lacks(Component.OPTIMIZER, _OPTIMIZER.first):
        draft.findings.append(component_missing(_OPTIMIZER.first, "without it no step goes on where it stopped"))
    if _SCALER in beside and not draft.has(Component.SCALER):
        why = "the checkpoint beside it holds one; the loss scale starts over"
        draft.findings.append(component_missing(_SCALER, why))


def _say_rest(draft: Draft, ranks: RankSet, beside: frozenset[str]) -> None:
    world_size = ranks.count
    for path in sorted(path for path in draft.source.files if _LOADER.number(path) is not None):
        if world_size > 1:
            message = (
                f"one file for {world_size} ranks: {path}: all of them wrote it, and the last one's position is in it"
            )
            draft.note(Note(reason=NoteReason.RANK_STATE_SHARED, message=message, offender=path))
    draft.never_saved(
        Component.DATA, "only a stateful loader is saved: the script has to find its place in the data itself"
    )
    draft.never_saved(Component.ACCUMULATION, "gradients are not saved: save_state belongs between optimizer steps")
    draft.rest_needless("load_state does not read it")
    draft.unknowable.append(
        "whether all files are of one save: Accelerate writes no step into model, optimizer and scheduler"
    )
    if not beside:
        draft.unknowable.append(
            "whether further ranks or registered objects belong to it: Accelerate writes no number of either"
        )


def _step_of(parts: Iterable[Description]) -> int | None:
    return next((part.step for part in parts if part.step is not None), None)
