"""The stored documents' shapes, kept as JSON Schemas: a change of format must be seen, named and meant."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from lastgood.documents import Document
from lastgood.manifest import Manifest, Receipt
from lastgood.markers import (
    ActivePointer,
    Claim,
    Commit,
    GenerationPointer,
    Passed,
    QuarantineNotice,
    Refusal,
    Release,
    ResumeRecord,
)
from lastgood.publish import Outcome
from lastgood.records import Record
from lastgood.replica.events import TraceRecord
from lastgood.stores.grading import KeptGrade
from lastgood.testing.build import build_family
from tests.test_house import module_names

STORED: dict[str, Any] = {
    "manifest": Manifest,
    "receipt": Receipt,
    "outcome": Outcome,
    "claim": Claim,
    "resume": ResumeRecord,
    "commit": Commit,
    "active": ActivePointer,
    "last-good": GenerationPointer,
    "quarantine": QuarantineNotice,
    "refusal": Refusal,
    "release": Release,
    "passed": Passed,
    "record": Record,
    "trace": TraceRecord,
    "grade": KeptGrade,
}

# Documents that never lie in a family: settings that people write, and words between processes of one job.
NEVER_STORED = (
    "lastgood.config",
    "lastgood.demo",
    "lastgood.drill",
    "lastgood.formats",
    "lastgood.restore",
    "lastgood.run",
    "lastgood.stores.settings",
)
# What lies inside artifacts is described where tensors are.
TENSOR_ROOMS = ("lastgood.state", "lastgood.replica.trainer")


def described(name: str) -> dict[str, Any]:
    return msgspec.json.schema(STORED[name], ref_template="#/$defs/{name}")


def documents_of_the_library() -> dict[str, type[Document]]:
    """Every stored document class that a supervisor may load, by its name."""
    for name in module_names():
        if not name.startswith((*NEVER_STORED, "lastgood.cli")):
            importlib.import_module(name)
    found: dict[str, type[Document]] = {}
    waiting = [Document]
    while waiting:
        for document in waiting.pop().__subclasses__():
            waiting.append(document)
            if (
                not document.__module__.startswith((*TENSOR_ROOMS, *NEVER_STORED))
                and "tests" not in document.__module__
            ):
                found[document.__name__] = document
    return found


@pytest.mark.parametrize("name", STORED)
def test_a_stored_document_keeps_its_schema(name: str, golden: Callable[[str, bytes], None]) -> None:
    """Other programs read these documents; whoever changes one must see it, and raise the version if need be."""
    golden(f"schemas/{name}.json", json.dumps(described(name), indent=2).encode() + b"\n")


def test_every_stored_document_has_a_schema() -> None:
    """A document without a golden could change without anybody noticing."""
    covered: set[str] = set()
    for name in STORED:
        covered |= set(described(name)["$defs"])
    assert set(documents_of_the_library()) <= covered


def test_what_is_published_fits_its_schema(tmp_path: Path) -> None:
    """The schema is checked by another program than the parser that made it, over every document of a real family."""
    built = build_family(tmp_path, "llm-7b", steps=(12, 24))
    ours = tmp_path / built.keys.ours
    seen = set()
    for path in sorted(ours.rglob("*")):
        kind = {
            "manifests": "manifest",
            "commits": "commit",
            "receipts": "receipt",
            "incarnations": path.suffix.removeprefix(".") or "claim",
        }.get(path.parent.name, "outcome" if path.name == "outcome.json" else None)
        if path.is_file() and kind and not path.name.startswith(".tmp-"):
            jsonschema.validate(json.loads(path.read_bytes()), described(kind))
            seen.add(kind)
    assert seen == {"manifest", "commit", "receipt", "claim", "resume", "active", "outcome"}


def test_a_schema_refuses_what_the_parser_refuses() -> None:
    """A schema that took anything would make the test above worthless."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"generation": "1-2", "commit": "x"}, described("active"))
