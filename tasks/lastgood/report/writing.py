"""A report on disk: the page, Great Expectations' pages, the metrics and one JSON document, in one directory.

Decides the names there, which links and scrapers rely on, and their order. Rules: each file is replaced whole, and what
it links to is there before it, so that a reader never meets half a report and a full disk keeps the former one; pages
of Great Expectations lie in a directory of their own for each report, and the newest two stay, for whoever has the page
before this one open.

    index.html            the readiness page
    lastgood.prom         for Prometheus' textfile collector
    report.json           what `lastgood report --json` prints
    data-docs-<time>/     Great Expectations' pages, one set a report
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from lastgood.config import Configuration
from lastgood.handover import replace_file
from lastgood.report.building import build_report
from lastgood.report.documents import finish_documents
from lastgood.report.metrics import write_metrics
from lastgood.report.page import write_page
from lastgood.report.report import Area, Report, Result

__all__ = ["METRICS", "PAGE", "Written", "document_of", "write_report"]

PAGE = "index.html"
METRICS = "lastgood.prom"
DOCUMENT = "report.json"
DATA_DOCS = "data-docs-"
KEPT_DATA_DOCS = 2
UNFINISHED = ".unfinished-"
DEAD_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A report, and where it was written: the page, and the directory that holds it."""

    report: Report
    page: Path

    @property
    def directory(self) -> Path:
        return self.page.parent


def write_report(
    configuration: Configuration,
    families: Sequence[str] | None = None,
    *,
    trouble: Mapping[str, str] | None = None,
    now: datetime | None = None,
) -> Written:
    """Build the report on what the ledger holds, and put it into the directory of `[report]`.

    Args:
        configuration: Families, their objectives, where the ledger is and where the report goes.
        families: Only these; None: every configured one.
        trouble: From `building.update_ledger`.
        now: What ages count up to, aware; None: this moment.

    Raises:
        UsageError: A family is not configured, or none is.
        LedgerError: The ledger's database did not answer.
        OSError: Not written; the former report is still there.
    """
    now = now or datetime.now(UTC)
    directory = Path(configuration.report.directory)
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix=UNFINISHED, dir=directory))
    try:
        report, pages = build_report(configuration, families, now=now, trouble=trouble, documents=unfinished)
        finish_documents(unfinished, pages, _met(report), now)
        data_docs = f"{DATA_DOCS}{now:%Y%m%dT%H%M%S.%fZ}"
        unfinished.chmod(0o755)  # made for its owner alone, where a web server reads as another
        unfinished.rename(directory / data_docs)
    except BaseException:
        rmtree(unfinished, ignore_errors=True)
        raise
    try:
        write_page(report, directory / PAGE, data_docs=f"{data_docs}/index.html")
    except BaseException:
        rmtree(directory / data_docs, ignore_errors=True)
        raise
    write_metrics(report, directory / METRICS)
    replace_file(directory / DOCUMENT, json.dumps(document_of(report), indent=2, ensure_ascii=True).encode())
    _sweep(directory)
    return Written(report=report, page=directory / PAGE)


def _met(report: Report) -> dict[Area, bool]:
    missed = report.objectives[report.objectives["result"] == str(Result.MISSED)]
    return {area: str(area) not in set(missed["area"]) for area in Area}


def document_of(report: Report) -> dict[str, Any]:
    """A report as one JSON document: its outcome, every family's figures, and every objective."""
    asked: dict[str, list[dict[str, Any]]] = {}
    for row in report.objectives.to_dict("records"):
        asked.setdefault(row.pop("family"), []).append({str(name): value for name, value in row.items()})
    standings = report.frames.families.set_index("family")
    return {
        "made_at": report.made_at.isoformat(),
        "outcome": str(report.outcome),
        "families": [
            {
                "family": (family := figures.pop("family")),
                "uri": str(standings.at[family, "uri"]),
                "why": str(standings.at[family, "why"]),
                "trouble": report.trouble.get(family),
                "indicators": {name: _plain(value) for name, value in figures.items()},
                "objectives": asked[family],
            }
            for figures in report.indicators.astype(object).to_dict("records")
        ],
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _sweep(directory: Path) -> None:
    """Remove what no page leads to any more, and what a killed report left."""
    old = sorted(directory.glob(f"{DATA_DOCS}*"))[:-KEPT_DATA_DOCS]
    # A younger one may be under way in another process.
    dead = [path for path in directory.glob(f"{UNFINISHED}*") if time.time() - path.stat().st_mtime > DEAD_SECONDS]
    for path in (*old, *dead):
        rmtree(path, ignore_errors=True)
