"""`lastgood drill`: tier 3 by hand."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

import click

from lastgood.cli.evidence import junit_option, keep_evidence, write_junit
from lastgood.cli.output import complain, emit_json, json_option, reading, say, seconds, stage_display, table
from lastgood.cli.settings import config_option, find_family, replica_of
from lastgood.drill import DrillResult, FaultKind, Stage, drill, random_fault
from lastgood.errors import ResumeRefused
from lastgood.family import Family
from lastgood.location import Location
from lastgood.text import counted
from lastgood.verdict import waive
from lastgood.verify import render_verdict

__all__ = ["drill_command", "phase_table"]

_STAGES = {
    Stage.COPY: "copying what it begins with",
    Stage.START: "starting the replica",
    Stage.TRAIN: "training until the kill",
    Stage.KILLED: "killed; waiting for the recovery",
    Stage.RECOVERED: "recovered; waiting for the next save",
    Stage.SAVED: "saved; stopping and judging",
}


@click.command("drill")
@click.argument("what", metavar="URI|NAME")
@click.option("--fresh", is_flag=True, help="Begin at step zero instead of with a copy of the newest generation.")
@click.option("--kill", type=click.Choice([kind.value for kind in FaultKind]), help="What to kill.  [default: drawn]")
@click.option("--inside-publish/--between-publishes", default=None, help="When to kill.  [default: drawn]")
@click.option("--seed", type=int, help="Draws the fault; the same seed draws the same one.")
@click.option("--scratch", type=click.Path(path_type=Path), help="Where the replica trains.")
@click.option("--keep", is_flag=True, help="Leave the replica's family, its traces and the log.")
@click.option("--no-record", is_flag=True, help="Leave no evidence and change nothing, whatever is found.")
@config_option
@junit_option
@json_option
def drill_command(
    what: str,
    fresh: bool,
    kill: str | None,
    inside_publish: bool | None,
    seed: int | None,
    scratch: Path | None,
    keep: bool,
    no_record: bool,
    config: Path | None,
    junit: Path | None,
    as_json: bool,
) -> int:
    """Start a disposable replica, kill it with SIGKILL, and recover it through its own launcher.

    The replica begins with a private copy of the newest generation of URI (or of the one that it names), trains and
    publishes in a directory of its own, and never writes to production. NAME is a family of lastgood.toml.
    """
    found, settings = find_family(what, config)
    family_settings = replica_of(found, settings)
    begin = datetime.now(UTC)
    location = found if fresh else _newest(found)
    drawn = seed if seed is not None else secrets.randbelow(2**31)
    fault = random_fault(
        drawn,
        world_size=family_settings.replica.world_size,
        kind=FaultKind(kill) if kill else None,
        inside_publish=inside_publish,
    )
    complain(f"fault: {fault} (seed {drawn})", None)
    with stage_display("drill") as show:
        result = drill(
            location,
            family_settings.replica,
            fault=fault,
            objectives=family_settings.objectives,
            scratch=scratch,
            keep=keep,
            stage=lambda stage: show(_STAGES[stage]),
        )
    verdict = waive(result.verdict, family_settings.ignored)
    if as_json:
        emit_json(
            {
                "verdict": verdict,
                "measurements": result.measurements,
                "fault": result.fault,
                "resumed": str(result.resumed) if result.resumed else None,
                "attempts": result.attempts,
                "scratch": str(result.scratch) if result.scratch else None,
            }
        )
    else:
        say(f"{render_verdict(verdict)}\n\n{phase_table(result)}")
        if verdict.outcome.exit_code and result.log_tail:
            say(f"\nlast lines of the replica:\n{result.log_tail}")
    unwritten = write_junit(junit, [verdict], begin)
    if location.generation is None or no_record:
        return verdict.outcome.exit_code or unwritten
    return keep_evidence(Family(location), verdict, location.generation, begin, result.measurements) or unwritten


def _newest(location: Location) -> Location:
    if location.generation is not None:
        return location
    offer = Family(location).latest()
    if offer.generation is None:
        reason = f"nothing to begin with: {offer.findings[0].message}"
        raise ResumeRefused(reason, findings=offer.findings, hint="--fresh begins a drill at step zero")
    return location.of(offer.generation)


def phase_table(result: DrillResult) -> str:
    """The recovery in its phases, which add up to it."""
    measured = result.measurements
    lost = "not measured" if measured.rpo_loss_steps is None else counted(measured.rpo_loss_steps, "step")
    rows = [(f"  {name}", seconds(spent)) for name, spent in measured.phases.items()]
    read = f"read {reading(measured)}\n" if measured.read_bytes is not None else ""
    return f"{read}RPO loss {lost}, RTO {seconds(measured.rto_seconds)}\n{table(rows, ('  phase', 'seconds'))}"
