"""`lastgood copy`: a second copy of a family, by hand or from cron."""

from __future__ import annotations

from pathlib import Path

import click

from lastgood.cli.output import emit_json, json_option, say, stage_display
from lastgood.cli.settings import config_option, configured, find_family, no_such_family
from lastgood.copying import CopyResult, Selection, Standing, copy_family
from lastgood.errors import StorePermanentError, UsageError
from lastgood.family import Family
from lastgood.location import Location
from lastgood.text import counted, size
from lastgood.verdict import Outcome

__all__ = ["copy_command"]


@click.command("copy")
@click.argument("what", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--newest", type=click.IntRange(min=1), help="Of a family: that many of its newest.  [default: 1]")
@click.option("--all", "every", is_flag=True, help="Of a family: everything that may be offered.")
@config_option
@json_option
def copy_command(
    what: str, destination: str, newest: int | None, every: bool, config: Path | None, as_json: bool
) -> int:
    """Copy the family or generation SRC to DST, a root or a family of the same name, in another store.

    Of a family its newest generations that are not barred, and always the newest proven one; a generation that SRC
    names is copied whatever became of it. Bytes that are wrong at SRC are never sent on, SRC is never written, and
    DST shows a generation when all of it was read back there. The same command takes up a copy that was interrupted.

    SRC may be a family of lastgood.toml, by its name.
    """
    source, settings = find_family(what, config)
    if every and newest is not None:
        raise UsageError("--all and --newest: expected one of them")
    if source.generation is not None and (every or newest is not None):
        raise UsageError(f"--all and --newest choose among generations: {what} names one already")
    if not Family(source).exists():
        raise no_such_family(source, settings)
    target = _target(destination, source, config)
    if not target.store.is_root():
        raise StorePermanentError(
            f"destination is not a root: {target.store.uri}: expected a directory or a bucket to copy into",
            hint="make it first, or is its file system not mounted?",
        )
    selection = Selection(newest=None if every else newest or 1)
    with stage_display("copy") as announce:
        result = copy_family(source, target, selection, announce=announce)
    if as_json:
        emit_json(result)
    else:
        say("\n".join(_told(result)))
    return Outcome.PASS.exit_code if result.is_whole else Outcome.FAIL.exit_code


def _target(uri: str, source: Location, config: Path | None) -> Location:
    """A destination that ends in the family's name is the family; any other is the root above it."""
    family = source.keys.family
    above = uri.rstrip("/")
    named = above if above.rpartition("/")[2] == family else f"{above}/{family}"
    return configured(config).locate(named)


def _told(result: CopyResult) -> list[str]:
    lines = [f"{result.source} -> {result.destination}"]
    for one in result.generations:
        told = {
            Standing.COPIED: f"copied, {size(one.copied_bytes)} read",
            Standing.KEPT: "there already",
            Standing.REFUSED: f"not copied: {counted(len(one.findings), 'finding')} in {one.blamed}",
        }[one.standing]
        lines.append(f"  {one.generation}  {told}")
        for finding in one.findings:
            lines += [f"    {finding.reason}: {finding.message}", f"    hint: {finding.hint}"]
    if not result.generations:
        lines.append("  nothing that may be offered: only documents were copied")
    return [*lines, f"  {counted(result.documents, 'document')}, {result.seconds:.1f} s"]
