"""Trainer of transformers: each of its saves is sealed, and its steps are traced.

    trainer = Trainer(..., callbacks=[SealCallback()])

The directory `output_dir` becomes the family. `save_total_limit` may remove what was sealed: the oldest go first, and
what is gone is never offered. A callback is told no loss, so the model's own is taken as it is returned: where the
model computes none (`label_smoothing_factor`, a loss function of the user's) no step is traced. In a replica the run
ends at the step that a restore asks for, with a save; its schedule is that of the whole run all the same. A replica is
one call of `train`: a second one ends it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from lastgood.producers.run import SealedRun
from lastgood.replica.contract import ReplicaEnvironment

__all__ = ["SealCallback"]


class SealCallback(TrainerCallback):
    """Seals every checkpoint that Trainer saves, and writes the trace; raises what `SealedRun` raises."""

    def __init__(self) -> None:
        self._run: SealedRun | None = None
        self._losses: list[Any] = []
        self._hook: Any = None

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A replica begins before it loads, so that a load that kills it is seen as that."""
        if _is_replica():
            self._run = SealedRun(args.output_dir or ".")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called on every rank, after Trainer has loaded model, optimizer and scheduler."""
        model = kwargs["model"]
        self._losses.clear()
        if self._hook is not None and not _is_replica():
            self._end()  # Trainer begins again with a smaller batch (`auto_find_batch_size`)
        self._unhook()  # a replica has one life, which goes on if no step was made yet
        self._run = self._run or SealedRun(args.output_dir or ".")
        optimizer = kwargs.get("optimizer")
        self._run.resumed(
            model, [optimizer] if optimizer is not None else [], step=state.global_step, path=_resumed(args, state)
        )
        self._hook = model.register_forward_hook(self._forward)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called on every rank once an optimizer step is completed, before it is saved."""
        if self._run is None:
            return
        losses, self._losses = self._losses, []
        if losses:
            self._run.step(state.global_step, *losses)
        else:
            self._run.untold(state.global_step, "the model returns no loss, and Trainer tells its callbacks of none")
        if self._run.stops_at(state.global_step):
            control.should_save = control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called on every rank, after Trainer has written and rotated."""
        if self._run is not None:
            self._run.save(Path(args.output_dir or ".", _name(state.global_step)))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called on every rank, after the last save."""
        self._end()

    def _end(self) -> None:
        self._unhook()
        if self._run is not None:
            self._run.close()
            self._run = None

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _forward(self, model: Any, inputs: Any, outputs: Any) -> None:
        """Keep the loss of one microbatch, as Trainer takes it from what the model returns."""
        if not model.training:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs[0] if isinstance(outputs, tuple) else None
        if loss is not None and hasattr(loss, "detach") and loss.numel() == 1:
            self._losses.append(loss.detach())


def _is_replica() -> bool:
    return ReplicaEnvironment.from_environ(os.environ).is_replica


def _name(step: int) -> str:
    return f"{PREFIX_CHECKPOINT_DIR}-{step}"


def _resumed(args: TrainingArguments, state: TrainerState) -> str | None:
    """What Trainer resumed. It tells a callback only the step, and names what it saves by that."""
    if not state.global_step:
        return None
    told = args.resume_from_checkpoint
    return told if isinstance(told, str) and Path(told).is_dir() else _name(state.global_step)
