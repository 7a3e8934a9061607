"""`lastgood report`: the ledger brought up to date, every objective judged, the readiness page written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lastgood.cli.output import emit_json, json_option, say, table
from lastgood.cli.settings import config_option, configured
from lastgood.errors import UsageError

if TYPE_CHECKING:
    from lastgood.report.writing import Written

__all__ = ["report_command"]


@click.command("report")
@click.argument("families", nargs=-1, metavar="[NAME]...")
@config_option
@json_option
def report_command(families: tuple[str, ...], config: Path | None, as_json: bool) -> int:
    """Report on families of lastgood.toml: what the ledger holds, against the objectives that the file sets.

    NAME is a family of the file; without any: each of them. Writes the readiness page, Great Expectations' Data Docs,
    metrics for Prometheus and a JSON document into the directory of `[report]`. Exit 0 when every objective is met, 1
    when one is missed, 2 when a family could not tell.
    """
    configuration = configured(config)
    try:
        from lastgood.report.building import update_ledger
        from lastgood.report.writing import document_of, write_report
    except ModuleNotFoundError as error:
        raise UsageError(f"not installed: {error.name}", hint="`pip install 'lastgood[report]'`") from None
    trouble = update_ledger(configuration, families)
    written = write_report(configuration, families, trouble=trouble)
    if as_json:
        emit_json(document_of(written.report))
    else:
        say(_text(written))
    return written.report.outcome.exit_code


def _text(written: Written) -> str:
    report = written.report
    rows = []
    for figures in report.indicators.to_dict("records"):
        own = report.objectives[report.objectives["family"] == figures["family"]]
        counted = {area: own[own["area"] == area]["result"].value_counts() for area in ("creation", "recovery")}
        rows.append(
            (
                str(figures["family"]),
                str(figures["verdict"]).replace("_", " "),
                *(f"{found.get('missed', 0)} of {int(found.sum())} missed" for found in counted.values()),
                str(figures["state"]),
            )
        )
    lines = [table(rows, ("family", "verdict", "creation", "recovery", "state"))]
    for row in report.objectives[report.objectives["result"] == "missed"].to_dict("records"):
        found = f" (found {row['measured']}, expected {row['limit']})" if row["measured"] else ""
        lines.append(f"  missed  {row['family']}: {row['objective']}: {row['sentence']}{found}")
    lines.extend(f"  store   {family}: {why}" for family, why in report.trouble.items())
    return "\n".join([*lines, f"  page    {written.page}"])
