"""A job of two ranks that stops itself before the n-th file-system call after the claim check of its second save.

    python orphan.py FAMILY STOP_BEFORE [--blind]

It saves steps 10, 20 and 30 and prints what each of its callers was told. Only rank 0's calls count, for rank 1 has its
own order. `--blind` takes out the second look at the claims: a control that the test must catch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from lastgood.errors import Fenced, LastgoodError
from lastgood.publish import StagedArtifact
from lastgood.run import Run
from lastgood.stores import local
from lastgood.stores.filesystem import FileSystem
from lastgood.stores.port import Names
from lastgood.testing.build import Recipe, build_job
from tests.drill.fake_rank import OWN, SHARED

MUTATING = (
    "make_directory",
    "write_new",
    "sync_file",
    "sync_directory",
    "link",
    "rename",
    "unlink",
    "remove_directory",
)
PATIENCE = timedelta(seconds=60)


class Stop:
    """Stops this process before one call; armed by the claim check of the second save."""

    def __init__(self, stop_before: int, *, blind: bool) -> None:
        self.stop_before, self.blind = stop_before, blind
        self.saving_step = 0
        self.looks = 0
        self.calls = 0
        self.trail: list[str] = []

    def look(self) -> bool:
        """A listing of the claims; False if it is the one that a blind job does not make."""
        if threading.current_thread().name != "rank-0" or self.saving_step != 20:
            return True
        self.looks += 1
        return not (self.blind and self.looks > 1)

    def call(self, name: str, path: Path) -> None:
        if self.looks and self.saving_step == 20 and threading.current_thread().name == "rank-0":
            self.calls += 1
            self.trail.append(f"{name} {path.name}")
            if self.calls == self.stop_before:
                os.write(1, f"stopped before {name} {path.name}\n".encode())
                os.kill(os.getpid(), signal.SIGSTOP)


class Meeting:
    """Two ranks that are threads."""

    world_size = 2

    def __init__(self, rank: int, barrier: threading.Barrier, box: dict[str, bytes]) -> None:
        self.rank, self._barrier, self._box = rank, barrier, box

    def broadcast(self, data: bytes | None) -> bytes:
        if data is not None:
            self._box["data"] = data
        self._barrier.wait()
        return self._box["data"]


def hook(stop: Stop) -> None:
    """Let every mutating call and every listing of the claims pass by `stop`."""

    class StoppingFiles(FileSystem):
        pass

    for name in MUTATING:
        original = getattr(FileSystem, name)

        def call(self: FileSystem, *arguments: Any, name: str = name, original: Any = original) -> Any:
            stop.call(name, arguments[-1] if name in ("link", "rename") else arguments[0])
            return original(self, *arguments)

        setattr(StoppingFiles, name, call)
    local.FileSystem = StoppingFiles  # type: ignore[misc]  # the one place where the store is made
    names = local.LocalStore.names

    def listed(self: local.LocalStore, prefix: str) -> Names:
        found = names(self, prefix)
        if prefix.endswith("/incarnations") and not stop.look():
            return Names(files=tuple(name for name in found.files if int(name[:8]) < 2), directories=())
        return found

    local.LocalStore.names = listed  # type: ignore[method-assign]  # likewise


def artifacts(rank: int, payload: Path, step: int) -> Iterator[StagedArtifact]:
    own = [StagedArtifact(path=f"{one.value}/rank-{rank:05d}", component=one, rank=rank) for one in OWN]
    shared = [StagedArtifact(path=one.value, component=one, rank=None) for one in SHARED] if rank == 0 else []
    for artifact in (*own, *shared):
        (payload / artifact.path).parent.mkdir(parents=True, exist_ok=True)
        (payload / artifact.path).write_text(f"{artifact.path} {step}")
        yield artifact


def train(family: str, group: Meeting, stop: Stop) -> None:
    run = Run.start(family, group, allow_fresh=True, patience=PATIENCE)  # type: ignore[arg-type]  # rank is settable
    for step in (10, 20, 30):
        if group.rank == 0:
            stop.saving_step = step
        told = "acknowledged"
        try:
            staging = run.stage(step)
            job = build_job(run.location.keys.family, step, Recipe(world_size=2))
            run.publish(staging, list(artifacts(group.rank, staging.payload, step)), job=job)
        except Fenced:
            told = "fenced"
        except LastgoodError as error:
            told = f"failed: {error.message}"
        # In one write: `print` sends the end of the line apart, and the other rank's words may come between.
        os.write(1, f"rank {group.rank} step {step} {told}\n".encode())
    run.close()


def main() -> None:
    stop = Stop(int(sys.argv[2]), blind="--blind" in sys.argv)
    hook(stop)
    barrier, box = threading.Barrier(2), {}
    ranks = [
        threading.Thread(target=train, args=(sys.argv[1], Meeting(rank, barrier, box), stop), name=f"rank-{rank}")
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    print(f"calls {stop.calls}", flush=True)


if __name__ == "__main__":
    main()
