"""One case becomes one answer: was the damage caught under its own reason, was anything healthy accused?

Rules: a damage is caught only if its reason is raised, no other is, and the offender is named; a pointer to what was
damaged may say so beside it. Every case works on a copy of its own.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from lastgood.reasons import NoteReason, Reason
from lastgood.testing.build import BuiltFamily, build_family
from lastgood.testing.damage import CATALOGUE, Damage, Judge, Scene
from lastgood.testing.foreign import FOREIGN, ForeignDamage, ForeignJudge, ForeignScene
from lastgood.verdict import Finding, Verdict
from lastgood.verify import verify_family, verify_generation
from tests.catalogue.cases import OWN, Case, Origin
from tests.corpus import Corpus
from tests.formats.readers import built, layouts
from tests.formats.readers.judging import Judged, judge

_FAMILY, _STRANGER = "llm-7b", "llm-13b"


class Answer(StrEnum):
    """What was said of a case.

    - `caught`: of a damage, its reason, no other, and the offender. `missed`: nothing. `misnamed`: something else.
    - `quiet`: of something healthy, nothing that refuses it, and the note that belongs to it. `accused`: anything else.
    """

    CAUGHT = "caught"
    MISSED = "missed"
    MISNAMED = "misnamed"
    QUIET = "quiet"
    ACCUSED = "accused"

    @property
    def is_right(self) -> bool:
        """Whether this is what must be said."""
        return self in (Answer.CAUGHT, Answer.QUIET)


def right_answer(case: Case) -> Answer:
    """What must be said of a case."""
    return Answer.QUIET if case.is_healthy else Answer.CAUGHT


class Bench:
    """Looks at one case after the other.

    Args:
        workspace: An empty directory of its own; specimens are made in it once, and copied for each case.
        corpus: What the frameworks themselves wrote; never changed.
    """

    def __init__(self, workspace: Path, corpus: Corpus) -> None:
        self._workspace = workspace
        self._corpus = corpus
        self._kept: dict[tuple[str, Origin], ForeignScene] = {}
        self._own: BuiltFamily | None = None

    def answer(self, case: Case) -> Answer:
        """Apply what the case names to a copy, and look at it."""
        copy = self._workspace / "copy"
        try:
            if case.specimen == OWN:
                return _own_answer(case, self._own_scene(copy))
            kept = self._specimen(case)
            shutil.copytree(kept.root, copy, symlinks=True)
            scene = ForeignScene(root=copy, name=kept.name, older=kept.older)
            damage = FOREIGN.get(case.entry)
            if damage is not None:
                return foreign_answer(damage, scene)
            healthy = scene.older if case.entry.endswith(".older") else scene.name
            return _answer_of(None, "", _raised(judge(copy / healthy).findings))
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _own_scene(self, copy: Path) -> Scene:
        if self._own is None:
            root = self._workspace / OWN
            root.mkdir()
            build_family(root, _STRANGER)
            self._own = build_family(root, _FAMILY)
        shutil.copytree(self._own.root, copy)
        return Scene(root=copy, family=_FAMILY, generation=self._own.newest, stranger=_STRANGER)

    def _specimen(self, case: Case) -> ForeignScene:
        key = (case.specimen, case.origin)
        if key not in self._kept:
            self._kept[key] = self._written(case.specimen) if case.origin is Origin.WRITTEN else self._built(*key)
        return self._kept[key]

    def _written(self, name: str) -> ForeignScene:
        specimen = self._corpus[name]
        older, newest = (str(path.relative_to(specimen.root)) for path in specimen.checkpoints)
        return ForeignScene(root=specimen.root, name=newest, older=older)

    def _built(self, name: str, origin: Origin) -> ForeignScene:
        root = self._workspace / f"{name}-{origin}" / "out"
        root.mkdir(parents=True)
        if name in layouts.BUILT:
            return layouts.build(name, root)
        older, newest = built.BUILT[name](root)
        return ForeignScene(root=root, name=newest, older=older)


def foreign_answer(damage: ForeignDamage, scene: ForeignScene) -> Answer:
    """Damage a scene, and look at the checkpoint and at the directory that it lies in."""
    offender = damage.apply(scene)
    judged = judge(scene.checkpoint if scene.checkpoint.exists() else scene.root / scene.older)
    if not isinstance(damage.reason, Reason):
        is_said = damage.reason is None or (damage.reason, offender) in _said(judged)
        return Answer.QUIET if is_said and not judged.findings else Answer.ACCUSED
    if damage.judge is ForeignJudge.ROOT:
        return _answer_of(damage.reason, offender, _raised(judged.pointer_findings))
    if damage.judge is ForeignJudge.INTEGRITY and judged.description.findings:
        return Answer.MISNAMED  # it is to be seen by reading, so the cheaper look must not have named something else
    if {finding.reason for finding in judged.pointer_findings} - {Reason.POINTER_UNCOMMITTED}:
        return Answer.MISNAMED
    return _answer_of(damage.reason, offender, _raised(judged.own_findings))


def own_answer(damage: Damage, scene: Scene) -> Answer:
    """Damage a family of ours, and verify the generation or the family."""
    offender = damage.apply(scene)
    family = damage.judge is Judge.FAMILY
    verdict = _verify_family(scene) if family else verify_generation(scene.store, scene.keys, scene.generation)
    return _answer_of(damage.reason, offender, _raised(verdict.findings))


def _own_answer(case: Case, scene: Scene) -> Answer:
    kind, _, name = case.entry.partition(".")
    if kind == OWN:
        return own_answer(CATALOGUE[name], scene)
    if name == "family":
        return _answer_of(None, "", _raised(_verify_family(scene).findings))
    generation = scene.generation if name == "newest" else scene.older(1 if name == "older" else 2)
    return _answer_of(None, "", _raised(verify_generation(scene.store, scene.keys, generation).findings))


def _answer_of(reason: Reason | None, offender: str, raised: set[tuple[Reason, str]]) -> Answer:
    if reason is None:
        return Answer.ACCUSED if raised else Answer.QUIET
    if not raised:
        return Answer.MISSED
    is_exact = {one for one, _ in raised} == {reason} and (reason, offender) in raised
    return Answer.CAUGHT if is_exact else Answer.MISNAMED


def _raised(findings: tuple[Finding, ...]) -> set[tuple[Reason, str]]:
    return {(finding.reason, finding.offender) for finding in findings}


def _said(judged: Judged) -> set[tuple[NoteReason, str]]:
    """Reasons and offenders of notes; what is never saved counts as one."""
    notes = {(note.reason, note.offender) for note in judged.description.notes}
    return notes | {(NoteReason.COMPONENT_NEVER_SAVED, str(one.component)) for one in judged.description.never_saved}


def _verify_family(scene: Scene) -> Verdict:
    return verify_family(scene.store, scene.keys, settle=timedelta(0))
