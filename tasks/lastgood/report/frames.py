"""The frames: what the ledger holds, as pandas tables with fixed columns.

Decides the columns and their types, which are a promise (a golden holds them): an empty frame has them too. Rules: NaN
and NaT mean "not measured" and nothing else, text that is not there is empty; times are UTC; counts that always exist
are integers, whatever may be unmeasured is a float; text is as the checkpoint spelled it, and whoever shows it escapes
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final

import pandas

from lastgood.criteria import Criterion
from lastgood.verdict import Outcome, Rung

__all__ = [
    "COLUMNS",
    "Frames",
    "are_decisive",
    "are_proofs",
    "are_weaker_passes",
    "make_frame",
    "newest_of_each",
    "rows_of",
]

TEXT: Final = "str"
COUNT: Final = "int64"
MEASURED: Final = "float64"
TIME: Final = "datetime64[us, UTC]"

_RECORD: Mapping[str, str] = {
    "family": TEXT,
    "generation": TEXT,
    "step": COUNT,
    "attempt": COUNT,
    "outcome": TEXT,
    "rung": TEXT,
    "started_at": TIME,
    "finished_at": TIME,
    "seconds": MEASURED,
    "read_bytes": MEASURED,
    "reasons": TEXT,
    "message": TEXT,
    "offender": TEXT,
    "hint": TEXT,
    "host": TEXT,
    "origin": TEXT,
}
_REPLICA: Mapping[str, str] = {
    "read_seconds": MEASURED,
    "read_bytes_per_second": MEASURED,
    "discovery_seconds": MEASURED,
    "load_seconds": MEASURED,
    "first_step_seconds": MEASURED,
}

COLUMNS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "saves": {
            "family": TEXT,
            "run": TEXT,
            "generation": TEXT,
            "incarnation": COUNT,
            "step": COUNT,
            "created_at": TIME,
            "bytes": MEASURED,
            "artifacts": MEASURED,
            "world_size": MEASURED,
            "state": TEXT,
            "purpose": TEXT,
        },
        "publishes": {
            "family": TEXT,
            "generation": TEXT,
            "incarnation": COUNT,
            "step": COUNT,
            "outcome": TEXT,
            "at": TIME,
            "message": TEXT,
        },
        "verifications": _RECORD,
        "restores": {**_RECORD, **_REPLICA},
        "drills": {**_RECORD, **_REPLICA, "rpo_loss_steps": MEASURED, "rto_seconds": MEASURED},
        "phases": {"family": TEXT, "generation": TEXT, "attempt": COUNT, "phase": TEXT, "seconds": MEASURED},
        "families": {
            "family": TEXT,
            "uri": TEXT,
            "state": TEXT,
            "latest": TEXT,
            "last_good": TEXT,
            "quarantine": TEXT,
            "candidates": COUNT,
            "proven": COUNT,
            "publishes_begun": COUNT,
            "committed": COUNT,
            "newest_save_at": TIME,
            "malformed": COUNT,
            "read_at": TIME,
            "failure": TEXT,
            "hint": TEXT,
            "verdict": TEXT,
            "why": TEXT,
            **{str(criterion): TEXT for criterion in Criterion},
        },
        "criteria": {"family": TEXT, "criterion": TEXT, "held": TEXT, "check": TEXT, "detail": TEXT},
        "checks": {
            "family": TEXT,
            "generation": TEXT,
            "tier": COUNT,
            "check": TEXT,
            "outcome": TEXT,
            "detail": TEXT,
        },
    }
)
"""Frame → column → type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Everything that the report is made of; see `COLUMNS`.

    Args:
        saves: One row a commit; state `candidate`, `fenced`, `barred` or `burned`.
        publishes: One row a publish that began, with what became of it (`queries.PublishOutcome`).
        verifications: One row a record of tier 1, as the next two of tiers 2 and 3; `reasons` are joined by commas,
            `message`, `offender` and `hint` are of the first finding.
        restores: Tier 2; `read_seconds` and the bandwidth are of the private copy, whose bytes are `read_bytes`.
        drills: Tier 3.
        phases: Where the recovery time of each drill went.
        families: One row a family: what it may offer, its counters, documents that could not be read, when its store
            last told and what it said instead, its verdict, and the six criteria (`held`, `failed` or `not_shown`).
        criteria: The six criteria again, a row each, with the check that decides.
        checks: Of each family's newest record of each tier, what was asked; a weaker rung that passed is not the newest
            while there is another record.
    """

    saves: pandas.DataFrame
    publishes: pandas.DataFrame
    verifications: pandas.DataFrame
    restores: pandas.DataFrame
    drills: pandas.DataFrame
    phases: pandas.DataFrame
    families: pandas.DataFrame
    criteria: pandas.DataFrame
    checks: pandas.DataFrame

    @classmethod
    def of(cls, **rows: Iterable[Mapping[str, object]]) -> Frames:
        """Frames of rows by frame; a frame that is not named is empty."""
        return cls(**{one.name: make_frame(one.name, rows.get(one.name, ())) for one in fields(cls)})


def make_frame(name: str, rows: Iterable[Mapping[str, object]] | Mapping[str, list[object]]) -> pandas.DataFrame:
    """One frame with its columns and types, however many rows there are.

    Args:
        name: A key of `COLUMNS`.
        rows: One mapping a row, or one list a column; what is missing is "not measured", empty text, or zero.
    """
    columns = COLUMNS[name]
    frame = pandas.DataFrame(rows if isinstance(rows, Mapping) else list(rows), columns=list(columns))
    for column, kind in columns.items():
        if kind == COUNT:
            frame[column] = frame[column].astype(object).fillna(0)
        elif kind == TIME:
            frame[column] = pandas.to_datetime(frame[column], utc=True)
        elif kind == TEXT:
            frame[column] = frame[column].astype(object).fillna("")
    return frame.astype(dict(columns))


def rows_of(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """The rows as mappings, column → value."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def are_decisive(records: pandas.DataFrame) -> pandas.Series[bool]:
    """Which records decide: a fail on any rung, a pass on none that is weaker (`Verdict.is_weaker_pass`)."""
    return (records["outcome"] == str(Outcome.FAIL)) | are_proofs(records)


def are_proofs(records: pandas.DataFrame) -> pandas.Series[bool]:
    """Which records passed all that their gate is asked for: what the age of evidence counts from."""
    asked = [str(rung) for rung in Rung if rung.is_asked]
    return (records["outcome"] == str(Outcome.PASS)) & records["rung"].isin(asked)


def are_weaker_passes(records: pandas.DataFrame) -> pandas.Series[bool]:
    """Which records passed on a weaker rung: they prove nothing and accuse nothing."""
    return (records["outcome"] == str(Outcome.PASS)) & ~are_proofs(records)


def newest_of_each(records: pandas.DataFrame) -> pandas.DataFrame:
    """The record of each family that finished last; a weaker rung that passed only where there is no other."""
    ordered = records.assign(is_other=~are_weaker_passes(records)).sort_values(
        ["is_other", "finished_at"], kind="stable"
    )
    return ordered.drop(columns="is_other").drop_duplicates("family", keep="last")
