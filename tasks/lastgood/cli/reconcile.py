"""`lastgood reconcile`: what no event announced, what lags, what was left lying, what is stale; for cron."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from lastgood.cli.evidence import keep_evidence
from lastgood.cli.output import emit_json, json_option, say
from lastgood.cli.settings import config_option, configured, find_family, no_such_family
from lastgood.config import FamilySettings
from lastgood.errors import LastgoodError, UsageError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.reconcile import SWEEP_AFTER, find_stale, tidy
from lastgood.verdict import Outcome, Tier, Verdict, worst_exit_code

__all__ = ["reconcile_command"]

_HOUR_SECONDS = 3600.0


@click.command("reconcile")
@click.argument("families", nargs=-1, metavar="[URI|NAME]...")
@click.option(
    "--sweep-after",
    type=click.FloatRange(min=0.0, max=10_000.0),
    default=SWEEP_AFTER.total_seconds() / _HOUR_SECONDS,
    show_default=True,
    help="Hours for which nothing must have changed before a leftover is removed.",
)
@config_option
@json_option
def reconcile_command(families: tuple[str, ...], sweep_after: float, config: Path | None, as_json: bool) -> int:
    """Judge saves that have no verdict, mend pointers, sweep what dead publishes left, and name stale evidence.

    NAME is a family of lastgood.toml; without any: each of them. Only leftovers of lives that a newer start cut are
    removed, each after its slot was burned. Exit 1 when a save fails or evidence is stale, 2 when something could not
    be done.
    """
    chosen = families or tuple(configured(config).families)
    if not chosen:
        raise UsageError("no family named: expected `lastgood reconcile URI`, or families in lastgood.toml")
    reports = []
    for named in chosen:
        try:
            report = _reconcile(*find_family(named, config), older_than=timedelta(hours=sweep_after))
        except LastgoodError as error:
            report = {"family": named, "exit": error.exit_code, "errors": [_told(error)]}
        reports.append(report)
    if as_json:
        emit_json(reports)
    else:
        say("\n\n".join("\n".join(_lines(report)) for report in reports))
    return worst_exit_code(int(report["exit"]) for report in reports)


def _reconcile(location: Location, settings: FamilySettings | None, *, older_than: timedelta) -> dict[str, Any]:
    if location.generation is not None:
        raise UsageError(f"names a generation, not a family: {location.uri}", hint="ask `lastgood verify`")
    if not Family(location).exists():
        raise no_such_family(location, settings)
    settings = settings or FamilySettings(root=location.store.uri)
    family = Family(location, ignored=settings.ignored)
    tidied = tidy(location, older_than=older_than)
    verified, codes = {}, [error.exit_code for error in tidied.errors]
    for generation in (*family.unjudged(), *family.owing()):
        attempt = family.due_attempt(generation, Tier.MANIFEST)
        if attempt is None:
            continue  # somebody judged it while we judged others
        verdict, code = _judge(family, generation, attempt)
        verified[str(generation)] = verdict.outcome.value
        codes.append(code)
    stale = find_stale(family, settings.objectives)
    codes += [Outcome.FAIL.exit_code] * len(stale)
    return {
        "family": location.family_uri,
        "exit": worst_exit_code(codes),
        "verified": verified,
        "stale": [
            {
                "tier": int(one.tier),
                "age_seconds": one.age.total_seconds(),
                "limit_seconds": one.limit.total_seconds(),
                "message": one.message,
            }
            for one in stale
        ],
        "repaired": list(tidied.repaired),
        "burned": [str(generation) for generation in tidied.burned],
        "removed": list(tidied.removed),
        "errors": [_told(error) for error in tidied.errors],
    }


def _judge(family: Family, generation: GenerationId, attempt: int) -> tuple[Verdict, int]:
    judged = family.judge(generation)
    code = keep_evidence(family, judged.verdict, generation, judged.started_at, judged.measurements, attempt=attempt)
    return judged.verdict, code


def _told(error: LastgoodError) -> dict[str, str]:
    return {"message": error.message, **({"hint": error.hint} if error.hint else {})}


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"{report['family']}: {'ok' if report['exit'] == 0 else 'NOT OK'}"
    yield from (f"  verified    {generation}: {said}" for generation, said in report.get("verified", {}).items())
    yield from (f"  stale       {stale['message']}" for stale in report.get("stale", ()))
    yield from (f"  repaired    {key}" for key in report.get("repaired", ()))
    yield from (f"  gave up     {generation}: its publish did not finish" for generation in report.get("burned", ()))
    yield from (f"  removed     {key}" for key in report.get("removed", ()))
    for error in report["errors"]:
        yield f"  error       {error['message']}"
        if "hint" in error:
            yield f"  hint        {error['hint']}"
