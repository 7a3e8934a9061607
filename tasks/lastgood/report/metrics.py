"""A report as a file for Prometheus' textfile collector (node_exporter), which scrapes whatever `*.prom` it finds.

Decides the names of the metrics, which alarms rely on, and what each counts. Pure in the report, but for the file.
Rules: what was not measured has no sample, for zero would be a figure; a state is one metric with a sample for every
value it may have, so that an alarm on one never goes silent; a moment is exported as a moment, beside the age that the
report knew, because the age of a file that nobody rewrites stands still; creation and recovery stay apart.
Source: Prometheus' text format 0.0.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pandas

from lastgood.handover import replace_file
from lastgood.report.frames import are_proofs, newest_of_each
from lastgood.report.indicators import CONCLUSIVE, QUANTILE_DRILLS
from lastgood.report.report import Report, Result
from lastgood.text import printable
from lastgood.verdict import FamilyState, Outcome

__all__ = ["render_metrics", "write_metrics"]

QUANTILES = (0.5, 0.95)


class Kind(StrEnum):
    """What Prometheus may do with a metric: a counter only rises."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric with its samples.

    Args:
        name: With its unit last; permanent.
        kind: Whether it may fall.
        help: One sentence.
        samples: Labels and value of each.
    """

    name: str
    kind: Kind
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        """Add a sample, if there is a value."""
        if not math.isnan(value):
            self.samples.append((labels, value))

    def add_state(self, current: str, values: Iterable[str], label: str, **labels: str) -> None:
        """Add a sample for each value that a state may have: 1 for the current one, 0 for the others."""
        for value in values:
            self.samples.append(({**labels, label: value}, float(value == current)))


def write_metrics(report: Report, path: Path) -> None:
    """Put the metrics of a report in the place of those of the one before.

    Raises:
        OSError: Not written; the old file is still there.
    """
    replace_file(path, render_metrics(report).encode())


def render_metrics(report: Report) -> str:
    """The metrics of a report in Prometheus' text format."""
    return "".join(line + "\n" for metric in _metrics(report) for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    if not metric.samples:
        return
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in metric.samples:
        spelled = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        yield f"{metric.name}{{{spelled}}} {value:.17g}" if spelled else f"{metric.name} {value:.17g}"


def _escaped(text: str) -> str:
    # A line feed is no printable character: `printable` has turned it into two, of which one is a backslash.
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _metrics(report: Report) -> Iterator[Metric]:
    made = Metric(name="lastgood_report_timestamp_seconds", kind=Kind.GAUGE, help="When the report was made.")
    made.add(report.made_at.timestamp())
    yield made
    yield from _families(report)
    yield from _evidence(report)
    yield from _recoveries(report.frames.drills)
    missed = Metric(
        name="lastgood_objective_missed", kind=Kind.GAUGE, help="1 for an objective that a family misses, 0 if not."
    )
    for row in report.objectives.to_dict("records"):
        if row["result"] in (Result.MET, Result.MISSED):
            labels = {name: str(row[name]) for name in ("family", "objective", "area")}
            missed.add(float(row["result"] == Result.MISSED), **labels)
    yield missed


def _families(report: Report) -> Iterator[Metric]:
    state = Metric(name="lastgood_family_state", kind=Kind.GAUGE, help="1 for the state that a family is in.")
    verdict = Metric(
        name="lastgood_family_verdict", kind=Kind.GAUGE, help="1 for what the six criteria say of a family."
    )
    resume = Metric(name="lastgood_resume_step", kind=Kind.GAUGE, help="Completed step of what would be resumed now.")
    good = Metric(name="lastgood_last_good_step", kind=Kind.GAUGE, help="Completed step of the last good generation.")
    proven = Metric(name="lastgood_proven_generations", kind=Kind.GAUGE, help="Generations that a full restore proved.")
    saved = Metric(
        name="lastgood_newest_save_timestamp_seconds", kind=Kind.GAUGE, help="When the newest generation was committed."
    )
    age = Metric(name="lastgood_newest_save_age_seconds", kind=Kind.GAUGE, help="Its age when the report was made.")
    begun = Metric(name="lastgood_publishes_begun_total", kind=Kind.COUNTER, help="Publishes that began.")
    committed = Metric(name="lastgood_publishes_committed_total", kind=Kind.COUNTER, help="Publishes that committed.")
    ratio = Metric(name="lastgood_creation_ratio", kind=Kind.GAUGE, help="Publishes committed of those that began.")
    steps = _steps(report)
    for row in report.frames.families.to_dict("records"):
        family = str(row["family"])
        state.add_state(row["state"], FamilyState, "state", family=family)
        verdict.add_state(row["verdict"], Outcome, "verdict", family=family)
        for metric, column in ((resume, "latest"), (good, "last_good")):
            metric.add(steps.get((family, row[column]), math.nan), family=family)
        proven.add(row["proven"], family=family)
        if pandas.notna(row["newest_save_at"]):
            saved.add(row["newest_save_at"].timestamp(), family=family)
        begun.add(row["publishes_begun"], family=family)
        committed.add(row["committed"], family=family)
    for row in report.indicators.to_dict("records"):
        age.add(row["save_age_seconds"], family=str(row["family"]))
        ratio.add(row["creation_ratio"], family=str(row["family"]))
    yield from (state, verdict, resume, good, proven, saved, age, begun, committed, ratio)


def _steps(report: Report) -> dict[tuple[str, str], float]:
    """The step of each generation that a family offers or holds for its last good one."""
    named = {
        (row["family"], row[column])
        for row in report.frames.families.to_dict("records")
        for column in ("latest", "last_good")
    }
    saves = report.frames.saves[["family", "generation", "step"]]
    wanted = (
        saves[pandas.MultiIndex.from_frame(saves[["family", "generation"]]).isin(sorted(named))] if named else saves
    )
    return {(row["family"], row["generation"]): row["step"] for row in wanted.to_dict("records")}


def _evidence(report: Report) -> Iterator[Metric]:
    """The evidence of each tier: how old, how it ended, how often."""
    seen = Metric(
        name="lastgood_evidence_timestamp_seconds", kind=Kind.GAUGE, help="When the newest full pass of a tier ended."
    )
    age = Metric(name="lastgood_evidence_age_seconds", kind=Kind.GAUGE, help="Its age when the report was made.")
    last = Metric(name="lastgood_last_verdict", kind=Kind.GAUGE, help="1 for the verdict of the newest run of a tier.")
    read = Metric(
        name="lastgood_read_bytes_per_second",
        kind=Kind.GAUGE,
        help="How fast the newest restore or drill that measured it read its copy from the store.",
    )
    count = Metric(
        name="lastgood_verdicts_total", kind=Kind.COUNTER, help="Runs of a tier on record, by their verdict."
    )
    frames = report.frames
    for tier, records in (("1", frames.verifications), ("2", frames.restores), ("3", frames.drills)):
        for family, seconds in _ages(report, tier).items():
            seen.add(report.made_at.timestamp() - seconds, family=family, tier=tier)
            age.add(seconds, family=family, tier=tier)
        for row in newest_of_each(records).to_dict("records"):
            last.add_state(row["outcome"], Outcome, "outcome", family=str(row["family"]), tier=tier)
        for row in newest_of_each(_read(records)).to_dict("records"):
            read.add(row["read_bytes_per_second"], family=str(row["family"]), tier=tier)
        for row in records.groupby(["family", "outcome"]).size().reset_index(name="runs").to_dict("records"):
            count.add(row["runs"], family=str(row["family"]), tier=tier, outcome=str(row["outcome"]))
    yield from (seen, age, last, read, count)


def _read(records: pandas.DataFrame) -> pandas.DataFrame:
    """The records that say how fast they read; tier 1 never does."""
    name = "read_bytes_per_second"
    return records[records[name].notna()] if name in records else records.head(0)


def _ages(report: Report, tier: str) -> dict[str, float]:
    """Family → how old its newest full pass of a tier was when the report was made; NaN for none."""
    gate = {"2": "restore", "3": "drill"}.get(tier)
    if gate is not None:
        return {str(row["family"]): row[f"{gate}_age_seconds"] for row in report.indicators.to_dict("records")}
    records = report.frames.verifications
    newest = records[are_proofs(records)].groupby("family")["finished_at"].max().items()
    return {str(family): max(0.0, report.made_at.timestamp() - at.timestamp()) for family, at in newest}


def _recoveries(drills: pandas.DataFrame) -> Iterator[Metric]:
    """What the newest drills lost and took; a quantile is a value that was measured, as in `indicators`."""
    lost = Metric(
        name="lastgood_rpo_loss_steps", kind=Kind.GAUGE, help="Quantiles of the completed steps that a kill lost."
    )
    took = Metric(
        name="lastgood_rto_seconds", kind=Kind.GAUGE, help="Quantiles of the time from a kill to the first step done."
    )
    conclusive = drills[drills["outcome"].isin(CONCLUSIVE)].sort_values("finished_at", kind="stable")
    for metric, column in ((lost, "rpo_loss_steps"), (took, "rto_seconds")):
        recent = conclusive[conclusive[column].notna()].groupby("family").tail(QUANTILE_DRILLS)
        for quantile in QUANTILES:
            values: Mapping[Any, float] = (
                recent.groupby("family")[column].quantile(quantile, interpolation="higher").to_dict()
            )
            for family, value in values.items():
                metric.add(value, family=str(family), quantile=f"{quantile:g}")
    yield from (lost, took)
