"""Megatron-LM's legacy format: one directory for each model-parallel rank.

Decides which directories and files a save of the stated layout consists of. Rule: tensor-, pipeline- and
expert-parallel sizes are those of the arguments inside; only where none can be read do the largest ranks count. Source:
Megatron-LM's `megatron/training/checkpointing.py` (`get_checkpoint_name`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lastgood.formats.containers.stubs import ObjectStub
from lastgood.formats.description import (
    Certainty,
    Description,
    Fingerprint,
    Framework,
    HeldComponent,
    Layout,
    NeverSaved,
)
from lastgood.formats.readers.contents import Contents, count_in
from lastgood.formats.readers.grids import absent, rank_count_in, too_many_ranks
from lastgood.formats.readers.megatron_root import choose_megatron
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

__all__ = ["MegatronLegacyReader"]

_FILE = re.compile(
    r"mp_rank_(?P<tensor>\d{2,6})(?:_(?P<pipeline>\d{3,6}))?(?:_(?P<expert>\d{3,6}))?"
    r"/(?P<name>model_optim_rng\.pt|model_rng\.pt|distrib_optim\.pt|layer_wise_optimizer_\d{1,9}\.pt)"
)
_ITERATION = re.compile(r"iter_(\d{7,18})")


@dataclass(slots=True, kw_only=True)
class _Facts:
    """What the files say; `stated_by` is the one that the layout was read from."""

    stated_by: str | None = None
    version: str | None = None
    axes: dict[str, int] = field(default_factory=dict)
    world_size: int | None = None
    samples: int | None = None
    is_optimizer_distributed: bool = False
    iterations: dict[str, int] = field(default_factory=dict)
    held: set[Component] = field(default_factory=set)
    impossible: list[Finding] = field(default_factory=list)


class MegatronLegacyReader:
    """`iter_%07d` or `release`, with `mp_rank_*` directories inside."""

    def recognises(self, source: Source) -> bool:
        return any(_FILE.fullmatch(path) for path in source.files)

    def describe(self, source: Source) -> Description:
        paths = {path: match for path in source.matching() if (match := _FILE.fullmatch(path))}
        contents = Contents(source)
        facts = _Facts()
        for path, match in paths.items():
            if match["name"] in ("model_optim_rng.pt", "model_rng.pt"):
                with contents.torch(path) as content:
                    if content is not None and isinstance(content.value, dict):
                        _read(facts, path, content.value)
        model = tuple(path for path, match in paths.items() if match["name"].startswith("model_"))
        own = tuple(path for path in paths if path not in model)
        iteration = max(facts.iterations.values(), default=None)
        missing = tuple(_missing(paths, facts))
        counters = {"iteration": iteration, "consumed_train_samples": facts.samples}
        return Description(
            framework=Framework.MEGATRON_LEGACY,
            version=facts.version,
            layout_name="legacy torch, one directory for each model-parallel rank",
            step=iteration,
            counters=tuple(
                Counter(name=name, value=value, names=CounterMeaning.COMPLETED)
                for name, value in counters.items()
                if value is not None
            ),
            layout=_layout(facts),
            components=_components(facts, model, own),
            never_saved=(
                NeverSaved(
                    component=Component.DATA,
                    reason="the number of consumed samples is the place in the data; a loader saves its own elsewhere",
                ),
            ),
            findings=settled(
                source,
                contents.findings,
                facts.impossible,
                missing,
                _contradictions(facts, {one.offender for one in missing}, source.name),
            ),
            fingerprints=tuple(
                Fingerprint(kind="trainer_step", value=str(value), path=path)
                for path, value in facts.iterations.items()
            ),
            unknowable=(
                "whether all ranks had written when the tracker was: it is not part of the checkpoint",
                *contents.unknowable,
            ),
            unread=contents.unread,
            untold=contents.untold,
        )

    def choose(self, root: Root) -> Choice | None:
        return choose_megatron(root)


def _read(facts: _Facts, path: str, value: Mapping[Any, Any]) -> None:
    if (iteration := count_in(value, "iteration")) is not None:
        facts.iterations[path] = iteration
    for key, component in _KEYS.items():
        if value.get(key):
            facts.held.add(component)
    if any(isinstance(key, str) and re.fullmatch(r"model\d*", key) for key in value):
        facts.held.add(Component.MODEL)
    arguments = value.get("args")
    if facts.stated_by is not None or not isinstance(arguments, ObjectStub):
        return
    facts.stated_by = path
    version = value.get("checkpoint_version")
    facts.version = str(version) if isinstance(version, int | float) else None
    for axis in _SIZES:
        if size := rank_count_in(arguments, axis):
            facts.axes[axis.removesuffix("_size").replace("_model_", "_")] = size
    facts.world_size = rank_count_in(arguments, "world_size")
    facts.impossible += too_many_ranks(arguments, path, "world_size", *_SIZES)
    facts.samples = count_in(arguments, "consumed_train_samples")
    facts.is_optimizer_distributed = arguments.attributes.get("use_distributed_optimizer") is True


_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
_KEYS = {
    "optimizer": Component.OPTIMIZER,
    "opt_param_scheduler": Component.SCHEDULER,
    "lr_scheduler": Component.SCHEDULER,
    "rng_state": Component.RNG,
    "random_rng_state": Component.RNG,
    "args": Component.CONFIG,
}


def _missing(paths: Mapping[str, re.Match[str]], facts: _Facts) -> Iterator[Finding]:
    sizes = {
        axis: facts.axes.get(f"{axis}_parallel")
        or max((int(match[axis] or 0) for match in paths.values()), default=0) + 1
        for axis in ("tensor", "pipeline", "expert")
    }
    has_pipeline = sizes["pipeline"] > 1 or any(match["pipeline"] for match in paths.values())
    has_expert = sizes["expert"] > 1 and any(match["expert"] for match in paths.values())
    names = sorted({match["name"] for match in paths.values() if match["name"].startswith("model_")})
    names += ["distrib_optim.pt"] if any(match["name"] == "distrib_optim.pt" for match in paths.values()) else []
    is_layer_wise = any(match["name"].startswith("layer_wise") for match in paths.values())
    if facts.is_optimizer_distributed and len(names) < 2 and not is_layer_wise:
        yield component_missing("optimizer", "the arguments call it distributed, and no distrib_optim.pt is there")
    said = facts.stated_by or "the largest rank that lies there"
    why = f"{said} tells of {sizes['tensor']} tensor- and {sizes['pipeline']} pipeline-parallel ranks"
    shape = (sizes["tensor"], sizes["pipeline"], sizes["expert"] if has_expert else 1)
    for name in names:
        held = {_place(match) for match in paths.values() if match["name"] == name}
        for tensor, pipeline, expert in absent(shape, held):
            directory = f"mp_rank_{tensor:02d}"
            directory += f"_{pipeline:03d}" if has_pipeline else ""
            directory += f"_{expert:03d}" if has_expert else ""
            yield shard_missing(f"{directory}/{name}", why)
    for path, match in paths.items():
        if any(number >= size for number, size in zip(_place(match), shape, strict=True)):
            yield unexpected_file(path, why)


def _place(match: re.Match[str]) -> tuple[int, int, int]:
    """Tensor, pipeline and expert rank; a name without an axis is its first."""
    return int(match["tensor"]), int(match["pipeline"] or 0), int(match["expert"] or 0)


def _contradictions(facts: _Facts, leftovers: set[str], name: str) -> Iterator[Finding]:
    iterations = {path: iteration for path, iteration in facts.iterations.items() if path not in leftovers}
    if not iterations:
        return
    newest = max(iterations.values())
    for path, iteration in iterations.items():
        if iteration != newest:
            yield generations_mixed(path, "iteration", expected=str(newest), found=str(iteration))
    named = _ITERATION.fullmatch(name)
    if named is not None and int(named[1]) != newest:
        path = next(path for path, iteration in iterations.items() if iteration == newest)
        yield counters_disagree(path, f"the directory is called {name}", expected=int(named[1]), found=newest)


def _layout(facts: _Facts) -> Layout:
    if facts.world_size is not None:
        return Layout(
            world_size=facts.world_size,
            certainty=Certainty.STATED,
            why=f"the arguments in {facts.stated_by}",
            axes=facts.axes,
        )
    why = "only model-parallel ranks write, so data-parallel ones leave no trace"
    return Layout(world_size=None, certainty=Certainty.UNKNOWN, why=why, axes=facts.axes)


def _components(facts: _Facts, model: tuple[str, ...], own: tuple[str, ...]) -> tuple[HeldComponent, ...]:
    within = {
        Component.MODEL: "model",
        Component.OPTIMIZER: "optimizer",
        Component.SCHEDULER: "opt_param_scheduler",
        Component.RNG: "rng_state",
        Component.CONFIG: "args",
    }
    held = []
    for component, key in within.items():
        if component is Component.OPTIMIZER and own:
            held.append(HeldComponent(component=component, paths=own))
        elif component in facts.held:
            held.append(HeldComponent(component=component, paths=model, within=key))
    return tuple(held)
