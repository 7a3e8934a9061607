"""What a training program is asked to do, and the little that all programs share about data and rates.

Decides sizes only: 24 samples of 8 tokens, two a rank and step, 12 steps, saves after steps 4 and 8. A sample's first
token is its number, so that whoever sees a batch knows which samples it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SAMPLES = 24
SAMPLE_TOKENS = 8
VOCABULARY = 64
BATCH_SAMPLES = 2
LAST_STEP = 12
SAVED_STEPS = (4, 8)
"""Completed steps after which a program saves."""
WARMUP_STEPS = 3
LEARNING_RATE = 0.05
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one program by `ranks` processes."""

    program: str
    """Module below `tests.corpus.programs`."""
    variant: str = ""
    """What the program understands by it: a layout, a ZeRO stage."""
    ranks: int = 1
    root: Path
    """The directory that the framework is told to save in and resume from."""
    report: Path
    """Where each rank leaves what it observed, and all that it printed."""
    launched: bool = False
    """Tell ranks their place as launchers do; one process alone is usually told nothing."""
    resume: bool = False
    """Resume by the framework's own rule for the newest checkpoint."""
    save: bool = False
    until: int = LAST_STEP
    """Completed steps after which the run ends."""
    deadline_seconds: float = 120.0


def tokens(sample: int) -> list[int]:
    """A sample's tokens: its own number, then what follows from it."""
    return [sample, *((sample * 7 + 3 * place) % VOCABULARY for place in range(1, SAMPLE_TOKENS))]


def rate_factor(step: int) -> float:
    """Factor of the learning rate for the update after `step` completed ones: a warm-up, then down to zero."""
    if step < WARMUP_STEPS:
        return (step + 1) / (WARMUP_STEPS + 1)
    return max(0.0, (LAST_STEP - step) / (LAST_STEP - WARMUP_STEPS))
