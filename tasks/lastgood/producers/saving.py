"""Sealing a save from within the job that made it.

Decides when a save is whole enough to be sealed: every rank has returned from writing, and the files are flushed.
Leaves whether it can be resumed to `formats.sealing`. Rule: a save that could not be sealed stops the job, as one that
could not be published does: from then on it would train without a checkpoint that anything vouches for.
"""

from __future__ import annotations

import os
from pathlib import Path

from lastgood.errors import StorePermanentError
from lastgood.formats.sealing import Sealed, Wish, seal
from lastgood.location import locate_place
from lastgood.producers.ranks import JobRanks
from lastgood.stores.filesystem import FileSystem

__all__ = ["seal_save"]


def seal_save(path: str | os.PathLike[str], *, step: int | None = None, life: str | None = None) -> Sealed | None:
    """Seal a save; every rank calls it, once its own part is written.

    Ranks wait for each other first, over `torch.distributed` where the job has initialised it; then rank 0 flushes the
    files and seals, while the others go on.

    Args:
        path: The checkpoint: what the framework was told to write, a directory, file or `s3://` prefix.
        step: Completed optimizer steps, where the files do not tell.
        life: Nonce of the life whose trace tells what came after; `SealedRun.save` hands it over.

    Returns:
        What was sealed, on rank 0; None on every other rank.

    Raises:
        SealRefused: It cannot be resumed as it lies there; the findings say why.
        StoreError: It could not be flushed or sealed; may be repeated.
    """
    ranks = JobRanks.current()
    ranks.wait()
    if ranks.rank:
        return None
    uri = os.fspath(path)
    if "://" not in uri:
        _flush(Path(uri))
    return seal(locate_place(uri), Wish(step=step, world_size=ranks.world_size, life=life))


def _flush(checkpoint: Path) -> None:
    """Frameworks do not: a COMMIT that outlives what it vouches for would be worth less than none."""
    files = FileSystem()
    try:
        if checkpoint.is_dir():
            for directory, _, names in os.walk(checkpoint):
                for name in names:
                    files.sync_file(Path(directory, name))
                files.sync_directory(Path(directory))
        else:
            files.sync_file(checkpoint)
        files.sync_directory(checkpoint.parent)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorePermanentError(f"cannot flush {error.filename or checkpoint}: {reason}") from error
