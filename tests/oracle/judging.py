"""What a run says against another: the reaction that anybody would notice, and the consequences that nobody might.

Pure: works on observations, weights and printed lines. Rules: what a healthy resume prints as well is not a word about
the fault; a rank that loaded while another raised makes the reaction one of some ranks, whatever ended it later; bytes,
not opinions, decide whether state differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lastgood.formats.oracle import Consequence, Effect, Reaction
from tests.corpus.job import BATCH_SAMPLES, SAMPLES
from tests.corpus.observing import Observation

MAXIMUM_SAID_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of all its ranks."""

    ranks: tuple[Observation | None, ...]
    """None for a rank that had to be ended."""
    weights: tuple[np.ndarray | None, ...]
    printed: tuple[str, ...]
    """Lines of all ranks, as printed."""


def reaction_of(damaged: Run, healthy: Run) -> tuple[Reaction, str]:
    """How the loader reacted, and what it said."""
    ranks = damaged.ranks
    if any(rank is None for rank in ranks):
        return Reaction.HANG, ""
    raised = [rank for rank in ranks if rank is not None and rank.raised]
    if raised:
        # Who never loaded is who met the fault; the others miss a peer.
        first = min(raised, key=lambda rank: (rank.loaded is not None, bool(_LOST_PEER.search(rank.message))))
        said = _shortened(f"{first.raised}: {first.message}" if first.message else first.raised)
        others = [rank for rank in ranks if rank is not None and rank is not first]
        went_on = first.loaded is None and any(rank.loaded is not None for rank in others)
        partly = went_on or len(raised) < len(ranks)
        return (Reaction.RAISED_ON_SOME_RANKS if partly else Reaction.RAISED), said
    usual = {_pattern_of(line) for line in healthy.printed}
    new = [line for line in damaged.printed if line.strip() and _pattern_of(line) not in usual]
    return (Reaction.LOGGED, _shortened(new[0])) if new else (Reaction.SILENT, "")


def effects_of(damaged: Run, healthy: Run, fresh: Run, *, same_ranks: bool = True) -> tuple[Effect, ...]:
    """Consequences of a run that trained on, each once, as seen by the first rank that saw it.

    Args:
        damaged: The resume to judge.
        healthy: The resume of the undamaged copy, or the uninterrupted run.
        fresh: The uninterrupted run: its first rates, and the samples that it used before the checkpoint.
        same_ranks: False: by fewer ranks, so that samples, streams and parts of weights differ by right.
    """
    found = {effect.consequence: effect for effect in _batch(damaged, healthy)}
    for number, (rank, other) in enumerate(zip(damaged.ranks, healthy.ranks, strict=False)):
        if rank is None or other is None or rank.raised:
            continue
        effects = [*_loading(rank, other), *_rates(rank, other, fresh.ranks[number])]
        if same_ranks:
            effects += [*_state(rank, other), *_course(rank, other, fresh.ranks)]
            effects += _weights(damaged.weights[number], healthy.weights[number])
        for effect in effects:
            found.setdefault(effect.consequence, effect)
    if Consequence.SAMPLES_REPEATED in found:
        found.pop(Consequence.SAMPLES_DIFFER, None)  # of another rank, by the same cause
    return tuple(found[consequence] for consequence in Consequence if consequence in found)


def part_after(run: Run, step: int) -> Run:
    """The part of an uninterrupted run after a step, as if it had been resumed there."""
    ranks = tuple(
        Observation(
            rank=rank.rank, steps=tuple(s for s in rank.steps if s.completed > step), finished=rank.finished, raised=""
        )
        for rank in run.ranks
        if rank is not None
    )
    return Run(ranks=ranks, weights=run.weights, printed=run.printed)


def _batch(damaged: Run, healthy: Run) -> Iterator[Effect]:
    firsts = [[rank.steps[0] for rank in run.ranks if rank is not None and rank.steps] for run in (healthy, damaged)]
    right, used = (sum(len(step.samples) for step in steps) for steps in firsts)
    if right and used and used != right:
        yield Effect(consequence=Consequence.BATCH_DIFFERS, expected=str(right), found=str(used))


def _loading(rank: Observation, other: Observation) -> Iterator[Effect]:
    if rank.loaded is None or other.loaded is None:
        return
    expected, found = other.loaded.step, rank.loaded.step
    if found != expected:
        which = Consequence.STEP_ZERO if found == 0 else Consequence.STEP_DIFFERS
        yield Effect(consequence=which, expected=str(expected), found=str(found))
    for name, right in other.loaded.counters.items():
        if (counted := rank.loaded.counters.get(name)) != right:
            yield Effect(consequence=Consequence.COUNTER_DIFFERS, expected=str(right), found=f"{name} {counted}")


def _state(rank: Observation, other: Observation) -> Iterator[Effect]:
    if rank.loaded is None or other.loaded is None:
        return
    if rank.loaded.model != other.loaded.model:
        yield Effect(consequence=Consequence.MODEL_DIFFERS)
    if rank.loaded.optimizer_entries == 0 < other.loaded.optimizer_entries:
        yield Effect(consequence=Consequence.OPTIMIZER_EMPTY)
    elif rank.loaded.optimizer != other.loaded.optimizer:
        yield Effect(consequence=Consequence.OPTIMIZER_DIFFERS)


def _rates(rank: Observation, other: Observation, fresh: Observation | None) -> Iterator[Effect]:
    """The first step with another rate; a scheduler that was not restored may show only after it has stepped once."""
    starts = fresh.steps if fresh is not None else ()
    for step, right, start in zip(rank.steps, other.steps, starts, strict=False):
        if step.rates != right.rates:
            restarted = step.rates == start.rates
            which = Consequence.LEARNING_RATE_RESTARTED if restarted else Consequence.LEARNING_RATE_DIFFERS
            yield Effect(consequence=which, expected=_figures(right.rates), found=_figures(step.rates))
            return


def _course(rank: Observation, other: Observation, fresh: Sequence[Observation | None]) -> Iterator[Effect]:
    same_start = rank.loaded is None or other.loaded is None or rank.loaded.step == other.loaded.step
    if same_start and len(rank.steps) != len(other.steps):
        yield Effect(consequence=Consequence.FEWER_STEPS, expected=str(len(other.steps)), found=str(len(rank.steps)))
    if not rank.steps or not other.steps:
        return
    if rank.steps[0].draws != other.steps[0].draws:
        yield Effect(consequence=Consequence.RNG_DIFFERS)
    used, right = ([sample for step in run.steps for sample in step.samples] for run in (rank, other))
    if used != right:
        repeated = _come_again(rank, fresh, before=other.steps[0].completed - 1)
        which = Consequence.SAMPLES_REPEATED if repeated else Consequence.SAMPLES_DIFFER
        first = (_figures(run.steps[0].samples) for run in (other, rank))
        yield Effect(consequence=which, expected=next(first), found=next(first))


def _come_again(rank: Observation, fresh: Sequence[Observation | None], *, before: int) -> bool:
    """Whether the first samples were used up to step `before`: by any rank in this epoch, or in one step of another."""
    steps_an_epoch = SAMPLES // (BATCH_SAMPLES * len(fresh))
    start = before // steps_an_epoch * steps_an_epoch
    steps = [step for other in fresh if other is not None for step in other.steps if step.completed <= before]
    in_epoch = {sample for step in steps if step.completed > start for sample in step.samples}
    first = rank.steps[0].samples
    return bool(in_epoch & set(first)) or first in {step.samples for step in steps}


def _weights(found: np.ndarray | None, expected: np.ndarray | None) -> Iterator[Effect]:
    if found is None or expected is None or found.shape != expected.shape:
        return
    if not np.isfinite(found).all() and np.isfinite(expected).all():
        yield Effect(consequence=Consequence.WEIGHTS_NAN)
    elif not np.array_equal(found, expected, equal_nan=True):
        distance = float(np.max(np.abs(found - expected)))
        yield Effect(consequence=Consequence.WEIGHTS_DIFFER, found=f"{distance:.1e}")


def _figures(values: Sequence[float]) -> str:
    """Each once: groups of parameters mostly share their rate."""
    return " ".join(dict.fromkeys(f"{value:.3g}" for value in values))


_LOST_PEER = re.compile(r"closed by peer|reset by peer|Broken pipe|gloo", re.IGNORECASE)
_PATH = re.compile(r"(?<![:/\w])(?:/[\w.=+-]+){2,}/?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?")


def _pattern_of(line: str) -> str:
    return _NUMBER.sub("#", _PATH.sub("PATH", line)).strip()


def _shortened(text: str) -> str:
    """One line without what is of this machine or of this moment."""
    if "Traceback" in text:  # of a worker, told by another: only its last line says what was wrong
        told = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", text, re.MULTILINE)
        text = f"{text.partition(':')[0]}: {told[-1] if told else ''}"
    line = " ".join(
        _PATH.sub(lambda path: f"…/{path[0].rstrip('/').rpartition('/')[2]}", _MOMENT.sub("", text)).split()
    )
    return line if len(line) <= MAXIMUM_SAID_CHARACTERS else f"{line[: MAXIMUM_SAID_CHARACTERS - 1]}…"
