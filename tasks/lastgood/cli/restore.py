"""`lastgood restore`: tier 2 by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from lastgood.cli.evidence import junit_option, keep_evidence, write_junit
from lastgood.cli.output import emit_json, json_option, progress_bar, reading, say, seconds
from lastgood.cli.settings import config_option, find_family, no_such_family, replica_of
from lastgood.config import FamilySettings
from lastgood.errors import ResumeRefused, UsageError
from lastgood.family import Family
from lastgood.location import Location
from lastgood.records import Measurements
from lastgood.restore import next_generation, restore
from lastgood.verdict import Outcome, Rung, Verdict, waive
from lastgood.verify import render_verdict

__all__ = ["restore_command"]

NO_EXPECTATIONS = "the manifest states no expectations"


@click.command("restore")
@click.argument("what", metavar="URI|NAME")
@click.option("--sample", is_flag=True, help="Of a family: the generation whose turn it is, not the newest.")
@click.option("--steps", type=int, help="Optimizer steps after the load, at least 4.")
@click.option("--world-size", type=int, help="Ranks to start; another number than saved proves only that change.")
@click.option("--load-only", is_flag=True, help="Stop after the load: a weaker rung that never proves a generation.")
@click.option("--timeout", type=float, help="Seconds for the replica; overrides the configuration.")
@click.option("--scratch", type=click.Path(path_type=Path), help="Where to make the private copy.")
@click.option("--keep", is_flag=True, help="Leave the private copy, its traces and the log.")
@click.option("--no-record", is_flag=True, help="Leave no evidence and change nothing, whatever is found.")
@config_option
@junit_option
@json_option
def restore_command(
    what: str,
    sample: bool,
    steps: int | None,
    world_size: int | None,
    load_only: bool,
    timeout: float | None,
    scratch: Path | None,
    keep: bool,
    no_record: bool,
    config: Path | None,
    junit: Path | None,
    as_json: bool,
) -> int:
    """Restore a generation in fresh processes, make it train, and compare it with what was expected of it.

    URI names a generation, or a family (its newest generation, or with --sample the one whose turn it is); NAME is a
    family of lastgood.toml, which says how its replica is started. A fail quarantines the family; a full pass proves
    the generation.
    """
    found, settings = find_family(what, config)
    declared = replica_of(found, settings)
    location = _generation(found, settings, sample)
    begin = datetime.now(UTC)
    with progress_bar("copy and verify", location) as progress:
        result = restore(
            location,
            declared.replica,
            steps=steps,
            world_size=world_size,
            load_only=load_only,
            timeout=timedelta(seconds=timeout) if timeout else None,
            scratch=scratch,
            keep=keep,
            progress=progress,
        )
    verdict = waive(result.verdict, declared.ignored)
    if as_json:
        emit_json({"verdict": verdict, "measurements": result.measurements, "scratch": _spelled(result.scratch)})
    else:
        say(f"{render_verdict(verdict)}\n{_measured(result.measurements)}")
        if any(check.detail == NO_EXPECTATIONS for check in verdict.checks) and not result.generation.name:
            say("  hint  without `expectations=` in the publish no restore can pass; registered state computes them")
        if result.generation.name and _lacks_a_witness(verdict):
            say(
                "  hint  the live run's own next steps prove it: restore one that it trained on from, or this one later"
            )
        if result.scratch:
            say(f"  kept  {result.scratch}")
    unwritten = write_junit(junit, [verdict], begin)
    if no_record:
        return verdict.outcome.exit_code or unwritten
    return keep_evidence(Family(location), verdict, result.generation, begin, result.measurements) or unwritten


def _generation(location: Location, settings: FamilySettings | None, sample: bool) -> Location:
    if location.generation is not None:
        if sample:
            raise UsageError(f"--sample chooses a generation of a family: {location.uri} names one already")
        return location
    family = Family(location)
    if not family.exists():
        raise no_such_family(location, settings)
    if sample:
        return location.of(next_generation(location))
    offer = family.latest()
    if offer.generation is None:
        reason = f"nothing to restore: {offer.findings[0].message}"
        hint = f"name a generation to restore it all the same; `lastgood inspect {location.family_uri}` lists them"
        raise ResumeRefused(reason, findings=offer.findings, hint=hint)
    return location.of(offer.generation)


def _measured(measurements: Measurements) -> str:
    return (
        f"  read  {reading(measurements)}\n"
        f"  took  discovery {seconds(measurements.discovery_seconds)}, load {seconds(measurements.load_seconds)}, "
        f"first step {seconds(measurements.first_step_seconds)}"
    )


def _lacks_a_witness(verdict: Verdict) -> bool:
    """Nothing was wrong, and nothing of the live run was there to compare with, or no step could be taken."""
    return verdict.rung is Rung.UNWITNESSED or (verdict.outcome is Outcome.INCONCLUSIVE and not verdict.findings)


def _spelled(path: Path | None) -> str | None:
    return str(path) if path else None
