"""Lightning: a single file, or the directory that FSDP or DeepSpeed writes in its place.

Decides which form a checkpoint has, and which one Lightning would resume. Leaves the dump to `lightning_state` and
directories to the readers of torch DCP and DeepSpeed. Rules: `meta.pt` is written last into a directory of FSDP; a
single file is written under another name and renamed, so it is whole or not there; nothing tells how many ranks saved
one. Source: Lightning, `ModelCheckpoint._find_last_checkpoints`, `FSDPStrategy.save_checkpoint`,
`DeepSpeedStrategy.save_checkpoint`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from lastgood.errors import FormatError
from lastgood.formats.believing import believed_once
from lastgood.formats.containers.torchfile import Container, container_of, read_torch_file
from lastgood.formats.description import Certainty, Description, Framework, Layout
from lastgood.formats.readers.dcp import DcpReader
from lastgood.formats.readers.draft import Draft
from lastgood.formats.readers.lightning_state import Dump, is_dump, say_never_saved
from lastgood.formats.readers.parts import gather_deepspeed
from lastgood.formats.readers.pointers import dangling
from lastgood.formats.readers.wording import component_missing, counters_disagree, save_unfinished
from lastgood.formats.root import Candidate, Choice, Root
from lastgood.formats.source import Source
from lastgood.manifest import Component

__all__ = ["LightningDirectoryReader", "LightningFileReader"]

_ENDING = ".ckpt"
_META = "meta.pt"
_DCP_METADATA = ".metadata"
_TAG = "checkpoint"
_LAST = re.compile(r"last(-(\d+))?.*\.ckpt", re.DOTALL)
_STEP = re.compile(r"(?:^|[-_])step[=_-](\d{1,18})(?!\d)")
_NEVER_A_DUMP = frozenset(Container) - {Container.TORCH_ZIP, Container.TORCH_LEGACY}
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_SPLIT = frozenset({Component.MODEL, Component.OPTIMIZER})


class LightningFileReader:
    """One `.ckpt` file."""

    def recognises(self, source: Source) -> bool:
        if not source.is_file or not source.holds(source.name):
            return False
        try:
            with source.open(source.name) as reader:
                if container_of(reader, source.name) in _NEVER_A_DUMP:
                    return source.name.endswith(_ENDING)
                file = believed_once(source, source.name, lambda: read_torch_file(reader, source.name, source.memory))
                return is_dump(file.value)
        except FormatError:
            return source.name.endswith(_ENDING)

    def describe(self, source: Source) -> Description:
        draft = Draft(source)
        dump = None
        with draft.contents.torch(source.name) as content:
            if content is not None and is_dump(content.value):
                dump = Dump(draft, content, content.value)
                dump.gather()
        say_never_saved(draft)
        draft.unknowable.append("how many ranks saved it, and whether the data is split over as many again")
        why = "Lightning writes no number of ranks into a single file"
        is_weights_only = dump is not None and dump.is_weights_only
        return draft.describe(
            framework=Framework.LIGHTNING,
            version=dump.version if dump is not None else None,
            layout_name="single file, weights only" if is_weights_only else "single file",
            layout=Layout(world_size=None, certainty=Certainty.UNKNOWN, why=why),
            step=dump.step if dump is not None else None,
        )

    def choose(self, root: Root) -> Choice | None:
        names = [name for name in (*root.names.files, *root.names.directories) if name.endswith(_ENDING)]
        if not names:
            return None
        targets = {name: target for name in names if (target := root.leads_to(name)) is not None}
        names = list(targets)
        last = {name for name in names if _LAST.fullmatch(name)}
        newest = sorted(names, key=lambda name: (name in last, _changed(root, name), name), reverse=True)
        pointer = next((name for name in newest if name in last and targets[name] in names), None)
        nothing = "warns that there is no last checkpoint, and trains from step zero"
        return Choice(
            rule="with ckpt_path='last', the last*.ckpt that changed most recently",
            picked=None if pointer is None else targets[pointer],
            candidates=tuple(Candidate(name=name, step=_step_of(name)) for name in newest if targets[name] == name),
            pointer=None if pointer is None or targets[pointer] == pointer else pointer,
            findings=tuple(dangling(name, targets[name]) for name in newest if targets[name] not in names),
            consequence=nothing if pointer is None else None,
        )


def _changed(root: Root, name: str) -> datetime:
    return root.store.last_changed(root.key(name)) or _LONG_AGO


def _step_of(name: str) -> int | None:
    found = _STEP.search(name.removesuffix(_ENDING))
    return int(found[1]) if found else None


class LightningDirectoryReader:
    """One `.ckpt` directory: DCP's files with `meta.pt`, or DeepSpeed's under the tag `checkpoint`."""

    def recognises(self, source: Source) -> bool:
        if source.is_file:
            return False
        is_named = source.name.endswith(_ENDING)
        splits = source.holds(_DCP_METADATA) or bool(source.matching(suffix=".distcp"))
        if source.holds(_META) and (splits or is_named):
            return True
        engine = source.matching(prefix=f"{_TAG}/", suffix="_states.pt")
        return is_named and (splits or bool(engine))

    def describe(self, source: Source) -> Description:
        draft = Draft(source)
        if source.matching(prefix=f"{_TAG}/") or source.holds("latest"):
            return _describe_engine(draft)
        return _describe_split(draft)

    def choose(self, root: Root) -> Choice | None:
        return None  # the reader of files answers for both, as Lightning does


def _describe_split(draft: Draft) -> Description:
    """FSDP: model and optimizers by torch DCP, the rest of the dump in `meta.pt`."""
    dump = None
    has_meta = draft.holds(_META)
    part = DcpReader().describe(draft.source)
    draft.take(part, "")
    if has_meta:
        with draft.contents.torch(_META) as content:
            if content is not None and isinstance(content.value, dict):
                dump = Dump(draft, content, content.value, elsewhere=_SPLIT)
                dump.gather()
        _check_steps(draft, part, dump)
        if dump is not None and not dump.is_weights_only and not draft.has(Component.OPTIMIZER):
            why = f"{_META} is of training, and no data file holds the state of an optimizer"
            draft.findings.append(component_missing("optimizer_0", why))
    elif draft.source.files.get(_META) is None:
        draft.findings.append(save_unfinished(_META, "Lightning writes it last"))
    say_never_saved(draft)
    return draft.describe(
        framework=Framework.LIGHTNING,
        version=dump.version if dump is not None else None,
        layout_name="FSDP, sharded",
        layout=part.layout,
        step=dump.step if dump is not None else part.step,
        marker=f"{_META}, written last",
        is_complete=has_meta,
    )


def _check_steps(draft: Draft, part: Description, dump: Dump | None) -> None:
    """Hold the dump against the steps that the optimizers in the data files took."""
    taken = [int(one.value) for one in part.fingerprints if one.kind == "optimizer_step"]
    if dump is not None and dump.step and taken and max(taken) > dump.step:
        why = "global_step against the steps that the optimizers in the data files took"
        draft.findings.append(counters_disagree(_META, why, expected=max(taken), found=dump.step))


def _describe_engine(draft: Draft) -> Description:
    """DeepSpeed: all of it in the engine's files, the dump among the model states."""
    parts = gather_deepspeed(draft, follows_pointer=True)
    dump = None
    for path in draft.source.matching(prefix=f"{_TAG}/", suffix="_model_states.pt"):
        with draft.contents.torch(path) as content:
            if content is not None and is_dump(content.value):
                dump = Dump(draft, content, content.value, elsewhere=_SPLIT)
                dump.gather()
        break
    say_never_saved(draft)
    draft.rest_needless("DeepSpeed does not load it")
    why = "no tag of DeepSpeed lies there"
    layout = parts[0].layout if parts else Layout(world_size=None, certainty=Certainty.UNKNOWN, why=why)
    return draft.describe(
        framework=Framework.LIGHTNING,
        version=dump.version if dump is not None else None,
        layout_name=", ".join(("DeepSpeed", *(part.layout_name for part in parts))),
        layout=layout,
        step=dump.step if dump is not None else parts[0].step if parts else None,
    )
