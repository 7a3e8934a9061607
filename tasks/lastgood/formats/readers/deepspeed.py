"""DeepSpeed: one tag's directory, ZeRO stages 0 to 3, with experts and pipelines.

Decides which files a save of the stated ranks consists of, and which of those that lie there belong to another one.
Leaves names and facts to `deepspeed_facts`, the universal layout to `deepspeed_universal`. Rules: the number of
data-parallel and model-parallel ranks is what the model states say, and the largest ranks that lie there only where
none can be read; an optimizer that took more steps than the engine counted is a contradiction, fewer are not (an engine
may start with a fresh optimizer).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from lastgood.formats.description import (
    Certainty,
    Description,
    Fingerprint,
    Framework,
    HeldComponent,
    Layout,
    NeverSaved,
)
from lastgood.formats.readers.contents import Contents
from lastgood.formats.readers.deepspeed_facts import DeepSpeedFacts, DeepSpeedFiles, is_deepspeed, read_facts
from lastgood.formats.readers.grids import MAXIMUM_NAMED, MAXIMUM_RANKS, absent
from lastgood.formats.readers.pointers import choose_by_pointer
from lastgood.formats.readers.wording import (
    component_missing,
    counters_disagree,
    generations_mixed,
    settled,
    shard_missing,
    unexpected_file,
)
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source
from lastgood.manifest import Component, Counter, CounterMeaning
from lastgood.verdict import Finding

__all__ = ["DeepSpeedReader"]

_TAG = re.compile(r"global_step(\d{1,18})")

_NEVER = (
    NeverSaved(
        component=Component.RNG,
        reason="DeepSpeed saves no random state: dropout and shuffling go on from wherever the new process is seeded",
    ),
)
_NO_LOADER = NeverSaved(
    component=Component.DATA,
    reason="no data sampler was handed to the engine: the loop has to find its place in the data itself",
)


class DeepSpeedReader:
    """Directories of one tag; `latest` beside them names the tag that is loaded."""

    def recognises(self, source: Source) -> bool:
        return is_deepspeed(source)

    def describe(self, source: Source) -> Description:
        files = DeepSpeedFiles.of(source)
        contents = Contents(source)
        facts = read_facts(files, contents)
        data_ranks, model_ranks = _ranks(files, facts)
        stage = _stage(files, facts)
        leftovers = tuple(_leftovers(files, facts, data_ranks, model_ranks))
        findings = settled(
            source,
            contents.findings,
            facts.impossible,
            _missing(files, facts, stage, data_ranks, model_ranks),
            leftovers,
            _contradictions(facts, {finding.offender for finding in leftovers}, source.name),
        )
        step = _commonest(facts.steps.values()) if facts.steps else None
        return Description(
            framework=Framework.DEEPSPEED,
            version=next(iter(facts.versions.values()), None),
            layout_name=_layout_name(files, stage),
            step=step,
            counters=_counters(facts, step),
            layout=_layout(facts, data_ranks, model_ranks),
            components=_components(files, facts, stage),
            never_saved=_NEVER if facts.has_sampler else (*_NEVER, _NO_LOADER),
            findings=findings,
            fingerprints=_fingerprints(facts),
            unknowable=(
                "whether all ranks had written when `latest` was: rank 0 writes it without waiting for disks",
                *(
                    ("whether the optimizers of the last expert-parallel ranks are there: nothing counts those ranks",)
                    if files.expert_optimizer
                    else ()
                ),
                *contents.unknowable,
            ),
            unread=contents.unread,
            untold=contents.untold,
        )

    def choose(self, root: Root) -> Choice | None:
        return choose_by_pointer(
            root,
            pointer="latest",
            pattern=_TAG,
            rule="the tag that the file `latest` names",
            without_pointer="warns, loads nothing and trains from step zero",
        )


def _stage(files: DeepSpeedFiles, facts: DeepSpeedFacts) -> int | None:
    """ZeRO stage, by the configuration or by the names; None where neither tells 1 from 2."""
    if facts.stage is not None:
        return facts.stage
    if files.is_partitioned:
        return 3
    return None if files.optimizer else 0


def _ranks(files: DeepSpeedFiles, facts: DeepSpeedFacts) -> tuple[int, int]:
    """Data-parallel and model-parallel ranks: as stated, or one more than the largest that lies there."""
    data = [rank for rank, _ in (*files.model, *files.optimizer) if rank is not None]
    model = [rank for _, rank in (*files.model, *files.optimizer)]
    return (
        facts.data_ranks or max(data, default=0) + 1,
        facts.model_ranks or max(model, default=0) + 1,
    )


def _missing(
    files: DeepSpeedFiles, facts: DeepSpeedFacts, stage: int | None, data_ranks: int, model_ranks: int
) -> Iterator[Finding]:
    said = facts.stated_by or "the largest rank that lies there"
    why = f"{said} tells of {data_ranks} data-parallel and {model_ranks} model-parallel ranks"
    if stage == 3 or files.is_partitioned:
        for model, data in absent(
            (model_ranks, data_ranks), {(model, data) for data, model in files.model if data is not None}
        ):
            yield shard_missing(f"zero_pp_rank_{data}_mp_rank_{model:02d}_model_states.pt", why)
    else:
        for (model,) in absent((model_ranks,), {(model,) for data, model in files.model if data is None}):
            yield shard_missing(f"mp_rank_{model:02d}_model_states.pt", why)
    if files.optimizer or (stage or 0) > 0:
        for model, data in absent((model_ranks, data_ranks), {(model, data) for data, model in files.optimizer}):
            yield shard_missing(f"{files.prefix}zero_pp_rank_{data}_mp_rank_{model:02d}_optim_states.pt", why)
    elif facts.stated_by is not None and not facts.has_optimizer and not files.expert_optimizer:
        yield component_missing("optimizer", f"{facts.stated_by} holds none and no file of its own lies there")
    yield from islice(_missing_experts(files, facts), MAXIMUM_NAMED)
    for layer in sorted(facts.layers - {layer for layer, _ in files.pipeline}) if files.pipeline else ():
        first = min((model for _, model in files.pipeline), key=str)
        rank = "" if first is None else f"-model_{first:02d}"
        yield shard_missing(f"layer_{layer:02d}{rank}-model_states.pt", f"layer {layer} has parameters")


def _missing_experts(files: DeepSpeedFiles, facts: DeepSpeedFacts) -> Iterator[Finding]:
    layers = max((layer for layer, _, _ in files.experts), default=-1) + 1
    ranks = sorted({model for _, _, model in files.experts})
    largest = max((expert for _, expert, _ in files.experts), default=-1) + 1
    for layer in range(layers):
        stated = facts.experts[layer] if layer < len(facts.experts) else max(facts.experts, default=0)
        experts = stated if 0 < stated <= MAXIMUM_RANKS else largest
        held = {(expert, ranks.index(model)) for number, expert, model in files.experts if number == layer}
        for expert, place in absent((experts, len(ranks)), held):
            name = f"layer_{layer}_expert_{expert}_mp_rank_{ranks[place]:02d}_model_states.pt"
            yield shard_missing(name, f"layer {layer} has {experts} experts")
    largest = max((expert for expert, _ in files.expert_optimizer), default=-1) + 1
    for model in sorted({model for _, model in files.expert_optimizer}):
        held_by = {(expert,) for expert, rank in files.expert_optimizer if rank == model}
        for (expert,) in absent((largest,), held_by):
            name = f"expp_rank_{expert}_mp_rank_{model:02d}_optim_states.pt"
            yield shard_missing(name, f"the largest expert rank that lies there is {largest - 1}")


def _leftovers(files: DeepSpeedFiles, facts: DeepSpeedFacts, data_ranks: int, model_ranks: int) -> Iterator[Finding]:
    why = (
        f"{facts.stated_by} tells of {data_ranks} data-parallel and {model_ranks} model-parallel ranks; "
        "tools that glob would read it"
    )
    for (data, model), path in (*files.model.items(), *files.optimizer.items()):
        if (data or 0) >= data_ranks or model >= model_ranks:
            yield unexpected_file(path, why)
        elif files.is_partitioned and data is None and not files.pipeline:
            yield unexpected_file(path, "the model is split over data-parallel ranks, and this file is not")
    for prefix, paths in files.prefixes.items():
        if prefix != files.prefix:
            for path in paths:
                yield generations_mixed(path, f"most optimizer files begin with {files.prefix or 'zero_pp_rank'!r}")


def _contradictions(facts: DeepSpeedFacts, leftovers: set[str], name: str) -> Iterator[Finding]:
    """Positions that cannot all be true; what does not belong here anyway is left out."""
    steps = {path: value for path, value in facts.steps.items() if path not in leftovers}
    taken_by = {path: value for path, value in facts.optimizer_steps.items() if path not in leftovers}
    yield from _odd_ones(steps, "global_steps")
    yield from _odd_ones(taken_by, "steps of the optimizer")
    if not steps or not taken_by:
        return
    counted = _commonest(steps.values())
    path = next(path for path, value in steps.items() if value == counted)
    taken = _commonest(taken_by.values())
    tag = _TAG.fullmatch(name)
    if taken > counted or (tag is not None and int(tag[1]) == taken != counted):
        yield counters_disagree(
            path, "global_steps against the steps that the optimizer took", expected=taken, found=counted
        )


def _odd_ones(values: Mapping[str, int], what: str) -> Iterator[Finding]:
    """The files whose value is not that of most; of two that differ, the lower one is called the odd one."""
    if len(set(values.values())) < 2:
        return
    common = _commonest(values.values())
    for path, value in values.items():
        if value != common:
            yield generations_mixed(path, what, expected=str(common), found=str(value))


def _commonest(values: Iterable[int]) -> int:
    counts: dict[int, int] = defaultdict(int)
    for value in values:
        counts[value] += 1
    return max(counts, key=lambda value: (counts[value], value))


# Saying


def _layout_name(files: DeepSpeedFiles, stage: int | None) -> str:
    parts = ["ZeRO stage 1 or 2" if stage is None else f"ZeRO stage {stage}"]
    parts += ["pipeline"] if files.pipeline else []
    parts += ["experts"] if files.experts else []
    parts += ["offloaded"] if files.offloaded else []
    return ", ".join(parts)


def _counters(facts: DeepSpeedFacts, step: int | None) -> tuple[Counter, ...]:
    named = {"global_steps": step, "global_samples": facts.samples, "skipped_steps": facts.skipped}
    return tuple(
        Counter(name=name, value=value, names=CounterMeaning.COMPLETED)
        for name, value in named.items()
        if value is not None
    )


def _layout(facts: DeepSpeedFacts, data_ranks: int, model_ranks: int) -> Layout:
    is_stated = facts.data_ranks is not None and facts.model_ranks is not None
    return Layout(
        world_size=data_ranks * model_ranks,
        certainty=Certainty.STATED if is_stated else Certainty.INFERRED,
        why=f"dp_world_size × mp_world_size in {facts.stated_by}" if is_stated else "the largest ranks that lie there",
        axes={"data_parallel": data_ranks, "model_parallel": model_ranks},
    )


def _components(files: DeepSpeedFiles, facts: DeepSpeedFacts, stage: int | None) -> tuple[HeldComponent, ...]:
    model = sorted((*files.model.values(), *files.experts.values(), *files.pipeline.values()))
    optimizer = sorted((*files.optimizer.values(), *files.expert_optimizer.values(), *files.offloaded))
    states = tuple(sorted(files.model.values()))
    held = [HeldComponent(component=Component.MODEL, paths=tuple(model), within="module")] if model else []
    if optimizer:
        held.append(HeldComponent(component=Component.OPTIMIZER, paths=tuple(optimizer)))
    elif facts.has_optimizer:
        held.append(HeldComponent(component=Component.OPTIMIZER, paths=states, within="optimizer"))
    if facts.has_scaler and files.optimizer:
        paths = tuple(sorted(files.optimizer.values()))
        held.append(HeldComponent(component=Component.SCALER, paths=paths, within="optimizer_state_dict.loss_scaler"))
    if facts.has_scheduler:
        held.append(HeldComponent(component=Component.SCHEDULER, paths=states, within="lr_scheduler"))
    if facts.has_sampler:
        held.append(HeldComponent(component=Component.DATA, paths=states, within="data_sampler"))
    if facts.stage is not None:
        held.append(HeldComponent(component=Component.CONFIG, paths=states, within="ds_config"))
    return tuple(held)


def _fingerprints(facts: DeepSpeedFacts) -> tuple[Fingerprint, ...]:
    trainer = [Fingerprint(kind="trainer_step", value=str(step), path=path) for path, step in facts.steps.items()]
    taken = facts.optimizer_steps.items()
    return (*trainer, *(Fingerprint(kind="optimizer_step", value=str(step), path=path) for path, step in taken))
