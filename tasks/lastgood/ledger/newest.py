"""Which record speaks for a gate: the newest one of the newest save, but no weaker pass while there is another record.

Decides the order; `index` keeps the checks of what comes first in it, `queries` tells them. Rule: a weaker rung
that passed (`Verdict.is_weaker_pass`) shows nothing above itself, so it neither hides nor ages what was shown before;
one that failed counts as every fail does.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, and_

from lastgood.ledger.tables import records
from lastgood.verdict import Outcome, Rung

__all__ = ["is_conclusive", "is_weaker_pass", "newest_first"]


def is_weaker_pass() -> ColumnElement[bool]:
    """Whether a record passed below what its gate is asked for."""
    asked = [rung.value for rung in Rung if rung.is_asked]
    return and_(records.c.outcome == Outcome.PASS.value, records.c.rung.not_in(asked))


def is_conclusive() -> ColumnElement[bool]:
    """Whether a record is a pass or a fail."""
    return records.c.outcome.in_([outcome.value for outcome in Outcome if outcome.is_conclusive])


def newest_first() -> list[ColumnElement[Any]]:
    """Of one family and tier: by save, not by the clock, and of one save by attempt."""
    return [records.c[name].desc() for name in ("incarnation", "step", "generation", "attempt", "key")]
