"""Positions that a Trainer's checkpoint holds, and whether they can all be true.

Decides which of them contradict each other. Leaves reading them to `transformers`. Rules: Trainer steps the scheduler
whenever the optimizer stepped, so those two count alike; `global_step` counts skipped steps too and is never behind
them; a log never runs ahead of the step. Where both are behind without a reason, an earlier resume began them anew,
which Trainer does in silence when one of their files is missing: worth saying, and no fault of this checkpoint. A
whole multiple of `global_step` is lawful: trainers built on Trainer may take several steps for each that they count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lastgood.formats.readers.states import OptimizerSteps
from lastgood.formats.readers.wording import counters_disagree
from lastgood.text import counted
from lastgood.verdict import Finding, Note, NoteReason

__all__ = ["Positions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """What counts steps in one checkpoint; None where it is not there or counts something else.

    Args:
        state_path: The file that `trainer` and `logged` are from.
        named: In the name of the directory.
        trainer: `global_step`.
        logged: The largest step in the log.
        optimizer: Steps that the optimizer took.
        optimizer_path: Where that was read.
        scheduler: Steps that the scheduler took.
        scheduler_path: Where that was read.
        skips_steps: Whether a scaler may have skipped steps.
    """

    state_path: str
    named: int | None
    trainer: int | None
    logged: int | None
    optimizer: OptimizerSteps | None
    optimizer_path: str
    scheduler: int | None
    scheduler_path: str
    skips_steps: bool

    def contradictions(self) -> Iterator[Finding]:
        """Each file whose position cannot be true with the others."""
        if (wrong := self._trainer_state()) is not None:
            yield wrong
            return
        if not self._ahead():
            yield from self._apart()
            return
        for what, path, count in self._ahead():
            # A trainer of somebody's own may take several steps for each that it counts.
            if not self.trainer or count % self.trainer:
                why = f"steps that the {what} took"
                yield counters_disagree(path, why, expected=self.trainer or 0, found=count)

    def _ahead(self) -> list[tuple[str, str, int]]:
        """What counted more steps than the trainer: its name, its file and its count."""
        optimizer = self.optimizer.highest if self.optimizer is not None else None
        counts = (("optimizer", self.optimizer_path, optimizer), ("scheduler", self.scheduler_path, self.scheduler))
        return [
            (what, path, count)
            for what, path, count in counts
            if self.trainer is not None and count is not None and count > self.trainer
        ]

    def _trainer_state(self) -> Finding | None:
        """What speaks against `global_step` itself."""
        if self.trainer is None:
            return None
        if self.named is not None and self.named != self.trainer:
            why = "global_step against the name of the directory"
            return counters_disagree(self.state_path, why, expected=self.named, found=self.trainer)
        if self.logged is not None and self.logged > self.trainer:
            why = "global_step against the last step in log_history"
            return counters_disagree(self.state_path, why, expected=self.logged, found=self.trainer)
        return None

    def _apart(self) -> Iterator[Finding]:
        """Optimizer and scheduler against each other: the one that is not where the trainer is, is the odd one."""
        optimizer = self.optimizer.agreed if self.optimizer is not None else None
        if optimizer is None or self.scheduler is None or optimizer == self.scheduler:
            return
        if self.scheduler == self.trainer:
            why = "steps that the optimizer took, against those of the scheduler"
            yield counters_disagree(self.optimizer_path, why, expected=self.scheduler, found=optimizer)
        else:
            why = "steps that the scheduler took, against those of the optimizer"
            yield counters_disagree(self.scheduler_path, why, expected=optimizer, found=self.scheduler)

    def restarted(self) -> Note | None:
        """That optimizer and scheduler began anew at some time after the trainer."""
        optimizer = self.optimizer.agreed if self.optimizer is not None else None
        if self.trainer is None or optimizer is None or self.skips_steps:
            return None
        if optimizer != self.scheduler or optimizer >= self.trainer:
            return None
        message = (
            f"optimizer and scheduler began anew: {self.optimizer_path}: counted {counted(optimizer, 'step')}, "
            f"{self.state_path} counted {self.trainer}"
        )
        return Note(reason=NoteReason.STATE_RESTARTED, message=message, offender=self.optimizer_path)
