"""Publishers of one run, as many at once as wanted, each a process that may be killed at any moment.

    python -B -m tests.buckets.lives GATE

Reads one publisher a line, as JSON of `Told`, forks it, and answers with its pid. This program has imported everything
and holds no thread, so that a publisher costs a fork and no interpreter; when its input ends, so do they.

A publisher starts the run, publishes some steps, and starts anew when it was fenced, as a launcher would do with it;
each time it waits for a byte from the pipe GATE, and ends where that is closed.
What it believes it writes down at once, one JSON object a line: what it has not written, it has not believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta

from lastgood.errors import Fenced, PublishError, ResumeRefused, StoreTransientError
from lastgood.manifest import Component
from lastgood.publish import Published, StagedArtifact
from lastgood.run import Run, SoloGroup
from tests.crash.scenarios import JOB

__all__ = ["Told", "save"]

PATIENCE = timedelta(seconds=60)
STEPS_A_LIFE = 6
LONGEST_PAUSE_SECONDS = 0.3
ARTIFACT_BYTES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a publisher is told.

    Args:
        name: Its own; it stands in the User-Agent of each of its requests.
        family: URI.
        notes: Where it writes down what it believes.
        seed: Of its pauses and steps.
        environ: What it needs in its environment.
    """

    name: str
    family: str
    notes: str
    seed: int
    environ: Mapping[str, str]

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


class _Notes:
    """A file to which every line is written whole."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, what: str, **values: object) -> None:
        os.write(self._file, (json.dumps({"what": what, **values}) + "\n").encode())


def live(told: Told, gate: int, note: _Notes) -> None:
    """Life after life, until no more are let in."""
    chance = random.Random(told.seed)
    while True:
        note("waits")
        if not os.read(gate, 1):
            break
        note("begins")
        try:
            run = Run.start(told.family, SoloGroup(), patience=PATIENCE)
        except (Fenced, ResumeRefused, StoreTransientError) as error:
            note("refused", error=f"{type(error).__name__}: {error.message}")
            continue
        assert run.resumed is not None
        note("decided", incarnation=run.incarnation, source=str(run.resumed.generation))
        try:
            _save_some(run, chance, note)
        finally:
            run.close()
    note("ended")


def save(run: Run, step: int) -> Published:
    """Publish a step whose one artifact tells whose it is."""
    staging = run.stage(step)
    data = f"{run.incarnation} {step} ".encode()
    (staging.payload / "state.bin").write_bytes(data * (ARTIFACT_BYTES // len(data)))
    artifact = StagedArtifact(path="state.bin", component=Component.MODEL, rank=0)
    return run.publish(staging, [artifact], job=JOB)


def _save_some(run: Run, chance: random.Random, note: _Notes) -> None:
    assert run.resumed is not None
    step = run.resumed.generation.step
    for _ in range(chance.randint(1, STEPS_A_LIFE)):
        step += chance.randint(1, 3)
        time.sleep(chance.uniform(0.0, LONGEST_PAUSE_SECONDS))
        try:
            published = save(run, step)
        except Fenced:
            note("fenced", incarnation=run.incarnation)
            return
        except (PublishError, StoreTransientError) as error:
            note("failed", error=f"{type(error).__name__}: {error.message}")
        else:
            note("acknowledged", generation=str(published.generation), commit=published.commit)


def _become(told: Told, gate: int) -> None:
    """Be that publisher, and nothing afterwards."""
    note = _Notes(told.notes)
    try:
        os.environ.update(told.environ, AWS_SDK_UA_APP_ID=told.name)
        live(told, gate, note)
    except Exception:  # noqa: BLE001 - written down, for the test that reads it
        note("broken", error=traceback.format_exc())
    finally:
        os._exit(0)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them; the kernel takes them away
    gate, pids = int(sys.argv[1]), []
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            os.close(0)
            _become(Told(**json.loads(line)), gate)
        pids.append(pid)
        print(pid, flush=True)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
