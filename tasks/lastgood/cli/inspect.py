"""`lastgood inspect`: what a family or a generation is, on one screen for a tired person."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lastgood.cli.output import age, emit_json, json_option, say, size, table
from lastgood.cli.refusals import refusal_lines
from lastgood.cli.settings import config_option, find_family, no_such_family
from lastgood.errors import FormatError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, Manifest, parse_manifest
from lastgood.protocol import Survey

__all__ = ["inspect_command"]


@click.command("inspect")
@click.argument("what", metavar="URI|NAME")
@config_option
@json_option
def inspect_command(what: str, config: Path | None, as_json: bool) -> int:
    """Show what the family or generation URI is: step, topology, components, artifacts, state.

    NAME is a family of lastgood.toml.
    """
    location, settings = find_family(what, config)
    family = Family(location)
    if not family.exists():
        raise no_such_family(location, settings)
    survey = family.survey()
    if location.generation is None:
        rows = [_row(location, survey, generation) for generation in _all(survey)]
        if as_json:
            emit_json(rows)
        else:
            columns = ("generation", "step", "state", "ranks", "artifacts", "bytes", "created")
            cells = [[str(row[column]) for column in columns] for row in rows]
            say(f"{location.family_uri}: {len(rows)} generations\n{table(cells, columns)}")
        return 0
    manifest = _manifest(location, location.generation)
    state = _state(survey, location.generation)
    refused = refusal_lines(location, survey.barred.get(location.generation, ()))
    if as_json:
        emit_json({"uri": location.uri, "state": state, "refused": refused, "manifest": manifest})
    else:
        say(_text(location, manifest, state, refused))
    return 0


def _all(survey: Survey) -> Sequence[GenerationId]:
    return sorted((*survey.candidates, *survey.fenced), reverse=True)


def _state(survey: Survey, generation: GenerationId) -> str:
    if generation in survey.fenced:
        return "fenced"
    if generation in survey.barred:
        return "barred"
    if generation not in survey.candidates:
        return "uncommitted"
    return "proven" if generation in survey.proven else "committed"


def _row(location: Location, survey: Survey, generation: GenerationId) -> dict[str, Any]:
    try:
        manifest = _manifest(location, generation)
    except FormatError as error:
        told: dict[str, Any] = {"ranks": "?", "artifacts": "?", "bytes": "?", "created": error.message}
    else:
        told = {
            "ranks": manifest.job.topology.world_size,
            "artifacts": len(manifest.artifacts),
            "bytes": size(manifest.total_bytes),
            "created": age(manifest.created_at),
        }
    return {"generation": str(generation), "step": generation.step, "state": _state(survey, generation), **told}


def _manifest(location: Location, generation: GenerationId) -> Manifest:
    key = location.keys.manifest(generation)
    data = location.store.get(key, limit_bytes=MAXIMUM_MANIFEST_BYTES)
    if data is None:
        raise FormatError(f"manifest not found: {key}", hint="`lastgood verify` says what else is missing")
    return parse_manifest(data, key)


def _text(location: Location, manifest: Manifest, state: str, refused: Sequence[str]) -> str:
    job = manifest.job
    layout = ", ".join(f"{axis} {count}" for axis, count in job.topology.layout.items())
    tokenizer = f"{job.tokenizer.name} ({job.tokenizer.revision})" if job.tokenizer else "none"
    lines = [
        f"{location.uri}",
        f"  state       {state}; {job.purpose}",
        *(f"  refused     {line}" for line in refused),
        f"  step        {manifest.step} completed"
        + "".join(f"; {c.name} {c.value} ({c.names})" for c in job.counters if c.name != "optimizer_step"),
        f"  saved       {age(manifest.created_at)}, {manifest.created_at.isoformat()}, life {manifest.incarnation}",
        f"  topology    {job.topology.world_size} ranks, {job.topology.strategy}" + (f" ({layout})" if layout else ""),
        f"  model       {job.model.name} ({job.model.revision})",
        f"  tokenizer   {tokenizer}",
        f"  dataset     {job.dataset.name} ({job.dataset.revision})",
        f"  code        {job.code}",
        f"  torch       {job.environment.torch or 'not used'}, python {job.environment.python}",
        "",
        table(_components(manifest), ("  component", "artifacts", "bytes", "promise")),
    ]
    lines.extend(f"  absent      {entry.component}: {entry.reason}" for entry in job.absent)
    lines.extend(f"  explained   {entry.key}: {entry.reason}" for entry in job.explained)
    lines.append(f"\nnext: lastgood verify {location.uri}")
    return "\n".join(lines)


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
