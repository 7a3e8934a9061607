"""The reference trainer's command line and what the replica contract adds to it.

Decides one frozen `Settings`. Rule: for a replica the environment and the command line must agree, for a supervisor
that says one thing twice and means two is a mistake.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import NoReturn, TypeVar

from lastgood.errors import UsageError
from lastgood.replica.contract import ReplicaEnvironment
from lastgood.replica.trainer.model import ModelShape

__all__ = ["Precision", "Settings", "Strategy", "parse_settings"]

_Value = TypeVar("_Value", str, int)


class Strategy(StrEnum):
    """How ranks share the model."""

    SINGLE = "single"
    DDP = "ddp"
    FSDP2 = "fsdp2"


class Precision(StrEnum):
    """Of the forward pass.

    The scaler works in fp32 too, where it alters nothing but has state that could be lost. fp16 is for devices that are
    fast at it: on a CPU without such units a step took 5 times as long as in fp32 (measured).
    """

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that was asked for. Steps count *completed* optimizer steps.

    Args:
        family: URI or path where to publish and discover.
        resume: Hint; None for none.
        allow_fresh: Start at step 0 if the family holds no commit at all.
        allow_topology_change: Load a checkpoint of another world size.
        is_replica: Told by the contract; opens the door to `faults`.
        trace: Write the trace.
        steps: Length of the schedule, and where training ends at the latest.
        stop_step: Where this life ends, at most `steps`.
        save_every: Steps between saves; 0 for none but the last.
        save_first: Save before the first step of a fresh start too (step 0, or the fast-forwarded one).
        asynchronous: Publish in the background.
        strategy: How ranks share the model.
        stock_ddp: Leave DDP's bucket rebuilding on, which forfeits exactness on more than two ranks.
        precision: Of the forward pass.
        ema: Keep a moving average of the weights.
        workers: Loader processes a rank.
        seed: Of everything.
        samples: Length of an epoch.
        global_batch: Samples of one optimizer step over all ranks and microbatches.
        microbatches: Accumulated a step.
        threads: Per process; 0 leaves torch's own choice, which forfeits exactness.
        fast_forward: Pretend that this many steps were done.
        digest_every: Steps between digests of the whole state in the trace; 0 for none.
        step_delay_seconds: Sleep of each step, so that a test can kill between two.
        shape: Of the model.
        learning_rate: Peak.
        warmup_steps: Linear rise.
    """

    family: str
    resume: str | None
    allow_fresh: bool
    allow_topology_change: bool
    is_replica: bool
    trace: bool
    steps: int
    stop_step: int
    save_every: int
    save_first: bool
    asynchronous: bool
    strategy: Strategy
    stock_ddp: bool
    precision: Precision
    ema: bool
    workers: int
    seed: int
    samples: int
    global_batch: int
    microbatches: int
    threads: int
    fast_forward: int
    digest_every: int
    step_delay_seconds: float
    shape: ModelShape
    learning_rate: float
    warmup_steps: int

    @property
    def steps_per_epoch(self) -> int:
        return self.samples // self.global_batch

    def microbatch_samples(self, world_size: int) -> int:
        """Samples of one microbatch on one rank.

        Raises:
            UsageError: The global batch does not divide, so the step would depend on the number of ranks.
        """
        parts = world_size * self.microbatches
        if self.global_batch % parts:
            raise UsageError(
                f"global batch does not divide: {self.global_batch} samples over {world_size} ranks "
                f"and {self.microbatches} microbatches"
            )
        return self.global_batch // parts

    def configuration(self) -> dict[str, str | int | float | bool]:
        """What determines the course of training, and nothing that a restart may change."""
        shape = {f"model_{field.name}": getattr(self.shape, field.name) for field in fields(self.shape)}
        return {
            **shape,
            "steps": self.steps,
            "seed": self.seed,
            "samples": self.samples,
            "global_batch": self.global_batch,
            "microbatches": self.microbatches,
            "precision": self.precision.value,
            "threads": self.threads,
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "stock_ddp": self.stock_ddp,
        }


def parse_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the command line, and what the contract adds.

    Raises:
        UsageError: An argument is unlawful, or contradicts the replica contract.
    """
    told = ReplicaEnvironment.from_environ(environ)
    asked = _parser().parse_args(list(arguments))
    family = _agree("family", asked.family, told.family, told)
    stop_step = _agree("stop step", asked.stop_step, told.stop_step, told)
    if family is None:
        raise UsageError("no family: pass --family or set LASTGOOD_FAMILY")
    settings = Settings(
        family=family,
        resume=_agree("resume", asked.resume or None, told.resume, told),
        allow_fresh=asked.allow_fresh,
        allow_topology_change=asked.allow_topology_change,
        is_replica=told.is_replica,
        trace=told.trace,
        steps=asked.steps,
        stop_step=asked.steps if stop_step is None else min(asked.steps, stop_step),
        save_every=asked.save_every,
        save_first=asked.save_first,
        asynchronous=asked.asynchronous,
        strategy=Strategy(asked.strategy),
        stock_ddp=asked.stock_ddp,
        precision=Precision(asked.precision),
        ema=asked.ema,
        workers=asked.workers,
        seed=asked.seed,
        samples=asked.samples,
        global_batch=asked.global_batch,
        microbatches=asked.microbatches,
        threads=asked.threads,
        fast_forward=asked.fast_forward,
        digest_every=asked.digest_every,
        step_delay_seconds=asked.step_delay,
        shape=ModelShape(
            width=asked.width, layers=asked.layers, heads=asked.heads, context=asked.context, dropout=asked.dropout
        ),
        learning_rate=asked.learning_rate,
        warmup_steps=asked.warmup_steps,
    )
    _check(settings)
    return settings


def _check(settings: Settings) -> None:
    if settings.steps_per_epoch == 0:
        raise UsageError(f"an epoch holds no step: {settings.samples} samples, global batch {settings.global_batch}")
    if settings.shape.width % settings.shape.heads:
        raise UsageError(f"width does not divide: {settings.shape.width} over {settings.shape.heads} heads")
    if settings.fast_forward > settings.stop_step:
        raise UsageError(f"fast-forwarded past the end: {settings.fast_forward} of {settings.stop_step} steps")


def _agree(name: str, asked: _Value | None, told: _Value | None, environment: ReplicaEnvironment) -> _Value | None:
    if environment.is_replica and asked is not None and told is not None and asked != told:
        raise UsageError(f"command line contradicts the replica contract: {name}: {asked!r} against {told!r}")
    return told if asked is None else asked


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"trainer arguments: {message}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m lastgood.replica.trainer", allow_abbrev=False)
    where = parser.add_argument_group("where and whence")
    where.add_argument("--family")
    where.add_argument("--resume", help="URI of a generation, a hint; empty for none")
    where.add_argument("--allow-fresh", action="store_true")
    where.add_argument("--allow-topology-change", action="store_true")
    _add_course(parser.add_argument_group("course"))
    _add_mechanics(parser.add_argument_group("mechanics"))
    shape = parser.add_argument_group("model")
    shape.add_argument("--width", type=_whole(1), default=64)
    shape.add_argument("--layers", type=_whole(1), default=2)
    shape.add_argument("--heads", type=_whole(1), default=4)
    shape.add_argument("--context", type=_whole(1), default=32)
    shape.add_argument("--dropout", type=_fraction, default=0.1)
    return parser


def _add_course(course: argparse._ArgumentGroup) -> None:
    course.add_argument("--steps", type=_whole(0), default=200)
    course.add_argument("--stop-step", type=_whole(0))
    course.add_argument("--seed", type=_whole(0), default=7)
    course.add_argument("--samples", type=_whole(1), default=2048)
    course.add_argument("--global-batch", type=_whole(1), default=32)
    course.add_argument("--microbatches", type=_whole(1), default=4)
    course.add_argument("--precision", choices=[item.value for item in Precision], default=Precision.FP32.value)
    course.add_argument("--learning-rate", type=float, default=3e-3)
    course.add_argument("--warmup-steps", type=_whole(1), default=10)
    course.add_argument("--ema", action="store_true")
    course.add_argument("--fast-forward", type=_whole(0), default=0, metavar="STEP")


def _add_mechanics(mechanics: argparse._ArgumentGroup) -> None:
    mechanics.add_argument("--strategy", choices=[item.value for item in Strategy], default=Strategy.DDP.value)
    mechanics.add_argument("--stock-ddp", action="store_true")
    mechanics.add_argument("--workers", type=_whole(0), default=2)
    mechanics.add_argument("--threads", type=_whole(0), default=1)
    mechanics.add_argument("--save-every", type=_whole(0), default=20, metavar="STEPS")
    mechanics.add_argument("--save-first", action="store_true")
    mechanics.add_argument("--asynchronous", action="store_true")
    mechanics.add_argument("--digest-every", type=_whole(0), default=0, metavar="STEPS")
    mechanics.add_argument("--step-delay", type=_seconds, default=0.0, metavar="SECONDS")


class _whole:  # noqa: N801 - reads as the function that argparse calls it as
    """An integer of at least `least`; argparse prints the name in its errors."""

    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) < self.least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {self.least}, found {text!r}")
        return int(text)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 0 and below 1, found {text!r}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds, found {text!r}")
    return value
