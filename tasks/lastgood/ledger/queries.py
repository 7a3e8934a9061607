"""What the report asks of the ledger: one function a frame, each over one moment of it.

Decides columns and order; the words of a family's state are those of `lastgood status`. Rules: rows come by family,
generation and attempt; what was not measured is None. Text is as the checkpoint spelled it: whoever shows it escapes
it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Double, Select, and_, case, cast, func, null, select

from lastgood.ledger import tables
from lastgood.ledger.newest import is_conclusive, is_weaker_pass, newest_first
from lastgood.ledger.publishes import Ending
from lastgood.reasons import Reason
from lastgood.verdict import FamilyState, Tier

__all__ = [
    "FRAMES",
    "PublishOutcome",
    "Rows",
    "SaveState",
    "checks",
    "drills",
    "families",
    "findings",
    "malformed",
    "phases",
    "publishes",
    "restores",
    "saves",
    "verifications",
]

FRAMES = ("families", "saves", "publishes", "verifications", "restores", "drills", "phases", "checks", "findings")
"""The functions below that answer with a frame, by name."""

_families, _generations, _records = tables.families, tables.generations, tables.records
_HINTS = {reason.value: reason.hint for reason in Reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """An answer: the names of its columns, and one tuple a row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def by_column(self) -> dict[str, list[Any]]:
        """Column → its values, for a frame."""
        values = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.columns)
        return {name: list(column) for name, column in zip(self.columns, values, strict=True)}

    def mappings(self) -> list[dict[str, Any]]:
        """One mapping a row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class SaveState(StrEnum):
    """What a commit is worth; of several, the first that applies."""

    BURNED = "burned"
    """Its slot was given up on purpose."""
    BARRED = "barred"
    """It failed a gate on record, or an operator refused it."""
    FENCED = "fenced"
    """The newest start or rollback does not keep it."""
    CANDIDATE = "candidate"


class PublishOutcome(StrEnum):
    """What became of a publish that began; the last four as in `publishes.Ending`."""

    COMMITTED = "committed"
    BURNED = "burned"
    FAILED = Ending.FAILED.value
    FENCED = Ending.FENCED.value
    ABANDONED = Ending.ABANDONED.value
    UNDER_WAY = Ending.UNDER_WAY.value


def families(moment: Connection, *, names: Collection[str] | None = None) -> Rows:
    """One row a family: what it may offer, its counters, and what kept the last reading from it.

    `candidates` counts saves that are kept, not barred and not burned; `proven` those of them that a full restore
    proved; `publishes_begun` leaves out what is under way; `newest_save_at` is of kept saves. `read_at` is the moment
    of the last reading that succeeded.
    """
    candidate = and_(_generations.c.kept, ~_generations.c.barred, ~_generations.c.burned)
    saved = (
        select(
            _generations.c.family_id,
            func.count().label("slots"),
            func.count(case((_generations.c.burned, 1))).label("burned"),
            func.count(case((candidate, 1))).label("candidates"),
            func.count(case((and_(candidate, _generations.c.proven), 1))).label("proven"),
            func.max(case((and_(_generations.c.kept, ~_generations.c.burned), _generations.c.created_at))).label(
                "newest_save_at"
            ),
        )
        .group_by(_generations.c.family_id)
        .subquery()
    )
    ended = _per_family(tables.unfinished, tables.unfinished.c.outcome != Ending.UNDER_WAY.value)
    spoiled = _per_family(tables.malformed)
    slots, burned = func.coalesce(saved.c.slots, 0), func.coalesce(saved.c.burned, 0)
    told = and_(_families.c.failure.is_(None), _families.c.state.is_not(None))
    statement = (
        select(
            _families.c.name.label("family"),
            _families.c.uri,
            case((told, _families.c.state), else_=FamilyState.COULD_NOT_TELL.value).label("state"),
            _families.c.latest,
            _families.c.last_good,
            _families.c.quarantine,
            func.coalesce(saved.c.candidates, 0).label("candidates"),
            func.coalesce(saved.c.proven, 0).label("proven"),
            (slots + func.coalesce(ended.c.number, 0)).label("publishes_begun"),
            (slots - burned).label("committed"),
            saved.c.newest_save_at,
            func.coalesce(spoiled.c.number, 0).label("malformed"),
            _families.c.read_at,
            _families.c.failure,
            _families.c.hint,
        )
        .outerjoin(saved, saved.c.family_id == _families.c.id)
        .outerjoin(ended, ended.c.family_id == _families.c.id)
        .outerjoin(spoiled, spoiled.c.family_id == _families.c.id)
        .order_by(_families.c.name)
    )
    return _answer(moment, _among(statement, names))


def saves(moment: Connection, *, names: Collection[str] | None = None) -> Rows:
    """One row a commit, burned slots included; what its documents did not say is None."""
    state = case(
        (_generations.c.burned, SaveState.BURNED.value),
        (_generations.c.barred, SaveState.BARRED.value),
        (~_generations.c.kept, SaveState.FENCED.value),
        else_=SaveState.CANDIDATE.value,
    )
    columns = _generations.c
    statement = (
        select(
            _families.c.name.label("family"),
            columns.run,
            columns.generation,
            columns.incarnation,
            columns.step,
            columns.created_at,
            columns.bytes,
            columns.artifacts,
            columns.world_size,
            state.label("state"),
            columns.purpose,
            columns.proven,
        )
        .join(_families, _families.c.id == columns.family_id)
        .order_by(_families.c.name, columns.incarnation, columns.step, columns.generation)
    )
    return _answer(moment, _among(statement, names))


def publishes(moment: Connection, *, names: Collection[str] | None = None) -> Rows:
    """One row a publish that began, with what became of it (`PublishOutcome`); `at` is None where nobody noted it."""
    parts = []
    for table, outcome, at, message in (
        (
            _generations,
            case((_generations.c.burned, PublishOutcome.BURNED.value), else_=PublishOutcome.COMMITTED.value),
            _generations.c.created_at,
            null(),
        ),
        (tables.unfinished, tables.unfinished.c.outcome, tables.unfinished.c.at, tables.unfinished.c.message),
    ):
        statement = select(
            _families.c.name.label("family"),
            table.c.generation,
            table.c.incarnation,
            table.c.step,
            outcome.label("outcome"),
            at.label("at"),
            message.label("message"),
        ).join(_families, _families.c.id == table.c.family_id)
        parts.append(_answer(moment, _among(statement, names)))
    rows = [row for part in parts for row in part.rows]
    # In order of family, incarnation, step and generation, as saves come.
    return Rows(columns=parts[0].columns, rows=tuple(sorted(rows, key=lambda row: (row[0], row[2], row[3], row[1]))))


def verifications(moment: Connection, *, names: Collection[str] | None = None) -> Rows:
    """One row a record of tier 1.

    `reasons` are the codes of all findings, joined by commas; `message`, `offender` and `hint` are of the first one, or
    of the first check that did not hold.
    """
    return _evidence(moment, Tier.MANIFEST, (), names)


def restores(moment: Connection, *, names: Collection[str] | None = None) -> Rows:
    """One row a record of tier 2; see `verifications`."""
    return _evidence(moment, Tier.RESTORE, _replica(), names)


def drills(moment: Connection, *, names: Collection[str] | None = None) -> Rows:
    """One row a record of tier 3; see `verifications`."""
    took = (*_replica(), _records.c.rpo_loss_steps, _records.c.rto_seconds)
    return _evidence(moment, Tier.DRILL, took, names)


def _replica() -> tuple[ColumnElement[Any], ...]:
    """What the reading of a generation took, and the replica that was made of it."""
    bandwidth = cast(_records.c.read_bytes, Double) / func.nullif(_records.c.read_seconds, 0.0)
    names = ("discovery_seconds", "load_seconds", "first_step_seconds")
    return (
        _records.c.read_seconds,
        bandwidth.label("read_bytes_per_second"),
        *(_records.c[name] for name in names),
    )


def _evidence(
    moment: Connection, tier: Tier, more: tuple[ColumnElement[Any], ...], names: Collection[str] | None
) -> Rows:
    before = ("generation", "step", "attempt", "outcome", "rung", "started_at", "finished_at", "seconds", "read_bytes")
    after = ("reasons", "message", "offender")
    columns = [_records.c[name] for name in (*before, *after, "host", "origin")]
    statement = (
        select(_families.c.name.label("family"), *columns, *more)
        .join(_families, _families.c.id == _records.c.family_id)
        .where(_records.c.tier == int(tier))
        .order_by(*_in_order())
    )
    found = _answer(moment, _among(statement, names))
    place = found.columns.index("offender") + 1
    reasons = found.columns.index("reasons")
    hints = (_HINTS.get(row[reasons].partition(",")[0]) for row in found.rows)
    return Rows(
        columns=(*found.columns[:place], "hint", *found.columns[place:]),
        rows=tuple((*row[:place], hint, *row[place:]) for row, hint in zip(found.rows, hints, strict=True)),
    )


def phases(moment: Connection, *, tier: Tier = Tier.DRILL, names: Collection[str] | None = None) -> Rows:
    """Where the time of each record of one tier went, in seconds; phases by name."""
    statement = (
        select(
            _families.c.name.label("family"),
            _records.c.generation,
            _records.c.attempt,
            tables.phases.c.phase,
            tables.phases.c.seconds,
        )
        .join(_records, _records.c.id == tables.phases.c.record_id)
        .join(_families, _families.c.id == _records.c.family_id)
        .where(_records.c.tier == int(tier))
        .order_by(*_in_order(), tables.phases.c.position)
    )
    return _answer(moment, _among(statement, names))


def checks(moment: Connection, *, conclusive: bool = False, names: Collection[str] | None = None) -> Rows:
    """Every check of each family's newest record of each tier, in the order in which they were made.

    The newest record is that of the newest kept save that has one, and a weaker rung that passed only where there is no
    other (`newest`); `verdict` and `rung` are the record's. The detail of a failed check is its first finding.

    Args:
        moment: From `Ledger.reading`.
        conclusive: The newest record that is a pass or a fail: an inconclusive gate changes nothing.
        names: Only of these families.
    """
    place = func.row_number().over(
        partition_by=(_records.c.family_id, _records.c.tier),
        order_by=[case((is_weaker_pass(), 1), else_=0), *newest_first()],
    )
    # Only records of which checks are kept: the newest of each tier, and the newest conclusive one.
    held = select(tables.checks.c.record_id).distinct()
    ranked = select(_records.c.id, place.label("place")).where(_records.c.id.in_(held))
    if conclusive:
        ranked = ranked.where(is_conclusive())
    newest = ranked.subquery()
    statement = (
        select(
            _families.c.name.label("family"),
            _records.c.generation,
            _records.c.tier,
            tables.checks.c.check_name.label("check"),
            tables.checks.c.outcome,
            tables.checks.c.detail,
            _records.c.attempt,
            _records.c.outcome.label("verdict"),
            _records.c.rung,
            _records.c.finished_at,
        )
        .join(_records, _records.c.id == tables.checks.c.record_id)
        .join(newest, and_(newest.c.id == _records.c.id, newest.c.place == 1))
        .join(_families, _families.c.id == _records.c.family_id)
        .order_by(_families.c.name, _records.c.tier, tables.checks.c.position)
    )
    return _answer(moment, _among(statement, names))


def findings(moment: Connection, *, names: Collection[str] | None = None) -> Rows:
    """Every finding on record, at most 100 a record."""
    told = tables.findings.c
    statement = (
        select(
            _families.c.name.label("family"),
            _records.c.generation,
            _records.c.tier,
            _records.c.attempt,
            told.check_name.label("check"),
            told.reason,
            told.message,
            told.offender,
            told.expected,
            told.found,
        )
        .join(_records, _records.c.id == told.record_id)
        .join(_families, _families.c.id == _records.c.family_id)
        .order_by(*_in_order(), told.position)
    )
    return _answer(moment, _among(statement, names))


def malformed(moment: Connection, *, names: Collection[str] | None = None) -> Rows:
    """Documents that could not be read, by key relative to `.lastgood/`, and why."""
    statement = (
        select(_families.c.name.label("family"), tables.malformed.c.key, tables.malformed.c.message)
        .join(_families, _families.c.id == tables.malformed.c.family_id)
        .order_by(_families.c.name, tables.malformed.c.key)
    )
    return _answer(moment, _among(statement, names))


def _in_order() -> list[ColumnElement[Any]]:
    by = [_records.c[name] for name in ("tier", "incarnation", "step", "generation", "attempt", "key")]
    return [_families.c.name, *by]


def _per_family(table: Any, *conditions: ColumnElement[bool]) -> Any:
    counted = select(table.c.family_id, func.count().label("number")).where(*conditions)
    return counted.group_by(table.c.family_id).subquery()


def _among(statement: Select[Any], names: Collection[str] | None) -> Select[Any]:
    return statement if names is None else statement.where(_families.c.name.in_(sorted(names)))


def _answer(moment: Connection, statement: Select[Any]) -> Rows:
    result = moment.execute(statement)
    return Rows(columns=tuple(result.keys()), rows=tuple(tuple(row) for row in result))
