"""The example for Trainer with one thing wrong: a job that is killed, or a resume that forgets in silence.

    python faulty_trainer.py FAULT ARGUMENTS-OF-THE-EXAMPLE

`dies` ends by SIGKILL once step 13 is completed; `forgets` resumes neither optimizer nor schedule, as a Trainer that
misses one of their files does; `restarts` resumes all but the schedule; `again` finds no memory for its first batch,
and trains a second time, from step zero, once it has trained.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from transformers import Trainer

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_transformers.py"
LAST_STEP = 13


class FaultyTrainer(Trainer):
    """Trainer, but for its fault."""

    fault = sys.argv.pop(1)
    has_memory = fault != "again"

    def train(self, *arguments: Any, **keywords: Any) -> Any:
        self.args.auto_find_batch_size = not self.has_memory
        trained = super().train(*arguments, **keywords)
        return super().train() if self.fault == "again" else trained

    def training_step(self, *arguments: Any, **keywords: Any) -> Any:
        if self.fault == "dies" and self.state.global_step == LAST_STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.has_memory:
            self.has_memory = True
            raise RuntimeError("CUDA out of memory.")  # by these words Trainer knows it
        return super().training_step(*arguments, **keywords)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self.fault == "forgets":
            return
        begun = dict(self.lr_scheduler.state_dict())
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.fault == "restarts":
            self.lr_scheduler.load_state_dict(begun)


# By the module that defines it: the package itself hands out the class from there at every import.
sys.modules[Trainer.__module__].Trainer = FaultyTrainer  # type: ignore[attr-defined]  # a module holds anything
runpy.run_path(str(EXAMPLE), run_name="__main__")
