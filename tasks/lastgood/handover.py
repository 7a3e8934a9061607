"""Files handed to other programs (a viewer, a scraper, a browser): whole or not at all, whenever they look."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, data: bytes) -> None:
    """Put a file in the place of whatever had its name; a reader meets the old one or the new one.

    Raises:
        OSError: Not written; the old file is still there.
    """
    # Beside the target, since a rename moves nothing between file systems; hidden, and without the target's suffix,
    # since a scraper that reads `*.prom` must not find it.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except BaseException:
        try:
            unfinished.unlink()
        except OSError:
            pass  # it was never made, or its directory went away; the first error says more
        raise
