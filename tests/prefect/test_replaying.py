"""The record of a restore or a drill: what was reached stands, however its run ends."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from prefect.exceptions import TerminationSignal

from lastgood.config import FamilySettings
from lastgood.family import Family
from lastgood.location import Location
from lastgood.records import Measurements, list_records
from lastgood.restore.cancel import cancelled_verdict
from lastgood.testing.build import BuiltFamily, build_family
from lastgood.verdict import Check, CheckState, Finding, Outcome, Reason, Rung, Tier, judge
from lastgood_prefect import events
from lastgood_prefect.replaying import Turn, TurnRecord
from lastgood_prefect.settings import ConfiguredFamily

CANCELLED = cancelled_verdict(Tier.RESTORE, "llm-7b", "the run was cancelled")
FAILED = judge(
    tier=Tier.RESTORE,
    rung=Rung.FULL,
    subject="llm-7b",
    checks=[
        Check(
            name="loss_finite",
            state=CheckState.RAN,
            detail="step 13",
            findings=(Finding(reason=Reason.LOSS_NOT_FINITE, message="loss not finite", offender="rank 0"),),
        )
    ],
    required=["loss_finite"],
)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltFamily:
    monkeypatch.setattr(events, "announce", lambda *_: None)
    return build_family(tmp_path, "llm-7b")


@pytest.fixture
def kept(built: BuiltFamily) -> TurnRecord:
    location = Location(store=built.store, keys=built.keys, generation=None)
    family = ConfiguredFamily(name="llm-7b", location=location, settings=FamilySettings(root=str(built.root)))
    return TurnRecord(Turn(family=family, generation=built.newest), Tier.RESTORE)


def outcomes(built: BuiltFamily) -> list[Outcome]:
    return [record.verdict.outcome for record in list_records(built.store, built.keys)]


def test_a_fail_that_was_reached_survives_a_cancellation_while_it_is_kept(
    built: BuiltFamily, kept: TurnRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may be slow for half a minute, and whoever cancels meanwhile must not turn a fail into "cancelled"."""
    keep, asked = Family.keep, []

    def interrupted(self: Family, *arguments: Any, **named: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1:
            raise TerminationSignal(signal=signal.SIGTERM)
        return keep(self, *arguments, **named)

    monkeypatch.setattr(Family, "keep", interrupted)
    with pytest.raises(TerminationSignal):
        kept.keep(FAILED, Measurements())
    kept.salvage(CANCELLED)
    assert outcomes(built) == [Outcome.FAIL]


def test_a_cancellation_before_any_verdict_is_on_record_once(built: BuiltFamily, kept: TurnRecord) -> None:
    """Evidence ages while nobody could tell, and the record says why; after a verdict nothing is added."""
    kept.salvage(CANCELLED)
    assert outcomes(built) == [Outcome.INCONCLUSIVE]


def test_nothing_is_added_to_a_verdict_on_record(built: BuiltFamily, kept: TurnRecord) -> None:
    """A run that is ended after its work was done has nothing left to say."""
    kept.keep(FAILED, Measurements())
    kept.salvage(CANCELLED)
    assert outcomes(built) == [Outcome.FAIL]
