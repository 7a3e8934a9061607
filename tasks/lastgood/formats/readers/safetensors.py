"""Bare weights: a safetensors file, or a directory of weights with nothing of a training around them.

Decides whether the weights are whole. Leaves shards and indexes to `weights`. Rule: whatever lies beside weights alone
is needed by no resume, since no training can be resumed from them.
"""

from __future__ import annotations

import re

from lastgood.errors import FormatError
from lastgood.formats.believing import believed
from lastgood.formats.containers.tensors import read_tensor_header
from lastgood.formats.containers.torchfile import Container, container_of
from lastgood.formats.description import Certainty, Description, Framework, Layout
from lastgood.formats.readers.draft import Draft
from lastgood.formats.readers.weights import FORMS, Form, gather_weights
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source
from lastgood.manifest import Component

__all__ = ["SafetensorsReader"]

_ENDING = ".safetensors"
_SHARD = re.compile(r"(.+)-\d{5,7}-of-\d{5,7}\.safetensors")
_NEEDLESS = "no weights are in it"


class SafetensorsReader:
    """One file, or a directory with an index."""

    def recognises(self, source: Source) -> bool:
        if not source.is_file:
            return _is_one_model(source)
        if not source.holds(source.name):
            return False
        if source.name.endswith(_ENDING):
            return True
        with source.open(source.name) as reader:
            return container_of(reader, source.name) is Container.SAFETENSORS

    def describe(self, source: Source) -> Description:
        draft = Draft(source)
        if source.is_file:
            name = "single file"
            draft.hold(Component.MODEL, [source.name])
            _check_header(draft)
        else:
            name = gather_weights(draft, _forms(source)) or "no weights"
            draft.rest_needless(_NEEDLESS)
        draft.unknowable.append(
            "what the weights are of, and which step they were taken at: the format has no place for it"
        )
        why = "weights alone name no ranks"
        return draft.describe(
            framework=Framework.TORCH_SAVE if name.endswith("torch.save") else Framework.SAFETENSORS,
            layout_name=name,
            layout=Layout(world_size=None, certainty=Certainty.UNKNOWN, why=why),
            step=None,
        )

    def choose(self, root: Root) -> Choice | None:
        return None  # weights are loaded by name


def _is_one_model(source: Source) -> bool:
    """Whether the weights at the top belong together: by an index, by numbers, by a known name, or for being alone."""
    forms = _forms(source)
    joined = any(form in FORMS or source.holds(form.index) or form.shards_in(source) for form in forms)
    return joined or len(forms) == 1


def _forms(source: Source) -> tuple[Form, ...]:
    """Forms of weights that lie there, those of Hugging Face's names first; other names by their index or shards."""
    stems = {path.removesuffix(f"{_ENDING}.index.json") for path in source.matching(suffix=f"{_ENDING}.index.json")}
    stems |= {match[1] for path in source.matching(suffix=_ENDING) if (match := _SHARD.fullmatch(path))}
    stems |= {path.removesuffix(_ENDING) for path in source.matching(suffix=_ENDING) if not _SHARD.fullmatch(path)}
    top = sorted(stem for stem in stems if "/" not in stem and stem != FORMS[0].stem)
    others = [Form(name="safetensors", stem=stem, ending=_ENDING) for stem in top]
    return tuple(
        form
        for form in (*FORMS, *others)
        if source.holds(form.single) or source.holds(form.index) or form.shards_in(source)
    )


def _check_header(draft: Draft) -> None:
    try:
        with draft.source.open(draft.source.name) as reader:
            believed(lambda: read_tensor_header(reader, draft.source.name), draft.source.name)
    except FormatError as error:
        draft.contents.refuse(error, draft.source.name)
