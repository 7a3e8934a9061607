"""Fabricated pasts are lawful, or whatever is proven on them would be proven on something that cannot be."""

from __future__ import annotations

from pathlib import Path

from lastgood.checks import CHECKS
from lastgood.family import Family
from lastgood.location import locate
from lastgood.records import list_records
from lastgood.testing.evidence import HOSTILE, fabricate, fabricate_documents
from lastgood.verdict import Outcome, Reason
from tests.ledger.conftest import EVENTFUL

FAMILY = "llm-7b"


def test_tier_1_holds_on_every_save_that_nothing_speaks_against(root: Path) -> None:
    """Claims, decisions, chains, manifests and payloads agree; what fails is what the past says of it."""
    family = Family(locate(str(root / FAMILY)))
    found = {}
    for generation in fabricate(root, FAMILY, EVENTFUL):
        verdict = family.judge(generation).verdict
        found[generation] = {finding.reason for finding in verdict.findings} or verdict.outcome
    survey = family.survey()
    assert survey.malformed == ()
    for generation, reasons in found.items():
        if generation in survey.barred:
            assert reasons == {Reason.GENERATION_BARRED}
        elif generation in survey.fenced:
            assert reasons == {Reason.GENERATION_FENCED}
        else:
            assert reasons in (Outcome.PASS, {Reason.GENERATION_BURNED})
    assert list(found.values()).count(Outcome.PASS) == 16


def test_records_are_those_that_gates_would_have_kept(root: Path) -> None:
    """Each lies under its own key, asks what its tier asks, and has its effects."""
    fabricate(root, FAMILY, EVENTFUL)
    location = locate(str(root / FAMILY))
    records = list_records(location.store, location.keys)
    for record in records:
        assert location.store.stat(record.name.key(location.keys)) is not None
        assert {check.name for check in record.verdict.checks} <= set(CHECKS)
    family = Family(location)
    assert family.unjudged() == ()
    assert {one.generation for one in records if one.verdict.outcome is Outcome.FAIL and one.tier < 3} == {
        str(one) for one in family.survey().barred
    }


def test_the_same_past_is_the_same_to_the_last_byte() -> None:
    """A failure seen once can be seen again, and two databases are given the same."""
    first, second = (list(fabricate_documents(FAMILY, EVENTFUL)) for _ in range(2))
    assert first == second
    assert any(HOSTILE.split("|")[0].encode() in document.data for document in first)
