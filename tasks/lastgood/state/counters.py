"""Schedulers, gradient scalers, accumulation windows and configurations as document parts.

Decides which values of them are lawful before they touch a live object. Rules: a saved state has exactly the live one's
keys and kinds of values, since `LRScheduler.load_state_dict` would overwrite methods with whatever it is given; scales
and rates are finite and positive; a save inside an accumulation window is refused, since half a window's gradients
are nowhere on storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from lastgood.errors import UsageError
from lastgood.manifest import Component
from lastgood.state import codec
from lastgood.state.parts import DocumentPart, Scope
from lastgood.verdict import Note, NoteReason

__all__ = [
    "CONFIGURATION_FILE",
    "Accumulation",
    "AccumulationLike",
    "StatefulLike",
    "accumulation_part",
    "configuration_part",
    "scaler_part",
    "scheduler_part",
]

CONFIGURATION_FILE = "config.json"
MAXIMUM_COUNT = 2**53
_SCALER_KEYS = frozenset({"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"})


class StatefulLike(Protocol):
    """Anything with torch's way of giving and taking its state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class AccumulationLike(Protocol):
    """Anything that knows its window: `microbatches` a step, and `index`, how many of them were done (0: none)."""

    microbatches: int
    index: int


class Accumulation:
    """Counts the microbatches of an optimizer step.

    Args:
        microbatches: How many make one step, at least 1.
    """

    def __init__(self, microbatches: int) -> None:
        if microbatches < 1:
            raise UsageError(f"microbatches out of range: expected at least 1, found {microbatches}")
        self.microbatches = microbatches
        self.index = 0

    def advance(self) -> bool:
        """Count one microbatch; true when it was the last of its window and the optimizer must step."""
        self.index = (self.index + 1) % self.microbatches
        return self.index == 0


def accumulation_part(accumulation: AccumulationLike) -> DocumentPart:
    """Saves where the window stands: only ever closed."""

    def save() -> dict[str, int]:
        if accumulation.index:
            raise UsageError(
                f"save inside an accumulation window: {accumulation.index} of {accumulation.microbatches} microbatches "
                "are done",
                hint="save after optimizer.step(), when the window is closed",
            )
        return {"microbatches": accumulation.microbatches, "index": accumulation.index}

    def validate(saved: Any) -> Iterator[str | Note]:
        yield from codec.differences({"microbatches": 1, "index": 0}, saved, "accumulation")
        if not isinstance(saved, dict) or type(saved.get("index")) is not int or saved["index"] != 0:
            yield f"expected a closed window, found {saved!r}"
        elif saved.get("microbatches") != accumulation.microbatches:
            yield Note(
                reason=NoteReason.CONFIGURATION_CHANGED,
                message=f"accumulation changed: the checkpoint has {saved.get('microbatches')} microbatches a step, "
                f"the run {accumulation.microbatches}",
                offender="accumulation.microbatches",
            )

    def load(saved: Any) -> None:
        accumulation.index = saved["index"]

    return DocumentPart(
        component=Component.ACCUMULATION,
        name="accumulation",
        file=CONFIGURATION_FILE,
        scope=Scope.REPLICATED,
        save=save,
        validate=validate,
        load=load,
        owns=(accumulation,),
        compares=False,  # the running window size is the run's own; the index is compared by loading it
    )


def configuration_part(configuration: Mapping[str, Any]) -> DocumentPart:
    """Saves what the run was configured with; a difference is worth a note and changes nothing."""
    codec.encode(configuration, "configuration")  # refuse at registration what could not be saved

    def validate(saved: Any) -> Iterator[str | Note]:
        if not isinstance(saved, dict):
            yield f"expected a mapping, found {type(saved).__name__}"
            return
        for key in sorted(configuration.keys() | saved.keys()):
            run, checkpoint = configuration.get(key), saved.get(key)
            if not codec.same(run, checkpoint):
                yield Note(
                    reason=NoteReason.CONFIGURATION_CHANGED,
                    message=f"configuration changed: {key}: the checkpoint has {checkpoint!r}, the run {run!r}",
                    offender=f"configuration.{key}",
                )

    return DocumentPart(
        component=Component.CONFIG,
        name="configuration",
        file=CONFIGURATION_FILE,
        scope=Scope.REPLICATED,
        save=lambda: dict(configuration),
        validate=validate,
        load=lambda _: None,
        compares=False,
    )


def scheduler_part(scheduler: StatefulLike, name: str = "scheduler") -> DocumentPart:
    """Saves a learning-rate scheduler's own position; the rates themselves travel with the optimizer's groups."""

    def validate(saved: Any) -> Iterator[str]:
        yield from codec.differences(scheduler.state_dict(), saved, name)
        yield from _scheduler_values(scheduler, saved, name)

    return DocumentPart(
        component=Component.SCHEDULER,
        name=name,
        file=f"{name}.json",
        scope=Scope.REPLICATED,
        save=scheduler.state_dict,
        validate=validate,
        load=_loader(scheduler),
        owns=(scheduler,),
    )


def _scheduler_values(scheduler: object, saved: Any, place: str) -> Iterator[str]:
    for key, value in saved.items() if isinstance(saved, dict) else ():
        if callable(getattr(type(scheduler), str(key), None)):
            yield f"{place}.{key}: would overwrite a method"
        elif key in ("last_epoch", "_step_count", "num_bad_epochs", "cooldown_counter"):
            if type(value) is not int or not -1 <= value <= MAXIMUM_COUNT:
                yield f"{place}.{key}: expected a count, found {value!r}"
        elif key in ("_last_lr", "base_lrs"):
            rates = value if isinstance(value, list) else [value]
            if not all(_is_number(rate) and float(rate) >= 0 for rate in rates):
                yield f"{place}.{key}: expected finite rates, found {value!r}"
        elif key == "_schedulers" and isinstance(value, list):
            for number, (inner, state) in enumerate(zip(getattr(scheduler, key, ()), value, strict=False)):
                yield from _scheduler_values(inner, state, f"{place}.{key}[{number}]")


def scaler_part(scaler: StatefulLike, name: str = "scaler") -> DocumentPart:
    """Saves a gradient scaler: its scale and how long it has grown; a disabled one saves nothing, and says so."""

    def validate(saved: Any) -> Iterator[str]:
        live = scaler.state_dict()
        yield from codec.differences(live, saved, name)
        if not live or not isinstance(saved, dict) or not saved.keys() >= _SCALER_KEYS:
            return
        if not (_is_number(saved["scale"]) and saved["scale"] > 0):
            yield f"{name}.scale: expected a finite number above 0, found {saved['scale']!r}"
        if not (_is_number(saved["growth_factor"]) and saved["growth_factor"] > 1):
            yield f"{name}.growth_factor: expected a number above 1, found {saved['growth_factor']!r}"
        if not (_is_number(saved["backoff_factor"]) and 0 < saved["backoff_factor"] < 1):
            yield f"{name}.backoff_factor: expected a number between 0 and 1, found {saved['backoff_factor']!r}"
        interval, tracker = saved["growth_interval"], saved["_growth_tracker"]
        if type(interval) is not int or not 1 <= interval <= MAXIMUM_COUNT:
            yield f"{name}.growth_interval: expected a count of steps, found {interval!r}"
        elif type(tracker) is not int or not 0 <= tracker < interval:
            yield f"{name}._growth_tracker: expected 0..{interval - 1}, found {tracker!r}"

    return DocumentPart(
        component=Component.SCALER,
        name=name,
        file=f"{name}.json",
        scope=Scope.REPLICATED,
        save=scaler.state_dict,
        validate=validate,
        load=_loader(scaler),
        owns=(scaler,),
    )


def _loader(target: StatefulLike) -> Callable[[Any], None]:
    def load(saved: Any) -> None:
        if saved:  # an enabled scaler raises on the empty state that only a disabled one saves
            target.load_state_dict(saved)

    return load


def _is_number(value: object) -> bool:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()  # rates become tensors when the optimizer is captured into a graph
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
