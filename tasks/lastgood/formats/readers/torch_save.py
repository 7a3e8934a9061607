"""One file of `torch.save` that a training loop of somebody's own wrote.

Decides what the parts of its dictionary are, by what torch itself puts into them. Rules: no name is relied on where the
content tells; nothing is said to be missing, for no convention says what belongs there; a counter is only called
completed where the optimizer took as many steps, for a loop may as well write down the step that comes next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lastgood.formats.containers.torchfile import Container, container_of
from lastgood.formats.description import Certainty, Description, Framework, Layout
from lastgood.formats.readers.contents import TorchContent, number_of_value
from lastgood.formats.readers.draft import Draft
from lastgood.formats.readers.states import (
    had_scheduler,
    is_optimizer,
    is_random,
    is_scaler,
    is_scheduler,
    is_tensors,
    optimizer_steps,
)
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source
from lastgood.manifest import Component

__all__ = ["ENDINGS", "TorchSaveReader"]

ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".tar")
"""Of names that people give such files, e.g. `checkpoint.pth.tar`, which is no tar."""
_TORCH = frozenset({Container.TORCH_ZIP, Container.TORCH_LEGACY, Container.TORCH_TAR})
_BROKEN = frozenset({Container.EMPTY, Container.UNKNOWN})
_STEPS = ("step", "global_step", "iteration", "iter", "steps", "num_updates", "it")
_EMA = ("ema", "averaged", "swa")
_DATA = ("loader", "sampler", "dataset", "data_state")
_CONFIG = ("config", "cfg", "args", "hparams", "hyper_parameters", "opt", "options")
_MAXIMUM_PARTS = 1_000
_MAXIMUM_DEPTH = 3


class TorchSaveReader:
    """One file."""

    def recognises(self, source: Source) -> bool:
        if not source.is_file or not source.holds(source.name):
            return False
        with source.open(source.name) as reader:
            container = container_of(reader, source.name)
        # Torn at its head or emptied, only the name is left to tell what it was.
        return container in _TORCH or (container in _BROKEN and source.name.endswith(ENDINGS))

    def describe(self, source: Source) -> Description:
        draft = Draft(source)
        parts = None
        with draft.contents.torch(source.name) as content:
            if content is not None:
                parts = _gather(draft, content)
        if parts is not None:
            _say_absent(draft, parts)
        return draft.describe(
            framework=Framework.TORCH_SAVE,
            layout_name="single file"
            if parts is None or not parts.is_flat
            else "single file, a state dictionary alone",
            layout=Layout(world_size=None, certainty=Certainty.UNKNOWN, why="a file of torch.save names no ranks"),
            step=parts.step if parts is not None else None,
        )

    def choose(self, root: Root) -> Choice | None:
        return None  # the rule is in the training script


@dataclass(slots=True, kw_only=True)
class _Parts:
    """What a dictionary holds.

    Args:
        is_flat: Whether it is a model's state dictionary and nothing else.
        highest: Steps that an optimizer took.
        scheduled: Whether a scheduler drove an optimizer.
        written: Name → position that the loop wrote down.
    """

    is_flat: bool = False
    highest: int | None = None
    scheduled: bool = False
    written: dict[str, int] = field(default_factory=dict)

    @property
    def step(self) -> int | None:
        """Completed steps: what the optimizer took, for what the loop wrote may mean the next one."""
        return self.highest


def _gather(draft: Draft, content: TorchContent) -> _Parts:
    parts = _Parts()
    value = content.value
    if is_tensors(value) and not is_optimizer(value):
        parts.is_flat = True
        draft.hold(Component.MODEL, [content.path])
        return parts
    for name, part in _named(value):
        component = _component(name, part)
        if component is not None:
            draft.hold(component, [content.path], name)
        if is_optimizer(part):
            steps = optimizer_steps(content, part)
            if steps is not None:
                parts.highest = max(parts.highest or 0, steps.highest)
            parts.scheduled |= had_scheduler(part)
        last = name.rpartition(".")[2]
        number = number_of_value(part)
        if number is not None and last in (*_STEPS, "epoch"):
            parts.written[last] = number
    draft.count("optimizer_step", parts.highest)
    draft.mark("optimizer_step", parts.highest, content.path)
    for name, number in parts.written.items():
        if number == parts.highest:
            draft.count(name, number)
            draft.mark("trainer_step", number, content.path)
        else:
            draft.unknowable.append(f"whether {name} {number} names what is done or what comes next: the loop knows")
    return parts


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    """Parts of a dictionary with the keys that lead to them; what is recognised is not entered."""
    waiting = [("", value)]
    for _ in range(_MAXIMUM_PARTS):
        if not waiting:
            return
        name, part = waiting.pop(0)
        if name:
            yield name, part
        known = bool(name) and _component(name, part) is not None
        if known or name.count(".") >= _MAXIMUM_DEPTH:
            continue
        if isinstance(part, Mapping):
            waiting += [(f"{name}.{key}" if name else key, item) for key, item in part.items() if isinstance(key, str)]
        elif isinstance(part, list) and len(part) <= 16:
            waiting += [(f"{name}.{place}", item) for place, item in enumerate(part)]


def _component(name: str, part: Any) -> Component | None:
    """What a part is; None where nothing tells, or where it is not state."""
    last = name.rpartition(".")[2].lower()
    if is_optimizer(part):
        return Component.OPTIMIZER
    if is_scaler(part):
        return Component.SCALER
    if is_random(last, part):
        return Component.RNG
    if any(word in last for word in _DATA) and isinstance(part, Mapping):
        return Component.DATA
    if is_scheduler(part):
        return Component.SCHEDULER
    if is_tensors(part):
        return Component.EMA if any(word in last for word in _EMA) else Component.MODEL
    return Component.CONFIG if last in _CONFIG and part is not None else None


def _say_absent(draft: Draft, parts: _Parts) -> None:
    why = "the training loop put none into the file"
    if not parts.is_flat:
        draft.never_saved(Component.RNG, f"{why}: dropout and shuffling go on from a newly seeded stream")
        draft.never_saved(Component.DATA, f"{why}: the loop has to find its place in the data itself")
        schedule = (
            ", though a scheduler drove the optimizer: the loop must set it from the step" if parts.scheduled else ""
        )
        draft.never_saved(Component.SCHEDULER, why + schedule)
        draft.never_saved(Component.SCALER, why)
    draft.unknowable.append("what belongs into the file: only the training loop that wrote it knows")
