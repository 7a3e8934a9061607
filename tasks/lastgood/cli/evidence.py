"""Putting a verdict on record without losing it: who waited an hour for it must see it on a full disk too."""

from __future__ import annotations

from datetime import datetime

from lastgood.cli.output import complain
from lastgood.errors import LastgoodError, StoreError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.records import Measurements
from lastgood.verdict import Verdict

__all__ = ["keep_evidence"]


def keep_evidence(
    family: Family, verdict: Verdict, generation: GenerationId, started_at: datetime, measurements: Measurements
) -> int:
    """Record a verdict, and return the exit code of the command that prints it.

    A fail stays a fail. A pass that is not on record proves nothing to anybody else, so it is "could not tell".
    """
    try:
        family.keep(verdict, generation, started_at, measurements)
    except LastgoodError as error:
        complain(f"evidence not kept: {error.message}", error.hint or "--no-record only looks")
        return verdict.outcome.exit_code or StoreError.exit_code
    return verdict.outcome.exit_code
