"""One rank of a job without torch, as a program: starts an incarnation with its peers and publishes steps.

    python -B -m tests.crash.rank ROOT MEETING RANK WORLD_SIZE STEP...

Ranks meet through files in MEETING. Rank 0 appends each acknowledged step to MEETING/acknowledged, flushed, before
the next one begins: what the test then demands to find again.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from lastgood.errors import LastgoodError
from lastgood.manifest import Component, Topology
from lastgood.publish import StagedArtifact
from lastgood.run import Run
from tests.crash.scenarios import JOB, KEYS, PRESENT

PATIENCE = timedelta(seconds=float(os.environ.get("LASTGOOD_TEST_PATIENCE", "20")))


class FileGroup:
    """Ranks that meet through a directory."""

    def __init__(self, meeting: Path, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self._meeting = meeting
        self._rounds = 0

    def broadcast(self, data: bytes | None) -> bytes:
        self._rounds += 1
        path = self._meeting / f"round-{self._rounds}"
        if data is not None:
            path.with_suffix(".new").write_bytes(data)
            path.with_suffix(".new").rename(path)
            return data
        deadline = time.monotonic() + PATIENCE.total_seconds()
        while not path.exists():
            if time.monotonic() > deadline:
                raise SystemExit("rank 0 never spoke")
            time.sleep(0.002)
        return path.read_bytes()


def main() -> None:
    root, meeting, rank, world_size, *steps = sys.argv[1:]
    group = FileGroup(Path(meeting), int(rank), int(world_size))
    topology = Topology(world_size=group.world_size, strategy="test", layout={})
    job = type(JOB)(**{**{name: getattr(JOB, name) for name in JOB.__struct_fields__}, "topology": topology})
    try:
        run = Run.start(f"{root}/{KEYS.family}", group, allow_fresh=True, patience=PATIENCE)
        for step in map(int, steps):
            publish(run, group, step, job)
            if group.rank == 0:
                acknowledge(Path(meeting), run.incarnation, step)
        run.close()
    except LastgoodError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def publish(run: Run, group: FileGroup, step: int, job: object) -> None:
    staging = run.stage(step)
    artifacts = []
    for component in PRESENT:
        path = f"{component.value}/rank-{group.rank:05d}.bin"
        (staging.payload / component.value).mkdir(exist_ok=True)
        (staging.payload / path).write_bytes(f"{run.incarnation}/{step}/{path}".encode() * 50)
        artifacts.append(StagedArtifact(path=path, component=Component(component), rank=group.rank))
    run.publish(staging, artifacts, job=job)  # type: ignore[arg-type]  # rebuilt above, field by field


def acknowledge(meeting: Path, incarnation: int, step: int) -> None:
    with open(meeting / "acknowledged", "a", encoding="utf-8") as file:
        file.write(f"{incarnation} {step}\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
