"""What the readiness page says: a report condensed to values that a template can lay out.

Decides what is worth a place on the page, in which order, and how much of it; leaves how it looks to `page` and its
charts to `charts`. Pure. Rules: what is broken comes first, and its reason in the same sentence; creation and recovery
are two indicators and never one figure; every list has a named maximum and says what it left out; text is as the
checkpoint spelled it, for the template escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import pandas

from lastgood.criteria import Criterion, Held
from lastgood.report import words
from lastgood.report.charts import Plot, indicator_plots, recovery_plots
from lastgood.report.frames import are_decisive, newest_of_each, rows_of
from lastgood.report.report import Report, Result
from lastgood.verdict import FamilyState, Outcome

__all__ = ["FamilyView", "Mood", "PageView", "link_of", "view_of"]

MAXIMUM_PLOTTED_FAMILIES = 8
"""A plot takes a tenth of a second; the families that need attention come first, the rest keep their figures."""
MAXIMUM_FAILURES, MAXIMUM_FAMILY_FAILURES = 30, 5
MAXIMUM_CONCERNS = 6

Row = Mapping[str, Any]


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
        read: What the newest record read of the store, in which time and how fast; empty where nobody measured it.
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
    read: str
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
        plots=indicator_plots(rows.every, report.made_at, "all") if len(families) > 1 else (),
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

    return [row["family"] for row in sorted(rows_of(report.frames.families), key=need)]


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
        self.states = {row["family"]: row for row in rows_of(frames.families)}
        self.indicators = {row["family"]: row for row in rows_of(report.indicators)}
        self.objectives = _by_family(report.objectives.sort_values("result", key=_missed_first, kind="stable"))
        self.criteria, self.checks = _by_family(frames.criteria), _by_family(frames.checks)
        self.newest = {
            gate: {row["family"]: row for row in rows_of(newest_of_each(records))} for gate, records in gates.items()
        }
        self.recovered = _recovered(frames.restores, frames.drills)
        self.saves = self._offered(frames.saves)
        failed = _unpassed(gates)
        self.failed = len(failed)
        self.failures = tuple(map(self._failure, rows_of(failed.head(MAXIMUM_FAILURES))))
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
        return {(row["family"], row["generation"]): row for row in rows_of(wanted)}

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


def _by_family(frame: pandas.DataFrame) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(frame):
        found.setdefault(row["family"], []).append(row)
    return found


def _unpassed(gates: Mapping[str, pandas.DataFrame]) -> pandas.DataFrame:
    """Every run that failed or came to no conclusion, newest first."""
    cut = (str(Outcome.FAIL), str(Outcome.INCONCLUSIVE))
    found = pandas.concat([frame[frame["outcome"].isin(cut)].assign(gate=gate) for gate, frame in gates.items()])
    return found.sort_values(["finished_at", "generation"], ascending=False, kind="stable")


def _recovered(restores: pandas.DataFrame, drills: pandas.DataFrame) -> dict[str, tuple[int, int]]:
    """Of each family, how many restores and drills passed in full, and how many came to a conclusion."""
    both = pandas.concat([frame.loc[are_decisive(frame), ["family", "outcome"]] for frame in (restores, drills)])
    found: dict[str, tuple[int, int]] = {}
    for row in rows_of(both.groupby(["family", "outcome"]).size().reset_index(name="runs")):
        passed, conclusive = found.get(row["family"], (0, 0))
        has_passed = row["outcome"] == Outcome.PASS
        found[row["family"]] = (passed + row["runs"] * has_passed, conclusive + row["runs"])
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
        plots = (*indicator_plots(frames, now, anchor), *recovery_plots(frames, indicators, now, anchor))
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
        rpo=_demanded(indicators["rpo_p95_steps"], indicators["rpo_steps_limit"], words.steps),
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
            "rto_newest_seconds": words.plain(indicators["rto_newest_seconds"]),
            "rpo_newest_steps": words.plain(indicators["rpo_newest_steps"]),
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
        read=_read(newest) if newest else "",
        origin=link_of(newest["origin"]) if newest else "",
        advice="" if newest else f"lastgood {gate} {family}",
    )


def _read(record: Row) -> str:
    rate = record.get("read_bytes_per_second", math.nan)
    if math.isnan(rate):
        return ""
    return f"{words.size(record['read_bytes'])} in {words.duration(record['read_seconds'])}, {words.rate(rate)}"


def _ago(at: Any, now: datetime) -> str:
    return f"{words.duration((now - at).total_seconds())} ago" if pandas.notna(at) else ""


def _demanded(measured: float, limit: float, spoken: Callable[[float], str]) -> str:
    if math.isnan(measured):
        return words.NOT_MEASURED
    return spoken(measured) + ("" if math.isnan(limit) else f" (at most {spoken(limit)})")
