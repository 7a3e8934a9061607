"""What a report is: frames, the objectives judged, and what follows from them.

Decides nothing; `building` makes one; the page, the metrics and the command line show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import pandas

from lastgood.config import Objectives
from lastgood.report.frames import TEXT, Frames
from lastgood.verdict import Outcome

__all__ = ["OBJECTIVE_COLUMNS", "Area", "Report", "Result"]


class Area(StrEnum):
    """The two service indicators, which are never averaged: can we save, and can we come back?"""

    CREATION = "creation"
    RECOVERY = "recovery"


class Result(StrEnum):
    """What came of one objective of one family."""

    MET = "met"
    MISSED = "missed"
    NOT_SET = "not_set"
    """`lastgood.toml` sets no limit."""
    NOT_MEASURED = "not_measured"
    """There is nothing yet to compare; the objective that demands evidence says so."""


OBJECTIVE_COLUMNS: Mapping[str, str] = {
    "family": TEXT,
    "objective": TEXT,
    "area": TEXT,
    "sentence": TEXT,
    "result": TEXT,
    "measured": TEXT,
    "limit": TEXT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report.

    Args:
        made_at: When, aware UTC; every age counts up to it.
        frames: What the ledger said.
        indicators: One row a family: every figure that an objective is about (`indicators.INDICATOR_COLUMNS`).
        objectives: One row a family and objective (`OBJECTIVE_COLUMNS`): `sentence` says what is demanded, `result`
            is a `Result`, `measured` and `limit` are texts with their unit.
        settings: Family → what it must achieve, by `lastgood.toml`.
        outcome: `pass` when no objective is missed; `inconclusive` when all that stands in the way is that a family
            could not tell its state.
        trouble: Family → what could not be read while the ledger was brought up to date.
    """

    made_at: datetime
    frames: Frames
    indicators: pandas.DataFrame
    objectives: pandas.DataFrame
    settings: Mapping[str, Objectives]
    outcome: Outcome
    trouble: Mapping[str, str]
