"""`lastgood rollback`, `quarantine` and `release`: the operator's acts, each with a written reason."""

from __future__ import annotations

from pathlib import Path

import click

from lastgood.cli.output import emit_json, json_option, say
from lastgood.cli.settings import config_option, find_location
from lastgood.errors import UsageError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location

__all__ = ["quarantine_command", "release_command", "rollback_command"]

reason_option = click.option("--reason", required=True, help="A sentence for whoever reads the audit.")


@click.command("rollback")
@click.argument("what", metavar="URI|NAME")
@click.argument("generation", required=False)
@reason_option
@config_option
@json_option
def rollback_command(what: str, generation: str | None, reason: str, config: Path | None, as_json: bool) -> int:
    """Go back to GENERATION of the family URI (or to the generation that URI names).

    Newer generations stay on storage for the audit and are never offered again. A job that still runs is fenced at its
    next save. NAME is a family of lastgood.toml.
    """
    location, target = _target(what, generation, config)
    if target is None:
        raise UsageError("no generation named: expected `rollback FAMILY GENERATION` or a generation's URI")
    number = Family(location).rollback(target, reason=reason)
    if as_json:
        emit_json({"family": location.family_uri, "generation": str(target), "incarnation": number})
    else:
        also = ", and what lies there unsealed is given up" if target.name else ""
        say(f"rolled back {location.family_uri} to {target} (incarnation {number}); newer generations are fenced{also}")
    return 0


@click.command("quarantine")
@click.argument("what", metavar="URI|NAME")
@click.argument("generation", required=False)
@reason_option
@config_option
@json_option
def quarantine_command(what: str, generation: str | None, reason: str, config: Path | None, as_json: bool) -> int:
    """Quarantine the family URI: until a release, only proven generations are offered. A named generation is barred."""
    location, target = _target(what, generation, config)
    name = Family(location).quarantine(reason=reason, generation=target)
    if as_json:
        emit_json({"family": location.family_uri, "refusal": str(name)})
    else:
        say(f"quarantined {location.family_uri} ({name}); `lastgood release` lifts it")
    return 0


@click.command("release")
@click.argument("what", metavar="URI|NAME")
@reason_option
@config_option
@json_option
def release_command(what: str, reason: str, config: Path | None, as_json: bool) -> int:
    """Lift the quarantine of the family URI. Generations with a fail on record stay barred."""
    location = find_location(what, config)
    lifted = Family(location).release(reason=reason)
    if as_json:
        emit_json({"family": location.family_uri, "lifted": list(lifted)})
    elif lifted:
        say(f"released {location.family_uri}: lifted {', '.join(lifted)}; failed generations stay barred")
    else:
        say(f"{location.family_uri} is not quarantined: nothing to lift")
    return 0


def _target(what: str, generation: str | None, config: Path | None) -> tuple[Location, GenerationId | None]:
    location = find_location(what, config)
    if generation is None:
        return location, location.generation
    if location.generation is not None:
        raise UsageError(f"generation named twice: {what} and {generation}")
    return location, find_location(f"{location.family_uri}/{generation}", config).require_generation()
