"""A framework of the tests' own, so that what is done with foreign checkpoints is shown apart from any real one.

`toy-<N>/` holds `toy.json`, `model.toy`, `optimizer.toy` and `rank-<r>.rng`; `toy-<N>.safetensors` holds all of it. The
framework resumes what the file `newest` names, else the largest N, and never looks whether it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lastgood.errors import FormatError
from lastgood.formats import readers
from lastgood.formats.description import (
    Certainty,
    Description,
    Framework,
    HeldComponent,
    Layout,
    NeverSaved,
)
from lastgood.formats.root import Candidate, Choice, Root
from lastgood.formats.source import Source
from lastgood.formats.texts import number_of, parse_json
from lastgood.manifest import Component
from lastgood.reasons import Reason
from lastgood.verdict import Finding

__all__ = ["ToyReader", "toy_known", "write_toy", "write_toy_file"]

MODEL = "model.toy"
OF_FILE = (Component.MODEL, Component.OPTIMIZER)


class ToyReader:
    """Reads what `write_toy` wrote."""

    def recognises(self, source: Source) -> bool:
        return source.name.endswith(".safetensors") if source.is_file else source.holds("toy.json")

    def describe(self, source: Source) -> Description:
        path = source.name if source.is_file else "toy.json"
        findings, told = [], {}
        try:
            data = source.read(path)
            if source.is_file:
                data = data[8 : 8 + int.from_bytes(data[:8], "little")]
            value = parse_json(data, path)
            told = value if isinstance(value, dict) else {}
            told = told.get("__metadata__", told)
            told = {key: int(number) for key, number in told.items()}
        except FormatError as error:
            findings.append(Finding(reason=Reason.CONTAINER_MALFORMED, message=error.message, offender=path))
        ranks = number_of(told, "world_size")
        if source.is_file:
            held = [HeldComponent(component=one, paths=(path,), within=one.value) for one in OF_FILE]
        else:
            for name in [f"rank-{rank}.rng" for rank in range(ranks or 0)]:
                if not source.holds(name):
                    message = f"random state missing: {name}"
                    findings.append(Finding(reason=Reason.SHARD_MISSING, message=message, offender=name))
            files = {Component.MODEL: MODEL, Component.OPTIMIZER: "optimizer.toy"}
            held = [HeldComponent(component=one, paths=(name,)) for one, name in files.items() if source.holds(name)]
            if rngs := source.matching(suffix=".rng"):
                held.append(HeldComponent(component=Component.RNG, paths=rngs))
            if source.holds("unfinished"):
                message = "sign of an unfinished save: unfinished"
                findings.append(Finding(reason=Reason.SAVE_UNFINISHED, message=message, offender="unfinished"))
        return Description(
            framework=Framework.TORCH_SAVE,
            version="1.0",
            layout_name="toy",
            step=number_of(told, "step"),
            layout=Layout(
                world_size=ranks,
                certainty=Certainty.UNKNOWN if ranks is None else Certainty.STATED,
                why="toy.json says so" if ranks is not None else "toy.json does not say",
            ),
            components=tuple(held),
            never_saved=(NeverSaved(component=Component.DATA, reason="toys have no data"),),
            findings=tuple(findings),
        )

    def choose(self, root: Root) -> Choice | None:
        found = []
        for name in (*root.names.directories, *root.names.files):
            number = name.removeprefix("toy-").removesuffix(".safetensors")
            if name.startswith("toy-") and number.isdigit():
                found.append(Candidate(name=name, step=int(number)))
        if not found:
            return None
        found.sort(key=lambda one: one.step or 0, reverse=True)
        pointer, findings = root.pointer("newest"), []
        if pointer is not None and pointer not in {one.name for one in found}:
            message = f"pointer dangling: newest names {pointer}"
            findings.append(Finding(reason=Reason.POINTER_DANGLING, message=message, offender="newest"))
        return Choice(
            rule="what `newest` names, else the largest N",
            picked=pointer if pointer is not None and not findings else None if pointer else found[0].name,
            pointer="newest" if pointer is not None else None,
            candidates=tuple(found),
            findings=tuple(findings),
            consequence="trains from step zero without an error" if findings else None,
        )


@contextmanager
def toy_known() -> Iterator[None]:
    """The toy's reader in the place of all others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "READERS", (ToyReader(),))
        yield


def write_toy(family: Path, step: int, *, ranks: int | None = 2, name: str | None = None) -> Path:
    """A healthy checkpoint of the toy."""
    directory = family / (name or f"toy-{step}")
    directory.mkdir(parents=True)
    told = {"step": step} | ({"world_size": ranks} if ranks is not None else {})
    (directory / "toy.json").write_text(json.dumps(told))
    (directory / "model.toy").write_bytes(f"model of {step}".encode() * 100)
    (directory / "optimizer.toy").write_bytes(f"optimizer of {step}".encode() * 100)
    for rank in range(ranks or 0):
        (directory / f"rank-{rank}.rng").write_bytes(f"draws {rank} of {step}".encode())
    return directory


def write_toy_file(family: Path, step: int) -> Path:
    """A healthy checkpoint of the toy that is a single file."""
    family.mkdir(parents=True, exist_ok=True)
    path = family / f"toy-{step}.safetensors"
    weights = f"weights of {step}".encode() * 100
    header = json.dumps(
        {
            "__metadata__": {"step": str(step), "world_size": "1"},
            "w": {"dtype": "U8", "shape": [len(weights)], "data_offsets": [0, len(weights)]},
        }
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + weights)
    return path
