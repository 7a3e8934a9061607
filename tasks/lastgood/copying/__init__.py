"""A second copy of a family in another store, from which training can go on when the first is lost.

- `replication`: what is copied, and in which order.
- `payload`: the artifacts of one generation, each hashed as it is read and read back where it was written.
- `papers`: the documents by which a reader at the copy gives the answer that the source would give.
"""

from __future__ import annotations

from lastgood.copying.payload import Standing
from lastgood.copying.replication import CopiedGeneration, CopyResult, Selection, copy_family

__all__ = ["CopiedGeneration", "CopyResult", "Selection", "Standing", "copy_family"]
