"""Jobs whose framework saves by itself: each save is sealed once every rank has written it, each step is traced.

- `run`: `SealedRun`, one call a step and one a save, by every rank; for Accelerate, DeepSpeed, and any loop.
- `saving`: `seal_save(path)`, where only saves are to be sealed.
- `transformers`: `SealCallback` for Trainer.
- `lightning`: `SealedModelCheckpoint` in the place of ModelCheckpoint.

Nothing here is imported by the rest of lastgood, and a framework is imported only by the module of its name.
"""

from __future__ import annotations

from lastgood.producers.run import SealedRun
from lastgood.producers.saving import seal_save

__all__ = ["SealedRun", "seal_save"]
