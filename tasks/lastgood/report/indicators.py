"""The indicators: one row a family with every figure that an objective is about, and the limit beside it.

Decides how ages, ratios and quantiles are computed; leaves whether they are good enough to `expectations`. Pure. Rules:
creation and recovery are separate figures; NaN is "not measured" (no restore has an age before one passed) or "no limit
set"; a generation that is fenced or barred proves nothing and owes nothing; the newest record is the one that finished
last, for whoever reads a report asks what was seen last; a weaker rung counts where it failed, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pandas

from lastgood.config import Objectives
from lastgood.report.frames import COUNT, MEASURED, TEXT, Frames, are_decisive, are_proofs
from lastgood.verdict import Outcome

__all__ = ["INDICATOR_COLUMNS", "measure"]

QUANTILE = 0.95
QUANTILE_DRILLS = 100
"""A quantile is over this many of a family's newest drills: what was slow two years ago is no promise broken today."""
CONCLUSIVE = (str(Outcome.PASS), str(Outcome.FAIL))
CANDIDATE = "candidate"

INDICATOR_COLUMNS: Mapping[str, str] = {
    "family": TEXT,
    "state": TEXT,
    "verdict": TEXT,
    "malformed": COUNT,
    "quarantines": COUNT,
    "barred_offers": COUNT,
    "candidates": COUNT,
    "publishes_begun": COUNT,
    "committed": COUNT,
    "creation_ratio": MEASURED,
    "creation_ratio_limit": MEASURED,
    "save_age_seconds": MEASURED,
    "save_age_seconds_limit": MEASURED,
    "overdue_generations": COUNT,
    "oldest_overdue": TEXT,
    "restores_passed": COUNT,
    "newest_restore": TEXT,
    "restore_age_seconds": MEASURED,
    "restore_age_seconds_limit": MEASURED,
    "proven_generations": COUNT,
    "proven_generations_limit": COUNT,
    "drills_passed": COUNT,
    "newest_drill": TEXT,
    "drill_age_seconds": MEASURED,
    "drill_age_seconds_limit": MEASURED,
    "rpo_newest_steps": MEASURED,
    "rpo_p95_steps": MEASURED,
    "rpo_steps_limit": MEASURED,
    "rto_newest_seconds": MEASURED,
    "rto_p95_seconds": MEASURED,
    "rto_seconds_limit": MEASURED,
    "inconclusive_seconds": MEASURED,
    "inconclusive_seconds_limit": MEASURED,
    "inconclusive_tier": TEXT,
}


def measure(frames: Frames, settings: Mapping[str, Objectives], now: datetime) -> pandas.DataFrame:
    """The indicators of every family in the frames, in their order.

    Args:
        frames: What the ledger said.
        settings: Family → its objectives; of one that is not configured, the defaults hold.
        now: What ages count up to, aware UTC.
    """
    families = frames.families.set_index("family", drop=False)
    moment = pandas.Timestamp(now)
    demanded = {str(name): settings.get(str(name), Objectives()) for name in families.index}
    out = pandas.DataFrame({"family": families["family"], "state": families["state"], "verdict": families["verdict"]})
    out["quarantines"] = families["quarantine"].ne("").astype(COUNT)
    out["barred_offers"] = _barred_offers(frames, families)
    for name in ("malformed", "candidates", "publishes_begun", "committed"):
        out[name] = families[name]
    out["creation_ratio"] = families["committed"] / families["publishes_begun"].where(families["publishes_begun"] > 0)
    out["save_age_seconds"] = _age(families["newest_save_at"], moment)
    overdue = _overdue(frames, demanded, moment)
    out["overdue_generations"] = overdue.groupby("family").size()
    out["oldest_overdue"] = overdue.sort_values("created_at").groupby("family")["generation"].first()
    restores = _standing(frames)
    _evidence(out, "restore", restores, moment)
    _evidence(out, "drill", frames.drills, moment)
    out["proven_generations"] = families["proven"]
    _recoveries(out, frames.drills)
    _inconclusive(out, frames, moment)
    for name, limit in _limits(demanded).items():
        out[f"{name}_limit"] = pandas.Series(limit, dtype=MEASURED)
    for name, kind in INDICATOR_COLUMNS.items():
        if kind != MEASURED:
            out[name] = out[name].astype(object).fillna(0 if kind == COUNT else "")
    return out[list(INDICATOR_COLUMNS)].astype(dict(INDICATOR_COLUMNS)).reset_index(drop=True)


def _limits(demanded: Mapping[str, Objectives]) -> dict[str, dict[str, float | None]]:
    """Limit → family → its value; None where the objective is not set."""
    named = (
        "creation_ratio",
        "save_age_seconds",
        "restore_age_seconds",
        "proven_generations",
        "drill_age_seconds",
        "rpo_steps",
        "rto_seconds",
        "inconclusive_seconds",
    )
    return {name: {family: getattr(one, name) for family, one in demanded.items()} for name in named}


def _age(moments: pandas.Series[Any], now: pandas.Timestamp) -> pandas.Series[Any]:
    """Seconds up to now; a clock that runs ahead of ours makes nothing younger than new."""
    seconds: pandas.Series[Any] = (now - moments).dt.total_seconds().clip(lower=0.0)
    return seconds


def _barred_offers(frames: Frames, families: pandas.DataFrame) -> pandas.Series[Any]:
    """How many offers of a family name a generation that failed a gate on record: one or none."""
    barred = frames.saves[frames.saves["state"] == "barred"]
    offers = families[["family", "latest"]].reset_index(drop=True).rename(columns={"latest": "generation"})
    found = offers.merge(barred[["family", "generation"]], on=["family", "generation"])
    counted: pandas.Series[Any] = found.groupby("family")["generation"].count()
    return counted


def _overdue(frames: Frames, demanded: Mapping[str, Objectives], now: pandas.Timestamp) -> pandas.DataFrame:
    """Candidates that no gate has judged for longer than allowed; one of unknown age has waited too long."""
    made = frames.verifications
    judged = made[are_decisive(made)]
    candidates = frames.saves[frames.saves["state"] == CANDIDATE]
    known = pandas.MultiIndex.from_frame(judged[["family", "generation"]])
    asked = pandas.MultiIndex.from_frame(candidates[["family", "generation"]])
    unjudged = candidates[~asked.isin(known)]
    limits = unjudged["family"].map({name: one.verify_age_seconds for name, one in demanded.items()})
    age = _age(unjudged["created_at"], now)
    return unjudged[age.isna() | (age > limits)]


def _standing(frames: Frames) -> pandas.DataFrame:
    """The restores of generations that are neither fenced, barred nor burned: of the others none proves anything."""
    gone = frames.saves[frames.saves["state"] != CANDIDATE]
    fallen = pandas.MultiIndex.from_frame(gone[["family", "generation"]])
    restored = pandas.MultiIndex.from_frame(frames.restores[["family", "generation"]])
    # A fail still counts: it is what barred its generation.
    return frames.restores[~restored.isin(fallen) | (frames.restores["outcome"] == str(Outcome.FAIL))]


def _evidence(out: pandas.DataFrame, gate: str, records: pandas.DataFrame, now: pandas.Timestamp) -> None:
    """How many runs of a gate passed in full, how old the newest is, and how the newest that decides ended."""
    passed = records[are_proofs(records)]
    decisive = records[are_decisive(records)].sort_values("finished_at", kind="stable")
    out[f"{gate}s_passed"] = passed.groupby("family").size()
    out[f"newest_{gate}"] = decisive.groupby("family")["outcome"].last()
    newest = passed.groupby("family")["finished_at"].max().reindex(out.index)
    out[f"{gate}_age_seconds"] = _age(newest, now)


def _recoveries(out: pandas.DataFrame, drills: pandas.DataFrame) -> None:
    """What the newest drill that measured it lost and took, and the 95th percentile of the newest drills.

    The percentile is a value that was measured, the higher one of two: of few drills it is the worst.
    """
    conclusive = drills[drills["outcome"].isin(CONCLUSIVE)].sort_values("finished_at", kind="stable")
    for name, column, unit in (("rpo", "rpo_loss_steps", "steps"), ("rto", "rto_seconds", "seconds")):
        measured = conclusive[conclusive[column].notna()].groupby("family")
        out[f"{name}_newest_{unit}"] = measured[column].last()
        recent = measured.tail(QUANTILE_DRILLS).groupby("family")
        out[f"{name}_p95_{unit}"] = recent[column].quantile(QUANTILE, interpolation="higher")


def _inconclusive(out: pandas.DataFrame, frames: Frames, now: pandas.Timestamp) -> None:
    """For how long the gate that is worst off has come to no conclusion; 0 where the newest run of each did.

    A weaker rung that passed is no conclusion of its gate, and no lack of one.
    """
    since = {}
    for tier, records in enumerate((frames.verifications, frames.restores, frames.drills), start=1):
        last = records[are_decisive(records)].groupby("family")["finished_at"].max()
        open_ones = records[~records["outcome"].isin(CONCLUSIVE)]
        concluded = last.reindex(open_ones["family"]).set_axis(open_ones.index)
        trailing = open_ones[concluded.isna() | (open_ones["finished_at"] > concluded)]
        since[str(tier)] = trailing.groupby("family")["finished_at"].min().reindex(out.index)
    ages = pandas.DataFrame({tier: _age(moments, now) for tier, moments in since.items()}).fillna(0.0)
    out["inconclusive_seconds"] = ages.max(axis="columns")
    out["inconclusive_tier"] = ages.idxmax(axis="columns").where(ages.max(axis="columns") > 0, "")
