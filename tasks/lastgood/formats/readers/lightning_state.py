"""The dictionary that Lightning's Trainer dumps, wherever a strategy puts it: a single file, `meta.pt`, or the model
states of DeepSpeed.

Decides which parts of it are state, which are missing and which contradict each other. Leaves the files to
`lightning`. Rules: a dump without optimizers, schedulers and callbacks was saved with `save_weights_only`;
`global_step` is what the loops counted, to the step. Source: Lightning, `_CheckpointConnector.dump_checkpoint` and
`restore_training_state`, `_TrainingEpochLoop.global_step`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lastgood.formats.readers.contents import TorchContent, count_in
from lastgood.formats.readers.draft import Draft
from lastgood.formats.readers.states import is_emptied, is_optimizer, is_scaler, optimizer_steps
from lastgood.formats.readers.wording import component_missing, counters_disagree
from lastgood.manifest import Component
from lastgood.text import counted

__all__ = ["VERSION", "Dump", "is_dump", "say_never_saved"]

VERSION = "pytorch-lightning_version"
_SIGNS = frozenset({"state_dict", "global_step", "loops"})
_MODEL = "state_dict"
_OPTIMIZERS = "optimizer_states"
_SCHEDULERS = "lr_schedulers"
_LOOPS = "loops"
_CALLBACKS = "callbacks"


def is_dump(value: Any) -> bool:
    """Whether Lightning's Trainer dumped it, by the keys that it always writes."""
    return isinstance(value, Mapping) and (VERSION in value or value.keys() >= _SIGNS)


class Dump:
    """One dump.

    Args:
        draft: Gets what is found.
        content: The file that it is in.
        value: What `is_dump` accepted.
        elsewhere: What the strategy puts into files of its own.
    """

    def __init__(
        self,
        draft: Draft,
        content: TorchContent,
        value: Mapping[Any, Any],
        elsewhere: frozenset[Component] = frozenset(),
    ) -> None:
        self._draft = draft
        self._content = content
        self._value = value
        self._elsewhere = elsewhere

    @property
    def path(self) -> str:
        """The file that it is in."""
        return self._content.path

    @property
    def step(self) -> int | None:
        """Completed optimizer steps."""
        return count_in(self._value, "global_step")

    @property
    def version(self) -> str | None:
        """Lightning's."""
        found = self._value.get(VERSION)
        return found if isinstance(found, str) else None

    @property
    def is_weights_only(self) -> bool:
        """Whether it was saved with `save_weights_only`."""
        return not any(key in self._value for key in (_OPTIMIZERS, _SCHEDULERS, _CALLBACKS))

    def gather(self) -> None:
        """State all of it."""
        self._gather_model()
        self._gather_training()
        self._gather_rest()
        self._count()

    def _gather_model(self) -> None:
        if Component.MODEL in self._elsewhere:
            return
        if isinstance(self._value.get(_MODEL), Mapping) and self._value[_MODEL]:
            self._hold(Component.MODEL, _MODEL)
        else:
            self._missing(_MODEL, "the model's tensors are not in it")

    def _gather_training(self) -> None:
        if self.is_weights_only:
            if _LOOPS in self._value:
                self._hold(Component.OTHER, _LOOPS)
            return
        if Component.OPTIMIZER not in self._elsewhere:
            self._gather_optimizers()
        self._gather_schedulers()
        if isinstance(self._value.get(_LOOPS), Mapping) and "fit_loop" in self._value[_LOOPS]:
            self._hold(Component.DATA, f"{_LOOPS}.fit_loop")
        else:
            self._missing(_LOOPS, "Lightning goes on without it in silence, and repeats steps from number zero")

    def _gather_optimizers(self) -> None:
        if _list(self._value.get(_OPTIMIZERS)):
            self._hold(Component.OPTIMIZER, _OPTIMIZERS)
            if self.step and any(is_emptied(one) for one in _list(self._value[_OPTIMIZERS])):
                self._missing(_OPTIMIZERS, "an optimizer holds the state of no parameter")
        elif _OPTIMIZERS not in self._value or self.step:
            taken = "steps that nobody counted" if self.step is None else counted(self.step, "step")
            self._missing(_OPTIMIZERS, f"expected the state of what took {taken}")

    def _gather_schedulers(self) -> None:
        if _list(self._value.get(_SCHEDULERS)):
            self._hold(Component.SCHEDULER, _SCHEDULERS)
        elif _SCHEDULERS not in self._value:
            self._missing(_SCHEDULERS, "a dump of training holds a list of them, if only an empty one")
        elif taken := _count_at(self._loop("epoch_loop.scheduler_progress"), "total", "completed"):
            steps = counted(taken, "step")
            why = f"the list is empty, and the loops counted {steps} of one; a resume begins its schedule anew"
            self._missing(_SCHEDULERS, why)

    def _gather_rest(self) -> None:
        for key, value in self._value.items():
            if isinstance(key, str) and is_scaler(value):
                self._hold(Component.SCALER, key)
        for key, component in ((_CALLBACKS, Component.OTHER), ("hyper_parameters", Component.CONFIG)):
            if self._value.get(key):
                self._hold(component, key)

    def _hold(self, component: Component, within: str) -> None:
        self._draft.hold(component, [self.path], within)

    def _missing(self, key: str, why: str) -> None:
        self._draft.findings.append(component_missing(key, f"{self.path}: {why}"))

    def _loop(self, name: str) -> Any:
        loops = self._value.get(_LOOPS)
        fit = loops.get("fit_loop") if isinstance(loops, Mapping) else None
        return fit.get(name) if isinstance(fit, Mapping) else None

    def _count(self) -> None:
        draft = self._draft
        draft.count("global_step", self.step)
        draft.count("epoch", count_in(self._value, "epoch"))
        batches = self._loop("epoch_loop.batch_progress")
        draft.count("batch_of_epoch", _count_at(batches, "current", "ready"))
        draft.mark("trainer_step", self.step, self.path)
        optimizers = [one for one in _list(self._value.get(_OPTIMIZERS)) if is_optimizer(one)]
        steps = [taken for one in optimizers if (taken := optimizer_steps(self._content, one)) is not None]
        highest = max((one.highest for one in steps), default=None)
        draft.count("optimizer_step", highest)
        draft.mark("optimizer_step", highest, self.path)
        if self.step is None:
            return
        counted = self._counted_by_loops()
        if counted and self.step not in counted:
            why = "global_step against what the loops counted"
            draft.findings.append(counters_disagree(self.path, why, expected=max(counted), found=self.step))
        elif highest is not None and highest > self.step > 0:  # optimizers that are stepped past the loops count alone
            why = "global_step against the steps that the optimizer took"
            draft.findings.append(counters_disagree(self.path, why, expected=highest, found=self.step))

    def _counted_by_loops(self) -> set[int]:
        """Steps by automatic and by manual optimization, of which one is used."""
        automatic = self._loop("epoch_loop.automatic_optimization.optim_progress")
        manual = self._loop("epoch_loop.manual_optimization.optim_step_progress")
        found = (
            _count_at(automatic, "optimizer", "step", "total", "completed"),
            _count_at(manual, "total", "completed"),
        )
        return {steps for steps in found if steps is not None}


def say_never_saved(draft: Draft) -> None:
    """State what Lightning leaves out of every dump."""
    draft.never_saved(
        Component.RNG, "Lightning saves no random state: dropout and shuffling go on from a newly seeded stream"
    )
    draft.never_saved(Component.ACCUMULATION, "gradients of a window that is not finished are not saved")


def _count_at(value: Any, *keys: str) -> int | None:
    """A count at the end of a path of keys."""
    for key in keys[:-1]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return count_in(value, keys[-1])


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
