"""Lightning's Trainer: each checkpoint that it writes is sealed, and its steps are traced.

    trainer = Trainer(..., callbacks=[SealedModelCheckpoint(dirpath=..., filename="{step}", save_top_k=-1)])

The directory that the checkpoints lie in becomes the family. Lightning may remove what was sealed; what is gone is
never offered. `last.ckpt`, which is written anew at every save, is not sealed: a sealed name means one checkpoint for
ever. A step is what Lightning counts as `global_step`: an update of any optimizer. With manual optimization a restore
proves what makes one update a batch, of several optimizers in turn, and returns its loss; the log says what is missing.
In a replica the run ends at the step that a restore asks for, with a save, and a second `fit` ends it. Several
callbacks of one directory are one life, of several directories one each, which a replica cannot have.
"""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lastgood.errors import UsageError
from lastgood.producers.run import SealedRun, admit
from lastgood.replica.contract import ReplicaEnvironment

__all__ = ["SealedModelCheckpoint"]


class SealedModelCheckpoint(ModelCheckpoint):
    """A ModelCheckpoint that seals what it wrote and writes the trace; it takes the same arguments, and raises what
    `SealedRun` raises.
    """

    _run: SealedRun | None = None
    _leads = False
    """Whether this one tells the steps; another of the same directory says only what it saved."""
    _seen = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called on every rank, when the process group stands and nothing is loaded yet."""
        super().setup(trainer, pl_module, stage)
        self._losses: list[Any] = []
        if stage != "fit" or self.dirpath is None:
            return
        ours = _of(trainer)
        earlier = ours[: ours.index(self)] if self in ours else []
        shared = [one._run for one in earlier if one.dirpath == self.dirpath and one._run is not None]
        self._leads = not shared
        if not shared:
            _admit(self.dirpath, ours)
        self._run = shared[0] if shared else SealedRun(self.dirpath)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called on every rank, after everything is loaded."""
        super().on_train_start(trainer, pl_module)
        self._seen = trainer.global_step
        if self._run is not None and self._leads:
            path = trainer.ckpt_path if trainer.global_step else None
            self._run.resumed(pl_module, trainer.optimizers, step=trainer.global_step, path=path)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called on every rank after a batch, which completes a step or is accumulated."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None and self._run is not None and self._leads:
            self._losses.append(loss)
        completed = trainer.global_step
        is_step = self._run is not None and completed > self._seen
        if is_step and self._run is not None and self._leads:
            if self._losses:
                self._run.step(completed, *self._losses)
            else:
                why = "training_step returns no loss; with manual optimization return it, too"
                self._run.untold(completed, why)
            self._losses.clear()
        self._seen = completed
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if is_step and self._run is not None and self._run.stops_at(completed):
            trainer.should_stop = True
            if self._last_global_step_saved != completed:
                self._save_checkpoint(trainer, self.format_checkpoint_name(self._monitor_candidates(trainer)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called on every rank, after the last step."""
        super().on_train_end(trainer, pl_module)
        run, self._run = self._run, None
        if run is not None and all(one._run is not run for one in _of(trainer)):
            run.close()

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        # The one place that each of its saves goes through, on every rank; no public hook tells the path
        # (lightning 2.6).
        super()._save_checkpoint(trainer, filepath)
        if self._run is not None and not PurePath(filepath).name.startswith(self.CHECKPOINT_NAME_LAST):
            self._run.save(filepath)


def _admit(directory: str | os.PathLike[str], ours: list[SealedModelCheckpoint]) -> None:
    """See that a replica saves in one place, before its trace begins: one that began and ends is a failed one."""
    admit(directory)
    others = sorted({os.fspath(one.dirpath) for one in ours if one.dirpath is not None} - {os.fspath(directory)})
    if others and ReplicaEnvironment.from_environ(os.environ).is_replica:
        raise UsageError(
            f"replica saves in several directories: expected {directory}, found also {', '.join(others)}",
            hint="give each SealedModelCheckpoint the directory {family} there, and file names of its own",
        )


def _of(trainer: Trainer) -> list[SealedModelCheckpoint]:
    """Every callback of this kind, in the order in which they are called."""
    return [one for one in trainer.checkpoint_callbacks if isinstance(one, SealedModelCheckpoint)]
