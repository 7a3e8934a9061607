"""torch DCP with whatever the training code put into it, and torchtitan, which puts the same things every time.

Decides what a state dictionary's names mean, and of torchtitan what must be among them. Rules: torch DCP requires
nothing, so what is not there is no finding unless the framework above always saves it; torchtitan's last save holds the
model alone by default, under the same name as the others. Source: torch's `torch.distributed.checkpoint`, torchtitan's
`components/checkpoint` and `components/dataloader`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from lastgood.formats.description import Description, Fingerprint, Framework, NeedlessFile, NeverSaved
from lastgood.formats.readers.contents import Contents
from lastgood.formats.readers.distcp import METADATA, DcpSave, component_of, is_dcp, mixed_files, read_save
from lastgood.formats.readers.grids import absent
from lastgood.formats.readers.pointers import candidates_by
from lastgood.formats.readers.wording import component_missing, counters_disagree, settled, shard_missing
from lastgood.formats.root import Candidate, Choice, Root
from lastgood.formats.source import Source
from lastgood.manifest import Component, Counter, CounterMeaning
from lastgood.verdict import Finding

__all__ = ["DcpReader", "TorchtitanReader"]

_STEP_DIRECTORY = re.compile(r"step-(\d{1,18})")
_TRAIN_STATE = re.compile(rb"(?:\x8c[\x0b-\xff]|X[\x0b-\xff]\x00\x00\x00)train_state(?:\.|[^A-Za-z0-9_])")
"""How a pickle spells text that begins so; parsing all of it only to recognise a checkpoint would cost seconds."""
_DATA_RANK = re.compile(r"dataloader\.dp_rank_(\d{1,9})")
_INDEX = "model.safetensors.index.json"
_PART_OF_EXPORT = re.compile(r"-\d+-of-\d+[^/]*\.safetensors")


class DcpReader:
    """Directories of torch DCP, whatever wrote them."""

    framework = Framework.TORCH_DCP

    def recognises(self, source: Source) -> bool:
        return is_dcp(source)

    def describe(self, source: Source) -> Description:
        save, contents = read_save(source), Contents(source)
        components = self._components(save)
        step = save.step(contents, components)
        steps = save.optimizer_steps(contents, components)
        held = save.components(components)
        findings = settled(
            source,
            save.findings,
            contents.findings,
            self._missing(save, contents, components),
            _contradictions(save, steps, step),
        )
        return Description(
            framework=self.framework,
            layout_name=_layout_name(save),
            step=None if step is None else step[1],
            counters=_counters(step, steps),
            layout=save.layout(),
            components=held,
            never_saved=self._never_saved(),
            marker=save.marker,
            is_complete=save.is_complete,
            findings=findings,
            notes=tuple(save.notes),
            needless=(*save.needless, *_others(save)),
            fingerprints=(
                *save.fingerprints(),
                *(
                    Fingerprint(kind="optimizer_step", value=str(max(found)), path=path)
                    for path, found in sorted(steps.items())
                ),
            ),
            unknowable=(*self._unknowable(steps, save), *contents.unknowable),
            unread=contents.unread,
            untold=(*save.untold, *contents.untold),
        )

    def choose(self, root: Root) -> Choice | None:
        return None

    def _components(self, save: DcpSave) -> dict[str, Component]:
        return {name: component_of(name, is_tensor=save.is_tensor(name)) for name in save.names}

    def _missing(self, save: DcpSave, contents: Contents, components: Mapping[str, Component]) -> Iterator[Finding]:
        yield from ()

    def _never_saved(self) -> tuple[NeverSaved, ...]:
        return ()

    def _unknowable(self, steps: Mapping[str, tuple[int, ...]], save: DcpSave) -> Iterator[str]:
        yield "what the training code left out: torch DCP saves what it is given and requires nothing"
        paths = {entry.path for entry in save.entries}
        if len(paths) > 1 and set(steps) != paths:
            yield (
                "whether each data file is of this save: only the metadata carries the id of a save, and files "
                "without a step counter of the optimizer do not tell"
            )


class TorchtitanReader(DcpReader):
    """`step-N` of torchtitan, as far as it holds the whole state; its last one may hold the model alone."""

    framework = Framework.TORCHTITAN

    def recognises(self, source: Source) -> bool:
        if not is_dcp(source) or not source.holds(METADATA):
            return False
        found = source.files[METADATA]
        with source.open(METADATA) as reader:
            data = reader.read_at(0, min(found.bytes, reader.size_bytes, _MAXIMUM_LOOKED_AT_BYTES))
        return _TRAIN_STATE.search(data) is not None

    def choose(self, root: Root) -> Choice | None:
        candidates = candidates_by(root, _STEP_DIRECTORY)
        if not candidates:
            return None
        start = f"{root.prefix}/" if root.prefix else ""
        valid = (
            candidate.name
            for candidate in candidates
            if any(root.store.stat(f"{start}{candidate.name}/{name}") is not None for name in (METADATA, _INDEX))
        )
        picked = next(valid, None)
        is_other = picked is None and _is_of_others(root, candidates)
        return Choice(
            rule=f"the largest N of step-N that holds {METADATA} or {_INDEX}",
            picked=picked,
            candidates=candidates,
            consequence=None if picked is not None or is_other else "trains from step zero without an error",
            is_only_named=is_other,
        )

    def _missing(self, save: DcpSave, contents: Contents, components: Mapping[str, Component]) -> Iterator[Finding]:
        if not save.metadata:
            return
        held = set(components.values())
        for component, key in (
            (Component.MODEL, "the model's own names"),
            (Component.OPTIMIZER, "optimizer"),
            (Component.SCHEDULER, "lr_scheduler"),
            (Component.DATA, "dataloader"),
        ):
            if component not in held:
                yield component_missing(component, f"{METADATA} lists train_state, and nothing under {key}")
        ranks = {int(match[1]) for name in components if (match := _DATA_RANK.match(name))}
        stated = save.number(contents, "dataloader.world_size")
        world_size = stated if stated is not None else max(ranks, default=-1) + 1
        said = "dataloader.world_size" if stated is not None else "the largest rank in the metadata"
        for (rank,) in absent((world_size,), {(rank,) for rank in ranks}):
            yield shard_missing(f"dataloader.dp_rank_{rank}", f"{said} tells of {world_size} data-parallel ranks")

    def _never_saved(self) -> tuple[NeverSaved, ...]:
        reason = "torchtitan saves no random state: streams go on from wherever the new processes are seeded"
        return (NeverSaved(component=Component.RNG, reason=reason),)


_MAXIMUM_LOOKED_AT_BYTES = 256 * 2**20


def _is_of_others(root: Root, candidates: Iterable[Candidate]) -> bool:
    """Whether files lie under these names, and none that torch DCP writes: any loop may call its saves `step-N`."""
    held = [name for candidate in candidates for name in root.store.names(root.key(candidate.name)).files]
    return bool(held) and not any(name.endswith(".distcp") or _PART_OF_EXPORT.search(name) for name in held)


def _layout_name(save: DcpSave) -> str:
    version = next((one.version for one in save.metadata.values() if one.version), None)
    parts = ["distributed checkpoint"]
    parts += [] if save.marker == METADATA else ["each rank on its own"]
    return ", ".join(parts + ([] if version is None else [f"metadata {version}"]))


def _contradictions(
    save: DcpSave, steps: Mapping[str, tuple[int, ...]], step: tuple[str, int] | None
) -> Iterator[Finding]:
    mixed = tuple(mixed_files(steps))
    yield from mixed
    taken = max((max(found) for found in steps.values()), default=None)
    if step is None or taken is None or mixed or taken <= step[1]:
        return
    name, counted = step
    path = next(entry.path for entry in save.entries if entry.fqn == name)
    yield counters_disagree(path, f"{name} against the steps that the optimizer took", expected=taken, found=counted)


def _counters(step: tuple[str, int] | None, steps: Mapping[str, tuple[int, ...]]) -> tuple[Counter, ...]:
    named = {} if step is None else {step[0]: step[1]}
    if steps:
        named["optimizer_step"] = max(max(found) for found in steps.values())
    return tuple(Counter(name=name, value=value, names=CounterMeaning.COMPLETED) for name, value in named.items())


def _others(save: DcpSave) -> Iterator[NeedlessFile]:
    """Files beside a save that its loader does not open."""
    known = {entry.path for entry in save.entries} | set(save.metadata) | {one.path for one in save.needless}
    if not save.metadata:
        return
    for path in save.source.matching():
        if path not in known and not path.endswith(".distcp"):
            yield NeedlessFile(path=path, reason=f"torch DCP opens {METADATA} and the files that it names")
