"""Putting a verdict on record without losing it: who waited an hour for it must see it on a full disk too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from lastgood.cli.output import complain
from lastgood.errors import LastgoodError, StoreError
from lastgood.family import Family
from lastgood.handover import replace_file
from lastgood.identity import GenerationId
from lastgood.junit import render_junit
from lastgood.records import Measurements
from lastgood.verdict import Verdict

__all__ = ["junit_option", "keep_evidence", "write_junit"]

junit_option = click.option(
    "--junit",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the verdict as JUnit XML into this file.",
)


def keep_evidence(
    family: Family,
    verdict: Verdict,
    generation: GenerationId,
    started_at: datetime,
    measurements: Measurements,
    *,
    attempt: int | None = None,
) -> int:
    """Record a verdict, and return the exit code of the command that prints it.

    A fail stays a fail. A pass that is not on record proves nothing to anybody else, so it is "could not tell".
    """
    try:
        family.keep(verdict, generation, started_at, measurements, attempt=attempt)
    except LastgoodError as error:
        complain(f"evidence not kept: {error.message}", error.hint or "--no-record only looks")
        return verdict.outcome.exit_code or StoreError.exit_code
    return verdict.outcome.exit_code


def write_junit(path: Path | None, verdicts: Sequence[Verdict], started_at: datetime) -> int:
    """Write verdicts where a build looks for its test results; return the exit code of not having been able to."""
    if path is None:
        return 0
    seconds = (datetime.now(UTC) - started_at).total_seconds()
    try:
        document = render_junit(verdicts, started_at=started_at, seconds=seconds)
        if _is_passage(path):
            path.write_bytes(document)
        else:
            replace_file(path, document)
    except OSError as error:
        complain(f"JUnit file not written: {path}: {os.strerror(error.errno or 0).lower()}", None)
        return StoreError.exit_code
    return 0


def _is_passage(path: Path) -> bool:
    """Whether a name stands for a pipe, a terminal or a device, which is written to; root could replace /dev/null."""
    return path.absolute().is_relative_to("/dev") or path.is_fifo() or path.is_char_device()
