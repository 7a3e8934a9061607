"""Generations of our own among checkpoints of others: by their manifest and COMMIT, however deep they lie in a tree."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lastgood import documents
from lastgood.description import REQUIRED_COMPONENTS
from lastgood.formats.classify import classify
from lastgood.formats.description import Framework, Restorability
from lastgood.formats.examination import Examination, examine
from lastgood.formats.trees import find_checkpoints
from lastgood.identity import GenerationId
from lastgood.job import describe_job
from lastgood.location import locate_place
from lastgood.manifest import Component, Identity, Purpose
from lastgood.markers import Commit
from lastgood.publish import StagedArtifact
from lastgood.reasons import Reason
from lastgood.run import Run, SoloGroup
from lastgood.testing.build import BuiltFamily, Recipe, build_family
from lastgood.verify import Depth

ELSEWHERE = (Component.OPTIMIZER, Component.SCHEDULER, Component.RNG, Component.DATA)
"""What lies in the model's file."""


@pytest.fixture
def family(tmp_path: Path) -> BuiltFamily:
    root = tmp_path / "team" / "runs"
    root.mkdir(parents=True)
    return build_family(root, "llm", steps=(12,))


def looked_at(tree: Path) -> list[Examination]:
    """Every checkpoint of a tree, at both depths, which must not differ."""
    place = locate_place(str(tree))
    found = list(find_checkpoints(place.store, place.key))
    shallow, deep = ([examine(one, depth=depth) for one in found] for depth in Depth)
    assert [one.findings for one in shallow] == [one.findings for one in deep]
    return shallow


def generation_of(family: BuiltFamily) -> Path:
    return family.root / family.keys.artifacts(family.newest)


def commit_of(family: BuiltFamily) -> Path:
    return family.root / family.keys.commit(family.newest)


@pytest.mark.parametrize("above", range(4))
def test_a_generation_is_found_from_wherever_the_tree_is_entered(family: BuiltFamily, above: int) -> None:
    """People point at the directory of all teams as well as at one family; nothing but the generation is found."""
    tree = [generation_of(family), *generation_of(family).parents][above]
    (one,) = looked_at(tree)
    told = one.description
    assert (told.framework, told.step, told.layout.world_size) == (Framework.LASTGOOD, 12, 2)
    assert (one.restorability, one.findings, told.is_complete) == (Restorability.RESUMABLE, (), True)
    assert classify(told).reasons


def test_one_file_that_holds_everything_is_no_export(tmp_path: Path) -> None:
    """A plain loop writes one file and promises what else is in it; a tree must not call its saves weights."""
    run = Run.start(str(tmp_path / "loop"), SoloGroup(), allow_fresh=True)
    staging = run.stage(25)
    (staging.payload / "state.pt").write_bytes(b"model, optimizer, scheduler, random streams and data")
    run.publish(
        staging,
        [StagedArtifact(path="state.pt", component=Component.MODEL, rank=0)],
        job=describe_job(
            25,
            run="loop",
            code="git:1",
            configuration="default",
            model=Identity(name="mlp", revision="1"),
            dataset=Identity(name="sums", revision="1"),
            saved=[Component.MODEL, *ELSEWHERE],
            absent=dict.fromkeys(set(REQUIRED_COMPONENTS) - {Component.MODEL, *ELSEWHERE}, "not used"),
        ),
    )
    run.close()
    (one,) = looked_at(tmp_path)
    assert one.restorability is Restorability.RESUMABLE
    held = {component.component: component.paths for component in one.description.components}
    assert held == {Component.MODEL: ("state.pt",), **dict.fromkeys(ELSEWHERE, ())}


def test_an_export_is_called_one_whatever_it_holds(tmp_path: Path) -> None:
    """What was published as an export is never offered, so a tree must not say that it can be resumed."""
    build_family(tmp_path, "llm", steps=(12,), recipe=Recipe(purpose=Purpose.WEIGHTS_ONLY))
    (one,) = looked_at(tmp_path)
    assert one.restorability is Restorability.WEIGHTS_ONLY


def test_each_file_that_is_gone_is_named(family: BuiltFamily) -> None:
    """Whatever the manifest lists is needed, and any writer may have written it."""
    directory = generation_of(family)
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        kept = path.read_bytes()
        path.unlink()
        (one,) = looked_at(family.root)
        assert [finding.offender for finding in one.findings] == [str(path.relative_to(directory))]
        assert one.restorability is Restorability.DAMAGED
        path.write_bytes(kept)


def test_a_file_of_another_length_is_named(family: BuiltFamily) -> None:
    """The cheapest sign of a copy that broke off."""
    os.truncate(generation_of(family) / "model" / "rank-00001.safetensors", 100)
    (one,) = looked_at(family.root)
    assert [finding.reason for finding in one.findings] == [Reason.SIZE_MISMATCH]


def test_what_was_not_committed_is_in_progress(family: BuiltFamily) -> None:
    """It has all its files and its manifest, and nobody may load it."""
    commit_of(family).unlink()
    (one,) = looked_at(family.root)
    assert (one.restorability, one.description.is_complete) == (Restorability.IN_PROGRESS, False)


def test_a_slot_that_was_given_up_is_no_checkpoint(family: BuiltFamily) -> None:
    """A burned COMMIT exists for readers to know that nothing comes any more."""
    data = commit_of(family).read_bytes()
    marker = documents.parse(Commit, data, "commit")
    burned = Commit(
        generation=marker.generation, manifest=None, previous=marker.previous, nonce=marker.nonce, burned=True
    )
    commit_of(family).write_bytes(documents.canonical_bytes(burned))
    (one,) = looked_at(family.root)
    assert "given up" in one.findings[0].message
    assert one.restorability is Restorability.IN_PROGRESS


@pytest.mark.parametrize(
    ("document", "data", "reason"),
    [
        ("manifests/{}.json", None, Reason.MANIFEST_MISSING),
        ("manifests/{}.json", b"{", Reason.MANIFEST_MALFORMED),
        ("commits/{}", b"{", Reason.COMMIT_MALFORMED),
    ],
)
def test_a_document_of_ours_that_is_gone_or_torn_is_named(
    family: BuiltFamily, document: str, data: bytes | None, reason: Reason
) -> None:
    """Without them nobody knows what lies there, and its weights must not pass for somebody's export."""
    path = family.root / family.keys.ours / document.format(family.newest)
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    (one,) = looked_at(family.root)
    assert [finding.reason for finding in one.findings] == [reason]
    assert one.restorability is Restorability.DAMAGED


def test_a_name_like_a_generations_is_none_without_documents_of_ours(family: BuiltFamily, tmp_path: Path) -> None:
    """Somebody's copy of the artifacts alone is whatever its files are."""
    copy = tmp_path / "copy" / str(GenerationId(1, 12))
    shutil.copytree(generation_of(family), copy)
    assert all(one.description.framework is not Framework.LASTGOOD for one in looked_at(copy.parent))
