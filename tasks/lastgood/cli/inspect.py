"""`lastgood inspect`: what a family, a generation or anybody's checkpoint is, on one screen for a tired person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from lastgood.cli.foreign import (
    COULD_NOT_TELL,
    Looked,
    as_document,
    exit_code_of_many,
    link_lines,
    screen,
    summary,
    tree_progress,
)
from lastgood.cli.output import age, byte_bar, complain, emit_json, json_option, say, table
from lastgood.cli.refusals import refusal_lines
from lastgood.cli.settings import config_option, find_ours, find_place, no_such_place
from lastgood.cli.standing import Standing, Standings, state_of
from lastgood.config import FamilySettings
from lastgood.errors import FormatError, LastgoodError, StoreError, StorePermanentError, UsageError
from lastgood.family import Family
from lastgood.formats.description import Restorability
from lastgood.formats.examination import Examination, examine
from lastgood.formats.root import Root
from lastgood.formats.sealing import is_numbered_by_accelerate
from lastgood.formats.source import Source, open_source
from lastgood.formats.structural import framework_choice
from lastgood.formats.trees import find_checkpoints, is_one_checkpoint, saved_around
from lastgood.identity import GenerationId
from lastgood.location import Location, Place
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, JobDescription, Manifest, parse_manifest
from lastgood.protocol import Survey
from lastgood.stores.port import ObjectKind
from lastgood.text import counted, natural_order, printable, size
from lastgood.verify import Depth

__all__ = ["inspect_command"]


@click.command("inspect")
@click.argument("what", metavar="URI|NAME")
@click.option("--deep", is_flag=True, help="Of another framework's checkpoint: compare every byte with its checksum.")
@click.option("--recursive", is_flag=True, help="Every checkpoint below URI: which of them could be resumed?")
@config_option
@json_option
def inspect_command(what: str, deep: bool, recursive: bool, config: Path | None, as_json: bool) -> int:
    """Show what lies at URI: a family, a generation, or checkpoints that another framework wrote.

    Of the latter: framework, step, topology, components, what is wrong, what its own loader would make of that, and
    whether training can resume from it. NAME is a family of lastgood.toml.

    Exit codes of another framework's checkpoint: 0 it can be resumed, 1 it cannot or is refused, 2 nobody can tell; of
    many: 0 one of them can, 1 none, 2 no checkpoint was recognised, or something could not be read.
    """
    location, settings = find_ours(what, config)
    if recursive or location is None or (location.generation is not None and location.generation.name):
        return _foreign(what, settings, deep=deep, recursive=recursive, config=config, as_json=as_json)
    family = Family(location)
    survey = family.survey()
    if location.generation is None:
        rows = [_row(location, survey, generation) for generation in _all(survey)]
        if as_json:
            for line in refusal_lines(location, survey.quarantine):
                complain(f"{location.family_uri} is quarantined: {line}", None)
            emit_json(rows)
        else:
            columns = ("generation", "step", "state", "ranks", "artifacts", "bytes", "created")
            cells = [[str(row[column]) for column in columns] for row in rows]
            lines = [
                f"{location.family_uri}: {counted(len(rows), 'generation')}",
                *(f"  QUARANTINED  {line}" for line in refusal_lines(location, survey.quarantine)),
                table(cells, columns),
                *_beside(location, survey),
            ]
            say("\n".join(lines))
        return 0
    manifest = _manifest(location, location.generation)
    state = state_of(survey, location.generation)
    refused = refusal_lines(location, survey.barred.get(location.generation, ()))
    if as_json:
        emit_json({"uri": location.uri, "state": state, "refused": refused, "manifest": manifest})
    else:
        say(_text(location, manifest, state, refused))
    return 0


def _foreign(
    what: str, settings: FamilySettings | None, *, deep: bool, recursive: bool, config: Path | None, as_json: bool
) -> int:
    place = find_place(what, config)
    if not place.store.is_root():
        raise StorePermanentError(f"root is not a directory: {place.store.uri}", hint="is the file system mounted?")
    depth = Depth.FULL if deep else Depth.METADATA
    lies = place.store.stat(place.key)
    if not recursive or (lies is not None and lies.kind is not ObjectKind.OTHER):
        source = _opened(place, settings)
        if _is_one(source):
            return _one(place, source, depth, as_json=as_json)
    looked, untold = _looked(place, depth, deep=recursive)
    if not looked and not untold:
        looked, untold = _looked(place, depth, deep=True)
    if not looked and not untold:
        return _one(place, _opened(place, settings), Depth.METADATA, as_json=as_json, is_listed=recursive)
    return _many(place, looked, untold, as_json=as_json)


def _opened(place: Place, settings: FamilySettings | None) -> Source:
    source = open_source(place.store, place.key)
    if source is None:
        raise no_such_place(place, settings)
    return source


def _is_one(source: Source) -> bool:
    try:
        return is_one_checkpoint(source)
    except (FormatError, StoreError):
        return False  # the walk over it names what cannot be read


def _one(place: Place, source: Source, depth: Depth, *, as_json: bool, is_listed: bool = False) -> int:
    """One checkpoint; in JSON as the only one of a list, where a list was asked for."""
    total_bytes = sum(found.bytes for found in source.files.values()) if depth is Depth.FULL else 0
    with byte_bar(f"inspect {place.name}", total_bytes) as progress:
        examined = examine(source, depth=depth, progress=progress)
    standing = Standings(place).of(source)
    looked = Looked(uri=place.uri, examined=examined, standing=standing, instead=_instead(place, examined, standing))
    if as_json:
        emit_json([as_document(looked)] if is_listed else as_document(looked))
    else:
        say(screen(looked))
    return looked.exit_code


def _instead(place: Place, examined: Examination, standing: Standing) -> str | None:
    """What to do next, where a seal would be refused for what lies around the checkpoint."""
    if examined.restorability in (Restorability.RESUMABLE, Restorability.WEIGHTS_ONLY):
        if standing.is_published:
            return "lastgood latest {parent}   # a job publishes there by itself, so no seal would be kept"
        if is_numbered_by_accelerate(place, examined.description):
            return "lastgood latest --policy structural {parent}   # Accelerate would fail on the files of a seal there"
    try:
        framework = saved_around(examined.source)
    except (FormatError, StoreError):
        return None  # of what lies beside it nothing was asked
    return f"lastgood inspect {{parent}}   # {framework} saved this as a part of that" if framework else None


def _looked(place: Place, depth: Depth, *, deep: bool) -> tuple[list[Looked], dict[str, str]]:
    """What was looked at, and what could not be read → why."""
    looked, untold, standings = [], dict[str, str](), Standings(place)
    above = place.store.uri.rstrip("/")

    def keep(key: str, error: LastgoodError) -> None:
        untold.setdefault(f"{above}/{key}", error.message)

    with tree_progress(place.uri) as tell:
        for found in find_checkpoints(place.store, place.key, deep=deep, on_trouble=keep):
            key = f"{found.prefix}{f'/{found.name}' if found.is_file else ''}"
            try:
                examined, standing = examine(found, depth=depth), standings.of(found)
            except (FormatError, StoreError, UsageError) as error:
                keep(key, error)
            else:
                looked.append(Looked(uri=f"{above}/{key}", examined=examined, standing=standing))
            tell(f"{above}/{key}")
    looked.sort(key=lambda one: natural_order(one.uri))
    return looked, untold


def _many(place: Place, looked: list[Looked], untold: dict[str, str], *, as_json: bool) -> int:
    rule, links = None, dict[str, str]()
    try:
        root = Root(store=place.store, prefix=place.key, names=place.store.names(place.key))
        links, rule = root.links(), framework_choice(root)
    except (FormatError, StoreError) as error:
        untold.setdefault(place.uri, error.message)
    if as_json:
        unread = [{"uri": uri, "class": COULD_NOT_TELL, "reasons": [why]} for uri, why in untold.items()]
        emit_json([*(as_document(one) for one in looked), *unread])
    else:
        say("\n".join([summary(place.uri, looked, untold, rule), *link_lines(links)]))
    # What could not be read may be the very one that somebody would resume.
    return StoreError.exit_code if untold else exit_code_of_many(looked)


def _all(survey: Survey) -> Sequence[GenerationId]:
    return sorted((*survey.candidates, *survey.fenced), reverse=True)


def _beside(location: Location, survey: Survey) -> Iterator[str]:
    """What else lies there: another framework's checkpoints that nobody sealed, perhaps."""
    known = {generation.directory for generation in _all(survey)}
    names = location.store.names(location.keys.family)
    others = [name for name in (*names.directories, *names.files) if name not in known and not name.startswith(".")]
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        yield f"neither published nor sealed: {printable(shown)}"
        yield f"next: lastgood inspect --recursive {location.family_uri}"


def _row(location: Location, survey: Survey, generation: GenerationId) -> dict[str, Any]:
    row = {"generation": str(generation), "step": generation.step, "state": state_of(survey, generation)}
    try:
        manifest = _manifest(location, generation)
    except FormatError as error:
        told: dict[str, Any] = {"ranks": "?", "artifacts": "?", "bytes": "?", "created": error.message}
        if Family(location).is_burned(generation):
            return {**row, "state": "burned", **told, "created": "its publish was abandoned"}
    else:
        told = {
            "ranks": manifest.job.topology.world_size,
            "artifacts": len(manifest.artifacts),
            "bytes": size(manifest.total_bytes),
            "created": age(manifest.created_at),
        }
    return {**row, **told}


def _manifest(location: Location, generation: GenerationId) -> Manifest:
    key = location.keys.manifest(generation)
    data = location.store.get(key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
    if data is None:
        raise FormatError(f"manifest not found: {key}", hint="`lastgood verify` says what else is missing")
    return parse_manifest(data, key)


def _text(location: Location, manifest: Manifest, state: str, refused: Sequence[str]) -> str:
    job = manifest.job
    layout = ", ".join(f"{axis} {count}" for axis, count in job.topology.layout.items())
    lines = [
        f"{location.uri}",
        f"  state       {state}; {job.purpose}",
        *(f"  refused     {line}" for line in refused),
        f"  step        {manifest.step} completed"
        + "".join(f"; {c.name} {c.value} ({c.names})" for c in job.counters if c.name != "optimizer_step"),
        f"  saved       {age(manifest.created_at)}, {manifest.created_at.isoformat()}, life {manifest.incarnation}",
        f"  topology    {counted(job.topology.world_size, 'rank')}, {job.topology.strategy}"
        + (f" ({layout})" if layout else ""),
        *_identity(job),
        "",
        table(_components(manifest), ("  component", "artifacts", "bytes", "promise")),
    ]
    lines.extend(f"  absent      {entry.component}: {entry.reason}" for entry in job.absent)
    lines.extend(f"  explained   {entry.key}: {entry.reason}" for entry in job.explained)
    lines.append(f"\nnext: lastgood verify {location.uri}")
    return "\n".join(lines)


def _identity(job: JobDescription) -> Iterator[str]:
    named = {"model": job.model, "tokenizer": job.tokenizer, "dataset": job.dataset}
    if job.model is None:
        yield "  identity    model, tokenizer and dataset are not stated: the checkpoint was sealed, not published"
    else:
        for name, identity in named.items():
            yield f"  {name:<10}  {f'{identity.name} ({identity.revision})' if identity else 'none'}"
    if job.code is not None:
        yield f"  code        {job.code}"
    if job.environment.python is not None:
        yield f"  torch       {job.environment.torch or 'not used'}, python {job.environment.python}"


def _components(manifest: Manifest) -> list[tuple[str, str, str, str]]:
    promises = {promise.component: promise for promise in manifest.job.promises}
    rows = []
    for component in manifest.present:
        artifacts = [artifact for artifact in manifest.artifacts if artifact.component is component]
        promise = promises.get(component)
        told = "none stated" if promise is None else promise.determinism.value
        if promise is not None and promise.tolerance is not None:
            told += f" {promise.tolerance:g}"
        if promise is not None and promise.reason:
            told += f": {promise.reason}"
        # One file of a plain writer may hold several components; the manifest names it under one of them.
        held = size(sum(a.bytes for a in artifacts)) if artifacts else "in another's file"
        rows.append((f"  {component}", str(len(artifacts) or "–"), held, told))
    return rows
