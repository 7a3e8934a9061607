"""Megatron-core's `torch_dist` format: torch DCP with a configuration beside it that is written last.

Decides what Megatron's names mean and what must be among them. Leaves entries and files to `distcp`. Rules:
`metadata.json` completes a save; objects that are split over ranks carry their place and the shape of the whole in
their names, so that a missing one is seen; two ranks of the model-parallel grid never share a random state, since their
streams are seeded apart. Source: Megatron-LM's `megatron/core/dist_checkpointing` (`core`, `mapping`, `serialization`)
and `megatron/training/checkpointing.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from lastgood.errors import FormatError
from lastgood.formats.containers.dcpmetadata import DcpEntry
from lastgood.formats.containers.stubs import ObjectStub
from lastgood.formats.description import (
    Certainty,
    Description,
    Fingerprint,
    Framework,
    HeldComponent,
    Layout,
    NeedlessFile,
    NeverSaved,
)
from lastgood.formats.readers.contents import Contents, count_in
from lastgood.formats.readers.distcp import METADATA, DcpSave, component_of, is_dcp, read_save
from lastgood.formats.readers.grids import MAXIMUM_RANKS, absent, rank_count_in
from lastgood.formats.readers.megatron_root import choose_megatron
from lastgood.formats.readers.wording import (
    component_missing,
    counters_disagree,
    file_missing,
    malformed,
    save_unfinished,
    settled,
    shard_missing,
)
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source
from lastgood.formats.texts import parse_json
from lastgood.manifest import Component, Counter, CounterMeaning
from lastgood.verdict import Finding, Reason

__all__ = ["MegatronReader"]

MARKER = "metadata.json"
COMMON = "common.pt"
_ITERATION = re.compile(r"iter_(\d{7,18})")
_SHARD = re.compile(r"(?P<key>.+)/shard_(?P<place>\d{1,9}(?:\.\d{1,9})*)_(?P<shape>\d{1,9}(?:\.\d{1,9})*)")


@dataclass(slots=True, kw_only=True)
class _Common:
    """What `common.pt` says."""

    version: str | None = None
    iteration: int | None = None
    samples: int | None = None
    world_size: int | None = None
    axes: dict[str, int] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()


class MegatronReader:
    """`iter_%07d` or `release`, saved with `--ckpt-format torch_dist`."""

    def recognises(self, source: Source) -> bool:
        if source.holds(MARKER) and source.files[MARKER].bytes < 65_536:
            try:
                value = parse_json(source.read(MARKER), MARKER)
            except FormatError:
                value = None
            if isinstance(value, dict) and "sharded_backend" in value:
                return True
        named = _ITERATION.fullmatch(source.name) is not None or source.holds(COMMON)
        return named and is_dcp(source)

    def describe(self, source: Source) -> Description:
        save = read_save(source, covers_tensors=False)
        contents = Contents(source)
        common = _read_common(source, contents)
        components = {name: component_of(_plain(name), is_tensor=save.is_tensor(name)) for name in save.names}
        held = (*save.components(components), *_common_components(common))
        counters = {"iteration": common.iteration, "consumed_train_samples": common.samples}
        return Description(
            framework=Framework.MEGATRON,
            version=common.version,
            layout_name="torch_dist",
            step=common.iteration,
            counters=tuple(
                Counter(name=name, value=value, names=CounterMeaning.COMPLETED)
                for name, value in counters.items()
                if value is not None
            ),
            layout=_layout(save, common),
            components=held,
            never_saved=(
                NeverSaved(
                    component=Component.DATA,
                    reason="the number of consumed samples is the place in the data; a loader saves its own elsewhere",
                ),
            ),
            marker=MARKER,
            is_complete=source.holds(MARKER) and save.is_complete,
            findings=settled(
                source,
                _unfinished(source),
                save.findings,
                contents.findings,
                _missing(source, save, components, common),
                _duplicated(save, contents),
                _contradictions(source, common),
            ),
            notes=tuple(save.notes),
            needless=(*save.needless, *_others(source)),
            fingerprints=(
                *save.fingerprints(),
                *(
                    (Fingerprint(kind="trainer_step", value=str(common.iteration), path=COMMON),)
                    if common.iteration is not None
                    else ()
                ),
            ),
            unknowable=(*_unknowable(save, common), *contents.unknowable),
            unread=contents.unread,
            untold=(*save.untold, *contents.untold),
        )

    def choose(self, root: Root) -> Choice | None:
        return choose_megatron(root)


def _plain(name: str) -> str:
    """A name without the place of its shard."""
    match = _SHARD.fullmatch(name)
    return match["key"] if match else name


def _read_common(source: Source, contents: Contents) -> _Common:
    common = _Common()
    if not source.holds(COMMON):
        return common
    with contents.torch(COMMON) as content:
        value = None if content is None else content.value
        if not isinstance(value, dict):
            return common
        version = value.get("checkpoint_version")
        common.version = str(version) if isinstance(version, int | float) else None
        common.iteration = count_in(value, "iteration")
        common.keys = frozenset(key for key, held in value.items() if isinstance(key, str) and held not in (None, {}))
        arguments = value.get("args")
        if isinstance(arguments, ObjectStub):
            common.samples = count_in(arguments, "consumed_train_samples")
            common.world_size = rank_count_in(arguments, "world_size")
            for name, axis in _AXES.items():
                if size := rank_count_in(arguments, name):
                    common.axes[axis] = size
    return common


_AXES = {
    "data_parallel_size": "data_parallel",
    "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "context_parallel_size": "context_parallel",
    "expert_model_parallel_size": "expert_parallel",
}


def _common_components(common: _Common) -> Iterator[HeldComponent]:
    for key, component in (("opt_param_scheduler", Component.SCHEDULER), ("args", Component.CONFIG)):
        if key in common.keys:
            yield HeldComponent(component=component, paths=(COMMON,), within=key)


def _unfinished(source: Source) -> Iterator[Finding]:
    if not source.holds(MARKER):
        yield save_unfinished(MARKER, "Megatron writes it when all ranks have written")
        return
    try:
        parse_json(source.read(MARKER), MARKER)
    except FormatError as error:
        yield malformed(error, MARKER)


def _missing(source: Source, save: DcpSave, components: Mapping[str, Component], common: _Common) -> Iterator[Finding]:
    if save.untold:
        return  # what is listed there is not known
    # Newer versions put what all ranks share among the sharded objects.
    shared = {_plain(name).partition(".")[0] for name in save.names}
    if not source.holds(COMMON) and COMMON not in source.files and not shared & {"args", "iteration", "common"}:
        yield file_missing(COMMON, "it holds the iteration, the arguments and the scheduler")
    if save.metadata and Component.OPTIMIZER in components.values() and Component.RNG not in components.values():
        yield component_missing(Component.RNG, f"{METADATA} lists an optimizer and no rng_state")
    grids: dict[tuple[str, tuple[int, ...]], set[tuple[int, ...]]] = defaultdict(set)
    for name in save.names:
        if match := _SHARD.fullmatch(name):
            grids[match["key"], _numbers(match["shape"])].add(_numbers(match["place"]))
    for (key, shape), places in sorted(grids.items()):
        if not 0 < prod(shape) <= MAXIMUM_RANKS or any(len(place) != len(shape) for place in places):
            continue
        for place in absent(shape, places):
            name = f"{key}/shard_{_text(place)}_{_text(shape)}"
            yield shard_missing(name, f"the names of the others tell of {prod(shape)} shards")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _duplicated(save: DcpSave, contents: Contents) -> Iterator[Finding]:
    """Random states of different ranks that are byte for byte the same."""
    first: dict[tuple[tuple[str, int, int], ...], DcpEntry] = {}
    for entry in save.entries:
        if entry.transforms or not _plain(entry.fqn).endswith("rng_state") or not _SHARD.fullmatch(entry.fqn):
            continue
        with contents.torch_entry(entry.path, entry.offset, entry.length, entry.fqn) as content:
            archive = None if content is None else content.file.archive
            if archive is None:
                continue
            records = tuple(
                (name, record.data_bytes, record.crc32)
                for name, record in archive.records.items()
                if name == "data.pkl" or name.startswith("data/")
            )
        if not all(crc for _, size, crc in records if size):
            continue
        other = first.setdefault(records, entry)
        if other is not entry:
            yield Finding(
                reason=Reason.RANK_DUPLICATED,
                message=f"rank duplicated: {entry.fqn} in {entry.path}: holds the random state of {other.fqn}",
                offender=entry.path,
                expected="a state of its own",
                found=other.fqn,
            )


def _contradictions(source: Source, common: _Common) -> Iterator[Finding]:
    named = _ITERATION.fullmatch(source.name)
    if named is not None and common.iteration is not None and int(named[1]) != common.iteration:
        yield counters_disagree(
            COMMON, f"the directory is called {source.name}", expected=int(named[1]), found=common.iteration
        )


def _layout(save: DcpSave, common: _Common) -> Layout:
    if common.world_size is None:
        return save.layout()
    why = f"the arguments in {COMMON}"
    return Layout(world_size=common.world_size, certainty=Certainty.STATED, why=why, axes=common.axes)


def _others(source: Source) -> Iterator[NeedlessFile]:
    for path in source.matching():
        if path == "integrity.json":
            yield NeedlessFile(path=path, reason="checksums that a load compares only where they are")
        elif path.startswith(("tokenizer/", "run_config", "train_state", "modelopt_")) or path.endswith(".json.bak"):
            yield NeedlessFile(path=path, reason="a start takes it from the job's own arguments")


def _unknowable(save: DcpSave, common: _Common) -> Iterator[str]:
    if common.axes.get("expert_parallel", 1) > 1 and any(
        (match := _SHARD.fullmatch(name)) and match["key"].endswith("rng_state") and match["shape"].count(".") < 2
        for name in save.names
    ):
        yield (
            "the random states of expert-parallel ranks: this version saves one for each tensor and pipeline rank, and "
            "all experts resume with it"
        )
    if len({entry.path for entry in save.entries}) > 1:
        yield "whether each data file is of this save: only the metadata carries the id of a save"
