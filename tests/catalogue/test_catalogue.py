"""The gate is proven able to fail, and the page says how often it was: every damage raises exactly its reason.

Built specimens are tried in `make test`, what the frameworks wrote in `make test-slow`; the page counts both.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lastgood.reasons import Reason
from lastgood.testing.foreign import FOREIGN
from tests.catalogue import __main__ as command
from tests.catalogue.cases import OWN, Case, Origin, cases
from tests.catalogue.judging import Answer, Bench, foreign_answer, right_answer
from tests.catalogue.page import counts_of, page_of
from tests.catalogue.reports import REPORTS
from tests.formats.readers import layouts

if TYPE_CHECKING:
    from tests.corpus import Corpus

ROOT = Path(__file__).resolve().parents[2]
FOREIGN_CASES = [case for case in cases() if case.specimen != OWN]
"""Our own are tried by tests/verify, with more questions to each."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Bench:
    """Makes each specimen once."""
    corpus: Corpus = request.getfixturevalue("corpus")
    return Bench(tmp_path_factory.mktemp("bench"), corpus)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case.origin is Origin.WRITTEN else (), id=str(case))
        for case in FOREIGN_CASES
    ],
)
def test_what_is_wrong_is_caught_and_what_is_not_is_left_in_peace(bench: Bench, case: Case) -> None:
    """One fault gives one reason and names the offender: more would bury it, another would send people elsewhere."""
    assert bench.answer(case) is right_answer(case)


def test_the_page_shows_the_catalogue() -> None:
    """`make catalogue` writes it from what it measured, and refuses nothing that the tests here do not refuse."""
    page = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    assert page == page_of({case: right_answer(case) for case in cases()})


def test_every_report_from_the_field_has_an_entry_and_every_source_a_report() -> None:
    """A fault that people really had must stay in the catalogue, whatever is renamed."""
    assert set(REPORTS) == {damage.source for damage in FOREIGN.values() if damage.source is not None}


def test_every_entry_has_a_specimen() -> None:
    """An entry that nothing can be damaged with proves nothing."""
    tried = {(case.entry, case.specimen) for case in cases()}
    named = {(damage.name, specimen) for damage in FOREIGN.values() for specimen in damage.specimens}
    assert named - tried == set()


@pytest.mark.parametrize(
    ("entry", "changes", "answer"),
    [
        ("transformers.optimizer_deleted", {"apply": lambda scene: "optimizer.pt"}, Answer.MISSED),
        ("transformers.optimizer_deleted", {"apply": lambda scene: scene.delete("scheduler.pt")[:0]}, Answer.MISNAMED),
        ("transformers.optimizer_deleted", {"reason": Reason.SIZE_MISMATCH}, Answer.MISNAMED),
        ("transformers.optimizer_deleted", {"reason": None}, Answer.ACCUSED),
        ("transformers.optimizer_deleted", {}, Answer.CAUGHT),
        ("transformers.stray_file", {}, Answer.QUIET),
    ],
)
def test_a_wrong_answer_is_called_by_its_name(
    tmp_path: Path, entry: str, changes: dict[str, object], answer: Answer
) -> None:
    """A judge that lets a miss or a false alarm pass would publish perfect counts."""
    damage = replace(FOREIGN[entry], **changes)  # type: ignore[arg-type]  # one field, of the case
    assert foreign_answer(damage, layouts.build("hf_trainer", tmp_path / "out")) is answer


def test_the_command_fails_with_a_miss_and_the_page_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever runs it in CI reads the exit status alone."""
    healthy, *others = cases()
    damaged = next(case for case in others if not case.is_healthy)
    right = {case: right_answer(case) for case in (healthy, damaged)}
    assert command.report(right) == 0
    wrong = {healthy: Answer.ACCUSED, damaged: Answer.MISSED}
    assert command.report(wrong) == 1
    told = capsys.readouterr().out
    assert "1 damages: 0 caught under the right reason and offender, 0 misnamed, 1 missed; 1 healthy: 1 false" in told
    assert f"missed: {damaged}" in told
    assert counts_of(wrong) != counts_of(right)
    assert "## Wrong" in page_of(wrong)
    assert "## Wrong" not in page_of(right)
