"""`save-gate` over many artifacts, against the same work as one Prefect task an artifact.

Each runs in a process of its own against a real server on this machine, over the same generation without a record, and
says what its flow run took; starting Python, importing and loading the flow, which both pay, is left out. CPU time of
that process and wall time are both judged; a second of the peer's wall time is Prefect's wait for its heartbeat
thread, a fortieth of it. What the server spends, thousands of times more on the peer, is not counted at all. Each has
a server of its own, warmed by one small run: the peer's thousands of task runs keep one busy for minutes after. The
peer does what people do first: a task for every file that hashes it and compares. It keeps no record and shows
nothing.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Row, Setting, Usage, compare, in_turn
from lastgood.identity import FamilyKeys
from lastgood.manifest import MAXIMUM_MANIFEST_BYTES, Manifest, parse_manifest
from lastgood.testing.build import BuiltFamily, Recipe, build_family
from lastgood_prefect.project import project_directory
from lastgood_prefect.stack import Stack

ARTIFACTS = 4096
ARTIFACT_BYTES = 4096
MOST_ROUNDS = 3
"""The peer takes a minute; its spread is small against what is judged."""
AT_MOST = 0.05
FAMILY = "bench"
TIMEOUT_SECONDS = 1800


def pipeline(setting: Setting) -> tuple[Row, ...]:
    built = build_judged(setting.workspace / "judged", extra_artifacts=ARTIFACTS - 7)
    small = build_judged(setting.workspace / "small", extra_artifacts=0)
    fresh = setting.workspace / "fresh"
    with Stack.start(fresh, pools=()):
        pass  # migrating an empty database takes longer than what is timed, and is done once
    runs = itertools.count()
    walls: dict[str, list[float]] = {name: [] for name in CONTENDERS}

    def run(contender: str) -> float:
        home = setting.workspace / f"stack-{next(runs)}"
        shutil.copytree(fresh, home)
        with Stack.start(home, pools=()) as stack:
            run_apart("save-gate", small, stack.environ)  # a server's first answers take it up to half a second more
            used = run_apart(contender, built, stack.environ)
        walls[contender].append(used.wall_seconds)
        return used.cpu_seconds

    taken = in_turn({name: functools.partial(run, name) for name in CONTENDERS}, min(setting.rounds, MOST_ROUNDS))
    what = f"`save-gate` over {ARTIFACTS:,} artifacts, flow run"
    peer = "one Prefect task an artifact"
    ours, theirs = (walls[name][1:] for name in ("save-gate", "tasks"))  # the first round is not judged
    return (
        compare(f"{what}, CPU", taken["save-gate"], taken["tasks"], against=peer, at_most=AT_MOST),
        compare(f"{what}, wall", ours, theirs, against=peer, at_most=AT_MOST),
    )


def build_judged(root: Path, extra_artifacts: int) -> BuiltFamily:
    """One generation under `root`, and beside it the configuration that names its family."""
    root.mkdir()
    recipe = Recipe(
        world_size=1, shard_bytes=ARTIFACT_BYTES, extra_artifacts=extra_artifacts, extra_bytes=ARTIFACT_BYTES
    )
    built = build_family(root, FAMILY, steps=(1,), recipe=recipe)
    (root / "lastgood.toml").write_text(f'[families.{FAMILY}]\nroot = "{root}"\n', encoding="utf-8")
    return built


def run_apart(contender: str, built: BuiltFamily, environment: Mapping[str, str]) -> Usage:
    """What one flow run took in a fresh process, over a generation that was never judged."""
    shutil.rmtree(built.root / built.keys.records, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.bench_pipeline", contender, str(built.root)]
    done = subprocess.run(
        command,
        cwd=Path(__file__).resolve().parent.parent,
        env={**environment, "LASTGOOD_CONFIG": str(built.root / "lastgood.toml")},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{contender} failed with {done.returncode}: {done.stderr.strip()[-500:]}")
    wall_seconds, cpu_seconds = map(float, done.stdout.split()[-2:])
    return Usage(wall_seconds=wall_seconds, cpu_seconds=cpu_seconds)


def prepare_save_gate(root: Path) -> Callable[[], None]:
    from prefect.flows import load_flow_from_entrypoint

    save_gate: Any = load_flow_from_entrypoint(f"{project_directory() / 'flows' / 'save_gate.py'}:save_gate")

    def run() -> None:
        state = asyncio.run(save_gate(FAMILY, return_state=True))
        assert state.is_completed(), state
        assert "pass" in str(state.message), state

    return run


def prepare_tasks(root: Path) -> Callable[[], None]:
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE

    from lastgood.digest import hash_bytes

    directory = root / FAMILY / "00000001-0000000000000001"
    manifest = read_manifest(root)

    @task(cache_policy=NO_CACHE, persist_result=False)
    def verify_artifact(number: int) -> bool:
        artifact = manifest.artifacts[number]
        data = (directory / artifact.path).read_bytes()
        return all(hash_bytes(data, digest.algorithm) == digest for digest in artifact.digests)

    @flow(persist_result=False)
    def verify_artifacts() -> int:
        return sum(verify_artifact(number) for number in range(len(manifest.artifacts)))

    def run() -> None:
        assert verify_artifacts() == len(manifest.artifacts)

    return run


def read_manifest(root: Path) -> Manifest:
    keys = FamilyKeys(FAMILY)
    built = BuiltFamily(root=root, family=FAMILY, generations=())
    (name,) = built.store.names(keys.manifests).files
    data = built.store.get(f"{keys.manifests}/{name}", limit_bytes=MAXIMUM_MANIFEST_BYTES)
    return parse_manifest(data or b"", name)


CONTENDERS: Mapping[str, Callable[[Path], Callable[[], None]]] = {
    "save-gate": prepare_save_gate,
    "tasks": prepare_tasks,
}
BENCHMARKS = (Benchmark(name="pipeline", run=pipeline),)


def main() -> None:
    """Run one contender and print the seconds, of the clock and of CPU, that its flow run took."""
    contender, root = sys.argv[1:]
    run = CONTENDERS[contender](Path(root))
    # What Prefect imports to create a run that has parameters, which a run that a worker starts has done elsewhere.
    importlib.import_module("fastapi.encoders")
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    print(time.perf_counter() - wall, time.process_time() - cpu)


if __name__ == "__main__":
    main()
