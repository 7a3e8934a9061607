"""Which file system a path lies on, and whether this kernel hears of every write to it.

Decides by a list of names that are known to be local; whatever is not on it is polled. Rule: a name that nobody knows
(a new cluster file system, a FUSE program) must cost a few listings, not silence. Source: proc(5), `mountinfo`;
inotify(7): "Inotify reports only events that a user-space program triggers through the filesystem API", so that what
another host writes to NFS, Lustre or GPFS is never reported.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

__all__ = ["LOCAL_FILE_SYSTEMS", "file_system_of", "hears_every_write"]

LOCAL_FILE_SYSTEMS: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)
MOUNTS: Final = Path("/proc/self/mountinfo")

_ESCAPED = re.compile(r"\\([0-7]{3})")


def hears_every_write(file_system: str) -> bool:
    """Whether inotify reports every write to a file system of this type."""
    return file_system in LOCAL_FILE_SYSTEMS


def file_system_of(path: Path, *, mounts: str | None = None) -> str:
    """The type of the file system that a path lies on, as the kernel spells it; `unknown` if it does not say.

    Args:
        path: Absolute; of one that is not there, its nearest ancestor counts.
        mounts: Text in the format of /proc/self/mountinfo; None: read it.
    """
    if mounts is None:
        try:
            mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return "unknown"
    real = os.path.realpath(path)
    best, found = "", "unknown"
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        # Of two mounts on one point the later line lies on top.
        if _lies_below(real, point) and len(point) >= len(best):
            best, found = point, after.split(" ")[0]
    return found


def _lies_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")
