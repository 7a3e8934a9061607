"""Reports made by hand, as rich or as poor as a test needs them; the frames are the real ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas

from lastgood.config import Objectives
from lastgood.criteria import Criterion
from lastgood.report.frames import Frames
from lastgood.report.indicators import measure
from lastgood.report.report import OBJECTIVE_COLUMNS, Report
from lastgood.verdict import Outcome

NOW = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)
SETTINGS = Objectives(rpo_steps=1000, rto_seconds=120.0, save_age_seconds=7200.0)
PHASES = {
    "stop": 2.1,
    "relaunch": 5.2,
    "launch": 0.4,
    "import": 9.8,
    "join": 3.0,
    "build": 6.1,
    "discover": 0.3,
    "load": 21.0,
    "first_step": 4.4,
}

Rows = dict[str, list[dict[str, Any]]]


def sample_report(*families: Rows, trouble: Mapping[str, str] | None = None) -> Report:
    """A report over the rows of families."""
    joined: Rows = {}
    for family in families:
        for name, rows in family.items():
            joined.setdefault(name, []).extend(rows)
    objectives = pandas.DataFrame(joined.pop("objectives", []), columns=list(OBJECTIVE_COLUMNS)).astype(str)
    frames = Frames.of(**joined)
    settings = dict.fromkeys(frames.families["family"], SETTINGS)
    missed = (objectives["result"] == "missed").any()
    return Report(
        made_at=NOW,
        frames=frames,
        indicators=measure(frames, settings, NOW),
        objectives=objectives,
        settings=settings,
        outcome=Outcome.FAIL if missed else Outcome.PASS,
        trouble=trouble or {},
    )


def family_rows(name: str, *, days: int = 21, seed: int = 1, broken: bool = False, stale: bool = False) -> Rows:
    """A family that trains, is judged on every save, restored nightly and drilled weekly."""
    draw = random.Random(seed)
    saves = [
        {
            "family": name,
            "run": name,
            "generation": generation(step),
            "incarnation": 1,
            "step": step,
            "created_at": NOW - timedelta(hours=6 * place, minutes=13),
            "bytes": 14e9,
            "artifacts": 52,
            "world_size": 16,
            "state": "barred" if broken and place == 2 else "candidate",
            "purpose": "resumable",
        }
        for place, step in enumerate(range(1000 * days * 4, 0, -1000))
    ]
    gone = timedelta(days=4) if stale else timedelta()
    restores = [_restore(name, saves, place, draw, gone, broken) for place in range(days - 1)]
    drills = [_drill(name, saves, place, draw) for place in range(0, days, 3)]
    phases = [
        {**{key: drill[key] for key in ("family", "generation", "attempt")}, "phase": phase, "seconds": seconds}
        for drill in drills
        for phase, seconds in drill.pop("split").items()
    ]
    publishes = [
        {
            "family": name,
            "generation": save["generation"],
            "incarnation": 1,
            "step": save["step"],
            "outcome": "committed",
            "at": save["created_at"],
        }
        for save in saves
    ]
    lost = saves[0]["created_at"] - timedelta(days=2, hours=1)
    publishes.append({**publishes[0], "generation": generation(10**9), "outcome": "failed", "at": lost})
    newest, proven = saves[0]["generation"], restores[1 if broken else 0]["generation"]
    return {
        "saves": saves,
        "publishes": publishes,
        "verifications": [
            _record(name, save["generation"], save["created_at"] + timedelta(seconds=9), 7.5) for save in saves
        ],
        "restores": restores,
        "drills": drills,
        "phases": phases,
        "families": [
            {
                "family": name,
                "uri": f"file:///checkpoints/{name}",
                "state": "quarantined" if broken else "ready",
                "latest": "" if broken else newest,
                "last_good": proven,
                "quarantine": f"tier2-0001-{saves[2]['generation']}" if broken else "",
                "candidates": len(saves),
                "proven": len(restores),
                "publishes_begun": len(saves) + 1,
                "committed": len(saves),
                "newest_save_at": saves[0]["created_at"],
                "verdict": "fail" if broken else "pass",
                "why": f"quarantined by tier2-0001-{saves[2]['generation']}" if broken else "",
                **{str(criterion): "held" for criterion in Criterion},
            }
        ],
        "criteria": [
            {
                "family": name,
                "criterion": str(criterion),
                "held": "failed" if broken and criterion is Criterion.NEXT_DATA else "held",
                "check": "sample_ids",
                "detail": FAILED["message"] if broken and criterion is Criterion.NEXT_DATA else "16 of 16 ranks",
            }
            for criterion in Criterion
        ],
        "checks": list(_checks(name, newest, broken)),
        "objectives": list(_objectives(name, stale)),
    }


FAILED = {
    "outcome": "fail",
    "reasons": "sample_ids_diverged",
    "message": "sample ids diverged: rank 3 step 80001: expected 5120-5183, found 0-63",
    "offender": "rank 3",
    "hint": "did the loader restart its epoch? save the sampler's cursor, not only its seed",
}


def generation(step: int) -> str:
    return f"00000001-{step:016d}"


def _record(name: str, of: str, at: datetime, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "family": name,
        "generation": of,
        "step": int(of.rpartition("-")[2]),
        "attempt": 1,
        "outcome": "pass",
        "rung": "full",
        "started_at": at - timedelta(seconds=seconds),
        "finished_at": at,
        "seconds": seconds,
        "read_bytes": 14e9,
        "read_seconds": 20.0,
        "read_bytes_per_second": 7e8,
        "host": "gate-1",
        "origin": "http://127.0.0.1:4200/runs/flow-run/6b5f",
        **more,
    }


def _restore(
    name: str, saves: list[dict[str, Any]], place: int, draw: random.Random, gone: timedelta, broken: bool
) -> dict[str, Any]:
    outcome = FAILED if broken and place == 0 else {"outcome": "inconclusive"} if place % 9 == 5 else {}
    return _record(
        name,
        saves[place * 4 + 2]["generation"],
        NOW - timedelta(days=place, hours=3) - gone,
        180.0,
        discovery_seconds=draw.uniform(0.1, 0.4),
        load_seconds=draw.uniform(18, 24) + (9 if place < 4 else 0),
        first_step_seconds=draw.uniform(4, 6),
        **outcome,
    )


def _drill(name: str, saves: list[dict[str, Any]], place: int, draw: random.Random) -> dict[str, Any]:
    split = {phase: seconds * draw.uniform(0.8, 1.3) for phase, seconds in PHASES.items()}
    return _record(
        name,
        saves[place * 4]["generation"],
        NOW - timedelta(days=place, hours=8),
        240.0,
        rpo_loss_steps=draw.randrange(20, 900),
        rto_seconds=sum(split.values()) + 0.7,
        load_seconds=split["load"],
        discovery_seconds=split["discover"],
        first_step_seconds=split["first_step"],
        split=split,
    )


def _checks(name: str, newest: str, broken: bool) -> Iterator[dict[str, Any]]:
    asked = {
        1: ("commit", "manifest", "sizes", "digests"),
        2: ("strict_load", "sample_ids", "rng_draws", "loss_finite"),
    }
    for tier, checks in asked.items():
        for check in checks:
            failed = broken and check == "sample_ids"
            yield {
                "family": name,
                "generation": newest,
                "tier": tier,
                "check": check,
                "outcome": "fail" if failed else "pass",
                "detail": FAILED["message"] if failed else "52 of 52",
            }


def _objectives(name: str, stale: bool) -> Iterator[dict[str, str]]:
    for objective, area, sentence, measured, limit, result in (
        ("creation_ratio", "creation", "Publishes that began were committed", "98.8 %", "99 %", "met"),
        ("restore_age", "recovery", "The newest passed restore is young enough", "3 h", "2 d", "met"),
        ("rto_newest", "recovery", "The newest drill recovered within the RTO", "57 s", "120 s", "met"),
        (
            "rpo_newest",
            "recovery",
            "The newest drill lost no more steps than allowed",
            "812 steps",
            "1000 steps",
            "met",
        ),
        ("save_age", "creation", "The newest committed generation is young enough", "13 min", "", "not_set"),
    ):
        late = stale and objective == "restore_age"
        yield {
            "family": name,
            "objective": objective,
            "area": area,
            "sentence": sentence,
            "result": "missed" if late else result,
            "measured": "4.13 d" if late else measured,
            "limit": limit,
        }
