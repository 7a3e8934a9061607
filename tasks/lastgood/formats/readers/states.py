"""What the state of an optimizer, a scheduler, a scaler or a random stream looks like, whoever saved it.

Decides what such a state is recognised by and how many steps it counted. Leaves what follows from that to each reader.
Rules: recognised by the keys that torch itself writes, never by a file's name; a counter that is not there is None and
never 0; an optimizer counts once for each parameter, and `lowest` and `highest` say whether those agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lastgood.formats.containers.stubs import ArrayStub, ObjectStub, TensorStub
from lastgood.formats.readers.contents import TorchContent, count_in, number_of_value

__all__ = [
    "OptimizerSteps",
    "had_scheduler",
    "is_emptied",
    "is_optimizer",
    "is_random",
    "is_scaler",
    "is_scheduler",
    "is_tensors",
    "optimizer_steps",
    "scheduler_steps",
]

MAXIMUM_PARAMETERS = 64
"""Whose counters are read, spread over all: on a bucket each is a request."""
_MAXIMUM_LOOKED_AT = 1_000
_OPTIMIZER = frozenset({"state", "param_groups"})
_SCALER = frozenset({"scale", "growth_factor", "backoff_factor"})
_STREAMS = ("rng", "random", "seed")
_NOT_BY_STEPS = frozenset({"best", "num_bad_epochs"})
"""Of a scheduler that waits for a metric: it counts evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSteps:
    """Steps that an optimizer counted, over the parameters that were looked at.

    Args:
        lowest: Of any parameter; a parameter that got no gradient in a step does not count it.
        highest: Of any parameter.
    """

    lowest: int
    highest: int

    @property
    def agreed(self) -> int | None:
        """What all parameters counted; None where they differ."""
        return self.highest if self.lowest == self.highest else None


def is_optimizer(value: Any) -> bool:
    """Whether it is what `Optimizer.state_dict` returns."""
    return isinstance(value, Mapping) and value.keys() >= _OPTIMIZER and isinstance(value["param_groups"], list)


def is_scheduler(value: Any) -> bool:
    """Whether it is what `LRScheduler.state_dict` returns."""
    return isinstance(value, Mapping) and "last_epoch" in value and not is_optimizer(value)


def is_scaler(value: Any) -> bool:
    """Whether it is what `GradScaler.state_dict` returns."""
    return isinstance(value, Mapping) and value.keys() >= _SCALER


def is_random(name: str, value: Any) -> bool:
    """Whether it is the state of random streams: by what it is called and by what it is made of."""
    if not any(word in name.lower() for word in _STREAMS):
        return False
    if isinstance(value, TensorStub):
        return value.dtype == "uint8"
    return isinstance(value, Mapping | list | tuple | ArrayStub)


def is_tensors(value: Any) -> bool:
    """Whether it is a state dictionary of a model: names, and tensors more than anything else."""
    if not isinstance(value, Mapping) or not value:
        return False
    looked_at = list(islice(value.items(), _MAXIMUM_LOOKED_AT))
    tensors = sum(_is_tensor(item) for _, item in looked_at)
    return all(isinstance(name, str) for name, _ in looked_at) and 2 * tensors > len(looked_at)


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor, or an object of a class that wraps one, as quantized and distributed tensors are."""
    return isinstance(value, TensorStub) or (isinstance(value, ObjectStub) and "tensor" in value.path.lower())


def optimizer_steps(content: TorchContent, optimizer: Any) -> OptimizerSteps | None:
    """How many steps an optimizer took; None where it does not count, or took none yet.

    Args:
        content: The file that the state is in.
        optimizer: What `is_optimizer` accepted.

    Raises:
        FormatError: A counter's bytes are not those that were written.
    """
    state = optimizer["state"] if is_optimizer(optimizer) else None
    if not isinstance(state, Mapping) or not state:
        return None
    found = [content.number(value) for value in _spread(list(state.values()))]
    steps = [step for step in found if step is not None]
    return OptimizerSteps(lowest=min(steps), highest=max(steps)) if steps else None


def is_emptied(optimizer: Any) -> bool:
    """Whether an optimizer that must keep something for each parameter keeps nothing: Adam's kind, or with momentum."""
    if not is_optimizer(optimizer) or optimizer["state"]:
        return False
    groups = (group for group in optimizer["param_groups"] if isinstance(group, Mapping))
    return any("betas" in group or bool(group.get("momentum")) for group in groups)


def _spread(parameters: list[Any]) -> Iterator[Any]:
    """Counters of parameters from the first to the last, at equal distances."""
    stride = max(1, -(-len(parameters) // MAXIMUM_PARAMETERS))
    for parameter in (*parameters[:-1:stride], parameters[-1]):
        if isinstance(parameter, Mapping) and "step" in parameter:
            yield parameter["step"]


def scheduler_steps(scheduler: Any) -> int | None:
    """How often a scheduler was stepped; None where it counts something else, such as evaluations."""
    if not is_scheduler(scheduler) or scheduler.keys() & _NOT_BY_STEPS:
        return None
    last, calls = count_in(scheduler, "last_epoch"), count_in(scheduler, "_step_count")
    # torch calls `step` once on construction; whoever sets `last_epoch` by hand leaves the two apart.
    return last if last is not None and calls == last + 1 else None


def had_scheduler(optimizer: Any) -> bool:
    """Whether a scheduler of torch ever drove an optimizer: it leaves `initial_lr` in every group."""
    groups = optimizer["param_groups"] if is_optimizer(optimizer) else []
    return any(isinstance(group, Mapping) and number_is_set(group.get("initial_lr")) for group in groups)


def number_is_set(value: Any) -> bool:
    """Whether there is a number, as itself or as a tensor of one element."""
    return isinstance(value, TensorStub) or number_of_value(value) is not None or isinstance(value, float)
