"""`lastgood seal`: adopt a checkpoint that another framework wrote, where it lies."""

from __future__ import annotations

import errno
from datetime import datetime
from pathlib import Path

import click

from lastgood.cli.output import byte_bar, complain, emit_json, json_option, say
from lastgood.cli.settings import config_option, find_place
from lastgood.errors import SealRefused, StorePermanentError, UsageError
from lastgood.formats.examination import open_place
from lastgood.formats.recognition import recognise
from lastgood.formats.sealing import Sealed, Wish, seal
from lastgood.formats.source import Source
from lastgood.formats.trees import find_checkpoints, saved_around
from lastgood.location import Place
from lastgood.text import counted, natural_order, size

__all__ = ["seal_command"]

MAXIMUM_NAMED = 5
NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
KEEP_ELSEWHERE = (
    'of a tree that may only be read, the evidence goes elsewhere: [stores."<root>"] with `evidence` in lastgood.toml'
)


@click.command("seal")
@click.argument("uri")
@click.option("--step", type=click.IntRange(min=0), help="Completed optimizer steps, where the files do not tell.")
@click.option("--world-size", type=click.IntRange(min=1), help="Ranks that saved, where the files do not tell.")
@click.option("--as-of", metavar="TIME", help="When it was saved (2026-01-31T12:00:00Z).  [default: its last change]")
@click.option("--weights-only", is_flag=True, help="Seal an export that no training can resume, as what it is.")
@click.option("--reason", help="A sentence for whoever reads the audit.")
@config_option
@json_option
def seal_command(
    uri: str,
    step: int | None,
    world_size: int | None,
    as_of: str | None,
    weights_only: bool,
    reason: str | None,
    config: Path | None,
    as_json: bool,
) -> int:
    """Adopt the checkpoint at URI, a directory or a single file, where it lies; then every tier works on it.

    Writes a manifest and a COMMIT into .lastgood beside it and never into it. Refuses what is damaged, unfinished or
    being written. The same command again, also at the same time, changes nothing.
    """
    wish = Wish(step=step, world_size=world_size, as_of=_moment(as_of), weights_only=weights_only, reason=reason)
    try:
        place = find_place(uri, config)
        source = open_place(place)
        _refuse_directory(place, source)
        _refuse_part(place, source)
        total_bytes = sum(found.bytes for found in source.files.values())
        # Read twice: against the checksums inside it, then for digests of our own.
        with byte_bar(f"seal {place.name}", 2 * total_bytes) as progress:
            sealed = seal(place, wish, progress=progress)
    except SealRefused as error:
        for finding in error.findings[:20]:
            complain(f"{finding.reason}: {finding.message}", finding.hint)
        raise
    except StorePermanentError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in NOT_WRITABLE and ".lastgood" in str(cause.filename):
            raise StorePermanentError(error.message, hint=KEEP_ELSEWHERE) from error
        raise
    if as_json:
        emit_json(
            {
                "uri": sealed.location.uri,
                "generation": sealed.manifest.generation,
                "is_new": sealed.is_new,
                "manifest": sealed.manifest,
            }
        )
    else:
        say("\n".join(_told(sealed)))
    return 0


def _refuse_directory(place: Place, source: Source) -> None:
    """A directory of checkpoints is no damaged one: what is found of it would be told as if it were."""
    if source.is_file or recognise(source) is not None:
        return
    names = [found.name for found in find_checkpoints(place.store, place.key, deep=False)]
    if names:
        names.sort(key=natural_order)
        more = f" and {len(names) - MAXIMUM_NAMED} more" if len(names) > MAXIMUM_NAMED else ""
        raise UsageError(
            f"this is a directory of checkpoints: {place.uri}: seal one of {', '.join(names[:MAXIMUM_NAMED])}{more}"
        )
    below = next(find_checkpoints(place.store, place.key, on_trouble=lambda _key, _error: None), None)
    if below is not None:
        raise UsageError(
            f"not a checkpoint, nor the directory of any: {place.uri}: checkpoints lie deeper, e.g. in "
            f"{place.store.uri.rstrip('/')}/{below.parent}",
            hint=f"`lastgood inspect --recursive {place.uri}` lists them; seal them one by one",
        )


def _refuse_part(place: Place, source: Source) -> None:
    """What a checkpoint holds is not sealed by itself: `.lastgood` would be written into that checkpoint."""
    framework = saved_around(source)
    if framework is not None:
        uri = place.uri.rpartition("/")[0]
        raise UsageError(
            f"a part of a checkpoint: {place.uri}: {framework} saved it in {uri}",
            hint=f"lastgood seal {uri} adopts all of it, and writes nothing into it",
        )


def _told(sealed: Sealed) -> list[str]:
    manifest = sealed.manifest
    files, ranks = counted(len(manifest.artifacts), "file"), counted(manifest.job.topology.world_size, "rank")
    done = "sealed" if sealed.is_new else "sealed before, and unchanged:"
    return [
        f"{done} {sealed.location.uri} as {manifest.generation}",
        f"  {files}, {size(manifest.total_bytes)}; step {manifest.step}; {ranks}",
        f"next: lastgood verify {sealed.location.uri}",
    ]


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"not a time: --as-of {text!r}: {error}") from error
    if moment.tzinfo is None:
        raise UsageError(f"time without a zone: --as-of {text!r}", hint="end it with Z for UTC, or with an offset")
    return moment
