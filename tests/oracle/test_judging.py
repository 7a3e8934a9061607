"""Two runs become a reaction and its consequences; each rule is shown on the smallest pair of runs that needs it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from lastgood.formats.oracle import Consequence, Reaction
from tests.corpus.observing import Loaded, Observation, Step
from tests.oracle.judging import Run, effects_of, part_after, reaction_of


def rank_of(number: int = 0, *, start: int = 8, end: int = 12, rate: float = 0.02, **changes: object) -> Observation:
    """A rank that loaded at `start` and trained to `end`."""
    steps = tuple(
        Step(completed=step + 1, rates=(rate,), samples=(2 * step, 2 * step + 1), draws=f"after {step}")
        for step in range(start, end)
    )
    loaded = Loaded(step=start, model="m", optimizer="o", optimizer_entries=3)
    rank = Observation(rank=number, loaded=loaded, steps=steps, finished=True)
    return msgspec.structs.replace(rank, **changes)


def run_of(*ranks: Observation | None, weights: float = 1.0, printed: tuple[str, ...] = ()) -> Run:
    return Run(ranks=ranks, weights=tuple(np.full(3, weights) for _ in ranks), printed=printed)


def consequences(damaged: Run, healthy: Run) -> list[Consequence]:
    fresh = run_of(*(rank_of(number, start=0, rate=0.01) for number in range(len(healthy.ranks))))
    return [effect.consequence for effect in effects_of(damaged, healthy, fresh)]


def test_a_resume_that_equals_the_healthy_one_has_no_consequence() -> None:
    """A damage that a loader never reads must come out as harmless, or every figure about silence is inflated."""
    healthy = run_of(rank_of())
    assert reaction_of(healthy, healthy) == (Reaction.SILENT, "")
    assert consequences(healthy, healthy) == []


def test_a_rank_that_had_to_be_ended_is_a_hang() -> None:
    """What others raised while they waited for it is not the loader's word."""
    damaged = run_of(None, rank_of(1, raised="RuntimeError", message="closed by peer", finished=False))
    assert reaction_of(damaged, run_of(rank_of(), rank_of(1)))[0] is Reaction.HANG


def test_all_ranks_that_raise_before_they_loaded_have_raised() -> None:
    """The message is of the rank that met the fault, not of the one that missed its peer."""
    lost = rank_of(0, raised="RuntimeError", message="Connection closed by peer", loaded=None, finished=False)
    met = rank_of(1, raised="FileNotFoundError", message="no /tmp/a/b/optim.pt", loaded=None, finished=False)
    reaction, said = reaction_of(run_of(lost, met), run_of(rank_of(), rank_of(1)))
    assert (reaction, said) == (Reaction.RAISED, "FileNotFoundError: no …/optim.pt")


@pytest.mark.parametrize("later", ["", "RuntimeError"])
def test_a_rank_that_loaded_while_another_raised_makes_it_a_reaction_of_some(later: str) -> None:
    """Rank 0 reports success and the log looks well: that it dies later, of a peer that is gone, does not change it."""
    went_on = rank_of(0, raised=later, finished=not later)
    met = rank_of(1, raised="FileNotFoundError", loaded=None, finished=False)
    assert reaction_of(run_of(went_on, met), run_of(rank_of(), rank_of(1)))[0] is Reaction.RAISED_ON_SOME_RANKS


def test_of_what_a_worker_told_by_another_the_error_is_kept() -> None:
    """DCP wraps the tracebacks of all ranks in one message, and what was wrong stands at its end."""
    told = "ranks:[0]\nTraceback (most recent call last): (RANK 0)\n  File x\nEOFError\nhttps://docs.x.org/a/b.html"
    damaged = run_of(rank_of(raised="CheckpointException", message=told, loaded=None, finished=False))
    assert reaction_of(damaged, run_of(rank_of())) == (Reaction.RAISED, "CheckpointException: EOFError")


def test_only_a_line_that_a_healthy_resume_does_not_print_is_a_word_about_the_fault() -> None:
    """Numbers and moments differ from run to run, and are no news."""
    healthy = run_of(rank_of(), printed=("[12:00] loading 8 files from /a/b/c",))
    same = run_of(rank_of(), printed=("[13:37] loading 7 files from /x/y/z",))
    news = run_of(rank_of(), printed=(*same.printed, "Unable to find latest file at /x/y/latest"))
    assert reaction_of(same, healthy)[0] is Reaction.SILENT
    assert reaction_of(news, healthy) == (Reaction.LOGGED, "Unable to find latest file at …/latest")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"start": 0}, Consequence.STEP_ZERO),
        ({"start": 4}, Consequence.STEP_DIFFERS),
        ({"rate": 0.01}, Consequence.LEARNING_RATE_RESTARTED),
        ({"rate": 0.03}, Consequence.LEARNING_RATE_DIFFERS),
        ({"loaded": Loaded(step=8, model="x", optimizer="o", optimizer_entries=3)}, Consequence.MODEL_DIFFERS),
        ({"loaded": Loaded(step=8, model="m", optimizer="x", optimizer_entries=3)}, Consequence.OPTIMIZER_DIFFERS),
        ({"loaded": Loaded(step=8, model="m", optimizer="x", optimizer_entries=0)}, Consequence.OPTIMIZER_EMPTY),
        ({"end": 10}, Consequence.FEWER_STEPS),
        ({"steps": ()}, Consequence.FEWER_STEPS),
    ],
)
def test_each_difference_of_a_run_is_named(changes: dict[str, object], expected: Consequence) -> None:
    """A consequence that nothing can raise would never be missed."""
    assert expected in consequences(run_of(rank_of(**changes)), run_of(rank_of()))


def test_a_counter_that_starts_anew_is_named() -> None:
    """Accelerate counts micro-batches by itself, and synchronises by that count."""
    healthy = msgspec.structs.replace(rank_of().loaded, counters={"accelerator.step": 8})
    damaged = msgspec.structs.replace(healthy, counters={"accelerator.step": 0})
    effects = effects_of(run_of(rank_of(loaded=damaged)), run_of(rank_of(loaded=healthy)), run_of(rank_of(start=0)))
    assert [(effect.consequence, effect.expected, effect.found) for effect in effects] == [
        (Consequence.COUNTER_DIFFERS, "8", "accelerator.step 0")
    ]


def test_fewer_ranks_that_resume_are_judged_by_what_may_not_change() -> None:
    """Half the ranks see half the samples a step; that streams and parts of weights differ then is no consequence."""
    two, one = run_of(rank_of(), rank_of(1)), run_of(rank_of(), weights=3.0)
    effects = effects_of(one, two, run_of(rank_of(start=0)), same_ranks=False)
    assert [effect.consequence for effect in effects] == [Consequence.BATCH_DIFFERS]


@pytest.mark.parametrize(
    ("samples", "expected"), [((0, 1), Consequence.SAMPLES_REPEATED), ((30, 31), Consequence.SAMPLES_DIFFER)]
)
def test_samples_of_this_epoch_that_come_again_are_repeated(samples: tuple[int, ...], expected: Consequence) -> None:
    """Training twice on one sample of an epoch and never on another is worse than another order."""
    rank = rank_of()
    first = msgspec.structs.replace(rank.steps[0], samples=samples)
    damaged = run_of(msgspec.structs.replace(rank, steps=(first, *rank.steps[1:])))
    assert consequences(damaged, run_of(rank)) == [expected]


def test_random_streams_that_stand_elsewhere_are_named() -> None:
    """The first step's draws decide; where streams of later steps stand follows from it."""
    rank = rank_of()
    first = msgspec.structs.replace(rank.steps[0], draws="elsewhere")
    damaged = run_of(msgspec.structs.replace(rank, steps=(first, *rank.steps[1:])))
    assert consequences(damaged, run_of(rank)) == [Consequence.RNG_DIFFERS]


def test_weights_that_are_off_and_weights_that_are_no_numbers_are_told_apart() -> None:
    """NaN is what people search for; a distance of NaN would say neither."""
    healthy = run_of(rank_of())
    assert consequences(run_of(rank_of(), weights=1.5), healthy) == [Consequence.WEIGHTS_DIFFER]
    assert consequences(run_of(rank_of(), weights=float("nan")), healthy) == [Consequence.WEIGHTS_NAN]


def test_the_rest_of_an_uninterrupted_run_compares_like_a_resume() -> None:
    """What a healthy resume loses is measured against the same steps of the run that was never stopped."""
    fresh = run_of(rank_of(start=0))
    assert consequences(run_of(rank_of()), part_after(fresh, 8)) == []
