"""Tier 3: kill a disposable replica in the middle of its work, and see whether its own launcher brings it back.

- `supervisor`: the whole of one drill; start here.
- `faults`: what is killed, and when, by coordinates; and the proof that it was.
- `launcher`: what starts and restarts the job: torchrun today, a scheduler later.
- `watch`: what the traces and processes of a replica show while it lives.
- `timeline`: from marks of one clock to phases that add up to the recovery time.
- `judgement`: from what was observed to a verdict; touches nothing.

Production is only read: a replica trains in a scratch family, from step zero or from a private copy of one generation.
"""

from __future__ import annotations

from lastgood.drill.faults import Fault, FaultKind, random_fault
from lastgood.drill.supervisor import DrillResult, Stage, drill
from lastgood.drill.timeline import DrillPhase, Recovery

__all__ = ["DrillPhase", "DrillResult", "Fault", "FaultKind", "Recovery", "Stage", "drill", "random_fault"]
