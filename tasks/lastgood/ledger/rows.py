"""From documents to rows; touches neither a store nor a database.

Decides what of a record or a manifest the ledger keeps. Rules: text is cut at a maximum and loses the one character
that PostgreSQL cannot hold, on every database; a document whose values no database could hold is malformed; one that
does not lie under its own key, or belongs to another family, is no evidence about this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, overload

from lastgood.errors import FormatError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import Manifest
from lastgood.records import Record
from lastgood.verdict import Finding, Outcome, Verdict

__all__ = [
    "MAXIMUM_FINDINGS",
    "RecordRows",
    "Row",
    "check_rows",
    "manifest_values",
    "moment",
    "record_rows",
    "storable",
]

MAXIMUM_FINDINGS = 100
"""Of one record; the record itself holds every one."""
MAXIMUM_CHARACTERS = 4096
"""Of one text; the document itself holds all of it."""
MAXIMUM_INTEGER = 2**63 - 1

Row = dict[str, Any]
"""Column → value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRows:
    """What one record brings, without the number it will have."""

    record: Row
    findings: tuple[Row, ...]
    phases: tuple[Row, ...]


def record_rows(record: Record, keys: FamilyKeys, key: str) -> RecordRows:
    """The rows of one record.

    Args:
        record: As it was read.
        keys: Of the family whose evidence it must be.
        key: Its key below the family's records.

    Raises:
        FormatError: It belongs elsewhere, or holds what no database could.
    """
    where, name = f"{keys.records}/{key}", record.name
    if record.family != keys.family or name.key(keys) != where:
        said = name.key(keys) if record.family == keys.family else f"family {record.family}"
        raise FormatError(f"record of another key: {where}: says {said}", where=where)
    verdict, took = record.verdict, record.measurements
    found = [(check.name, finding) for check in verdict.checks if check.findings for finding in check.findings]
    message, offender = (found[0][1].message, found[0][1].offender) if found else _explain(verdict)
    row = {
        "key": key,
        "generation": record.generation,
        "incarnation": name.generation.incarnation,
        "step": name.generation.step,
        "manifest": record.manifest,
        "tier": int(record.tier),
        "attempt": record.attempt,
        "rung": record.rung.value,
        "outcome": verdict.outcome.value,
        "started_at": moment(record.started_at, where),
        "finished_at": moment(record.finished_at, where),
        "host": storable(record.host),
        "lastgood": storable(record.lastgood),
        "origin": storable(record.origin),
        "seconds": took.seconds,
        "read_bytes": took.read_bytes,
        "read_seconds": took.read_seconds,
        "discovery_seconds": took.discovery_seconds,
        "load_seconds": took.load_seconds,
        "first_step_seconds": took.first_step_seconds,
        "rpo_loss_steps": took.rpo_loss_steps,
        "rto_seconds": took.rto_seconds,
        "reasons": ",".join(dict.fromkeys(finding.reason for _, finding in found)),
        "message": storable(message),
        "offender": storable(offender),
    }
    return RecordRows(
        record=row,
        findings=tuple(_finding_rows(found[:MAXIMUM_FINDINGS])),
        phases=tuple(
            {"position": position, "phase": storable(phase), "seconds": seconds}
            for position, (phase, seconds) in enumerate(sorted(took.phases.items()))
        ),
    )


def _explain(verdict: Verdict) -> tuple[str | None, str | None]:
    """Why it is no pass, though nothing was found: the first check that did not hold."""
    if verdict.outcome is Outcome.PASS:
        return None, None
    held = {check.name for check in verdict.checks if check.outcome is Outcome.PASS}
    for wanted in (Outcome.INCONCLUSIVE, Outcome.NOT_RUN):
        for check in verdict.checks:
            if check.outcome is wanted and (wanted is Outcome.INCONCLUSIVE or check.name in verdict.required):
                return check.detail, check.name
    missing = [name for name in verdict.required if name not in held]
    return "no check answered", missing[0] if missing else None


def _finding_rows(found: Iterable[tuple[str, Finding]]) -> Iterable[Row]:
    for position, (check, finding) in enumerate(found):
        yield {
            "position": position,
            "check_name": storable(check),
            "reason": finding.reason.value,
            "message": storable(finding.message),
            "offender": storable(finding.offender),
            "expected": storable(finding.expected),
            "found": storable(finding.found),
        }


def check_rows(verdict: Verdict) -> tuple[Row, ...]:
    """Every check of a verdict, in the order in which they were made; of a failed one, its first finding."""
    return tuple(
        {
            "position": position,
            "check_name": storable(check.name),
            "outcome": check.outcome.value,
            "detail": storable(check.findings[0].message if check.findings else check.detail),
        }
        for position, check in enumerate(verdict.checks)
    )


def manifest_values(manifest: Manifest, family: str, generation: GenerationId, key: str) -> Row:
    """What a save's row takes from its manifest.

    Raises:
        FormatError: It describes another save, or holds what no database could.
    """
    if (manifest.family, manifest.generation) != (family, str(generation)):
        raise FormatError(f"manifest of another save: {key}: says {manifest.family}/{manifest.generation}")
    return {
        "run": storable(manifest.job.run),
        "purpose": manifest.job.purpose.value,
        "created_at": moment(manifest.created_at, key),
        "bytes": min(manifest.total_bytes, MAXIMUM_INTEGER),
        "artifacts": len(manifest.artifacts),
        "world_size": manifest.job.topology.world_size,
    }


def moment(stated: datetime, where: str) -> datetime:
    """The moment in UTC.

    Raises:
        FormatError: No calendar holds it there.
    """
    try:
        return stated.astimezone(UTC)
    except OverflowError:
        raise FormatError(f"moment out of range: {where}: {stated.isoformat()}", where=where) from None


@overload
def storable(text: str) -> str: ...
@overload
def storable(text: str | None) -> str | None: ...
def storable(text: str | None) -> str | None:
    """Text of bounded length without NUL, which PostgreSQL refuses; None stays None."""
    if text is None:
        return None
    if len(text) > MAXIMUM_CHARACTERS:
        text = text[: MAXIMUM_CHARACTERS - 1] + "…"
    return text.replace("\0", "\ufffd") if "\0" in text else text
