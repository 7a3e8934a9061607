"""The data-quality report as Prefect tasks: the ledger brought up to date, then the report written from it.

Decides what a run's page shows of a report, and how it ends; leaves all judging to `lastgood.report`, which is imported
only where it works, because it loads pandas and Great Expectations. Nothing is cached and no result is persisted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from prefect import State, task
from prefect.cache_policies import NO_CACHE

from lastgood.text import counted
from lastgood.verdict import Outcome
from lastgood_prefect import artifacts, escape
from lastgood_prefect.settings import read_settings
from lastgood_prefect.states import state_of

if TYPE_CHECKING:
    from lastgood.report.writing import Written

__all__ = ["conclude", "show", "summary", "update_ledger", "write_report"]

TIMEOUT = timedelta(hours=1)
MAXIMUM_MISSED = 50
"""Objectives that the run's page names; the readiness page shows all."""


@task(cache_policy=NO_CACHE, persist_result=False, timeout_seconds=TIMEOUT.total_seconds())
def update_ledger(families: Sequence[str]) -> Mapping[str, str]:
    """Read what is new on storage; family → why its store could not tell."""
    from lastgood.report.building import update_ledger

    return update_ledger(read_settings(), families)


@task(cache_policy=NO_CACHE, persist_result=False, timeout_seconds=TIMEOUT.total_seconds())
def write_report(families: Sequence[str], trouble: Mapping[str, str]) -> Written:
    """Judge every objective over what the ledger holds, and write page, Data Docs and metrics."""
    from lastgood.report.writing import write_report

    return write_report(read_settings(), families, trouble=trouble)


def show(written: Written) -> None:
    """Put the summary of a report, and the link to its page, on the page of the run."""
    settings = read_settings().report
    artifacts.show_markdown("readiness", summary(written), description="Objectives of every family")
    artifacts.show_page(settings)


def summary(written: Written) -> str:
    """A report in Markdown: a table of families, and every objective that is missed."""
    report = written.report
    lines = [
        f"## {artifacts.SIGNS[report.outcome]} {report.outcome.replace('_', ' ').upper()}",
        "",
        "| family | verdict | creation missed | recovery missed | state |",
        "|---|---|---|---|---|",
    ]
    for figures in report.indicators.to_dict("records"):
        own = report.objectives[report.objectives["family"] == figures["family"]]
        missed = own[own["result"] == "missed"]["area"].value_counts()
        cells = (
            escape.markdown(str(figures["family"])),
            f"{artifacts.SIGNS[Outcome(figures['verdict'])]} {str(figures['verdict']).replace('_', ' ')}",
            str(missed.get("creation", 0)),
            str(missed.get("recovery", 0)),
            escape.markdown(str(figures["state"])),
        )
        lines.append(f"| {' | '.join(cells)} |")
    told = [f"- {escape.markdown(line)}" for line in _missed(written)]
    more = [f"- …and {len(told) - MAXIMUM_MISSED} more"] if len(told) > MAXIMUM_MISSED else []
    return "\n".join([*lines, "", *told[:MAXIMUM_MISSED], *more])


def conclude(written: Written) -> State[Any]:
    """The final state of a run that wrote this report."""
    report = written.report
    if report.outcome is Outcome.PASS:
        families = counted(len(report.indicators), "family", "families")
        return state_of(Outcome.PASS, f"every objective of {families} is met")
    return state_of(report.outcome, "; ".join(_missed(written)))


def _missed(written: Written) -> Iterator[str]:
    report = written.report
    for family, why in report.trouble.items():
        yield f"{family}: could not tell: {why}"
    for row in report.objectives[report.objectives["result"] == "missed"].to_dict("records"):
        found = f" (found {row['measured']}, expected {row['limit']})" if row["measured"] else ""
        yield f"{row['family']}: {row['objective']}{found}"
