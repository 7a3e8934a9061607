"""Domain events: what lastgood says on Prefect's event bus, for the automations of whoever runs it.

Decides names, resources and payloads. Rules: an event is a word to people and automations and never the only copy of
work, since the bus may lose it; emitting neither raises nor waits; an event about one fact always has the same id, so
that a fact said twice is one event; text from a checkpoint is made printable and bounded.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext, TaskRunContext
from prefect.events import emit_event
from prefect.events.filters import EventFilter, EventIDFilter
from prefect.logging import get_logger
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from lastgood.identity import GenerationId
from lastgood.records import Kept, Record
from lastgood.verdict import Tier, Verdict
from lastgood_prefect import escape

__all__ = [
    "DRILL_FINISHED",
    "EVIDENCE_STALE",
    "FAMILY_QUARANTINED",
    "GENERATION_COMMITTED",
    "VERDICT_RECORDED",
    "announce",
    "drill_finished",
    "evidence_stale",
    "family_quarantined",
    "generation_committed",
    "verdict_recorded",
]

GENERATION_COMMITTED = "lastgood.generation.committed"
VERDICT_RECORDED = "lastgood.verdict.recorded"
FAMILY_QUARANTINED = "lastgood.family.quarantined"
EVIDENCE_STALE = "lastgood.evidence.stale"
DRILL_FINISHED = "lastgood.drill.finished"

MAXIMUM_REASONS = 20
ANSWER_SECONDS = 5.0
_NAMESPACE = uuid.UUID("6f1c2b52-5d0e-4b52-9a51-0c1f4a0d7f11")
"""Of the ids below; any constant would do, and none may change."""


def generation_committed(family: str, generation: GenerationId, *, uri: str) -> None:
    """A generation became discoverable.

    Args:
        family: Its name in the configuration.
        generation: Which.
        uri: Its URI.
    """
    payload = {"generation": str(generation), "step": generation.step, "uri": escape.line(uri, limit=1000)}
    _emit(GENERATION_COMMITTED, family, payload, fact=(uri,), generation=str(generation))


def announce(family: str, kept: Kept) -> None:
    """Say what keeping a verdict changed: that it was recorded, and that the family is quarantined by it."""
    if kept.record is None or kept.key is None or not kept.is_new:
        return
    verdict_recorded(family, kept.record, key=kept.key)
    if kept.effects.refuses and kept.record.tier is not Tier.MANIFEST:
        reasons = tuple(finding.reason.value for finding in kept.record.verdict.findings)
        family_quarantined(family, generation=kept.record.generation, reasons=reasons, cause=kept.key)
    if kept.record.tier is Tier.DRILL:
        drill_finished(family, kept.record, key=kept.key)


def verdict_recorded(family: str, record: Record, *, key: str) -> None:
    """A gate's record is on storage under this key."""
    payload = {**_described(record), "record": escape.line(key, limit=1000)}
    _emit(VERDICT_RECORDED, family, payload, fact=_identity(record, key), generation=record.generation)


def drill_finished(family: str, record: Record, *, key: str) -> None:
    """A drill ended with a verdict; what it measured is in the payload, null where nobody could."""
    measured = record.measurements
    payload = {
        **_described(record),
        "rpo_loss_steps": measured.rpo_loss_steps,
        "rto_seconds": measured.rto_seconds,
        "discovery_seconds": measured.discovery_seconds,
        "load_seconds": measured.load_seconds,
        "first_step_seconds": measured.first_step_seconds,
        "record": escape.line(key, limit=1000),
    }
    _emit(DRILL_FINISHED, family, payload, fact=_identity(record, key), generation=record.generation)


def family_quarantined(family: str, *, generation: str | None, reasons: tuple[str, ...], cause: str) -> None:
    """A family offers only proven generations from now on.

    Args:
        family: Its name in the configuration.
        generation: What failed, if it was a generation.
        reasons: Codes of what was found.
        cause: Key of the record, or name of the refusal, that quarantined it.
    """
    shown = [escape.line(reason) for reason in dict.fromkeys(reasons)][:MAXIMUM_REASONS]
    payload = {"generation": generation, "reasons": shown, "cause": escape.line(cause, limit=1000)}
    _emit(FAMILY_QUARANTINED, family, payload, fact=(family, cause), generation=generation)


def evidence_stale(
    family: str, *, tier: Tier, age_seconds: float | None, limit_seconds: float, message: str, now: datetime
) -> None:
    """The newest evidence of a tier is older than its objective, or there is none. One event a family, tier and day.

    Args:
        family: Its name in the configuration.
        tier: Of the gate that stopped running, or stopped passing.
        age_seconds: Of the newest evidence; None: there is none at all.
        limit_seconds: The objective.
        message: One sentence.
        now: Aware; its day, in UTC, tells one alarm from the next.
    """
    payload = {
        "tier": int(tier),
        "age_seconds": age_seconds,
        "limit_seconds": limit_seconds,
        "message": escape.line(message),
    }
    day = f"{now.astimezone(UTC):%Y-%m-%d}"
    _emit(EVIDENCE_STALE, family, payload, fact=(family, str(int(tier)), day), once=True)


def _described(record: Record) -> dict[str, Any]:
    verdict: Verdict = record.verdict
    reasons = dict.fromkeys(finding.reason.value for finding in verdict.findings)
    return {
        "generation": record.generation,
        "tier": int(record.tier),
        "rung": record.rung.value,
        "outcome": verdict.outcome.value,
        "attempt": record.attempt,
        "reasons": list(reasons)[:MAXIMUM_REASONS],
        "findings": len(verdict.findings),
        "seconds": record.measurements.seconds,
        "origin": record.origin,
    }


def _identity(record: Record, key: str) -> tuple[str, ...]:
    # Roots are not in a record: two stores may hold records of one name, written at different moments.
    return (key, record.host, record.finished_at.isoformat())


def _emit(
    event: str,
    family: str,
    payload: Mapping[str, Any],
    *,
    fact: tuple[str, ...],
    generation: str | None = None,
    once: bool = False,
) -> None:
    if PREFECT_API_URL.value() is None and FlowRunContext.get() is None and TaskRunContext.get() is None:
        # Without a server the client would start one of its own, for a word that nobody listens to.
        return
    shown = escape.line(family)
    resource = {"prefect.resource.id": f"lastgood.family.{shown}", "prefect.resource.name": shown}
    related = []
    if generation is not None:
        named = escape.line(generation)
        related.append(
            {
                "prefect.resource.id": f"lastgood.generation.{shown}.{named}",
                "prefect.resource.role": "generation",
                "prefect.resource.name": named,
            }
        )
    own = uuid.uuid5(_NAMESPACE, "\n".join((event, *fact)))
    try:
        # The server takes an event of one id once, but its automations forget within minutes that they have seen it.
        if not (once and _was_said(own)):
            emit_event(event=event, resource=resource, related=related, payload=dict(payload), id=own)
    except Exception as error:  # noqa: BLE001 - best effort by rule: the fact itself is on storage
        get_logger("lastgood").warning("event not emitted: %s: %s", event, escape.line(str(error)))


def _was_said(event: uuid.UUID) -> bool:
    with (
        # One question, one answer: the client would otherwise wait for a silent server, many times over.
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(httpx_settings={"timeout": ANSWER_SECONDS}, sync_client=True) as client,
    ):
        return bool(client.read_events(EventFilter(id=EventIDFilter(id=[event])), limit=1).events)
