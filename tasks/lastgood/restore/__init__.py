"""Tier 2: does this generation bring training back, in fresh processes that hold nothing else?

- `supervisor`: the whole of one restore; start here.
- `materialize`: a private copy of one generation, every byte of it hashed as it was written.
- `compare`, `after_load`, `smoke`, `control`: from traces to checks, without touching anything.
- `promises`, `divergence`, `evidence`: what was promised, how a difference is worded, what was left behind.
- `live`, `measure`: what the live run did in the same steps, and how long everything took.
- `rotation`: which family, and which of its generations, is next.
- `cancel`: how a gate ends before its time.

Nothing here opens a tensor: the replica does, in processes of its own, and its trace says what it found.
"""

from __future__ import annotations

from lastgood.restore.rotation import next_generation
from lastgood.restore.supervisor import RestoreResult, restore

__all__ = ["RestoreResult", "next_generation", "restore"]
