"""Weights as Hugging Face's libraries lay them out: one file, or shards with an index, as safetensors or `torch.save`.

Decides whether the weights are whole. Leaves payloads to `integrity`. Rules: the loader takes the first form of
`FORMS` that is there; an index is held against the shards that it names and against what their headers hold; shards of
another set, and a form that the loader passes over, are left over from another save.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lastgood.errors import FormatError
from lastgood.formats.believing import believed
from lastgood.formats.containers.tensors import ShardIndex, read_shard_index, read_tensor_header
from lastgood.formats.readers.draft import Draft
from lastgood.formats.readers.wording import file_missing, generations_mixed, shard_missing, shown, stray
from lastgood.formats.source import Source
from lastgood.manifest import Component
from lastgood.text import counted
from lastgood.verdict import Finding, Reason

__all__ = ["FORMS", "Form", "gather_weights"]

_MAXIMUM_SHARDS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to lay weights out.

    Args:
        name: In words.
        stem: Of the file's name.
        ending: With its dot.
    """

    name: str
    stem: str
    ending: str

    @property
    def single(self) -> str:
        """The file that holds all of them."""
        return f"{self.stem}{self.ending}"

    @property
    def index(self) -> str:
        """The file that names the shards."""
        return f"{self.single}.index.json"

    def shards_in(self, source: Source) -> dict[str, tuple[int, int]]:
        """Path → number and count of each shard that lies there, by its name."""
        pattern = re.compile(rf"{re.escape(self.stem)}-(\d{{5,7}})-of-(\d{{5,7}}){re.escape(self.ending)}")
        found = ((path, pattern.fullmatch(path)) for path in source.matching(prefix=f"{self.stem}-"))
        return {path: (int(match[1]), int(match[2])) for path, match in found if match}


FORMS = (
    Form(name="safetensors", stem="model", ending=".safetensors"),
    Form(name="torch.save", stem="pytorch_model", ending=".bin"),
)
"""In the order in which Trainer looks for them."""


def gather_weights(draft: Draft, forms: Iterable[Form] = FORMS) -> str | None:
    """State which files hold the weights and find what is wrong with them; the name of the form, or None without any.

    Args:
        draft: Gets components, findings and notes.
        forms: In the order in which the framework looks for them.
    """
    found = [form for form in forms if _lies_there(draft.source, form)]
    if not found:
        return None
    form, *others = found
    name = _gather(draft, form)
    for other in others:
        for path in (other.single, other.index, *other.shards_in(draft.source)):
            if draft.holds(path):
                draft.note(stray(path, f"the weights are loaded from {form.name}"))
    return name


def _lies_there(source: Source, form: Form) -> bool:
    return source.holds(form.single) or source.holds(form.index) or bool(form.shards_in(source))


def _gather(draft: Draft, form: Form) -> str:
    shards = form.shards_in(draft.source)
    if draft.holds(form.single):
        draft.hold(Component.MODEL, [form.single])
        _check_alone(draft, form)
        left = [path for path in (form.index, *shards) if draft.holds(path)]
        if left:
            why = f"it is what is loaded, and {shown(left)} lie beside it"
            draft.findings.append(generations_mixed(form.single, why))
        return form.name
    index = _read_index(draft, form, shards)
    if index is None:
        draft.hold(Component.MODEL, shards)
        return f"sharded {form.name}"
    named = set(index.files.values())
    draft.hold(Component.MODEL, [path for path in named if draft.source.holds(path)])
    draft.hold(Component.CONFIG, [form.index])
    draft.findings += [
        shard_missing(path, f"{form.index} names it") for path in sorted(named) if not draft.source.holds(path)
    ]
    draft.findings += _check_shards(draft, form, index)
    for path in sorted(shards.keys() - named):
        draft.holds(path)
        draft.note(stray(path, f"{form.index} does not name it; is it left over from another save?"))
    return f"sharded {form.name}"


def _check_alone(draft: Draft, form: Form) -> None:
    if form.ending == ".safetensors":
        _names_in(draft, form.single)


def _read_index(draft: Draft, form: Form, shards: dict[str, tuple[int, int]]) -> ShardIndex | None:
    if not draft.holds(form.index):
        why = f"it names what is in the {counted(len(shards), 'shard')} beside it"
        draft.findings.append(file_missing(form.index, why))
        draft.findings += _missing_by_name(form, shards)
        return None
    try:
        index = believed(lambda: read_shard_index(draft.source.read(form.index), form.index), form.index)
    except FormatError as error:
        draft.contents.refuse(error, form.index)
        draft.findings += _missing_by_name(form, shards)
        return None
    draft.findings += [
        Finding(reason=Reason.INDEX_MISMATCH, message=problem.message, offender=form.index)
        for problem in index.problems
    ]
    return index


def _missing_by_name(form: Form, shards: dict[str, tuple[int, int]]) -> Iterator[Finding]:
    """Without an index the names alone say how many shards there were."""
    counts = {count for _, count in shards.values()}
    if len(counts) != 1 or (count := counts.pop()) > _MAXIMUM_SHARDS:
        return
    width = len(next(iter(shards)).removeprefix(f"{form.stem}-").partition("-")[0])
    for number in range(1, count + 1):
        path = f"{form.stem}-{number:0{width}}-of-{count:0{width}}{form.ending}"
        if path not in shards:
            yield shard_missing(path, f"the names beside it count to {count}")


def _check_shards(draft: Draft, form: Form, index: ShardIndex) -> Iterator[Finding]:
    """Hold what an index says of each shard against what the shard holds."""
    expected: dict[str, set[str]] = {}
    for name, path in index.files.items():
        expected.setdefault(path, set()).add(name)
    for path in sorted(expected):
        found = _names_in(draft, path) if form.ending == ".safetensors" else _keys_in(draft, path)
        if found is None or found == expected[path]:
            continue
        absent, extra = sorted(expected[path] - found), sorted(found - expected[path])
        what = [f"without {shown(absent)}"] if absent else []
        what += [f"with {shown(extra)}"] if extra else []
        yield Finding(
            reason=Reason.INDEX_MISMATCH,
            message=f"index and shard disagree: {path}: expected what {form.index} names, found {' and '.join(what)}",
            offender=path,
        )


def _names_in(draft: Draft, path: str) -> set[str] | None:
    """Names of the tensors in a safetensors file; None where it is missing or malformed, which is found."""
    if not draft.source.holds(path):
        return None
    try:
        with draft.source.open(path) as reader:
            return set(believed(lambda: read_tensor_header(reader, path), path).entries)
    except FormatError as error:
        draft.contents.refuse(error, path)
        return None


def _keys_in(draft: Draft, path: str) -> set[str] | None:
    """Keys of a state dictionary that `torch.save` wrote; None where they cannot be told."""
    if not draft.source.holds(path):
        return None
    with draft.contents.torch(path) as content:
        if content is not None and isinstance(content.value, dict):
            return {key for key in content.value if isinstance(key, str)}
    return None
