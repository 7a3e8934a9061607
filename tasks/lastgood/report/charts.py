"""The charts of a family: which records each one draws, and the figure and the table that stand beside it.

Decides what is drawn and how many of it; leaves the drawing to `plots`, and which families have charts to `view`. Pure.
Rule: whatever a chart shows, its table says in numbers, with what nobody measured named as such.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pandas

from lastgood.report import words
from lastgood.report.frames import are_weaker_passes, rows_of
from lastgood.report.plots import (
    MAXIMUM_POINTS,
    MAXIMUM_STACKS,
    Ink,
    Point,
    draw_bars,
    draw_points,
    draw_stacks,
    time_edges,
)

__all__ = ["Plot", "indicator_plots", "recovery_plots"]

MAXIMUM_PLOTTED_DAYS = 90
COMMITTED, UNDER_WAY = "committed", "under_way"
_PHASES = {
    phase.value: phase
    for phase in (
        Ink.STOP,
        Ink.RELAUNCH,
        Ink.LAUNCH,
        Ink.IMPORT,
        Ink.JOIN,
        Ink.BUILD,
        Ink.DISCOVER,
        Ink.LOAD,
        Ink.FIRST_STEP,
    )
}
"""The phases that have a colour; any other is drawn with what no phase accounts for."""
_OUTCOMES = ((Ink.PASS, "passed"), (Ink.FAIL, "failed"), (Ink.INCONCLUSIVE, "inconclusive"), (Ink.NOT_RUN, "not run"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A drawing with what stands around it.

    Args:
        title: Its name.
        figure: The figure that sums it up.
        svg: The drawing; of our own making, nothing in it was spelled by a checkpoint.
        legend: Ink and meaning of each colour.
        header: Of the table that holds its numbers.
        rows: The numbers.
    """

    title: str
    figure: str
    svg: str
    legend: tuple[tuple[str, str], ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def indicator_plots(frames: Mapping[str, pandas.DataFrame], now: datetime, key: str) -> tuple[Plot, ...]:
    """Creation and recovery over the same span of time, each for itself."""
    publishes = frames["publishes"][frames["publishes"]["outcome"] != UNDER_WAY]
    recoveries = pandas.concat(
        [
            records.loc[~are_weaker_passes(records), ["outcome", "finished_at"]]
            for records in (frames["restore"], frames["drill"])
        ]
    )
    moments = pandas.concat([publishes["at"], recoveries["finished_at"]]).dropna()
    if moments.empty:
        return ()
    first = max(moments.min().to_pydatetime(), now - timedelta(days=MAXIMUM_PLOTTED_DAYS))
    edges = time_edges(min(first, now), now)
    committed = publishes["outcome"] == COMMITTED
    creation = {Ink.ONE: publishes.loc[committed, "at"], Ink.FAIL: publishes.loc[~committed, "at"]}
    recovery = {ink: recoveries.loc[recoveries["outcome"] == str(ink), "finished_at"] for ink, _ in _OUTCOMES}
    return (
        _bars(
            edges,
            creation,
            {Ink.ONE: "committed", Ink.FAIL: "not committed"},
            key=f"{key}-creation",
            title="Creation: publishes",
        ),
        _bars(edges, recovery, dict(_OUTCOMES), key=f"{key}-recovery", title="Recovery: restores and drills"),
    )


def _bars(
    edges: list[datetime],
    moments: Mapping[Ink, pandas.Series[Any]],
    meanings: Mapping[Ink, str],
    *,
    key: str,
    title: str,
) -> Plot:
    bins = [pandas.Timestamp(edge) for edge in edges]
    counts = {
        ink: [int(number) for number in pandas.cut(found.dropna(), bins, right=False).value_counts(sort=False)]
        for ink, found in moments.items()
    }
    shown = {ink: numbers for ink, numbers in counts.items() if sum(numbers) or ink in (Ink.ONE, Ink.PASS)}
    figure = ", ".join(f"{words.count(sum(numbers))} {meanings[ink]}" for ink, numbers in shown.items())
    days = (edges[-1] - edges[0]).total_seconds()
    return Plot(
        title=title,
        figure=f"{figure} in {words.duration(days)}",
        svg=draw_bars(
            edges,
            shown,
            key=key,
            title=title,
            description=f"{figure} between {words.moment(edges[0])} and {words.moment(edges[-1])}",
        ),
        legend=tuple((str(ink), meanings[ink]) for ink in shown),
        header=("from", *(meanings[ink] for ink in shown)),
        rows=tuple(
            (words.moment(edge), *(str(number) for number in numbers))
            for edge, numbers in zip(edges, zip(*shown.values(), strict=True), strict=False)
            if any(numbers)
        ),
    )


def recovery_plots(
    frames: Mapping[str, pandas.DataFrame], indicators: Mapping[str, Any], now: datetime, key: str
) -> tuple[Plot, ...]:
    """What recovery took and lost, each drill and restore by itself; a chart without a figure is left out."""
    made = [
        _phases(frames, indicators, f"{key}-rto"),
        _points(
            frames["drill"],
            {Ink.ONE: ("rpo_loss_steps", "steps lost")},
            limit=float(indicators["rpo_steps_limit"]),
            spoken=words.steps,
            now=now,
            key=f"{key}-rpo",
            title="RPO: steps lost to a kill",
        ),
        _points(
            frames["restore"],
            {
                Ink.ONE: ("discovery_seconds", "discovery"),
                Ink.TWO: ("load_seconds", "load"),
                Ink.THREE: ("first_step_seconds", "first step"),
            },
            limit=float("nan"),
            spoken=words.duration,
            now=now,
            key=f"{key}-restore",
            title="Restore: seconds to the first step",
        ),
    ]
    return tuple(plot for plot in made if plot is not None)


def _phases(frames: Mapping[str, pandas.DataFrame], indicators: Mapping[str, Any], key: str) -> Plot | None:
    """The newest recoveries, each split into its phases."""
    drills = frames["drill"][frames["drill"]["rto_seconds"].notna()].sort_values("finished_at", ascending=False)
    if drills.empty:
        return None
    parts = {
        found: dict(zip(rows["phase"], rows["seconds"], strict=True))
        for found, rows in frames["phases"].groupby(["generation", "attempt"], sort=False)
    }
    rows, numbers, used = [], [], dict[Ink, str]()
    for drill in rows_of(drills.head(MAXIMUM_STACKS)):
        split = dict[Ink, float]()
        for phase, seconds in parts.get((drill["generation"], drill["attempt"]), {}).items():
            ink = _PHASES.get(phase, Ink.OTHER)
            split[ink] = split.get(ink, 0.0) + seconds
        # What no phase accounts for is drawn, so that a bar is as long as the recovery was.
        split[Ink.OTHER] = split.get(Ink.OTHER, 0.0) + max(0.0, drill["rto_seconds"] - sum(split.values()))
        split = {ink: split[ink] for ink in Ink if split.get(ink, 0.0) > 0}
        used.update((ink, "unaccounted" if ink is Ink.OTHER else ink.replace("_", " ")) for ink in split)
        rows.append((f"{drill['finished_at']:%-d %b}", split))
        numbers.append((words.moment(drill["finished_at"]), f"{drill['rto_seconds']:.3f}", split))
    order = [ink for ink in Ink if ink in used]
    limit = float(indicators["rto_seconds_limit"])
    newest = f"newest {words.duration(float(drills['rto_seconds'].iloc[0]))}"
    title = "RTO: from the kill to the first step done"
    return Plot(
        title=title,
        figure=newest + ("" if math.isnan(limit) else f", at most {words.duration(limit)}"),
        svg=draw_stacks(
            rows,
            limit=None if math.isnan(limit) else limit,
            key=key,
            title=title,
            description=f"seconds of each phase of the newest {len(rows)} recoveries, {newest}",
        ),
        legend=tuple((str(ink), used[ink]) for ink in order),
        header=("drill", "RTO, s", *(f"{used[ink]}, s" for ink in order)),
        rows=tuple((at, whole, *(f"{split.get(ink, 0.0):.3f}" for ink in order)) for at, whole, split in numbers),
    )


def _points(
    records: pandas.DataFrame,
    columns: Mapping[Ink, tuple[str, str]],
    *,
    limit: float,
    spoken: Callable[[float], str],
    now: datetime,
    key: str,
    title: str,
) -> Plot | None:
    names = [column for column, _ in columns.values()]
    measured = records[records[names].notna().any(axis="columns")].sort_values("finished_at").tail(MAXIMUM_POINTS)
    if measured.empty:
        return None
    series = {
        ink: [
            Point(at=at.to_pydatetime(), value=float(value))
            for at, value in zip(measured["finished_at"], measured[column], strict=True)
            if pandas.notna(value)
        ]
        for ink, (column, _) in columns.items()
    }
    edges = time_edges(min(measured["finished_at"].min().to_pydatetime(), now), now)
    newest = measured.iloc[-1]
    figure = "newest " + ", ".join(
        (f"{meaning} " if len(columns) > 1 else "") + spoken(newest[column]) for column, meaning in columns.values()
    )
    return Plot(
        title=title,
        figure=figure + ("" if math.isnan(limit) else f", at most {spoken(limit)}"),
        svg=draw_points(
            series,
            edges=edges,
            limit=None if math.isnan(limit) else limit,
            key=key,
            title=title,
            description=f"{len(measured)} measured, {figure}",
        ),
        legend=tuple((str(ink), meaning) for ink, (_, meaning) in columns.items()),
        header=("when", *(meaning for _, meaning in columns.values())),
        rows=tuple(
            (words.moment(row["finished_at"]), *(words.plain(row[name]) or "not measured" for name in names))
            for _, row in itertools.islice(measured.iloc[::-1].iterrows(), MAXIMUM_POINTS)
        ),
    )
