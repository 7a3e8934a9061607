"""What lies in a tag's directory of DeepSpeed, by its names, and what the files say of the save.

Decides what each name means and which facts are read. Leaves what follows from them to `deepspeed`. Rules: the first
file of model states that can be read says how many ranks saved; step counters are read of every file, for they tell
files of different saves apart. Source: DeepSpeed's engine (`_get_ckpt_name`, `_get_zero_ckpt_name`,
`_get_expert_ckpt_name`), its pipeline module and `checkpoint/constants.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lastgood.formats.readers.contents import Contents, TorchContent, count_in
from lastgood.formats.readers.grids import rank_count_in, too_many_ranks
from lastgood.formats.source import Source
from lastgood.verdict import Finding

__all__ = ["DeepSpeedFacts", "DeepSpeedFiles", "is_deepspeed", "read_facts"]

_MODEL = re.compile(r"(?:zero_pp_rank_(?P<data>\d{1,6})_)?mp_rank_(?P<model>\d{1,6})_model_states\.pt")
_OPTIMIZER = re.compile(
    r"(?P<prefix>bf16_|fp16_)?zero_pp_rank_(?P<data>\d{1,6})_mp_rank_(?P<model>\d{1,6})_optim_states\.pt"
)
_EXPERT = re.compile(r"layer_(?P<layer>\d{1,6})_expert_(?P<expert>\d{1,6})_mp_rank_(?P<model>\d{1,6})_model_states\.pt")
_EXPERT_OPTIMIZER = re.compile(r"expp_rank_(?P<expert>\d{1,6})_mp_rank_(?P<model>\d{1,6})_optim_states\.pt")
_PIPELINE = re.compile(r"layer_(?P<layer>\d{1,6})(?:-model_(?P<model>\d{1,6}))?-model_states\.pt")


def is_deepspeed(source: Source) -> bool:
    """Whether a file of DeepSpeed lies directly in it."""
    patterns = (_MODEL, _OPTIMIZER, _EXPERT, _PIPELINE)
    return any(pattern.fullmatch(path) for path in source.files for pattern in patterns)


@dataclass(slots=True, kw_only=True)
class DeepSpeedFiles:
    """The names of a tag's directory, sorted into what they are."""

    model: dict[tuple[int | None, int], str] = field(default_factory=dict)
    optimizer: dict[tuple[int, int], str] = field(default_factory=dict)
    prefixes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    experts: dict[tuple[int, int, int], str] = field(default_factory=dict)
    expert_optimizer: dict[tuple[int, int], str] = field(default_factory=dict)
    pipeline: dict[tuple[int, int | None], str] = field(default_factory=dict)
    offloaded: tuple[str, ...] = ()
    other: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, source: Source) -> DeepSpeedFiles:
        found = cls(offloaded=source.matching(prefix="offloaded_tensors/"))
        for path in source.matching():
            found._sort_in(path)
        return found

    def _sort_in(self, path: str) -> None:
        if match := _MODEL.fullmatch(path):
            data = match["data"]
            self.model[None if data is None else int(data), int(match["model"])] = path
        elif match := _OPTIMIZER.fullmatch(path):
            self.prefixes[match["prefix"] or ""].append(path)
            self.optimizer[int(match["data"]), int(match["model"])] = path
        elif match := _EXPERT.fullmatch(path):
            self.experts[int(match["layer"]), int(match["expert"]), int(match["model"])] = path
        elif match := _EXPERT_OPTIMIZER.fullmatch(path):
            self.expert_optimizer[int(match["expert"]), int(match["model"])] = path
        elif match := _PIPELINE.fullmatch(path):
            self.pipeline[int(match["layer"]), None if match["model"] is None else int(match["model"])] = path
        elif not path.startswith("offloaded_tensors/"):
            self.other.append(path)

    @property
    def is_partitioned(self) -> bool:
        """Whether the model itself is split over data-parallel ranks, as stage 3 does."""
        return any(data is not None for data, _ in self.model)

    @property
    def prefix(self) -> str:
        """Of the optimizer's files: that of most of them."""
        return max(self.prefixes, key=lambda name: len(self.prefixes[name]), default="")


@dataclass(slots=True, kw_only=True)
class DeepSpeedFacts:
    """What the files themselves say.

    Args:
        stated_by: The file of model states that the rest was read from; None where none could be read.
        data_ranks: Data-parallel ranks, as stated.
        model_ranks: Model-parallel ranks (tensor × pipeline), as stated.
        steps: Path → completed steps as counted by the engine.
        optimizer_steps: Path → steps that the optimizer of that file took.
        versions: Path → DeepSpeed's version.
        impossible: Numbers that no job has.
    """

    stated_by: str | None = None
    data_ranks: int | None = None
    model_ranks: int | None = None
    stage: int | None = None
    experts: tuple[int, ...] = ()
    layers: frozenset[int] = frozenset()
    samples: int | None = None
    skipped: int | None = None
    has_scheduler: bool = False
    has_optimizer: bool = False
    has_sampler: bool = False
    has_scaler: bool = False
    steps: dict[str, int] = field(default_factory=dict)
    optimizer_steps: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    impossible: list[Finding] = field(default_factory=list)


def read_facts(files: DeepSpeedFiles, contents: Contents) -> DeepSpeedFacts:
    """Read every file of model states and of the optimizer, as far as the budget goes.

    Raises:
        StoreError: The store could not tell.
    """
    facts = DeepSpeedFacts()
    for path in sorted(files.model.values(), key=_by_rank):
        with contents.torch(path) as content:
            if content is not None and isinstance(content.value, dict):
                _read_model(facts, path, content.value)
    for path in (*files.optimizer.values(), *files.expert_optimizer.values()):
        with contents.torch(path) as content:
            if content is not None and isinstance(content.value, dict):
                _read_optimizer(facts, path, content)
    return facts


def _by_rank(path: str) -> tuple[int, str]:
    return len(path), path


def _read_model(facts: DeepSpeedFacts, path: str, value: Mapping[Any, Any]) -> None:
    if (steps := count_in(value, "global_steps")) is not None:
        facts.steps[path] = steps
    if isinstance(version := value.get("ds_version"), str):
        facts.versions[path] = version
    facts.layers |= _layers(value.get("param_shapes"))
    if facts.stated_by is not None:
        return
    facts.stated_by = path
    facts.data_ranks = rank_count_in(value, "dp_world_size")
    facts.model_ranks = rank_count_in(value, "mp_world_size")
    facts.impossible += too_many_ranks(value, path, "dp_world_size", "mp_world_size")
    facts.samples = count_in(value, "global_samples")
    facts.skipped = count_in(value, "skipped_steps")
    facts.has_scheduler = bool(value.get("lr_scheduler"))
    facts.has_optimizer = bool(value.get("optimizer"))
    facts.has_sampler = bool(value.get("data_sampler"))
    experts = value.get("num_experts")
    facts.experts = tuple(one for one in experts if type(one) is int) if isinstance(experts, list) else ()
    config = value.get("ds_config")
    zero = config.get("zero_optimization") if isinstance(config, dict) else None
    facts.stage = count_in(zero, "stage") if isinstance(zero, dict) else None


def _layers(shapes: Any) -> frozenset[int]:
    """Numbers of the pipeline's layers that hold parameters: the first part of their names."""
    groups = shapes if isinstance(shapes, list) else [shapes]
    names = (name for group in groups if isinstance(group, dict) for name in group if isinstance(name, str))
    return frozenset(int(first) for name in names if (first := name.partition(".")[0]).isdecimal())


def _read_optimizer(facts: DeepSpeedFacts, path: str, content: TorchContent) -> None:
    if isinstance(version := content.value.get("ds_version"), str):
        facts.versions[path] = version
    state = content.value.get("optimizer_state_dict", content.value.get("optimizer"))
    if not isinstance(state, dict):
        return
    facts.has_scaler |= state.get("loss_scaler") is not None
    if (steps := content.largest_step(state)) is not None:
        facts.optimizer_steps[path] = steps
