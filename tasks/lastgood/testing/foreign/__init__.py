"""The catalogue of foreign damage: what happens to checkpoints of other frameworks, and the reason that must be raised.

    scene = ForeignScene(root=copy, name="checkpoint-8", older="checkpoint-4")
    offender = FOREIGN["transformers.optimizer_deleted"].apply(scene)

Rules: as those of `lastgood.testing.damage`: one thing is damaged and everything else left as healthy as it was. An
entry without a reason changes something that harms nobody: whatever is raised about it is a false alarm. Entries need
a local file system and no framework; the checkpoints that they work on come from wherever you have them.

- `scene`: what an entry works on. `catalogue`: what an entry is.
- One module a framework; `bare`: what no framework wrote.

Source: faults that people reported in public trackers, each named by its report.
"""

from __future__ import annotations

from lastgood.testing.foreign import accelerate, bare, deepspeed, distributed, lightning, transformers
from lastgood.testing.foreign.catalogue import FOREIGN, ForeignDamage, ForeignJudge
from lastgood.testing.foreign.scene import ForeignScene

__all__ = [
    "FOREIGN",
    "ForeignDamage",
    "ForeignJudge",
    "ForeignScene",
    "accelerate",
    "bare",
    "deepspeed",
    "distributed",
    "lightning",
    "transformers",
]
