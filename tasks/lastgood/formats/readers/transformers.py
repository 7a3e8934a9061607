"""Hugging Face Trainer: `checkpoint-<step>`, plain, sharded, with adapters, or around what DeepSpeed or FSDP wrote.

Decides which files of a Trainer's checkpoint are its state, which of them are missing and which say different things.
Leaves weights to `weights`, positions to `trainer_positions`, and nested directories to their own readers. Rules:
`trainer_state.json` is written last, and in place, so a checkpoint without it, or with one that breaks off, is
unfinished, and nothing else is said to be missing;
one that holds no state of training at all was saved with `save_only_model`. Source: transformers,
`Trainer._save_checkpoint`, `_load_from_checkpoint`, `_load_optimizer_and_scheduler`, `get_last_checkpoint`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lastgood.formats.containers.stubs import ObjectStub
from lastgood.formats.description import Certainty, Description, Framework, Layout
from lastgood.formats.readers import grids
from lastgood.formats.readers.draft import Draft
from lastgood.formats.readers.parts import gather_deepspeed, gather_fsdp, layout_name
from lastgood.formats.readers.pointers import candidates_by
from lastgood.formats.readers.ranks import RankSet, ranks_in
from lastgood.formats.readers.states import OptimizerSteps, is_emptied, optimizer_steps, scheduler_steps
from lastgood.formats.readers.trainer_positions import Positions
from lastgood.formats.readers.weights import Form, gather_weights
from lastgood.formats.readers.wording import component_missing, file_missing, generations_mixed, save_unfinished
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source
from lastgood.formats.texts import Json, number_of
from lastgood.manifest import Component
from lastgood.text import counted
from lastgood.verdict import Finding, Reason

__all__ = ["TransformersReader"]

_NAME = re.compile(r"checkpoint-(\d{1,18})")
_STATE = "trainer_state.json"
_ARGUMENTS = "training_args.bin"
_SENTINEL = "checkpoint-is-incomplete.txt"
_OPTIMIZER = "optimizer.pt"
_SCHEDULER = "scheduler.pt"
_SCALER = "scaler.pt"
_SCALER_SINCE = 5
"""Major version from which on the loss scale is always saved; some before it did not."""
_OWN = (_STATE, _ARGUMENTS, _SENTINEL)
_SIGNS = (_OPTIMIZER, _SCHEDULER, _SCALER)
_OTHERS = re.compile(r"random_states_\d+\.pkl|[^/]*_(model|optim)_states\.pt")
"""What Accelerate or DeepSpeed writes into a directory that a script named as Trainer names its own."""
_RANDOM_ALONE = "rng_state.pth"
_RANDOM = re.compile(r"rng_state_(\d+)")
_XLA = re.compile(r"rank\d+-of-(\d+)-(optimizer|scheduler)\.pt")
_ADAPTERS = (
    Form(name="adapter as safetensors", stem="adapter_model", ending=".safetensors"),
    Form(name="adapter by torch.save", stem="adapter_model", ending=".bin"),
)
_NEEDLESS = {
    _ARGUMENTS: "a record of the arguments: Trainer is started with its own",
    "config.json": "the training script builds the model; only loading it by itself needs this",
    "adapter_config.json": "the training script builds the adapter; only loading it by itself needs this",
}
_NEEDLESS_REST = "no resume reads it: the training script brings its own model, tokenizer and processors"


class TransformersReader:
    """One `checkpoint-<step>` directory."""

    def recognises(self, source: Source) -> bool:
        if source.is_file:
            return False
        if any(source.holds(name) for name in _OWN):
            return True
        # What a killed save leaves: the directory, empty or with a part of what is written before the state.
        return bool(_NAME.fullmatch(source.name)) and not any(_OTHERS.fullmatch(path) for path in source.files)

    def describe(self, source: Source) -> Description:
        draft = Draft(source)
        arguments = _read_arguments(draft)
        state = draft.json(_STATE, is_written_last=True)
        draft.hold(Component.OTHER, [_STATE] if source.holds(_STATE) else [])
        split, parts = gather_fsdp(draft, optimizer_tells=True)
        parts = (*gather_deepspeed(draft, follows_pointer=True), *parts)
        weights = _gather_model(draft)
        ranks = _ranks(source)
        positions = _read_state_files(draft, state, parts, arguments)
        world_size, layout = _layout(ranks, arguments, parts, source)
        is_complete = None if _is_export(source) else _check_finished(draft)
        if is_complete:
            in_engine = source.holds("latest") or any(part.framework is Framework.DEEPSPEED for part in parts)
            _check_weights(draft, is_elsewhere=in_engine or split is not None)
            _check_state_files(draft, arguments, in_engine=in_engine, is_split=split is not None)
            _check_scaler(draft, arguments, in_engine=in_engine)
            _check_ranks(draft, ranks, world_size, layout.why)
            draft.findings += positions.contradictions()
            _check_position(draft, state)
            draft.note(positions.restarted())
        _say_needless(draft)
        _count(draft, state, positions)
        return draft.describe(
            framework=Framework.TRANSFORMERS,
            version=_version(draft),
            layout_name=layout_name(split, parts, weights),
            layout=layout,
            step=number_of(state, "global_step"),
            marker=None if is_complete is None else f"{_STATE}, written last",
            is_complete=is_complete,
        )

    def choose(self, root: Root) -> Choice | None:
        candidates = candidates_by(root, _NAME)
        if not candidates:
            return None
        rule = "the largest N of checkpoint-N, whole or not"
        return Choice(rule=rule, picked=candidates[0].name, candidates=candidates)


# Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """What `training_args.bin` says, as far as it can be read; None where it says nothing.

    Args:
        ranks: Processes that trained.
        is_half: Whether it trained in float16, which takes a scaler.
        only_model: Whether nothing but the model is saved.
    """

    ranks: int | None = None
    is_half: bool | None = None
    only_model: bool | None = None


def _read_arguments(draft: Draft) -> _Arguments:
    if not draft.holds(_ARGUMENTS):
        return _Arguments()
    with draft.contents.torch(_ARGUMENTS) as content:
        if content is not None and isinstance(content.value, ObjectStub):
            written = content.value.attributes
            draft.findings += grids.too_many_ranks(written.get("distributed_state"), _ARGUMENTS, "num_processes")
            return _Arguments(
                ranks=grids.rank_count_in(written.get("distributed_state"), "num_processes"),
                is_half=_flag(written.get("fp16")),
                only_model=_flag(written.get("save_only_model")),
            )
    return _Arguments()


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _gather_model(draft: Draft) -> str | None:
    """The weights beside the parts: an adapter, which is loaded in their place, or a whole model."""
    adapter = gather_weights(draft, _ADAPTERS)
    if adapter is not None:
        draft.hold(Component.CONFIG, [path for path in ("adapter_config.json",) if draft.source.holds(path)])
    return adapter or gather_weights(draft)


def _read_state_files(
    draft: Draft, state: dict[str, Json], parts: tuple[Description, ...], arguments: _Arguments
) -> Positions:
    source = draft.source
    steps: OptimizerSteps | None = None
    if draft.holds(_OPTIMIZER):
        draft.hold(Component.OPTIMIZER, [_OPTIMIZER])
        with draft.contents.torch(_OPTIMIZER) as content:
            if content is not None:
                steps = optimizer_steps(content, content.value)
                if is_emptied(content.value) and number_of(state, "global_step"):
                    draft.findings.append(component_missing(_OPTIMIZER, "it holds the state of no parameter"))
    scheduler = None
    if draft.holds(_SCHEDULER):
        draft.hold(Component.SCHEDULER, [_SCHEDULER])
        with draft.contents.torch(_SCHEDULER) as content:
            scheduler = scheduler_steps(content.value) if content is not None else None
    draft.hold(Component.SCALER, [_SCALER] if source.holds(_SCALER) else [])
    draft.hold(Component.RNG, _random_files(source))
    for path in (_SCALER, _RANDOM_ALONE):
        if source.holds(path):
            draft.archive_of(path)
    draft.hold(Component.OPTIMIZER, [path for path in source.matching() if _is_xla(path, "optimizer")])
    draft.hold(Component.SCHEDULER, [path for path in source.matching() if _is_xla(path, "scheduler")])
    named = _NAME.fullmatch(source.name)
    return Positions(
        state_path=_STATE,
        named=int(named[1]) if named else None,
        trainer=number_of(state, "global_step"),
        logged=_last_logged(state),
        optimizer=steps,
        optimizer_path=_OPTIMIZER,
        scheduler=scheduler,
        scheduler_path=_SCHEDULER,
        skips_steps=bool(parts) or source.holds(_SCALER) or bool(arguments.is_half),
    )


def _is_xla(path: str, what: str) -> bool:
    match = _XLA.fullmatch(path)
    return match is not None and match[2] == what


def _last_logged(state: dict[str, Json]) -> int | None:
    log = state.get("log_history")
    entries = log if isinstance(log, list) else []
    return max((step for entry in entries if (step := number_of(entry, "step")) is not None), default=None)


def _random_files(source: Source) -> list[str]:
    alone = [_RANDOM_ALONE] if source.holds(_RANDOM_ALONE) else []
    return [*alone, *_ranks(source).files.values()]


def _ranks(source: Source) -> RankSet:
    return ranks_in(source, _RANDOM, lambda rank: f"rng_state_{rank}.pth")


# Concluding


def _layout(
    ranks: RankSet, arguments: _Arguments, parts: tuple[Description, ...], source: Source
) -> tuple[int | None, Layout]:
    """How many ranks saved, by the first of: the arguments, a nested part, the names of the random states."""
    if arguments.ranks is not None:
        why = f"num_processes in {_ARGUMENTS}"
        return arguments.ranks, Layout(world_size=arguments.ranks, certainty=Certainty.STATED, why=why)
    for part in parts:
        if part.layout.certainty is Certainty.STATED:
            return part.layout.world_size, part.layout
    if ranks.files:
        # With one rank the name carries no number, so a lone rank 0 has lost its others.
        count = max(ranks.count, 2)
        why = "the largest rank of rng_state_<rank>.pth, which several ranks write"
        return count, Layout(world_size=count, certainty=Certainty.INFERRED, why=why)
    if source.holds(_RANDOM_ALONE):
        return 1, Layout(world_size=1, certainty=Certainty.INFERRED, why=f"{_RANDOM_ALONE}, which a single rank writes")
    why = "nothing in it tells how many ranks saved"
    return None, Layout(world_size=None, certainty=Certainty.UNKNOWN, why=why)


def _is_export(source: Source) -> bool:
    """Whether it is what `save_model` writes by itself: weights and arguments, outside of any checkpoint."""
    own = (_STATE, _SENTINEL, *_SIGNS)
    return (
        not _NAME.fullmatch(source.name) and not any(name in source.files for name in own) and not _ranks(source).files
    )


def _check_finished(draft: Draft) -> bool:
    if draft.holds(_SENTINEL):
        message = f"save unfinished: {_SENTINEL}: it is removed when the save is done, found it"
        draft.findings.append(Finding(reason=Reason.SAVE_UNFINISHED, message=message, offender=_SENTINEL))
        return False
    if _STATE not in draft.source.files:
        draft.findings.append(save_unfinished(_STATE, "Trainer writes it last"))
        return False
    return all(finding.reason is not Reason.SAVE_UNFINISHED for finding in draft.findings)


def _check_position(draft: Draft, state: dict[str, Json]) -> None:
    if state and number_of(state, "global_step") is None:
        message = (
            f"state invalid: {_STATE}: expected global_step, found none: Trainer would begin at step zero in silence"
        )
        draft.findings.append(Finding(reason=Reason.STATE_INVALID, message=message, offender=_STATE))


def _check_weights(draft: Draft, *, is_elsewhere: bool) -> None:
    if draft.lacks(Component.MODEL) and not is_elsewhere:
        name = "adapter_model.safetensors" if draft.source.holds("adapter_config.json") else "model.safetensors"
        draft.findings.append(file_missing(name, "Trainer writes the weights under this name or another"))


def _check_state_files(draft: Draft, arguments: _Arguments, *, in_engine: bool, is_split: bool) -> None:
    """Find kinds of state that are missing, unless none is there because nothing but the model was to be saved."""
    kinds = (Component.OPTIMIZER, Component.SCHEDULER, Component.RNG, Component.SCALER)
    if arguments.only_model is True or (arguments.only_model is None and not any(map(draft.has, kinds))):
        return
    loader = "Trainer goes on without it in silence"
    if draft.lacks(Component.OPTIMIZER, _OPTIMIZER) and not in_engine and not is_split:
        draft.findings.append(component_missing(_OPTIMIZER, f"{loader}, and begins optimizer and scheduler anew"))
    if draft.lacks(Component.SCHEDULER, _SCHEDULER) and not in_engine:
        draft.findings.append(component_missing(_SCHEDULER, f"{loader}, and begins optimizer and scheduler anew"))
    if draft.lacks(Component.RNG):
        name = _RANDOM_ALONE if (arguments.ranks or 1) == 1 else "rng_state_0.pth"
        draft.findings.append(component_missing(name, f"{loader}, and dropout and shuffling go another way"))


def _check_scaler(draft: Draft, arguments: _Arguments, *, in_engine: bool) -> None:
    if (
        not arguments.is_half
        or in_engine
        or not draft.has(Component.OPTIMIZER)
        or not draft.lacks(Component.SCALER, _SCALER)
    ):
        return
    major = (_version(draft) or "").partition(".")[0]
    if major.isdecimal() and int(major) >= _SCALER_SINCE:
        why = f"{_ARGUMENTS} says fp16; the loss scale starts over and the next steps are skipped or lost"
        draft.findings.append(component_missing(_SCALER, why))
    else:
        draft.unknowable.append(f"whether a loss scale belongs to it: versions before {_SCALER_SINCE} left it out")


def _check_ranks(draft: Draft, ranks: RankSet, world_size: int | None, why: str) -> None:
    alone = draft.source.holds(_RANDOM_ALONE)
    if alone and ranks.files and world_size is not None:
        odd = _RANDOM_ALONE if world_size > 1 else next(iter(ranks.files.values()))
        draft.findings.append(
            generations_mixed(odd, f"one rank writes {_RANDOM_ALONE}, several write rng_state_<rank>.pth")
        )
    elif ranks.files and world_size is not None:
        ranks.check(draft, world_size, f"{counted(world_size, 'rank')} by {why}")
    ranks.check_owners(draft, world_size or ranks.count)


def _say_needless(draft: Draft) -> None:
    for path, reason in _NEEDLESS.items():
        if draft.holds(path):
            draft.needless(path, reason)
    draft.rest_needless(_NEEDLESS_REST)
    draft.never_saved(
        Component.DATA,
        "Trainer keeps no position of its loader: it counts the batches of global_step anew and skips them",
    )
    draft.never_saved(Component.ACCUMULATION, "Trainer saves between optimizer steps only")
    draft.unknowable.append("whether weights and random states are of this save: no step is written into them")
    draft.unknowable.append(
        "whether a resume skips the samples that were seen: that takes the same data, order and batch size as before"
    )


def _count(draft: Draft, state: dict[str, Json], positions: Positions) -> None:
    draft.count("global_step", positions.trainer)
    draft.count("epoch", number_of(state, "epoch"))
    draft.count("optimizer_step", positions.optimizer.highest if positions.optimizer is not None else None)
    draft.count("scheduler_step", positions.scheduler)
    draft.mark("trainer_step", positions.trainer, _STATE)
    if positions.optimizer is not None:
        draft.mark("optimizer_step", positions.optimizer.highest, _OPTIMIZER)


def _version(draft: Draft) -> str | None:
    written = draft.json("config.json").get("transformers_version")
    return written if isinstance(written, str) else None
