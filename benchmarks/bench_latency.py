"""How long a save waits for its verdict: from COMMIT to the record, with a warm worker and nobody's hand in between.

A real server, worker and watcher on this machine, and families built by the ordinary publish path. A save is made when
everything is at rest, so that each is the first of its batch and pays the whole way:

- event: COMMIT on storage → the run exists (inotify, the watcher's look, the request);
- scheduling: → a worker took it (its poll, each second);
- start-up: → the gate begins (the run's Python, Prefect's engine, the flow);
- verification: → the record is on storage.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Row, Setting
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.records import newest_record
from lastgood.testing.build import BuiltFamily, Recipe, build_life
from lastgood.verdict import Tier
from lastgood_prefect.project import DEPLOYMENTS, project_directory
from lastgood_prefect.stack import Stack

SAVES = 20
WARMING_SAVES = 2
WORLD_SIZE = 16  # 52 artifacts: the worked example of docs/architecture.md
TARGET_SECONDS = 5.0
PATIENCE_SECONDS = 120.0
FAMILY = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What one save waited for, in seconds."""

    event: float
    scheduling: float
    start_up: float
    verification: float

    @property
    def whole(self) -> float:
        return self.event + self.scheduling + self.start_up + self.verification


def latency(setting: Setting) -> tuple[Row, ...]:
    configuration = setting.workspace / "lastgood.toml"
    configuration.write_text(f'[families.{FAMILY}]\nroot = "{setting.workspace}"\n', encoding="utf-8")
    with serving(setting.workspace / "stack", configuration) as stack:
        built = BuiltFamily(root=setting.workspace, family=FAMILY, generations=())
        waits = []
        for number in range(WARMING_SAVES + SAVES):
            built = build_life(built, steps=(1 + number,), recipe=Recipe(world_size=WORLD_SIZE))
            wait = measure(stack, built, built.newest)
            if number >= WARMING_SAVES:
                waits.append(wait)
    return rows(waits)


@contextmanager
def serving(home: Path, configuration: Path) -> Iterator[Stack]:
    """A stack with the gate deployed and a watcher."""
    with Stack.start(home, pools=("verify",), environment={"LASTGOOD_CONFIG": str(configuration)}) as stack:
        deploy = ("deploy", "--name", "save-gate/on-commit", "--prefect-file", DEPLOYMENTS)
        command = [sys.executable, "-m", "prefect", "--no-prompt", *deploy]
        subprocess.run(
            command, env=stack.environ, cwd=project_directory(), check=True, capture_output=True, timeout=300
        )
        stack.run("watcher", (sys.executable, "-m", "lastgood", "watch"))
        yield stack


def measure(stack: Stack, built: BuiltFamily, generation: GenerationId) -> Wait:
    """What this save waited for; returns when the stack is at rest again."""
    store, keys = built.store, built.keys
    committed = store.path(keys.commit(generation)).stat().st_mtime
    family = Family(Location(store=store, keys=keys, generation=None))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (record := newest_record(store, keys, generation, Tier.MANIFEST)) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no verdict after {PATIENCE_SECONDS:.0f} s: {generation}")
        time.sleep(0.02)
    assert family.due_attempt(generation, Tier.MANIFEST) is None, record.verdict.outcome
    recorded = store.path(record.name.key(keys)).stat().st_mtime
    run = (record.origin or "").rpartition("/")[2]
    created, taken = datetime.fromisoformat(ended(stack, run)["created"]).timestamp(), pending_since(stack, run)
    started = record.started_at.timestamp()
    return Wait(
        event=created - committed, scheduling=taken - created, start_up=started - taken, verification=recorded - started
    )


def ended(stack: Stack, run: str) -> dict[str, Any]:
    """The run, once it is over."""
    while True:
        _, found = stack.request("GET", f"/flow_runs/{run}")
        if found["end_time"] is not None:
            answer: dict[str, Any] = found
            return answer
        time.sleep(0.1)


def pending_since(stack: Stack, run: str) -> float:
    """When a worker took the run."""
    _, states = stack.request("GET", f"/flow_run_states/?flow_run_id={run}")
    return min(datetime.fromisoformat(one["timestamp"]).timestamp() for one in states if one["type"] == "PENDING")


def rows(waits: Sequence[Wait]) -> tuple[Row, ...]:
    """The 95th percentile that is judged, and where the time goes."""
    whole = [wait.whole for wait in waits]
    parts = {field.name: [getattr(wait, field.name) for wait in waits] for field in fields(Wait)}
    split = ", ".join(f"{name.replace('_', '-')} {statistics.median(values):.2f}" for name, values in parts.items())
    what = f"commit → verdict, {WORLD_SIZE} ranks, warm worker"
    return (
        Row(
            what=f"{what}, 95th percentile",
            against="the objective",
            measured=percentile(whole, 0.95),
            at_most=TARGET_SECONDS,
            unit="s",
            detail=f"median {statistics.median(whole):.2f} s ({split}); {len(waits)} saves",
        ),
        *(
            Row(
                what=f"{what}: {name.replace('_', '-')}, 95th percentile",
                against="itself",
                measured=percentile(values, 0.95),
                at_most=None,
                unit="s",
                detail=f"median {statistics.median(values):.2f} s",
            )
            for name, values in parts.items()
        ),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


BENCHMARKS = (Benchmark(name="latency", run=latency),)
