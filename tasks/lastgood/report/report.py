"""What a report is: frames, the objectives judged, and what follows from them.

Decides nothing; `building` makes one, the page, the metrics and the command line show it.
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

__all__ = ["OBJECTIVE_COLUMNS", "Area", "Report"]


class Area(StrEnum):
    """The two service indicators, never averaged, and what concerns the family as a whole."""

    CREATION = "creation"
    RECOVERY = "recovery"
    FAMILY = "family"


OBJECTIVE_COLUMNS: Mapping[str, str] = {
    "family": TEXT,
    "objective": TEXT,
    "area": TEXT,
    "sentence": TEXT,
    "outcome": TEXT,
    "measured": TEXT,
    "limit": TEXT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report.

    Args:
        made_at: When, aware UTC; every age counts up to it.
        frames: What the ledger said.
        indicators: One row a family: every figure that an objective is about.
        objectives: One row a family and objective: `outcome` is `met`, `missed` or `not_set`; `measured` and `limit`
            are texts with their unit, `sentence` says what is demanded.
        settings: Family → what it must achieve, by `lastgood.toml`.
        outcome: `pass` when every objective of every family is met; `inconclusive` when nothing is missed but that a
            family could not tell its state.
        trouble: What could not be read while the ledger was brought up to date, by family.
    """

    made_at: datetime
    frames: Frames
    indicators: pandas.DataFrame
    objectives: pandas.DataFrame
    settings: Mapping[str, Objectives]
    outcome: Outcome
    trouble: Mapping[str, str]
