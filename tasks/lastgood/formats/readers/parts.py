"""Directories that DeepSpeed or FSDP wrote inside a checkpoint of Hugging Face's libraries or of Lightning.

Decides where such a directory lies and what its name says of it; its own reader describes it. Rule: DeepSpeed's tag is
what the pointer beside it names where the framework follows that pointer, and every other tag is left over.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from lastgood.errors import FormatError
from lastgood.formats.description import Description
from lastgood.formats.readers.dcp import DcpReader
from lastgood.formats.readers.deepspeed import DeepSpeedReader
from lastgood.formats.readers.draft import Draft
from lastgood.formats.readers.pointers import dangling, pointer_malformed
from lastgood.formats.readers.ranks import RankSet, ranks_in
from lastgood.formats.readers.wording import component_missing, file_missing, malformed, stray
from lastgood.formats.root import MAXIMUM_POINTER_BYTES
from lastgood.manifest import Component

__all__ = ["gather_deepspeed", "gather_fsdp", "layout_name"]

_POINTER = "latest"
_SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")
_DEEPSPEED = DeepSpeedReader()
_DCP = DcpReader()


def layout_name(split: str | None, parts: tuple[Description, ...], weights: str | None) -> str:
    """The layout in words: of FSDP, else of the parts, and of weights that lie beside them."""
    names = [split] if split is not None else [part.layout_name for part in parts]
    return ", ".join([*names, *([weights] if weights is not None else [])]) or "no weights"


def _directories(draft: Draft) -> list[str]:
    """Names of the directories at the top."""
    return sorted({path.partition("/")[0] for path in draft.source.files if "/" in path})


def _tags(draft: Draft) -> list[str]:
    return [name for name in _directories(draft) if _DEEPSPEED.recognises(draft.source.below(name))]


def gather_deepspeed(draft: Draft, *, follows_pointer: bool) -> tuple[Description, ...]:
    """DeepSpeed's part, if there is one.

    Args:
        draft: Gets what its reader states.
        follows_pointer: Whether the framework loads what `latest` names; else it names the tag itself.
    """
    tags = _tags(draft)
    for script in _SCRIPTS:
        if tags and draft.holds(script):
            draft.needless(script, "a script that turns this checkpoint into plain weights; no resume runs it")
    if not follows_pointer:
        if tags and draft.holds(_POINTER):
            draft.needless(_POINTER, "the framework names the tag itself")
        return tuple(_take(draft, tag) for tag in tags)
    if not draft.holds(_POINTER):
        if tags:
            draft.findings.append(file_missing(_POINTER, "DeepSpeed loads the tag that it names"))
        return tuple(_take(draft, tag) for tag in tags)
    tag = _named(draft)
    draft.hold(Component.OTHER, [_POINTER])
    for other in tags:
        if other != tag and tag is not None:
            draft.note(stray(other, f"{_POINTER} names {tag}"))
    return (_take(draft, tag),) if tag in tags else ()


def _named(draft: Draft) -> str | None:
    """The tag that the pointer names; None, and found, where it names none that is there."""
    try:
        text = draft.source.read(_POINTER, limit_bytes=MAXIMUM_POINTER_BYTES).decode().strip()
    except FormatError as error:
        draft.findings.append(malformed(error, _POINTER))
        return None
    except UnicodeDecodeError:
        draft.findings.append(pointer_malformed(_POINTER, "bytes that are no text"))
        return None
    if not text or PurePosixPath(text).name != text:
        draft.findings.append(pointer_malformed(_POINTER, text))
        return None
    if text not in _directories(draft):
        draft.findings.append(dangling(_POINTER, text))
        return None
    return text


def _take(draft: Draft, tag: str) -> Description:
    part = _DEEPSPEED.describe(draft.source.below(tag))
    draft.take(part, tag)
    return part


# FSDP, as accelerate saves it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One kind of state that FSDP splits.

    Args:
        component: What it is.
        stem: Of its names: the directory `<stem>_<number>`, the whole file `<stem>.bin`, and of each rank
            `<stem>[_<number>]_rank<rank>.bin`.
    """

    component: Component
    stem: str

    def directories(self, draft: Draft) -> list[str]:
        pattern = re.compile(rf"{self.stem}_\d{{1,4}}")
        return [name for name in _directories(draft) if pattern.fullmatch(name)]

    def whole(self, draft: Draft) -> list[str]:
        pattern = re.compile(rf"{self.stem}(_\d{{1,4}})?\.bin")
        return [path for path in draft.source.matching(prefix=self.stem) if pattern.fullmatch(path)]

    def ranks(self, draft: Draft) -> list[RankSet]:
        """Of each number, and of none."""
        pattern = re.compile(rf"({self.stem}(?:_\d{{1,4}})?_rank)\d+\.bin")
        stems = {m[1] for path in draft.source.matching(prefix=self.stem) if (m := pattern.fullmatch(path))}
        return [ranks_in(draft.source, re.compile(rf"{stem}(\d+)"), _spelling(stem)) for stem in sorted(stems)]


def _spelling(stem: str) -> Callable[[int], str]:
    return lambda rank: f"{stem}{rank}.bin"


_WHOLE = "FSDP, whole"
_EACH_RANK = "FSDP, a file for each rank"
_SPLIT = "FSDP, split by torch DCP"
_MODEL = _Kind(component=Component.MODEL, stem="pytorch_model_fsdp")
_OPTIMIZER = _Kind(component=Component.OPTIMIZER, stem="optimizer")


def gather_fsdp(draft: Draft, *, optimizer_tells: bool) -> tuple[str | None, tuple[Description, ...]]:
    """FSDP's part: its layout in words, None without one, and what torch DCP's reader states of its directories.

    Args:
        draft: Gets components and findings.
        optimizer_tells: Whether a whole `optimizer.bin` is FSDP's and nobody else's.
    """
    is_whole = bool(_MODEL.whole(draft)) or (optimizer_tells and bool(_OPTIMIZER.whole(draft)))
    ranks = [(kind, found) for kind in (_MODEL, _OPTIMIZER) for found in kind.ranks(draft)]
    directories = [(kind, name) for kind in (_MODEL, _OPTIMIZER) for name in kind.directories(draft)]
    if not (is_whole or ranks or directories):
        return None, ()
    if is_whole:
        for kind in (_MODEL, _OPTIMIZER):
            draft.hold(kind.component, kind.whole(draft))
    world_size = max((found.count for _, found in ranks), default=0)
    for kind, found in ranks:
        draft.hold(kind.component, found.files.values())
        found.check(draft, world_size, f"the largest rank of all FSDP files is {world_size - 1}")
        found.check_owners(draft, world_size)
    parts = [_take_split(draft, kind, name) for kind, name in directories]
    form = _WHOLE if is_whole else _EACH_RANK if ranks else _SPLIT
    _check_both(draft, form)
    return form, tuple(parts)


def _take_split(draft: Draft, kind: _Kind, name: str) -> Description:
    part = _DCP.describe(draft.source.below(name))
    draft.take(part, name, kind.component)
    return part


def _check_both(draft: Draft, form: str) -> None:
    """Model and optimizer are split the same way, so that one of them tells of the other."""
    spelled = {_WHOLE: "{}.bin", _EACH_RANK: "{}_0_rank0.bin", _SPLIT: "{}_0"}[form]
    for kind in (_MODEL, _OPTIMIZER):
        if not draft.has(kind.component):
            path = spelled.format(kind.stem)
            draft.findings.append(component_missing(path, "FSDP saved the model and the optimizer the same way"))
