"""How answers are printed: JSON for scripts, text for people, and nothing from a checkpoint unescaped."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from lastgood.errors import FormatError, StoreError
from lastgood.location import Location
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, parse_manifest
from lastgood.records import Measurements
from lastgood.redaction import redact_all
from lastgood.stores.port import Progress
from lastgood.text import printable, size

__all__ = [
    "age",
    "answer",
    "byte_bar",
    "complain",
    "discard_stdout",
    "emit_json",
    "json_option",
    "progress_bar",
    "reading",
    "say",
    "seconds",
    "stage_display",
    "table",
]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


def answer(text: str) -> None:
    """Print to stdout, exactly.

    A reader that went away (`lastgood verify | head`) has read enough: the exit code remains the verdict's.

    Raises:
        StoreError: The answer could not be written, so nobody may act as if it had been given.
    """
    try:
        click.echo(text)
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        discard_stdout()
        reason = os.strerror(error.errno or 0).lower()
        raise StoreError(f"cannot write the answer to standard output: {reason}") from error


def discard_stdout() -> None:
    """Leave the interpreter nothing that it could fail to flush at its end, which would change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def say(text: str) -> None:
    """Print to stdout, escaped; see `answer`."""
    answer(printable(text, keep_newlines=True))


def complain(message: str, hint: str | None) -> None:
    """Print one clear line to stderr, and the hint under it."""
    try:
        click.echo(f"lastgood: {printable(message)}", err=True)
        if hint:
            click.echo(f"hint: {printable(hint)}", err=True)
    except OSError:
        # A log on a full disk must not turn "could not tell" into another exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def emit_json(document: Any) -> None:
    """Print one JSON document without secrets; our documents keep their stored spelling."""
    answer(json.dumps(redact_all(msgspec.to_builtins(document)), indent=2, ensure_ascii=True))


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Columns as wide as their widest cell; escaped."""
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def reading(measured: Measurements) -> str:
    """What was read of a store, how long that took and how fast it was, or that nobody measured it."""
    if measured.read_bytes is None or measured.read_seconds is None:
        return "not measured"
    rate = measured.read_bytes_per_second
    fast = f" ({size(round(rate))}/s)" if rate is not None else ""
    return f"{size(measured.read_bytes)} in {seconds(measured.read_seconds)}{fast}"


def seconds(value: float | None) -> str:
    """A duration, or that nobody measured it."""
    return "not measured" if value is None else f"{value:.3f} s"


def age(moment: datetime, *, now: datetime | None = None) -> str:
    """How long ago, in one unit."""
    passed: timedelta = (now or datetime.now(UTC)) - moment
    seconds = max(0, int(passed.total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


@contextmanager
def progress_bar(doing: str, location: Location) -> Iterator[Progress | None]:
    """A bar on stderr while a generation is read, if anybody is looking; yields what to tell of the bytes done so far.

    Args:
        doing: What is done; stands before the bar.
        location: Names the generation, whose manifest says how long the bar is.
    """
    with byte_bar(doing, _listed_bytes(location) if sys.stderr.isatty() else 0) as progress:
        yield progress


@contextmanager
def byte_bar(doing: str, total_bytes: int) -> Iterator[Progress | None]:
    """A bar on stderr that is as long as so many bytes, if anybody is looking and it is worth the while.

    Args:
        doing: What is done; stands before the bar.
        total_bytes: What is done when all is done.
    """
    if total_bytes < 2**28 or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(doing), total=total_bytes)
        yield lambda done_bytes: bar.update(task, completed=done_bytes)


def _listed_bytes(location: Location) -> int:
    """What is wrong with the manifest is for the work itself to say."""
    key = location.keys.manifest(location.require_generation())
    try:
        data = location.store.get(key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
        return parse_manifest(data, key).total_bytes if data is not None else 0
    except (FormatError, StoreError):
        return 0


@contextmanager
def stage_display(work: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr which part of long work is under way, with the time that each takes; a line a part for a log.

    Args:
        work: What is done; stands before each line of a log.
    """
    if not sys.stderr.isatty():
        yield lambda stage: complain(f"{work}: {stage}", None)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:

        def begin(stage: str) -> None:
            finish()
            bar.add_task(printable(stage), total=1)

        def finish() -> None:
            for task in bar.tasks[-1:]:
                bar.update(task.id, completed=1)

        yield begin
        # Work that was broken off has finished no part.
        finish()
