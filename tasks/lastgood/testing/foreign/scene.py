"""What a foreign damage works on: a copy of the directory that a framework saved into, and a few hands."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ForeignScene"]

_LOCAL_HEADER_BYTES = 30
_NAME_LENGTHS = 26  # of the name and of the extra field, in a local header of a zip


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignScene:
    """A directory with at least two checkpoints of one run.

    Args:
        root: Whatever the framework was told to save into; a copy, never anybody's real checkpoints.
        name: Path below root of the checkpoint to damage: the newest; a directory or a single file.
        older: Path below root of the checkpoint before it.
    """

    root: Path
    name: str
    older: str

    @property
    def checkpoint(self) -> Path:
        """The checkpoint to damage."""
        return self.root / self.name

    def path(self, relative: str) -> Path:
        """A file of the checkpoint to damage; of a checkpoint that is a single file, empty names that."""
        return self.checkpoint / relative if relative else self.checkpoint

    def delete(self, relative: str) -> str:
        """Delete a file or directory of the checkpoint; returns its path."""
        path = self.path(relative)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        return relative

    def bring_from_older(self, relative: str) -> str:
        """Put the older checkpoint's file in the place of the newest's; returns its path."""
        shutil.copyfile(self.root / self.older / relative, self.path(relative))
        return relative

    def copy_within(self, source: str, target: str) -> str:
        """Put a copy of one file of the checkpoint in the place of another; returns the path of the latter."""
        self.path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.path(source), self.path(target))
        return target

    def edit_json(self, relative: str, **changes: Any) -> str:
        """Set some keys of a JSON object; returns its path."""
        path = self.path(relative)
        value = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(value | changes), encoding="utf-8")
        return relative

    def cut(self, relative: str, *, keep_ratio: float = 0.5) -> str:
        """Keep only the beginning of a file; returns its path."""
        path = self.path(relative)
        os.truncate(path, int(path.stat().st_size * keep_ratio))
        return relative

    def zero(self, relative: str, *, count_bytes: int = 64) -> str:
        """Make the first bytes of a file zero; returns its path."""
        with self.path(relative).open("r+b") as file:
            file.write(bytes(count_bytes))
        return relative

    def flip_record(self, relative: str) -> str:
        """Change one bit in the middle of the largest tensor of a torch archive; returns the path of the archive."""
        path = self.path(relative)
        with zipfile.ZipFile(path) as archive:
            record = max((one for one in archive.infolist() if "/data/" in one.filename), key=lambda one: one.file_size)
        data = bytearray(path.read_bytes())
        names = sum(struct.unpack_from("<2H", data, record.header_offset + _NAME_LENGTHS))
        data[record.header_offset + _LOCAL_HEADER_BYTES + names + record.file_size // 2] ^= 1
        path.write_bytes(data)
        return relative
