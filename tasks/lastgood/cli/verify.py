"""`lastgood verify`: tier 1 by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from lastgood.cli.evidence import junit_option, keep_evidence, write_junit
from lastgood.cli.output import emit_json, json_option, progress_bar, say
from lastgood.cli.settings import config_option, find_family, no_such_family
from lastgood.errors import FormatError, UsageError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.verdict import waive, worst_exit_code
from lastgood.verify import Depth, render_verdict, repair_pointers, verify_family

__all__ = ["verify_command"]


@click.command("verify")
@click.argument("what", metavar="URI|NAME")
@click.option("--all", "every", is_flag=True, help="Of a family: every generation that it keeps, not only the newest.")
@click.option("--metadata", is_flag=True, help="Existence and sizes only; reads no payload.")
@click.option("--repair", is_flag=True, help="Of a family: rewrite pointers and caches that lag.")
@click.option("--no-record", is_flag=True, help="Leave no evidence and change nothing, whatever is found.")
@config_option
@junit_option
@json_option
def verify_command(
    what: str,
    every: bool,
    metadata: bool,
    repair: bool,
    no_record: bool,
    config: Path | None,
    junit: Path | None,
    as_json: bool,
) -> int:
    """Compare the generation URI with its manifest, byte for byte; of a family, its pointers and newest generation.

    NAME is a family of lastgood.toml, whose ignored checks are waived with their written reasons.

    The verdict is recorded: a fail bars the generation until an operator rolls back or publishes a newer one.
    """
    begin = datetime.now(UTC)
    location, settings = find_family(what, config)
    family = Family(location, ignored=settings.ignored if settings else None)
    if not family.exists():
        raise no_such_family(location, settings)
    if repair:
        if location.generation is not None:
            raise UsageError(f"--repair mends a family's pointers: {what} names a generation")
        repair_pointers(location.store, location.keys)
    verdicts, codes = [], []
    if location.generation is None:
        found = verify_family(location.store, location.keys)
        verdicts.append(waive(found, settings.ignored if settings else {}))
    for generation in _chosen(location, every):
        depth = Depth.METADATA if metadata else Depth.FULL
        with progress_bar(f"verify {generation}", replace(location, generation=generation)) as progress:
            judged = family.judge(generation, depth=depth, progress=progress)
        verdicts.append(judged.verdict)
        if not no_record:
            # At once: a sweep over many generations takes hours, and may be interrupted.
            codes.append(keep_evidence(family, judged.verdict, generation, judged.started_at, judged.measurements))
    if as_json:
        emit_json(verdicts if location.generation is None else verdicts[0])
    else:
        say("\n\n".join(render_verdict(verdict) for verdict in verdicts))
    codes += [verdict.outcome.exit_code for verdict in verdicts]
    codes.append(write_junit(junit, verdicts, begin))
    return worst_exit_code(codes)


def _chosen(location: Location, every: bool) -> tuple[GenerationId, ...]:
    if location.generation is not None:
        return (location.generation,)
    try:
        candidates = Family(location).survey().candidates
    except FormatError:
        return ()  # the family's own verdict names what cannot be read
    return candidates if every else candidates[:1]
