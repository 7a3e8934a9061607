"""What the readiness page says: a report condensed to values that a template can lay out.

Decides what is worth a place on the page, in which order, and how much of it; leaves how it looks to `page` and the
drawing to `plots`. Pure. Rules: what is broken comes first, and its reason in the same sentence; creation and recovery
are two indicators and never one figure; every list has a named maximum and says what it left out; text is as the
checkpoint spelled it, for the template escapes it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import pandas

from lastgood.criteria import Criterion, Held
from lastgood.report import words
from lastgood.report.frames import newest_of_each
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
from lastgood.report.report import Report, Result
from lastgood.verdict import FamilyState, Outcome

__all__ = ["FamilyView", "Mood", "PageView", "link_of", "view_of"]

MAXIMUM_PLOTTED_FAMILIES = 8
"""A plot takes a tenth of a second; the families that need attention come first, the rest keep their figures."""
MAXIMUM_FAILURES, MAXIMUM_FAMILY_FAILURES = 30, 5
MAXIMUM_CONCERNS = 6
MAXIMUM_PLOTTED_DAYS = 90

Row = Mapping[str, Any]
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


class Mood(StrEnum):
    """How bad it is; the page gives each a colour, a sign and a word."""

    GOOD = "good"
    DOUBT = "doubt"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """One thing to look at: whose it is, and what is wrong in one sentence."""

    mood: Mood
    family: str
    anchor: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The evidence of one tier.

    Args:
        name: What people call it.
        outcome: Of the newest record, or empty.
        generation: Of the newest record.
        finished: When it ended, or empty.
        age: How old the newest evidence that counts is; for tier 1 what waits too long.
        limit: What is demanded of it.
        filled: Its age in parts of the limit, at most 1; None where there is none.
        is_late: It does not keep its objective.
        origin: A link to the run, or empty.
        advice: What to do where there is none.
    """

    name: str
    outcome: str
    generation: str
    finished: str
    age: str
    limit: str
    filled: float | None
    is_late: bool
    origin: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One gate run that did not pass."""

    family: str
    anchor: str
    generation: str
    gate: str
    outcome: str
    finished: str
    reasons: tuple[str, ...]
    message: str
    offender: str
    hint: str
    origin: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyView:
    """One family. The texts are ready to be read; `facts` are the same figures for programs, by name."""

    name: str
    anchor: str
    uri: str
    mood: Mood
    state: str
    quarantine: str
    cause: str
    verdict: str
    why: str
    latest: str
    latest_step: str
    latest_age: str
    last_good: str
    last_good_step: str
    candidates: str
    proven: str
    creation: str
    recovery: str
    rto: str
    rpo: str
    gates: tuple[Gate, ...]
    criteria: tuple[tuple[str, str, str], ...]
    objectives: tuple[Mapping[str, str], ...]
    missed: int
    checks: tuple[Mapping[str, str], ...]
    failures: tuple[Failure, ...]
    plots: tuple[Plot, ...]
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """The page from top to bottom."""

    made_at: datetime
    mood: Mood
    headline: str
    concerns: tuple[Concern, ...]
    concerns_left: int
    trouble: tuple[tuple[str, str], ...]
    met: int
    missed: int
    attention: tuple[FamilyView, ...]
    ready: tuple[FamilyView, ...]
    plots: tuple[Plot, ...]
    failures: tuple[Failure, ...]
    failures_left: int
    unplotted: int

    @property
    def families(self) -> tuple[FamilyView, ...]:
        return self.attention + self.ready


def view_of(report: Report) -> PageView:
    """Condense a report to what the page says."""
    order = _by_need(report)
    anchors = {name: f"family-{place}" for place, name in enumerate(order, start=1)}
    rows = _Rows(report, anchors)
    families = [_family(rows, name, plotted=place < MAXIMUM_PLOTTED_FAMILIES) for place, name in enumerate(order)]
    attention = tuple(family for family in families if family.mood is not Mood.GOOD)
    concerns = [_concern(family) for family in attention]
    results = report.objectives["result"]
    moods = {family.mood for family in families}
    if report.trouble or not families:
        moods.add(Mood.DOUBT)
    return PageView(
        made_at=report.made_at,
        mood=Mood.BAD if Mood.BAD in moods else Mood.DOUBT if Mood.DOUBT in moods else Mood.GOOD,
        headline=_headline(families),
        concerns=tuple(concerns[:MAXIMUM_CONCERNS]),
        concerns_left=max(0, len(concerns) - MAXIMUM_CONCERNS),
        trouble=tuple(sorted(report.trouble.items())),
        met=int((results == str(Result.MET)).sum()),
        missed=int((results == str(Result.MISSED)).sum()),
        attention=attention,
        ready=tuple(family for family in families if family.mood is Mood.GOOD),
        plots=_indicator_plots(rows.every, report.made_at, "all") if len(families) > 1 else (),
        failures=rows.failures,
        failures_left=rows.failed - len(rows.failures),
        unplotted=max(0, len(families) - MAXIMUM_PLOTTED_FAMILIES),
    )


def link_of(origin: str) -> str:
    """A record's origin, if a browser may follow it: whoever wrote the record chose the text."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return origin if parts.scheme in ("http", "https") and parts.hostname else ""


# --- What is worst comes first.


def _by_need(report: Report) -> list[str]:
    missed = set(report.objectives.loc[report.objectives["result"] == str(Result.MISSED), "family"])

    def need(row: Mapping[str, Any]) -> tuple[int, str]:
        mood = _mood(row, row["family"] in missed)
        return -list(Mood).index(mood), row["family"]

    return [row["family"] for row in sorted(_records(report.frames.families), key=need)]


def _mood(row: Row, has_missed: bool) -> Mood:
    if row["state"] == FamilyState.COULD_NOT_TELL or (row["state"] != FamilyState.READY and row["committed"] == 0):
        return Mood.DOUBT  # a family that has published nothing has lost nothing either
    if row["state"] != FamilyState.READY or row["verdict"] == Outcome.FAIL:
        return Mood.BAD
    return Mood.DOUBT if has_missed or row["verdict"] != Outcome.PASS else Mood.GOOD


def _headline(families: Sequence[FamilyView]) -> str:
    resuming = sum(family.facts["would_resume"] == "yes" for family in families)
    if not families:
        return "No family is known yet"
    if len(families) == 1:
        answer = f"{families[0].name} {'would' if resuming else 'would not'} resume"
    elif resuming == len(families):
        answer = f"All {words.count(resuming)} families would resume"
    else:
        answer = f"{words.count(resuming)} of {words.count(len(families))} families would resume"
    # What resumes under a quarantine is an older, proven generation: silence would read as all being well.
    quarantined = sum(bool(family.quarantine) for family in families)
    if not quarantined:
        return answer
    return f"{answer}; {'it is' if len(families) == 1 else words.count(quarantined)} quarantined"


def _concern(family: FamilyView) -> Concern:
    return Concern(mood=family.mood, family=family.name, anchor=family.anchor, text=_trouble_of(family))


def _trouble_of(family: FamilyView) -> str:
    missed = f"misses {family.missed} objective{'s' if family.missed != 1 else ''}"
    if family.quarantine:
        return f"is quarantined: {family.cause}"
    if family.state == FamilyState.COULD_NOT_TELL:
        return "could not be read: nobody knows whether it would resume"
    if family.state != FamilyState.READY:
        nothing = "has published nothing yet" if family.facts["committed"] == "0" else f"has {family.state}"
        return f"{nothing}: {family.why}" if family.why else nothing
    if family.verdict != Outcome.PASS:
        return f"would resume, but is not proven: {family.why}"
    first = next((row for row in family.objectives if row["result"] == Result.MISSED), None)
    if first is None:
        return missed
    # The sentence says what should be, so the figures must follow it, or it reads as if it held.
    return f"{missed}: “{first['sentence']}”: found {first['measured'] or 'nothing'}, limit {first['limit']}"


# --- Rows of frames, by family.


class _Rows:
    """The frames cut by family, each once: to ask a frame for one family after the other would be quadratic."""

    def __init__(self, report: Report, anchors: Mapping[str, str]) -> None:
        frames = report.frames
        self.report, self.anchors = report, anchors
        gates = {"verify": frames.verifications, "restore": frames.restores, "drill": frames.drills}
        self.every: dict[str, pandas.DataFrame] = {**gates, "publishes": frames.publishes, "phases": frames.phases}
        self.states = {row["family"]: row for row in _records(frames.families)}
        self.indicators = {row["family"]: row for row in _records(report.indicators)}
        self.objectives = _by_family(report.objectives.sort_values("result", key=_missed_first, kind="stable"))
        self.criteria, self.checks = _by_family(frames.criteria), _by_family(frames.checks)
        self.newest = {
            gate: {row["family"]: row for row in _records(newest_of_each(records))} for gate, records in gates.items()
        }
        self.recovered = _recovered(frames.restores, frames.drills)
        self.saves = self._offered(frames.saves)
        failed = _unpassed(gates)
        self.failed = len(failed)
        self.failures = tuple(map(self._failure, _records(failed.head(MAXIMUM_FAILURES))))
        self._failures = _by_family(failed.groupby("family", sort=False).head(MAXIMUM_FAMILY_FAILURES))

    def frames(self, family: str) -> dict[str, pandas.DataFrame]:
        """The records and saves of one family: for the few that get plots."""
        return {name: frame[frame["family"] == family] for name, frame in self.every.items()}

    def failures_of(self, family: str) -> tuple[Failure, ...]:
        return tuple(map(self._failure, self._failures.get(family, ())))

    def _offered(self, saves: pandas.DataFrame) -> dict[tuple[str, str], Row]:
        """The saves that the page names: what would be resumed, and what was last good."""
        named = [(name, row[column]) for name, row in self.states.items() for column in ("latest", "last_good")]
        wanted = saves[pandas.MultiIndex.from_frame(saves[["family", "generation"]]).isin(named)] if named else saves
        return {(row["family"], row["generation"]): row for row in _records(wanted)}

    def _failure(self, row: Row) -> Failure:
        return Failure(
            family=row["family"],
            anchor=self.anchors.get(row["family"], ""),
            generation=row["generation"],
            gate=row["gate"],
            outcome=row["outcome"],
            finished=words.moment(row["finished_at"]),
            reasons=tuple(reason for reason in row["reasons"].split(",") if reason),
            message=row["message"],
            offender=row["offender"],
            hint=row["hint"],
            origin=link_of(row["origin"]),
        )


def _records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _by_family(frame: pandas.DataFrame) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _records(frame):
        found.setdefault(row["family"], []).append(row)
    return found


def _unpassed(gates: Mapping[str, pandas.DataFrame]) -> pandas.DataFrame:
    """Every run that failed or came to no conclusion, newest first."""
    cut = (str(Outcome.FAIL), str(Outcome.INCONCLUSIVE))
    found = pandas.concat([frame[frame["outcome"].isin(cut)].assign(gate=gate) for gate, frame in gates.items()])
    return found.sort_values(["finished_at", "generation"], ascending=False, kind="stable")


def _recovered(restores: pandas.DataFrame, drills: pandas.DataFrame) -> dict[str, tuple[int, int]]:
    """Of each family, how many restores and drills passed, and how many came to a conclusion."""
    both = pandas.concat([restores[["family", "outcome"]], drills[["family", "outcome"]]])
    found: dict[str, tuple[int, int]] = {}
    for row in _records(both.groupby(["family", "outcome"]).size().reset_index(name="runs")):
        passed, conclusive = found.get(row["family"], (0, 0))
        has_passed = row["outcome"] == Outcome.PASS
        counts = has_passed or row["outcome"] == Outcome.FAIL
        found[row["family"]] = (passed + row["runs"] * has_passed, conclusive + row["runs"] * counts)
    return found


def _missed_first(results: pandas.Series[Any]) -> pandas.Series[Any]:
    order = (Result.MISSED, Result.MET, Result.NOT_MEASURED, Result.NOT_SET)
    return results.map({str(result): place for place, result in enumerate(order)})


# --- One family.


def _family(rows: _Rows, name: str, *, plotted: bool) -> FamilyView:
    state, indicators = rows.states[name], rows.indicators[name]
    objectives = tuple({key: str(value) for key, value in row.items()} for row in rows.objectives.get(name, ()))
    missed = sum(row["result"] == Result.MISSED for row in objectives)
    latest, last_good = (rows.saves.get((name, state[column])) for column in ("latest", "last_good"))
    passed, conclusive = rows.recovered.get(name, (0, 0))
    would_resume = state["latest"] != "" and state["state"] != FamilyState.COULD_NOT_TELL
    now, anchor = rows.report.made_at, rows.anchors[name]
    plots: tuple[Plot, ...] = ()
    if plotted:
        frames = rows.frames(name)
        plots = (*_indicator_plots(frames, now, anchor), *_recovery_plots(frames, indicators, now, anchor))
    return FamilyView(
        name=name,
        anchor=anchor,
        uri=state["uri"],
        mood=_mood(state, missed > 0),
        state=state["state"],
        quarantine=state["quarantine"],
        cause=_cause(rows, name) if state["quarantine"] else "",
        verdict=state["verdict"],
        why=state["why"],
        latest=state["latest"] if would_resume else "",
        latest_step=words.count(latest["step"]) if latest else "",
        latest_age=_ago(latest["created_at"], now) if latest else "",
        last_good=state["last_good"],
        last_good_step=words.count(last_good["step"]) if last_good else "",
        candidates=words.count(state["candidates"]),
        proven=words.count(state["proven"]),
        creation=f"{words.count(state['committed'])} of {words.count(state['publishes_begun'])} publishes committed",
        recovery=f"{words.count(passed)} of {words.count(conclusive)} restores and drills passed",
        rto=_demanded(indicators["rto_p95_seconds"], indicators["rto_seconds_limit"], words.duration),
        rpo=_demanded(indicators["rpo_p95_steps"], indicators["rpo_steps_limit"], _steps),
        gates=_gates(rows, name),
        criteria=_criteria(rows.criteria.get(name, ())),
        objectives=objectives,
        missed=missed,
        checks=tuple({key: str(value) for key, value in row.items()} for row in rows.checks.get(name, ())),
        failures=rows.failures_of(name),
        plots=plots,
        facts={
            "state": state["state"],
            "would_resume": "yes" if would_resume else "no",
            "latest": state["latest"],
            "last_good": state["last_good"],
            "verdict": state["verdict"],
            "committed": str(state["committed"]),
            "publishes_begun": str(state["publishes_begun"]),
            "recovered": str(passed),
            "recoveries": str(conclusive),
            "rto_newest_seconds": _plain(indicators["rto_newest_seconds"]),
            "rpo_newest_steps": _plain(indicators["rpo_newest_steps"]),
        },
    )


def _cause(rows: _Rows, family: str) -> str:
    """Why a family is quarantined, in the words of the gate that failed it: a refusal's name is no reason."""
    operators = [name for name in rows.states[family]["quarantine"].split(",") if name.startswith("operator")]
    failed = (row for row in rows.failures_of(family) if row.outcome == Outcome.FAIL and row.gate != "verify")
    found = next(failed, None)
    if found is None or operators:
        return "by an operator; `lastgood status` shows the reason" if operators else "its gate's record says why"
    return f"{found.gate} of {found.generation} failed: {found.message}"


def _criteria(rows: Iterable[Row]) -> tuple[tuple[str, str, str], ...]:
    found = {row["criterion"]: row for row in rows}
    return tuple(
        (found[criterion]["held"], criterion.sentence, found[criterion]["detail"])
        if criterion in found
        else (str(Held.NOT_SHOWN), criterion.sentence, "")
        for criterion in Criterion
    )


def _gates(rows: _Rows, family: str) -> tuple[Gate, ...]:
    indicators = rows.indicators[family]
    overdue = int(indicators["overdue_generations"])
    patience = rows.report.settings[family].verify_age_seconds if family in rows.report.settings else None
    made = [
        _gate(
            rows,
            "verify",
            family,
            age=f"{words.count(overdue)} overdue" if overdue else "none overdue",
            limit=f"each within {words.duration(patience)}" if patience is not None else "",
            filled=None,
            is_late=overdue > 0,
        )
    ]
    for gate in ("restore", "drill"):
        age, limit = indicators[f"{gate}_age_seconds"], indicators[f"{gate}_age_seconds_limit"]
        made.append(
            _gate(
                rows,
                gate,
                family,
                age="never passed in full" if math.isnan(age) else f"passed {words.duration(age)} ago",
                limit="" if math.isnan(limit) else f"at most {words.duration(limit)}",
                filled=None if math.isnan(age) or math.isnan(limit) else min(age / limit, 1.0),
                is_late=math.isnan(age) or age > limit,
            )
        )
    return tuple(made)


def _gate(rows: _Rows, gate: str, family: str, *, age: str, limit: str, filled: float | None, is_late: bool) -> Gate:
    newest = rows.newest[gate].get(family)
    return Gate(
        name=gate,
        outcome=newest["outcome"] if newest else "",
        generation=newest["generation"] if newest else "",
        finished=words.moment(newest["finished_at"]) if newest else "",
        age=age,
        limit=limit,
        filled=filled,
        is_late=is_late,
        origin=link_of(newest["origin"]) if newest else "",
        advice="" if newest else f"lastgood {gate} {family}",
    )


def _ago(at: Any, now: datetime) -> str:
    return f"{words.duration((now - at).total_seconds())} ago" if pandas.notna(at) else ""


def _demanded(measured: float, limit: float, spoken: Callable[[float], str]) -> str:
    if math.isnan(measured):
        return words.NOT_MEASURED
    return spoken(measured) + ("" if math.isnan(limit) else f" (at most {spoken(limit)})")


def _steps(number: float) -> str:
    return f"{words.count(number)} step{'' if number == 1 else 's'}"


def _plain(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.10g}"


# --- Plots.

_OUTCOMES = ((Ink.PASS, "passed"), (Ink.FAIL, "failed"), (Ink.INCONCLUSIVE, "inconclusive"), (Ink.NOT_RUN, "not run"))


def _indicator_plots(frames: Mapping[str, pandas.DataFrame], now: datetime, key: str) -> tuple[Plot, ...]:
    """Creation and recovery over the same span of time, each for itself."""
    publishes = frames["publishes"][frames["publishes"]["outcome"] != UNDER_WAY]
    recoveries = pandas.concat([frames[gate][["outcome", "finished_at"]] for gate in ("restore", "drill")])
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


def _recovery_plots(
    frames: Mapping[str, pandas.DataFrame], indicators: Row, now: datetime, key: str
) -> tuple[Plot, ...]:
    made = [
        _phases(frames, indicators, f"{key}-rto"),
        _points(
            frames["drill"],
            {Ink.ONE: ("rpo_loss_steps", "steps lost")},
            limit=float(indicators["rpo_steps_limit"]),
            spoken=_steps,
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


def _phases(frames: Mapping[str, pandas.DataFrame], indicators: Row, key: str) -> Plot | None:
    """The newest recoveries, each split into its phases."""
    drills = frames["drill"][frames["drill"]["rto_seconds"].notna()].sort_values("finished_at", ascending=False)
    if drills.empty:
        return None
    parts = {
        found: dict(zip(rows["phase"], rows["seconds"], strict=True))
        for found, rows in frames["phases"].groupby(["generation", "attempt"], sort=False)
    }
    rows, numbers, used = [], [], dict[Ink, str]()
    for drill in _records(drills.head(MAXIMUM_STACKS)):
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
        spoken(newest[column]) + (f" {meaning}" if len(columns) > 1 else "") for column, meaning in columns.values()
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
            (words.moment(row["finished_at"]), *(_plain(row[name]) or "not measured" for name in names))
            for _, row in itertools.islice(measured.iloc[::-1].iterrows(), MAXIMUM_POINTS)
        ),
    )
