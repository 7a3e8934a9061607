"""Frames of a family in which every objective is met, as rows that a test may change before they become frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from lastgood.config import Objectives
from lastgood.criteria import Criterion
from lastgood.report.frames import Frames

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OBJECTIVES = Objectives(rpo_steps=100, rto_seconds=60.0, save_age_seconds=7200.0)
DRILLS = 40

Row = dict[str, Any]


@dataclass
class Rows:
    """Rows by frame; `frames` types them."""

    saves: list[Row] = field(default_factory=list)
    publishes: list[Row] = field(default_factory=list)
    verifications: list[Row] = field(default_factory=list)
    restores: list[Row] = field(default_factory=list)
    drills: list[Row] = field(default_factory=list)
    phases: list[Row] = field(default_factory=list)
    families: list[Row] = field(default_factory=list)
    criteria: list[Row] = field(default_factory=list)
    checks: list[Row] = field(default_factory=list)

    def frames(self) -> Frames:
        return Frames.of(**vars(self))

    def renamed(self, family: str) -> Rows:
        """The same evidence, all of it of one family of another name."""
        return Rows(**{name: [{**row, "family": family} for row in rows] for name, rows in vars(self).items()})

    def add(self, other: Rows) -> None:
        """The evidence of other families behind our own."""
        for name, rows in vars(other).items():
            getattr(self, name).extend(rows)

    def of(self, family: str) -> Row:
        return next(row for row in self.families if row["family"] == family)


def ago(**parts: float) -> datetime:
    return NOW - timedelta(**parts)


def healthy(*families: str) -> Rows:
    """Rows of healthy families: four saves each, two of them restored, and forty drills."""
    rows = Rows()
    for family in families or ("llm-7b",):
        _add(rows, family)
    return rows


def settings(*families: str) -> Mapping[str, Objectives]:
    return dict.fromkeys(families or ("llm-7b",), OBJECTIVES)


def generation(step: int) -> str:
    return f"00000001-{step:016d}"


def record(family: str, step: int, finished_at: datetime, **changes: Any) -> Row:
    return {
        "family": family,
        "generation": generation(step),
        "step": step,
        "attempt": 1,
        "outcome": "pass",
        "rung": "full",
        "started_at": finished_at - timedelta(seconds=30),
        "finished_at": finished_at,
        "seconds": 30.0,
        "read_bytes": 2**20,
        "host": "node-1",
        **changes,
    }


def _add(rows: Rows, family: str) -> None:
    for index, step in enumerate((100, 200, 300, 400)):
        created = ago(hours=4 - index)
        rows.saves.append(
            {
                "family": family,
                "run": family,
                "generation": generation(step),
                "incarnation": 1,
                "step": step,
                "created_at": created,
                "bytes": 2**20,
                "artifacts": 6,
                "world_size": 2,
                "state": "candidate",
                "purpose": "resumable",
            }
        )
        place = {"family": family, "generation": generation(step), "incarnation": 1, "step": step}
        rows.publishes.append({**place, "outcome": "committed", "at": created})
        rows.verifications.append(record(family, step, created + timedelta(minutes=1)))
    for step in (100, 200):
        rows.restores.append(
            record(
                family,
                step,
                ago(hours=1, minutes=400 - step),
                discovery_seconds=0.1,
                load_seconds=1.0,
                first_step_seconds=0.5,
            )
        )
    for index in range(DRILLS):
        drill = record(family, 200, ago(days=DRILLS - index), attempt=index + 1, rpo_loss_steps=10, rto_seconds=20.0)
        rows.drills.append(drill)
        rows.phases.extend(
            {"family": family, "generation": generation(200), "attempt": index + 1, "phase": phase, "seconds": 10.0}
            for phase in ("stop", "load")
        )
    rows.families.append(
        {
            "family": family,
            "uri": f"/checkpoints/{family}",
            "state": "ready",
            "latest": generation(400),
            "last_good": generation(200),
            "quarantine": "",
            "candidates": 4,
            "proven": 2,
            "publishes_begun": 4,
            "committed": 4,
            "newest_save_at": ago(hours=1),
            "verdict": "pass",
            **dict.fromkeys(map(str, Criterion), "held"),
        }
    )
    rows.criteria.extend({"family": family, "criterion": str(one), "held": "held"} for one in Criterion)
    rows.checks.append(
        {
            "family": family,
            "generation": generation(400),
            "tier": 1,
            "check": "digests",
            "outcome": "pass",
            "detail": "6 of 6 artifacts",
        }
    )
