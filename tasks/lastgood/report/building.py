"""From the ledger to a report: brought up to date, read as frames, the six criteria, every objective judged.

Decides which families a report is about: those that were named, else all of the configuration, whether or not the
ledger knows anything of them. Leaves reading storage to the ledger, and files to `writing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lastgood.config import Configuration
from lastgood.criteria import CheckLine, Evidence, judge_family
from lastgood.errors import UsageError
from lastgood.ledger import Ledger, open_ledger, queries
from lastgood.report.frames import Frames, make_frame
from lastgood.report.indicators import measure
from lastgood.report.report import Area, Report
from lastgood.report.suite import judge_indicators
from lastgood.verdict import FamilyState, Outcome, Rung, Tier

__all__ = ["build_report", "judge_frames", "read_frames", "update_ledger"]

Row = Mapping[str, Any]


def update_ledger(configuration: Configuration, families: Sequence[str] | None = None) -> Mapping[str, str]:
    """Bring the ledger up to date; family → why its store could not tell, for those of which it could not.

    Args:
        configuration: Families, and where the ledger is.
        families: Only these; None: every configured one.

    Raises:
        UsageError: A family is not configured, or none is.
        LedgerError: The ledger's database did not answer.
    """
    uris = {name: configuration.settings(name).uri(name) for name in _chosen(configuration, families)}
    with open_ledger(str(configuration.ledger.url), stores=configuration.stores) as ledger:
        return {one.family: one.failure for one in ledger.update(uris) if one.failure is not None}


def build_report(
    configuration: Configuration,
    families: Sequence[str] | None = None,
    *,
    now: datetime,
    trouble: Mapping[str, str] | None = None,
    documents: Path | None = None,
) -> tuple[Report, Mapping[Area, str]]:
    """The report on what the ledger holds; also the pages that were built, by their path below `documents`.

    Args:
        configuration: Families, their objectives, and where the ledger is.
        families: Only these; None: every configured one.
        now: What ages count up to, aware.
        trouble: From `update_ledger`.
        documents: Where to build Great Expectations' own pages; None: nowhere.

    Raises:
        UsageError: A family is not configured, or none is.
        LedgerError: The ledger's database did not answer.
    """
    with open_ledger(str(configuration.ledger.url), stores=configuration.stores) as ledger:
        frames = read_frames(ledger, _chosen(configuration, families))
    return judge_frames(frames, configuration, now=now, trouble=trouble, documents=documents)


def _chosen(configuration: Configuration, families: Sequence[str] | None) -> list[str]:
    names = list(dict.fromkeys(families or configuration.families))
    if not names:
        raise UsageError("no family to report on", hint="add [families.NAME] with a root to lastgood.toml")
    for name in names:
        configuration.settings(name)
    return names


def judge_frames(
    frames: Frames,
    configuration: Configuration,
    *,
    now: datetime,
    trouble: Mapping[str, str] | None = None,
    documents: Path | None = None,
) -> tuple[Report, Mapping[Area, str]]:
    """The report over frames; arguments and answer as of `build_report`."""
    settings = {name: one.objectives for name, one in configuration.families.items()}
    indicators = measure(frames, settings, now)
    judged = judge_indicators(indicators, now, documents=documents)
    report = Report(
        made_at=now,
        frames=frames,
        indicators=indicators,
        objectives=judged.objectives,
        settings=settings,
        outcome=judged.outcome,
        trouble=dict(trouble or {}),
    )
    return report, judged.pages


def read_frames(ledger: Ledger, names: Sequence[str]) -> Frames:
    """The frames of some families, all of one moment of the ledger.

    Raises:
        LedgerError: The ledger's database did not answer.
    """
    with ledger.reading() as moment:
        told = {
            "saves": queries.saves(moment, names=names),
            "publishes": queries.publishes(moment, names=names),
            "verifications": queries.verifications(moment, names=names),
            "restores": queries.restores(moment, names=names),
            "drills": queries.drills(moment, names=names),
            "phases": queries.phases(moment, names=names),
            "checks": queries.checks(moment, names=names),
        }
        conclusive = queries.checks(moment, conclusive=True, names=names).mappings()
        known = {row["family"]: row for row in queries.families(moment, names=names).mappings()}
    # A family that was never read stands there too: silence about it would look like health.
    families = [known.get(name, {"family": name, "state": FamilyState.COULD_NOT_TELL.value}) for name in names]
    evidence = _evidence(told["checks"].mappings()) | _evidence(conclusive)
    judged, standings = _criteria(families, evidence)
    return Frames(
        **{name: make_frame(name, rows.by_column()) for name, rows in told.items()},
        families=make_frame("families", judged),
        criteria=make_frame("criteria", standings),
    )


def _evidence(rows: Iterable[Row]) -> dict[tuple[str, int], Evidence]:
    """Family and tier → what its record says. An inconclusive one counts only where there is no conclusive one."""
    lines: dict[tuple[str, int], list[CheckLine]] = {}
    said: dict[tuple[str, int], tuple[Outcome, Rung]] = {}
    for row in rows:
        key = (row["family"], row["tier"])
        line = CheckLine(name=row["check"], outcome=Outcome(row["outcome"]), detail=row["detail"])
        lines.setdefault(key, []).append(line)
        said[key] = (Outcome(row["verdict"]), Rung(row["rung"]))
    return {key: Evidence(outcome=said[key][0], rung=said[key][1], checks=tuple(made)) for key, made in lines.items()}


def _criteria(families: Iterable[Row], evidence: Mapping[tuple[str, int], Evidence]) -> tuple[list[Row], list[Row]]:
    """The rows of families with their verdicts, and one row a criterion."""
    judged: list[Row] = []
    standings: list[Row] = []
    for row in families:
        name = row["family"]
        verdict = judge_family(
            evidence.get((name, Tier.MANIFEST)),
            evidence.get((name, Tier.RESTORE)),
            quarantine=tuple(filter(None, (row.get("quarantine") or "").split(","))),
        )
        held = {str(standing.criterion): str(standing.held) for standing in verdict.standings}
        judged.append({**row, "verdict": str(verdict.outcome), "why": verdict.why, **held})
        standings.extend(
            {
                "family": name,
                "criterion": str(standing.criterion),
                "held": str(standing.held),
                "check": standing.check,
                "detail": standing.detail,
            }
            for standing in verdict.standings
        )
    return judged, standings
