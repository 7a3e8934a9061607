"""The directory of a torch DCP save, whoever put what into it: metadata, the files it names, what they must weigh.

Decides what `.metadata` and the files beside it say about each other, and which kind of state a name means. Leaves
frameworks to their readers. Rules: `.metadata` is written last, so without it nothing was saved; a file is exactly as
long as its last entry reaches, so a length needs no manifest; a file that no entry names is read by nobody. Source:
torch's `torch.distributed.checkpoint` (`filesystem`, `metadata`, `planner_helpers`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import prod

from lastgood.errors import FormatError, ReadLimitError
from lastgood.formats.believing import believed
from lastgood.formats.containers.dcpmetadata import METADATA_LIMITS, DcpEntry, DcpMetadata, read_dcp_metadata
from lastgood.formats.containers.reading import Problem, ProblemKind
from lastgood.formats.description import Certainty, Fingerprint, HeldComponent, Layout, NeedlessFile
from lastgood.formats.readers.contents import Contents
from lastgood.formats.readers.grids import absent
from lastgood.formats.readers.wording import (
    generations_mixed,
    global_not_allowed,
    malformed,
    save_unfinished,
    shard_missing,
    stray,
    wrong_length,
)
from lastgood.formats.source import Source
from lastgood.manifest import Component
from lastgood.verdict import Finding, Note, Reason

__all__ = ["METADATA", "DcpSave", "component_of", "is_dcp", "mixed_files", "read_metadata", "read_save"]

METADATA = ".metadata"
_DATA = re.compile(r"__(\d{1,7})_(\d{1,9})\.distcp")
_RANK_METADATA = re.compile(r"__(\d{1,7})\.metadata")
_STEP_NAMES = ("global_step", "step", "iteration", "global_steps")
MAXIMUM_STEPS_A_FILE = 4
MAXIMUM_STEPS = 256

_WORDS: tuple[tuple[Component, re.Pattern[str]], ...] = (
    (Component.SCHEDULER, re.compile(r"(lr_?|opt_param_)?schedulers?(_states?)?(_dict)?")),
    (Component.OPTIMIZER, re.compile(r"optim(izers?)?(_\d+)?(_states?)?(_dict)?|chained_\d+")),
    (Component.RNG, re.compile(r"(cuda_|torch_)?rng(_states?)?|random(_states?)?")),
    (Component.SCALER, re.compile(r"(grad_)?scaler|loss_scaler")),
    (Component.DATA, re.compile(r"(train_?)?(data_?)?loader(_states?)?|sampler|dataset(_state)?")),
    (Component.EMA, re.compile(r"ema(_model|_state)?(_dict)?")),
    (Component.MODEL, re.compile(r"model\d*(_parts|_state)?(_dict)?|module|state_dict|weights")),
)


def component_of(name: str, *, is_tensor: bool) -> Component:
    """The kind of state that a name in a state dictionary means, by its first two parts."""
    for part in name.split(".", 2)[:2]:
        for component, word in _WORDS:
            if word.fullmatch(part.partition("/")[0]):
                return component
    return Component.MODEL if is_tensor else Component.OTHER


def is_dcp(source: Source) -> bool:
    """Whether files of torch DCP lie directly in it."""
    return source.holds(METADATA) or any(
        _DATA.fullmatch(path) or _RANK_METADATA.fullmatch(path) for path in source.files
    )


@dataclass(slots=True, kw_only=True)
class DcpSave:
    """What a directory of torch DCP says of itself.

    Args:
        source: The directory.
        metadata: Path of a metadata file → its content; one, or one of each rank where the ranks saved on their own.
        marker: The name of the file that completes the save.
        is_complete: Whether it is there.
        findings: What is missing, torn, too long or contradicts itself.
        untold: Metadata that is more than is read here.
        notes: Files that nobody reads.
        needless: Files that nobody misses.
    """

    source: Source
    metadata: dict[str, DcpMetadata] = field(default_factory=dict)
    marker: str = METADATA
    is_complete: bool = True
    findings: list[Finding] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    needless: list[NeedlessFile] = field(default_factory=list)

    @property
    def entries(self) -> Iterator[DcpEntry]:
        """Where everything lies."""
        return (entry for one in self.metadata.values() for entry in one.entries)

    @property
    def names(self) -> frozenset[str]:
        """Everything that was saved, by its name in the state dictionary."""
        return frozenset(name for one in self.metadata.values() for name in (*one.tensors, *one.objects))

    def is_tensor(self, name: str) -> bool:
        """Whether a name is a tensor's."""
        return any(name in one.tensors for one in self.metadata.values())

    @property
    def ranks(self) -> int:
        """One more than the largest rank that wrote, by the names of files."""
        named = (*self.source.files, *(entry.path for entry in self.entries))
        return 1 + max((int(match[1]) for path in named if (match := _any_rank(path))), default=-1)

    def layout(self) -> Layout:
        """The ranks, as far as names tell."""
        if not self.ranks:
            return Layout(world_size=None, certainty=Certainty.UNKNOWN, why="no file names a rank")
        why = "the largest rank in the names of files: a rank that had nothing to write leaves none"
        return Layout(world_size=self.ranks, certainty=Certainty.INFERRED, why=why)

    def components(self, component_of_name: Mapping[str, Component]) -> tuple[HeldComponent, ...]:
        """The files of each component, given the component of each name."""
        paths: dict[Component, set[str]] = defaultdict(set)
        heads: dict[Component, set[str]] = defaultdict(set)
        for entry in self.entries:
            component = component_of_name.get(entry.fqn, Component.OTHER)
            paths[component].add(entry.path)
            heads[component].add(entry.fqn.partition(".")[0].partition("/")[0])
        return tuple(
            HeldComponent(
                component=component,
                paths=tuple(sorted(paths[component])),
                within=next(iter(heads[component])) if len(heads[component]) == 1 else None,
            )
            for component in sorted(paths)
        )

    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """The id of the save."""
        return tuple(
            Fingerprint(kind="dcp_save_id", value=one.save_id, path=path)
            for path, one in self.metadata.items()
            if one.save_id is not None
        )

    def number(self, contents: Contents, name: str) -> int | None:
        """The whole number that is stored under a name; None where there is none."""
        entry = next((entry for entry in self.entries if entry.fqn == name), None)
        return None if entry is None else read_number(contents, entry)

    def step(self, contents: Contents, components: Mapping[str, Component]) -> tuple[str, int] | None:
        """The name and value of the trainer's own step counter; None where none is named as one."""
        named = [
            name
            for name, component in components.items()
            if component is Component.OTHER and name.rpartition(".")[2] in _STEP_NAMES
        ]
        for name in sorted(named, key=lambda name: (name.count("."), name)):
            if (found := self.number(contents, name)) is not None:
                return name, found
        return None

    def optimizer_steps(self, contents: Contents, components: Mapping[str, Component]) -> dict[str, tuple[int, ...]]:
        """Path → step counters of the optimizer that lie in that file, a few of each."""
        found: dict[str, list[int]] = defaultdict(list)
        for entry in self.entries:
            if components.get(entry.fqn) is not Component.OPTIMIZER or entry.fqn.rpartition(".")[2] != "step":
                continue
            if len(found[entry.path]) < MAXIMUM_STEPS_A_FILE and sum(map(len, found.values())) < MAXIMUM_STEPS:
                step = read_number(contents, entry)
                found[entry.path] += [] if step is None else [step]
        return {path: tuple(steps) for path, steps in found.items() if steps}


def _any_rank(path: str) -> re.Match[str] | None:
    return _DATA.fullmatch(path) or _RANK_METADATA.fullmatch(path)


def read_number(contents: Contents, entry: DcpEntry) -> int | None:
    """The whole number in an entry, written as an object or as a tensor of one element; else None."""
    found = None
    if not entry.transforms:
        with contents.torch_entry(entry.path, entry.offset, entry.length, entry.fqn) as content:
            found = None if content is None else content.number(content.value)
    return found


def mixed_files(steps: Mapping[str, tuple[int, ...]]) -> Iterator[Finding]:
    """Files whose optimizer stood elsewhere than in most.

    A parameter that got no gradient lags behind, so only files of which all counters agree are compared.
    """
    uniform = {path: found[0] for path, found in steps.items() if len(found) > 1 and len(set(found)) == 1}
    values = list(uniform.values())
    if len(set(values)) < 2:
        return
    common = max(set(values), key=lambda value: (values.count(value), value))
    for path, value in uniform.items():
        if value != common:
            yield generations_mixed(path, "steps of the optimizer", expected=str(common), found=str(value))


def read_save(source: Source, *, allowed_globals: Iterable[str] = (), covers_tensors: bool = True) -> DcpSave:
    """Read the metadata of a directory, and compare it with the files there.

    Args:
        source: The directory.
        allowed_globals: What its `.metadata` may name beside torch's own classes.
        covers_tensors: Whether the chunks of a tensor must add up to it; not for those who store padded ones.

    Raises:
        StoreError: The store could not tell.
    """
    save = DcpSave(source=source)
    for path in _metadata_files(save):
        try:
            save.metadata[path] = believed(partial(read_metadata, source, path), path)
        except ReadLimitError as error:
            save.untold.append(error.message)
        except FormatError as error:
            save.findings.append(malformed(error, path))
    for path, one in save.metadata.items():
        save.findings += _inner_findings(path, one, frozenset(allowed_globals), covers_tensors=covers_tensors)
    if save.metadata:
        _compare(save)
    return save


def read_metadata(source: Source, path: str) -> DcpMetadata:
    """One metadata file.

    Raises:
        FormatError: It makes no sense.
        StoreError: The store could not tell.
    """
    return _parsed(source.read(path, limit_bytes=METADATA_LIMITS.bytes), path)


@lru_cache(maxsize=1)
def _parsed(data: bytes, path: str) -> DcpMetadata:
    """Kept for the next one who asks: parsing takes seconds for tens of thousands of chunks, and both the description
    and the integrity of a checkpoint need it.
    """
    return read_dcp_metadata(data, path)


def _metadata_files(save: DcpSave) -> tuple[str, ...]:
    source = save.source
    if source.holds(METADATA):
        return (METADATA,)
    own = {int(match[1]): path for path in source.matching() if (match := _RANK_METADATA.fullmatch(path))}
    if not own:
        save.is_complete = False
        why = "torch DCP writes it when all ranks have written"
        why += "; a temporary one is there" if source.holds(f"{METADATA}.tmp") else ""
        save.findings.append(save_unfinished(METADATA, why))
        return ()
    save.marker = "__<rank>.metadata of every rank"
    for (rank,) in absent((save.ranks,), {(rank,) for rank in own}):
        save.is_complete = False
        why = "each rank of a save without collectives writes its own when it is done"
        save.findings.append(save_unfinished(f"__{rank}{METADATA}", why))
    return tuple(own.values())


_OF_PROBLEM = {
    ProblemKind.PATH_ESCAPES: Reason.CONTAINER_MALFORMED,
    ProblemKind.RANGE_INVALID: Reason.CONTAINER_MALFORMED,
    ProblemKind.RANGE_OVERLAPS: Reason.CONTAINER_MALFORMED,
    ProblemKind.ENTRY_MISSING: Reason.TENSOR_INCOMPLETE,
}


def _inner_findings(
    path: str, metadata: DcpMetadata, allowed: frozenset[str], *, covers_tensors: bool
) -> Iterator[Finding]:
    """What the metadata says against itself; of each kind once, for one fault often shows in many tensors."""
    first: dict[Reason, list[Problem]] = defaultdict(list)
    for problem in metadata.problems:
        first[_OF_PROBLEM.get(problem.kind, Reason.CONTAINER_MALFORMED)].append(problem)
    if Reason.CONTAINER_MALFORMED in first:
        first.pop(Reason.TENSOR_INCOMPLETE, None)  # an entry that is refused is missed by its tensor
    for reason, problems in first.items():
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        yield Finding(reason=reason, message=f"{problems[0].message}{more}", offender=path)
    for name in metadata.unknown_globals:
        if name not in allowed:
            yield global_not_allowed(path, name)
    if covers_tensors and not first:
        gaps = [
            (name, prod(tensor.shape), held)
            for name, tensor in metadata.tensors.items()
            if (held := sum(prod(chunk.sizes) for chunk in tensor.chunks)) < prod(tensor.shape)
        ]
        if gaps and not _RANK_METADATA.fullmatch(path):  # a rank on its own holds its own chunks only
            name, expected, found = gaps[0]
            message = f"tensor incomplete: {name!r} in {path}: its chunks hold {found} of {expected} elements"
            message += f" (and {len(gaps) - 1} more)" if len(gaps) > 1 else ""
            yield Finding(reason=Reason.TENSOR_INCOMPLETE, message=message, offender=path)


def _compare(save: DcpSave) -> None:
    """The metadata against the listing."""
    source, expected = save.source, dict[str, int]()
    for one in save.metadata.values():
        expected |= one.file_bytes()
    for path, length in sorted(expected.items()):
        if not source.holds(path):
            if path not in source.files:  # a link is found elsewhere
                save.findings.append(shard_missing(path, f"{_names(save)} lists {length} bytes of it"))
        elif (found := source.files[path].bytes) != length:
            why = f"{_names(save)} lists entries up to there"
            save.findings.append(wrong_length(path, why, expected=length, found=found))
    for path in source.matching():
        if path in expected or path in save.metadata:
            continue
        if _DATA.fullmatch(path) and source.files[path].bytes and save.is_complete:
            save.notes.append(stray(path, "no entry of the metadata lies in it; is it left over from another save?"))
            save.needless.append(NeedlessFile(path=path, reason="no entry of the metadata lies in it"))
        elif _DATA.fullmatch(path):
            save.needless.append(NeedlessFile(path=path, reason="its rank had nothing to write"))


def _names(save: DcpSave) -> str:
    return METADATA if METADATA in save.metadata else "the metadata"
