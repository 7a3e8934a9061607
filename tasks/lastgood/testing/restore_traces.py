"""A healthy restore as its traces tell it; nothing is run.

The values are those that a replica of two ranks would have written after it resumed step 48,000 and trained four steps.
`restore_damage` changes one thing of it at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from lastgood.digest import Algorithm, hash_bytes
from lastgood.job import current_environment
from lastgood.manifest import (
    FORMAT_VERSION,
    Artifact,
    Component,
    ComponentPromise,
    Counter,
    CounterMeaning,
    Determinism,
    Expectations,
    Identity,
    JobDescription,
    Manifest,
    Purpose,
    RankExpectations,
    SampleIds,
    Topology,
)
from lastgood.replica.trace import (
    TRACE_VERSION,
    Discovered,
    Loaded,
    Mark,
    Phase,
    Saved,
    Span,
    Started,
    Step,
    Stopped,
    StopReason,
    TraceRecord,
)
from lastgood.verdict import Check, CheckState, Rung, Tier, Verdict, judge

__all__ = [
    "GENERATION",
    "MARK",
    "MICROBATCHES",
    "SAVED",
    "SMOKE_STEPS",
    "STEP",
    "RestoreTraces",
    "expected",
    "healthy_restore",
    "rates",
    "sample_ids",
    "scalars",
]

STEP: Final = 48_000
SMOKE_STEPS: Final = 4
MICROBATCHES: Final = 4
_WORLD_SIZE: Final = 2
GENERATION: Final = f"00000003-{STEP:016d}"
SAVED: Final = f"00000004-{STEP + SMOKE_STEPS:016d}"
MARK: Final = Mark(monotonic_ns=1_000_000_000, wall=datetime(2026, 1, 1, tzinfo=UTC))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTraces:
    """What one restore left behind.

    Args:
        manifest: Of the generation that was restored.
        ranks: Rank → its trace.
        control: Rank → the live run's own steps after that generation.
        exit_status: Of the replica's command; None when it was still running at its deadline.
        lives: How many incarnations it began.
        log_tail: What it printed last.
        saved: Tier 1 of the generation that it published.
    """

    manifest: Manifest
    ranks: Mapping[int, tuple[TraceRecord, ...]]
    control: Mapping[int, Mapping[int, Step]]
    exit_status: int | None = 0
    lives: int = 1
    log_tail: str = ""
    saved: Verdict | None = None


def healthy_restore() -> RestoreTraces:
    """A restore of step 48,000 on two ranks, four steps beyond it, beside the live run that went on."""
    return RestoreTraces(
        manifest=_manifest(),
        ranks={rank: _trace(rank) for rank in range(_WORLD_SIZE)},
        control={
            rank: {step: _step(rank, step) for step in range(STEP + 1, STEP + SMOKE_STEPS + 1)}
            for rank in range(_WORLD_SIZE)
        },
        saved=judge(
            tier=Tier.MANIFEST,
            rung=Rung.FULL,
            subject=f"llm-7b/{SAVED}",
            checks=(Check(name="digests", state=CheckState.RAN, detail="10 of 10 artifacts"),),
            required=("digests",),
        ),
    )


def _manifest() -> Manifest:
    exact = [component for component in Component if component not in (Component.EMA, Component.OTHER)]
    return Manifest(
        format_version=FORMAT_VERSION,
        family="llm-7b",
        generation=GENERATION,
        incarnation=3,
        step=STEP,
        staging=f"{GENERATION}~0123abcd",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        job=JobDescription(
            run="llm-7b-run",
            counters=(Counter(name="optimizer_step", value=STEP, names=CounterMeaning.COMPLETED),),
            code="lastgood.testing",
            configuration="healthy",
            environment=current_environment(),
            topology=Topology(world_size=_WORLD_SIZE, strategy="told", layout={"data_parallel": _WORLD_SIZE}),
            model=Identity(name="told", revision="1"),
            tokenizer=None,
            dataset=Identity(name="told", revision="1"),
            purpose=Purpose.RESUMABLE,
            promises=tuple(ComponentPromise(component=one, determinism=Determinism.EXACT) for one in exact),
        ),
        artifacts=tuple(_artifacts()),
        expectations=Expectations(
            learning_rates=rates(STEP + 1),
            optimizer_steps={"decay": STEP, "no_decay": STEP},
            scalars=scalars(),
            ranks=tuple(expected(rank) for rank in range(_WORLD_SIZE)),
        ),
    )


def _artifacts() -> list[Artifact]:
    paths: list[tuple[str, Component, int | None]] = [
        (f"{component}/rank-{rank:05d}.{kind}", component, rank)
        for component, kind in (
            (Component.MODEL, "safetensors"),
            (Component.OPTIMIZER, "safetensors"),
            (Component.RNG, "json"),
        )
        for rank in range(_WORLD_SIZE)
    ]
    paths += [
        ("scheduler.json", Component.SCHEDULER, None),
        ("scaler.json", Component.SCALER, None),
        ("data.json", Component.DATA, None),
        ("config.json", Component.CONFIG, None),
    ]
    return [
        Artifact(
            path=path,
            component=component,
            rank=rank,
            bytes=64,
            digests=(hash_bytes(path.encode(), Algorithm.BLAKE3),),
        )
        for path, component, rank in sorted(paths)
    ]


def rates(step: int) -> dict[str, float]:
    """The rates that the update to `step` uses."""
    return {"decay": 3e-4 / step, "no_decay": 6e-4 / step}


def scalars() -> dict[str, float | int]:
    """What scaler, scheduler, window and data position hold at step 48,000."""
    return {
        "accumulation.microbatches": MICROBATCHES,
        "scaler.scale": 65536.0,
        "scheduler.last_epoch": STEP,
        "data.train.epoch": 3,
        "data.train.consumed": 1024,
    }


def sample_ids(rank: int, first: int, count: int) -> tuple[int, ...]:
    """Ids that no other rank sees, counted from the first after step 48,000."""
    return tuple(range(100_000 * rank + first, 100_000 * rank + first + count))


def expected(rank: int) -> RankExpectations:
    """What the live objects of a rank said at step 48,000."""
    return RankExpectations(
        rank=rank,
        sample_ids=SampleIds(ids=sample_ids(rank, 0, 16)),
        rng_draws={"python": (11 + rank, 12 + rank), "torch.cpu": (0.25 + rank, 0.5 + rank)},
        tensor_digests={
            "model.blocks.0.weight": f"blake3:{1:064x}",
            "optimizer.exp_avg/blocks.0.weight": f"blake3:{2:064x}",
        },
    )


def _step(rank: int, step: int) -> Step:
    first = 2 * MICROBATCHES * (step - STEP - 1)
    return Step(
        at=MARK,
        spans=(Span(phase=Phase.STEP, begin_ns=10**9 * step, end_ns=10**9 * step + 5 * 10**8),),
        step=step,
        loss=2.0 + 1.0 / step + rank,
        grad_norm=0.5 + 1.0 / step,
        learning_rates=rates(step),
        sample_ids=tuple(sample_ids(rank, first + 2 * index, 2) for index in range(MICROBATCHES)),
        draws={"python": (0.125 * (step % 7), rank)},
        optimizer_steps={"decay": step, "no_decay": step},
        scalars={"skipped": 0, "scale": 65536.0},
        digests={"model": f"blake3:{step:064x}"},
    )


def _trace(rank: int) -> tuple[TraceRecord, ...]:
    observed = expected(rank)
    manifest_keys = {"model": 34, "optimizer": 68, "scaler": 5, "scheduler": 4, "rng": 4, "data": 1}
    return (
        Started(
            at=MARK,
            spans=(),
            version=TRACE_VERSION,
            incarnation=4,
            rank=rank,
            world_size=_WORLD_SIZE,
            pid=100 + rank,
            host="told",
            lag_steps=0,
            settings={},
        ),
        Discovered(
            at=MARK,
            spans=(Span(phase=Phase.DISCOVER, begin_ns=10**9, end_ns=2 * 10**9),),
            generation=GENERATION,
            step=STEP,
        ),
        Loaded(
            at=MARK,
            spans=(Span(phase=Phase.LOAD, begin_ns=2 * 10**9, end_ns=3 * 10**9),),
            generation=GENERATION,
            step=STEP,
            keys=manifest_keys,
            expectations=observed,
            learning_rates=rates(STEP + 1),
            optimizer_steps={"decay": STEP, "no_decay": STEP},
            scalars=scalars(),
        ),
        *(_step(rank, step) for step in range(STEP + 1, STEP + SMOKE_STEPS + 1)),
        Saved(at=MARK, spans=(), generation=SAVED, step=STEP + SMOKE_STEPS),
        Stopped(at=MARK, spans=(), reason=StopReason.FINISHED, step=STEP + SMOKE_STEPS),
    )
