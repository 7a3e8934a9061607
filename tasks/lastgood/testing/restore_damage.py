"""Every fault that only a restore sees, as its traces tell it, with the one reason code that it must raise.

For tests of `lastgood.restore` and of whatever reads its verdicts. Nothing is run, so a fault costs microseconds.
Faults of stored bytes are in `damage`; faults that a replica's own strict load names (`key_missing` and its like)
arrive here as its refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec

from lastgood.manifest import (
    SampleIds,
)
from lastgood.replica.trace import (
    Discovered,
    Loaded,
    NotFinite,
    Refused,
    Started,
    Step,
    Stopped,
    StopReason,
    TraceRecord,
)
from lastgood.testing.restore_traces import (
    MARK,
    MICROBATCHES,
    SAVED,
    SMOKE_STEPS,
    STEP,
    RestoreTraces,
    expected,
    rates,
    sample_ids,
    scalars,
)
from lastgood.verdict import Check, CheckState, Finding, Reason, Rung, Tier, judge

__all__ = ["RESTORE_DAMAGE", "RestoreDamage"]

_Kind = TypeVar("_Kind", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreDamage:
    """One fault of a restore.

    Args:
        name: What happened, in a few words.
        reason: The code that must be raised, and no other.
        offender: What the finding must name.
        apply: Makes a healthy restore such a one.
    """

    name: str
    reason: Reason
    offender: str
    apply: Callable[[RestoreTraces], RestoreTraces]


# Changing one thing.


def _change(kind: type[_Kind], rank: int | None, change: Callable[[_Kind], TraceRecord | None]) -> _Apply:
    """Replace the records of one kind of one rank (None: of all), or drop those for which nothing is returned."""

    def apply(traces: RestoreTraces) -> RestoreTraces:
        ranks = {
            number: tuple(
                changed
                for record in records
                if (changed := change(record) if isinstance(record, kind) and rank in (None, number) else record)
                is not None
            )
            for number, records in traces.ranks.items()
        }
        return replace(traces, ranks=ranks)

    return apply


def _loaded(rank: int | None, **fields: Any) -> _Apply:
    return _change(Loaded, rank, lambda record: msgspec.structs.replace(record, **fields))


def _observed(rank: int, **fields: Any) -> _Apply:
    return _loaded(rank, expectations=msgspec.structs.replace(expected(rank), **fields))


def _stepped(rank: int | None, number: int, **fields: Any) -> _Apply:
    return _change(
        Step,
        rank,
        lambda record: msgspec.structs.replace(record, **fields) if record.step == STEP + number else record,
    )


def _scalar(name: str, value: float) -> _Apply:
    return _loaded(None, scalars={**scalars(), name: value})


def _cut(traces: RestoreTraces, kinds: tuple[type, ...]) -> RestoreTraces:
    ranks = {rank: tuple(one for one in records if isinstance(one, kinds)) for rank, records in traces.ranks.items()}
    return replace(traces, ranks=ranks)


def _refuse(traces: RestoreTraces) -> RestoreTraces:
    """The strict load found a key too few; every rank says so, and ends."""
    finding = Finding(reason=Reason.KEY_MISSING, message="key missing: model.head.weight", offender="model.head.weight")
    refused = Refused(at=MARK, spans=(), findings=(finding,), message="checkpoint not loaded")
    short = _cut(traces, (Started, Discovered))
    return replace(short, ranks={rank: (*told, refused) for rank, told in short.ranks.items()}, exit_status=1)


def _unsaved(traces: RestoreTraces) -> RestoreTraces:
    """Every step was made and the publish failed."""
    stopped = Stopped(
        at=MARK, spans=(), reason=StopReason.FAILED, step=STEP + SMOKE_STEPS, message="receipts missing: rank 1"
    )
    short = _cut(traces, (Started, Discovered, Loaded, Step))
    return replace(
        short, ranks={rank: (*told, stopped) for rank, told in short.ranks.items()}, exit_status=1, saved=None
    )


def _save_damaged(traces: RestoreTraces) -> RestoreTraces:
    finding = Finding(reason=Reason.SHARD_MISSING, message="shard missing: rank 1", offender="model/rank-00001")
    check = Check(name="completeness", state=CheckState.RAN, detail="9 of 10 artifacts", findings=(finding,))
    verdict = judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject=SAVED, checks=(check,), required=("completeness",))
    return replace(traces, saved=verdict)


def _ended_without_training(traces: RestoreTraces) -> RestoreTraces:
    """The replica counts itself done after the load and ends well, as a misread epoch makes loops do."""
    short = _cut(traces, (Started, Discovered, Loaded))
    stopped = Stopped(at=MARK, spans=(), reason=StopReason.FINISHED, step=STEP)
    return replace(short, ranks={rank: (*told, stopped) for rank, told in short.ranks.items()}, saved=None)


def _crash(traces: RestoreTraces) -> RestoreTraces:
    short = _cut(traces, (Started, Discovered, Loaded))
    return replace(short, exit_status=-9, log_tail="loading\nKilled", saved=None)


def _hang(traces: RestoreTraces) -> RestoreTraces:
    return replace(_cut(traces, (Started, Discovered, Loaded)), exit_status=None, saved=None)


_Apply = Callable[[RestoreTraces], RestoreTraces]

RESTORE_DAMAGE: Final[tuple[RestoreDamage, ...]] = (
    RestoreDamage(
        name="the load counted no key of the optimizer",
        reason=Reason.STATE_NOT_RESTORED,
        offender="optimizer",
        apply=_loaded(None, keys={"model": 34, "scaler": 5, "scheduler": 4, "rng": 4, "data": 1}),
    ),
    RestoreDamage(
        name="the scaler came back at its initial scale",
        reason=Reason.STATE_NOT_RESTORED,
        offender="scaler/scaler.scale",
        apply=_scalar("scaler.scale", 2.0**20),
    ),
    RestoreDamage(
        name="the strict load refused",
        reason=Reason.KEY_MISSING,
        offender="model.head.weight",
        apply=_refuse,
    ),
    RestoreDamage(
        name="a model tensor is another",
        reason=Reason.TENSOR_DIGEST_DIVERGED,
        offender="model/rank-00001/model.blocks.0.weight",
        apply=_observed(1, tensor_digests={**expected(1).tensor_digests, "model.blocks.0.weight": f"blake3:{99:064x}"}),
    ),
    RestoreDamage(
        name="a moment of the optimizer is another",
        reason=Reason.TENSOR_DIGEST_DIVERGED,
        offender="optimizer/rank-00000/optimizer.exp_avg/blocks.0.weight",
        apply=_observed(
            0, tensor_digests={**expected(0).tensor_digests, "optimizer.exp_avg/blocks.0.weight": f"blake3:{99:064x}"}
        ),
    ),
    RestoreDamage(
        name="the optimizer counts from zero",
        reason=Reason.OPTIMIZER_STEP_DIVERGED,
        offender="optimizer/no_decay",
        apply=lambda traces: _counting_from(traces, {"decay": STEP, "no_decay": 0}),
    ),
    RestoreDamage(
        name="the schedule restarted",
        reason=Reason.LEARNING_RATE_DIVERGED,
        offender="scheduler/decay",
        apply=_loaded(None, learning_rates={**rates(STEP + 1), "decay": 3e-4}),
    ),
    RestoreDamage(
        name="the update used another rate than the one restored",
        reason=Reason.LEARNING_RATE_DIVERGED,
        offender=f"scheduler/decay used in step {STEP + 1}",
        apply=_stepped(None, 1, learning_rates={**rates(STEP + 1), "decay": 3e-4}),
    ),
    RestoreDamage(
        name="the rate leaves the schedule after one step",
        reason=Reason.LEARNING_RATE_DIVERGED,
        offender=f"scheduler/decay of step {STEP + 2}",
        apply=_stepped(None, 2, learning_rates={**rates(STEP + 2), "decay": 3e-4}),
    ),
    RestoreDamage(
        name="a rank draws as another",
        reason=Reason.RNG_DIVERGED,
        offender="rng/rank-00001/python",
        apply=_observed(1, rng_draws={**expected(1).rng_draws, "python": expected(0).rng_draws["python"]}),
    ),
    RestoreDamage(
        name="a stream is not restored at all",
        reason=Reason.RNG_DIVERGED,
        offender="rng/rank-00000/torch.cpu",
        apply=_observed(0, rng_draws={"python": expected(0).rng_draws["python"]}),
    ),
    RestoreDamage(
        name="draws part from the live run",
        reason=Reason.RNG_DIVERGED,
        offender=f"rng/rank-00001/python of step {STEP + 3}",
        apply=_stepped(1, 3, draws={"python": (0.75, 1)}),
    ),
    RestoreDamage(
        name="the epoch restarted",
        reason=Reason.SAMPLE_IDS_DIVERGED,
        offender="data/rank-00000/next ids",
        apply=_observed(0, sample_ids=SampleIds(ids=sample_ids(0, 5000, 16))),
    ),
    RestoreDamage(
        name="other samples are consumed than were peeked",
        reason=Reason.SAMPLE_IDS_DIVERGED,
        offender="data/rank-00001/consumed ids",
        apply=lambda traces: replace(
            _stepped(1, 1, sample_ids=tuple(sample_ids(1, 70 + 2 * index, 2) for index in range(MICROBATCHES)))(traces),
            control={},
        ),
    ),
    RestoreDamage(
        name="samples part from the live run beyond what was peeked",
        reason=Reason.SAMPLE_IDS_DIVERGED,
        offender=f"data/rank-00001/ids of step {STEP + 4}",
        apply=_stepped(1, 4, sample_ids=tuple(sample_ids(1, 70 + 2 * index, 2) for index in range(MICROBATCHES))),
    ),
    RestoreDamage(
        name="the scheduler stands at another step",
        reason=Reason.COUNTER_DIVERGED,
        offender="scheduler/scheduler.last_epoch",
        apply=_scalar("scheduler.last_epoch", STEP - 1),
    ),
    RestoreDamage(
        name="the data stands in another epoch",
        reason=Reason.COUNTER_DIVERGED,
        offender="data/data.train.epoch",
        apply=_scalar("data.train.epoch", 0),
    ),
    RestoreDamage(
        name="a rank stands at another step",
        reason=Reason.COUNTER_DIVERGED,
        offender="counters/rank-00001/completed step",
        apply=_loaded(1, step=STEP - 1),
    ),
    RestoreDamage(
        name="a step accumulates half of its microbatches",
        reason=Reason.ACCUMULATION_DIVERGED,
        offender=f"accumulation/microbatches of step {STEP + 3}",
        apply=lambda traces: replace(
            _change(
                Step,
                None,
                lambda step: (
                    msgspec.structs.replace(step, sample_ids=step.sample_ids[:2]) if step.step == STEP + 3 else step
                ),
            )(traces),
            control={},
        ),
    ),
    RestoreDamage(
        name="the loss is not a number",
        reason=Reason.LOSS_NOT_FINITE,
        offender=f"loss/rank-00001/of step {STEP + 3}",
        apply=lambda traces: replace(_stepped(1, 3, loss=NotFinite.NAN)(traces), control={}),
    ),
    RestoreDamage(
        name="the gradient norm is infinite",
        reason=Reason.GRADIENT_NOT_FINITE,
        offender=f"gradient norm/of step {STEP + 1}",
        apply=lambda traces: replace(_stepped(None, 1, grad_norm=NotFinite.INFINITY)(traces), control={}),
    ),
    RestoreDamage(
        name="the optimizer's counter stands still",
        reason=Reason.OPTIMIZER_NOT_STEPPED,
        offender=f"optimizer/decay after step {STEP + 1}",
        apply=lambda traces: replace(_not_counting(traces), control={}),
    ),
    RestoreDamage(
        name="the replica ends well and trained nothing",
        reason=Reason.OPTIMIZER_NOT_STEPPED,
        offender=f"steps/step {STEP + 1}",
        apply=_ended_without_training,
    ),
    RestoreDamage(
        name="the loss parts from the live run",
        reason=Reason.TRACE_DIVERGED,
        offender=f"loss/rank-00001/value of step {STEP + 1}",
        apply=_stepped(1, 1, loss=7.0),
    ),
    RestoreDamage(
        name="the weights part from the live run",
        reason=Reason.TRACE_DIVERGED,
        offender=f"digests/model of step {STEP + 2}",
        apply=_stepped(None, 2, digests={"model": f"blake3:{7:064x}"}),
    ),
    RestoreDamage(
        name="the publish after the resume fails",
        reason=Reason.SAVE_AFTER_RESUME_FAILED,
        offender=f"save/after step {STEP + SMOKE_STEPS}",
        apply=_unsaved,
    ),
    RestoreDamage(
        name="what was saved after the resume is incomplete",
        reason=Reason.SAVE_AFTER_RESUME_FAILED,
        offender="model/rank-00001",
        apply=_save_damaged,
    ),
    RestoreDamage(name="the replica is killed", reason=Reason.RESTORE_CRASHED, offender="replica", apply=_crash),
    RestoreDamage(
        name="the replica died and was started again",
        reason=Reason.RESTORE_CRASHED,
        offender="replica",
        apply=lambda traces: replace(traces, lives=2),
    ),
    RestoreDamage(name="the replica hangs", reason=Reason.RESTORE_TIMED_OUT, offender="replica", apply=_hang),
    RestoreDamage(
        name="a rank writes no trace",
        reason=Reason.TRACE_MISSING,
        offender="traces/rank-00001/of the replica",
        apply=lambda traces: replace(traces, ranks={0: traces.ranks[0]}),
    ),
    RestoreDamage(
        name="the start begins afresh",
        reason=Reason.RECOVERED_FROM_WRONG_GENERATION,
        offender="discovery/generation",
        apply=_change(Discovered, None, lambda record: msgspec.structs.replace(record, generation=None, step=None)),
    ),
)
"""Every fault that only a restore sees, each with the one reason that it must raise."""


def _counting_from(traces: RestoreTraces, start: Mapping[str, int]) -> RestoreTraces:
    """Counters that begin elsewhere and rise by one; without the live run, which would tell on each step too."""
    loaded = _loaded(None, optimizer_steps=dict(start))(traces)
    counted = _change(
        Step,
        None,
        lambda step: msgspec.structs.replace(
            step, optimizer_steps={group: count + step.step - STEP for group, count in start.items()}
        ),
    )(loaded)
    return replace(counted, control={})


def _not_counting(traces: RestoreTraces) -> RestoreTraces:
    """The first update is not counted, the later ones are."""
    return _change(
        Step,
        None,
        lambda step: msgspec.structs.replace(
            step, optimizer_steps={group: count - 1 for group, count in step.optimizer_steps.items()}
        ),
    )(traces)
