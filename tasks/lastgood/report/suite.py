"""Great Expectations at work: the indicators in, every objective's result out, and its Data Docs if they are wanted.

Decides how the suites are laid out: one for creation and one for recovery, so that not even a percentage of passed
expectations mixes the two. Rules: nothing is written but the pages that were asked for (no project, no home directory)
and nothing is sent; strings are escaped before they enter, because Great Expectations puts them into its pages as they
are; an expectation that raised is our error, never a result.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas

from lastgood.errors import LastgoodError
from lastgood.report.frames import TEXT
from lastgood.report.report import OBJECTIVE_COLUMNS, Area, Result
from lastgood.text import printable
from lastgood.verdict import FamilyState, Outcome

if TYPE_CHECKING:
    from lastgood.report.expectations import Expected

__all__ = ["Judged", "escaped", "judge_indicators", "spelled"]

SITE = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the suites said.

    Args:
        objectives: One row a family and objective; see `report.OBJECTIVE_COLUMNS`.
        outcome: Of all of them together.
        pages: Area → its page of Data Docs, relative to where they were built; empty when none were asked for.
    """

    objectives: pandas.DataFrame
    outcome: Outcome
    pages: Mapping[Area, str]


def escaped(text: str) -> str:
    """Text that Great Expectations may put into HTML, and through its own templates, as it is."""
    return html.escape(printable(text)).replace("$", "&#36;").replace("{", "&#123;").replace("}", "&#125;")


def judge_indicators(indicators: pandas.DataFrame, now: datetime, *, documents: Path | None = None) -> Judged:
    """Ask every expectation of every family.

    Args:
        indicators: From `indicators.measure`.
        now: When, for the run's name.
        documents: Where to build Great Expectations' own pages, raw (see `documents`); None: nowhere.

    Raises:
        LastgoodError: An expectation could not be asked.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read when it is imported
    from lastgood.report import expectations

    shown = indicators.copy()
    for column, kind in indicators.dtypes.items():
        if kind == TEXT:
            shown[column] = indicators[column].map(escaped).astype(TEXT)
    suites = {area: [one for one in expectations.EXPECTATIONS if one.area is area] for area in Area}
    ran = {}
    for area, asked in suites.items():
        extra = [expectations.EXPECT_FAMILIES] if area is Area.CREATION else []
        ran[area] = [*extra, *asked]
    results, has_families = _run(shown, ran, now, documents)
    rows = [row for asked in suites.values() for one in asked for row in _rows(one, indicators, shown, results[one])]
    objectives = pandas.DataFrame(rows, columns=list(OBJECTIVE_COLUMNS)).astype(dict(OBJECTIVE_COLUMNS))
    # By family, in the order of the indicators; within one, as the expectations are listed.
    order = {family: place for place, family in enumerate(indicators["family"])}
    objectives = objectives.sort_values("family", key=lambda names: names.map(order), kind="stable", ignore_index=True)
    pages = {area: _page(documents, area) for area in Area} if documents is not None else {}
    return Judged(objectives=objectives, outcome=_outcome(objectives, has_families), pages=pages)


def _outcome(objectives: pandas.DataFrame, has_families: bool) -> Outcome:
    missed = objectives[objectives["result"] == str(Result.MISSED)]
    if not has_families:
        return Outcome.FAIL
    if missed.empty:
        return Outcome.PASS
    unclear = set(objectives.loc[objectives["measured"] == FamilyState.COULD_NOT_TELL, "family"])
    is_unclear = missed["family"].isin(unclear)
    return Outcome.INCONCLUSIVE if is_unclear.all() else Outcome.FAIL


def _rows(
    one: type[Expected], indicators: pandas.DataFrame, shown: pandas.DataFrame, missed: frozenset[str]
) -> Iterable[dict[str, str]]:
    """The rows of one expectation: every family, met or not."""
    for (_, family), name in zip(indicators.iterrows(), shown["family"], strict=True):
        measured = family[one.measured]
        limit = family.get(one.limit, one.limit)
        if name in missed:
            result = Result.MISSED
        elif pandas.isna(limit):
            result = Result.NOT_SET
        else:
            result = Result.NOT_MEASURED if pandas.isna(measured) or measured == "" else Result.MET
        yield {
            "family": family["family"],
            "objective": one.objective,
            "area": str(one.area),
            "sentence": str(one.__fields__["description"].default),
            "result": str(result),
            "measured": spelled(measured, one.unit),
            "limit": spelled(limit, one.unit),
        }


def spelled(value: Any, unit: str) -> str:
    """A figure with its unit, as people read it; empty for none."""
    if isinstance(value, str):
        return value.replace("_", " ")
    if pandas.isna(value):
        return ""
    number = float(value)
    if unit == "seconds":
        return _duration(number)
    if unit == "ratio":
        # Rounded down: 99.96 % is not 100 %.
        return f"{int(number * 1000) / 10:g} %"
    return f"{number:g} {unit}".rstrip()


def _duration(seconds: float) -> str:
    for name, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {name}"
    return f"{seconds:.3g} s"


_Suites = Mapping[Area, list[Any]]


def _run(
    shown: pandas.DataFrame, suites: _Suites, now: datetime, documents: Path | None
) -> tuple[Mapping[type[Expected], frozenset[str]], bool]:
    """Run the suites; by expectation, the families that missed it, and whether there was any family at all."""
    import great_expectations
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    # Its own defaults would leave a directory for pages behind on every run.
    defaults = InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
    context = great_expectations.get_context(
        mode="ephemeral", project_config=DataContextConfig(store_backend_defaults=defaults)
    )
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    actions: list[great_expectations.checkpoint.actions.ValidationAction] = []
    if documents is not None:
        context.add_data_docs_site(SITE, _site(documents))
        actions.append(great_expectations.checkpoint.UpdateDataDocsAction(name="pages", site_names=[SITE]))
    batches = context.data_sources.add_pandas("ledger").add_dataframe_asset("families")
    batch = batches.add_batch_definition_whole_dataframe("newest")
    definitions = {}
    for area, asked in suites.items():
        suite = great_expectations.ExpectationSuite(name=str(area), expectations=[one.asked() for one in asked])
        context.suites.add(suite)
        definition = great_expectations.ValidationDefinition(name=str(area), data=batch, suite=suite)
        definitions[area] = context.validation_definitions.add(definition)
    checkpoint = context.checkpoints.add(
        great_expectations.Checkpoint(
            name="readiness",
            validation_definitions=list(definitions.values()),
            actions=actions,
            result_format={
                "result_format": "COMPLETE",
                "unexpected_index_column_names": ["family"],
                "return_unexpected_index_query": False,
            },
        )
    )
    ran = checkpoint.run(
        batch_parameters={"dataframe": shown}, run_id=RunIdentifier(run_name="readiness", run_time=now)
    )
    return _read(ran, suites)


def _read(ran: Any, suites: _Suites) -> tuple[Mapping[type[Expected], frozenset[str]], bool]:
    by_type = {one.expectation_type: one for asked in suites.values() for one in asked}
    missed: dict[type[Expected], frozenset[str]] = {}
    has_families = False
    for validation in ran.run_results.values():
        for answer in validation.results:
            one = by_type[answer.expectation_config.type]
            if not hasattr(one, "objective"):
                has_families = bool(answer.success)
                continue
            offenders = answer.result.get("unexpected_index_list")
            if not answer.success and not offenders:
                raise LastgoodError(f"expectation could not be asked: {one.__name__}: {answer.exception_info}")
            missed[one] = frozenset(str(offender["family"]) for offender in offenders or ())
    return missed, has_families


def _site(directory: Path) -> Any:
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(directory)},
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }


def _page(directory: Path, area: Area) -> str:
    """The validation page of one suite; there is one run, so there is one page."""
    found = sorted(directory.glob(f"validations/{area}/**/*.html"))
    return found[0].relative_to(directory).as_posix()
