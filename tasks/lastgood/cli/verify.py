"""`lastgood verify`: tier 1 by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import click

from lastgood.cli.evidence import junit_option, keep_evidence, write_junit
from lastgood.cli.output import complain, emit_json, json_option, progress_bar, say
from lastgood.cli.settings import config_option, find_ours, find_place, look_deeper, no_such_place
from lastgood.config import FamilySettings
from lastgood.errors import FormatError, StorePermanentError, UsageError
from lastgood.family import Family
from lastgood.formats.source import open_source
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.verdict import Outcome, Verdict, waive, worst_exit_code
from lastgood.verify import Depth, render_verdict, repair_pointers, verify_family

__all__ = ["verify_command"]


@click.command("verify")
@click.argument("what", metavar="URI|NAME")
@click.option("--all", "every", is_flag=True, help="Of a family: every generation that it keeps, not only the newest.")
@click.option("--metadata", is_flag=True, help="Existence and sizes only; reads no payload.")
@click.option("--read-all", is_flag=True, help="Every byte, also where lastgood.toml asks for a slice.")
@click.option("--repair", is_flag=True, help="Of a family: rewrite pointers and caches that lag.")
@click.option("--no-record", is_flag=True, help="Leave no evidence and change nothing, whatever is found.")
@config_option
@junit_option
@json_option
def verify_command(
    what: str,
    every: bool,
    metadata: bool,
    read_all: bool,
    repair: bool,
    no_record: bool,
    config: Path | None,
    junit: Path | None,
    as_json: bool,
) -> int:
    """Compare the generation URI with its manifest, byte for byte; of a family, its pointers and newest generation.

    Of a checkpoint that another framework wrote and nobody sealed: whether it is whole, by its own files and the
    checksums inside them; of a directory of such, what its pointer says and the newest one. Nothing is recorded then.

    Where lastgood.toml lets a store's saves be read in rotation, the next slice is read and the verdict says so.

    NAME is a family of lastgood.toml, whose ignored checks are waived with their written reasons.

    The verdict is recorded: a fail bars the generation until an operator rolls back or publishes a newer one.
    """
    begin = datetime.now(UTC)
    location, settings = find_ours(what, config)
    if location is None:
        if repair:
            raise UsageError(f"--repair mends pointers of ours: {what} is no family")
        verdicts = _foreign(what, settings, config, every=every, metadata=metadata)
        emit_json(verdicts) if as_json else say("\n\n".join(render_verdict(verdict) for verdict in verdicts))
        return worst_exit_code([*(one.outcome.exit_code for one in verdicts), write_junit(junit, verdicts, begin)])
    family = Family(location, ignored=settings.ignored if settings else None)
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
            judged = family.judge(generation, depth=depth, read_all=read_all, progress=progress)
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


def _foreign(
    what: str, settings: FamilySettings | None, config: Path | None, *, every: bool, metadata: bool
) -> list[Verdict]:
    place = find_place(what, config)
    if not place.store.is_root():
        raise StorePermanentError(f"root is not a directory: {place.store.uri}", hint="is the file system mounted?")
    source = open_source(place.store, place.key)
    if source is None:
        raise no_such_place(place, settings)
    # Imported when it is asked for: the gate of a save of ours never is.
    from lastgood.formats.verdicts import verify_place

    ignored = settings.ignored if settings else {}
    found = verify_place(place, source, every=every, read_payload=not metadata)
    if not source.is_file and len(found) == 1 and found[0].outcome is Outcome.INCONCLUSIVE:
        below = f"`lastgood inspect --recursive {place.uri}` says what lies there"
        complain(look_deeper(place.store, place.key, place.uri) or below, None)
    return [waive(verdict, ignored) for verdict in found]


def _chosen(location: Location, every: bool) -> tuple[GenerationId, ...]:
    if location.generation is not None:
        return (location.generation,)
    family = Family(location)
    try:
        candidates = family.survey().candidates
    except FormatError:
        return ()  # the family's own verdict names what cannot be read
    held = (one for one in candidates if not family.is_burned(one))  # a slot that was given up holds nothing
    return tuple(held if every else islice(held, 1))
