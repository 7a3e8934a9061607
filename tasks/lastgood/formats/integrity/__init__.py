"""Whether the bytes of a checkpoint without a manifest are those that were written, as far as its files can tell.

- `report`: what is said of it: how many bytes match a checksum, how many have none.
- `looking`: one file by its structure, without its payload.
- `checksums`: the CRC-32 beside each record, computed again.
- `twins`: files of different ranks that hold the same state.
- `checking`: all files of a checkpoint, several at once.

Rules: wrong bytes are believed when they are read twice, for a transfer may flip what the disk holds right; a checksum
that was never recorded is not a wrong one; what no checksum covers is said, and is never called whole.
"""

from __future__ import annotations

from lastgood.formats.integrity.checking import check_integrity
from lastgood.formats.integrity.report import Coverage, Integrity

__all__ = ["Coverage", "Integrity", "check_integrity"]
