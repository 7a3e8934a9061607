"""`lastgood status`: what is broken, at 3 a.m."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lastgood.cli.output import age, emit_json, json_option, say, table
from lastgood.cli.refusals import refusal_lines
from lastgood.cli.settings import config_option, configured, find_family, no_such_family
from lastgood.config import FamilySettings
from lastgood.errors import LastgoodError, UsageError
from lastgood.family import Family, Offer, family_state
from lastgood.location import Location
from lastgood.protocol import Survey
from lastgood.records import Record
from lastgood.verdict import FamilyState, Finding, Note, NoteReason, Tier, worst_exit_code

__all__ = ["status_command"]

MAXIMUM_SHOWN = 5


@click.command("status")
@click.argument("uris", nargs=-1, metavar="[URI|NAME]...")
@click.option("--quiet", "-q", is_flag=True, help="Only families that are not ready; print nothing if all are.")
@config_option
@json_option
def status_command(uris: tuple[str, ...], quiet: bool, config: Path | None, as_json: bool) -> int:
    """Say of each family URI what is broken, what may be resumed, and how old the evidence is.

    NAME is a family of lastgood.toml; without any: each of them. Exit 0 when each has something to resume and none is
    quarantined. For cron, which mails whatever is printed: --quiet.
    """
    chosen = uris or _configured_uris(config)
    reports = []
    for uri in chosen:
        try:
            report = _report(*find_family(uri, config))
        except LastgoodError as error:
            report = {"family": uri, "state": FamilyState.COULD_NOT_TELL}
            report |= {"error": error.message, "exit": error.exit_code}
            if error.hint:
                report["hint"] = error.hint
        reports.append(report)
    shown = [report for report in reports if report["exit"] or not quiet]
    if as_json:
        emit_json(shown)
    elif shown:
        say("\n\n".join(_text(report) for report in shown))
    return worst_exit_code(int(report["exit"]) for report in reports)


def _configured_uris(config: Path | None) -> tuple[str, ...]:
    configuration = configured(config)
    uris = tuple(settings.uri(name) for name, settings in configuration.families.items())
    if not uris:
        raise UsageError("no family named: expected `lastgood status URI`, families in lastgood.toml, or --config FILE")
    return uris


def _report(location: Location, settings: FamilySettings | None) -> dict[str, Any]:
    if location.generation is not None:
        raise UsageError(f"names a generation, not a family: {location.uri}", hint="ask `lastgood inspect`")
    family = Family(location)
    if not family.exists():
        raise no_such_family(location, settings)
    survey, offer = family.survey(), family.latest()
    state = family_state(survey, offer)
    return {
        "family": location.family_uri,
        "state": state,
        "exit": 0 if state is FamilyState.READY else 1,
        "latest": _described(offer),
        "last_good": str(survey.newest_proven) if survey.newest_proven else None,
        "committed": len(survey.candidates),
        "barred": {str(generation): list(names) for generation, names in survey.barred.items()},
        "fenced": [str(generation) for generation in survey.fenced],
        "quarantine": list(survey.quarantine),
        "refused": refusal_lines(
            location, {*survey.quarantine, *(name for names in survey.barred.values() for name in names)}
        ),
        "incarnation": survey.claims.newest,
        "malformed": list(survey.malformed),
        "passed_over": [finding for one in offer.skipped for finding in one.findings],
        "findings": list(offer.findings),
        "hint": offer.hint if offer.lineage_is_empty else None,
        "notes": [*offer.notes, *_claims(survey)],
        "evidence": _evidence(family.newest_evidence()),
    }


def _described(offer: Offer) -> dict[str, Any] | None:
    if offer.generation is None or offer.manifest is None:
        return None
    return {
        "generation": str(offer.generation),
        "uri": offer.uri,
        "step": offer.generation.step,
        "created_at": offer.manifest.created_at,
        "bytes": offer.manifest.total_bytes,
    }


def _claims(survey: Survey) -> list[Note]:
    bare = [number for number in survey.claims.claims if number > survey.cut.decided_by]
    return [
        Note(
            reason=NoteReason.CLAIM_WITHOUT_DECISION,
            message=f"incarnation {number} claimed and decided nothing; it stops older jobs at their next save",
            offender=f"incarnations/{number:08d}",
        )
        for number in bare
    ]


def _evidence(newest: Mapping[Tier, Record]) -> dict[str, Any]:
    return {
        f"tier{int(tier)}": {
            "outcome": record.verdict.outcome.value,
            "generation": record.generation,
            "finished_at": record.finished_at,
        }
        for tier, record in newest.items()
    }


def _text(report: Mapping[str, Any]) -> str:
    lines = [f"{report['family']}: {report['state'].upper()}"]
    if "error" in report:
        return "\n".join(
            [lines[0], f"  {report['error']}", *(f"  hint: {hint}" for hint in [report.get("hint")] if hint)]
        )
    latest = report["latest"]
    lines.append(
        f"  latest      {latest['generation']} (step {latest['step']}, {age(latest['created_at'])})"
        if latest
        else "  latest      nothing may be resumed"
    )
    lines.append(f"  last good   {report['last_good'] or 'none: no full restore passed yet'}")
    lines.append(
        f"  commits     {report['committed']} kept, {len(report['barred'])} barred, {len(report['fenced'])} fenced; "
        f"incarnation {report['incarnation']}"
    )
    for name in report["quarantine"]:
        lines.append(
            f"  quarantine  {name}: `lastgood release {report['family']} --reason ...` once its cause is fixed"
        )
    lines.extend(f"  refused     {line}" for line in report["refused"])
    if not latest:
        lines.extend(_passed_over(report["passed_over"]))
    lines.extend(f"  finding     {finding.reason}: {finding.message}" for finding in report["findings"])
    lines.extend(f"  hint        {hint}" for hint in [report["hint"]] if hint)
    lines.extend(f"  name        not lawful: {name}" for name in report["malformed"])
    lines.extend(f"  note        {note.message}" for note in report["notes"])
    rows = [(f"  tier {tier}", *_seen(report["evidence"].get(f"tier{tier}"))) for tier in (1, 2, 3)]
    return "\n".join([*lines, table(rows, ("  evidence", "outcome", "generation", "when"))])


def _passed_over(findings: Sequence[Finding]) -> Iterator[str]:
    """Where nothing is offered: why, of the newest few."""
    for finding in findings[:MAXIMUM_SHOWN]:
        yield f"  passed over {finding.reason}: {finding.message}"
    if len(findings) > MAXIMUM_SHOWN:
        yield f"  passed over {len(findings) - MAXIMUM_SHOWN} more: `lastgood latest` names them"


def _seen(evidence: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if evidence is None:
        return "none", "", ""
    return evidence["outcome"], evidence["generation"], age(evidence["finished_at"])
