"""SIGKILL at system calls of real processes: 4 ranks publish, one is killed as it enters its n-th mutating call.

At least 100 points in `make test-slow`, 500 with LASTGOOD_PROOF=1; a run in which nothing was killed fails.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.verdict import Outcome
from lastgood.verify import verify_generation
from tests.crash.scenarios import KEYS, build_base, open_family

WORLD_SIZE = 4
STEPS = ("30", "40")
KILLS = 500 if os.environ.get("LASTGOOD_PROOF") else 100
# A race may end a process before its n-th call; such a point proves nothing and another one is tried.
MAXIMUM_POINTS = KILLS + KILLS // 5
MUTATING = ("mkdir", "write", "fsync", "link", "rename", "unlink", "rmdir")
ACTS = {
    "rollback": ("rollback", "{family}", "00000001-0000000000000010", "--reason", "spike"),
    "quarantine": ("quarantine", "{family}", "--reason", "restores differ"),
    "repair": ("verify", "{family}", "--repair"),
}

pytestmark = [pytest.mark.slow, pytest.mark.service("strace")]

STRACE = "strace"


@dataclass(frozen=True, slots=True)
class Point:
    """Where to kill: the victim (a rank, or a command), the system call, and its how-manyth."""

    victim: str
    call: str
    ordinal: int


@dataclass
class Score:
    """What a run of many points saw."""

    killed: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_base(tmp_path_factory.mktemp("strace") / "base")


def environment() -> dict[str, str]:
    return {**os.environ, "LASTGOOD_TEST_PATIENCE": "20", "PYTHONDONTWRITEBYTECODE": "1"}


def command(victim: str, root: Path, meeting: Path) -> list[str]:
    if victim in ACTS:
        arguments = [argument.format(family=root / KEYS.family) for argument in ACTS[victim]]
        return [sys.executable, "-B", "-c", "from lastgood.cli import main; main()", *arguments]
    return [sys.executable, "-B", "-m", "tests.crash.rank", str(root), str(meeting), victim, str(WORLD_SIZE), *STEPS]


def run_job(root: Path, meeting: Path, victim: str, options: Sequence[str]) -> int:
    """Run the victim under strace, its peers beside it; returns the victim's exit status, negative for a signal."""
    meeting.mkdir()
    peers = [str(rank) for rank in range(WORLD_SIZE) if str(rank) != victim] if victim.isdecimal() else []
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment()}
    processes = [subprocess.Popen(command(peer, root, meeting), **quiet) for peer in peers]  # type: ignore[call-overload]
    try:
        traced = subprocess.run([STRACE, "-f", "-qq", *options, *command(victim, root, meeting)], timeout=120, **quiet)  # type: ignore[call-overload]
        return int(traced.returncode)
    finally:
        for process in processes:
            # The peers of a dead rank would wait out their patience; what they write meanwhile is theirs to write.
            process.kill()
            process.wait()


def count_calls(base: Path, scratch: Path, victim: str) -> Counter[str]:
    """How often the victim enters each mutating call when nobody kills it."""
    root = scratch / f"count-{victim}"
    shutil.copytree(base, root)
    log = scratch / f"count-{victim}.log"
    calls = ",".join(f"?{call},?{call}at" if call not in ("write", "fsync", "rmdir") else call for call in MUTATING)
    status = run_job(root, scratch / f"count-meet-{victim}", victim, ["-o", str(log), "-e", f"trace={calls}"])
    assert status == 0, f"{victim} failed undisturbed: {status}"
    return Counter(re.findall(r"^(?:\d+ +)?(\w+)\(", log.read_text(errors="replace"), flags=re.MULTILINE))


def points(counts: dict[str, Counter[str]]) -> Iterator[Point]:
    """Every call of every victim, the victims taking turns; then all over again, for races differ each time."""
    lists = [
        [Point(victim, call, ordinal) for call, count in sorted(calls.items()) for ordinal in range(1, count + 1)]
        for victim, calls in counts.items()
    ]
    once = [point for row in itertools.zip_longest(*lists) for point in row if point is not None]
    return itertools.cycle(once)


def check(root: Path, meeting: Path, point: Point) -> Iterator[str]:
    location = open_family(root)
    family = Family(location)
    survey, offer = family.survey(), family.latest()
    log = meeting / "acknowledged"
    acknowledged = (
        [GenerationId(*map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []
    )
    for generation in acknowledged:
        if generation not in survey.candidates:
            yield f"{point}: acknowledged {generation} is lost"
    newest = max([*acknowledged, GenerationId(1, 10 if point.victim == "rollback" else 20)])
    if point.victim != "quarantine" and (offer.generation is None or offer.generation < newest):
        yield f"{point}: offered {offer.generation}, at least {newest} was acknowledged"
    for generation in survey.candidates:
        verdict = verify_generation(location.store, KEYS, generation)
        bad = [c.name for c in verdict.checks if c.name != "standing" and c.outcome is not Outcome.PASS]
        if bad:
            yield f"{point}: committed {generation} does not hold: {bad}"


def test_no_kill_at_a_system_call_loses_an_acknowledged_save_or_offers_a_torn_one(
    base: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Real processes, real SIGKILL: whoever dies wherever, what was acknowledged stays and what is offered is whole."""
    victims = ("0", "1", "rollback", "quarantine", "repair")
    counts = {victim: count_calls(base, tmp_path, victim) for victim in victims}
    score = Score()
    for number, point in enumerate(itertools.islice(points(counts), MAXIMUM_POINTS)):
        if score.killed["killed"] == KILLS:
            break
        root, meeting = tmp_path / f"root-{number}", tmp_path / f"meet-{number}"
        shutil.copytree(base, root)
        inject = f"inject={point.call}:signal=SIGKILL:when={point.ordinal}"
        status = run_job(root, meeting, point.victim, ["-o", "/dev/null", "-e", f"trace={point.call}", "-e", inject])
        # strace ends by the signal that ended its tracee.
        score.killed["killed" if status == -signal.SIGKILL else "survived"] += 1
        score.problems.extend(check(root, meeting, point))
        shutil.rmtree(root)
    record_property("points killed", f"{score.killed['killed']} of {sum(score.killed.values())}")
    record_property("mutating calls", {victim: sum(calls.values()) for victim, calls in counts.items()})
    assert score.problems == []
    assert score.killed["killed"] == KILLS, f"too few processes died: {score.killed}"
