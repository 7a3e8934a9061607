from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location, locate
from lastgood.publish import StagedArtifact
from lastgood.run import Run, SoloGroup
from lastgood.testing.build import Recipe, build_job
from tests.drill.fake_rank import OWN, SHARED

ORPHAN = Path(__file__).with_name("orphan.py")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One orphan: where it was stopped, what its callers were told, and what was seen before and after it went on."""

    stopped: str
    told: dict[tuple[int, int], str]
    kept: tuple[GenerationId, ...]
    before: dict[str, object]
    after: dict[str, object]
    calls: int


def publish(run: Run, step: int) -> None:
    staging = run.stage(step)
    artifacts = []
    for component in (*OWN, *SHARED):
        (staging.payload / component.value).write_text(str(step))
        rank = 0 if component in OWN else None
        artifacts.append(StagedArtifact(path=component.value, component=component, rank=rank))
    run.publish(staging, artifacts, job=build_job(run.location.keys.family, step, Recipe(world_size=1)))


def visible(location: Location) -> dict[str, object]:
    """Everything by which a reader or a person finds a generation, except what only its own incarnation reads."""
    store, keys = location.store, location.keys
    offer = Family(location).latest()
    pointers = (keys.last_good, keys.quarantine, keys.active(2), keys.resume(2))
    return {
        "latest": str(offer.generation),
        "candidates": tuple(map(str, Family(location).survey().candidates)),
        **{pointer: store.get(pointer, limit_bytes=2**20) for pointer in pointers},
    }


def live_through_a_takeover(root: Path, stop_before: int, *options: str) -> Story:
    """Stop an orphan before one of its calls, take the run over, publish, and let the orphan go on."""
    root.mkdir()
    family = str(root / "run")
    command = [sys.executable, str(ORPHAN), family, str(stop_before), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as orphan:
        assert orphan.stdout is not None
        _, status = os.waitpid(orphan.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the orphan ended before it was stopped"
        location = locate(family)
        run = Run.start(family, SoloGroup())
        kept = Family(location).survey().candidates
        assert run.resumed is not None
        publish(run, run.resumed.generation.step + 5)
        before = visible(location)
        os.kill(orphan.pid, signal.SIGCONT)
        printed = orphan.stdout.read()
        assert orphan.wait(60) == 0, printed
    told = re.findall(r"^rank (\d) step (\d+) (.*)$", printed, re.MULTILINE)
    stopped, calls = (
        re.search(r"^stopped before (.*)$", printed, re.MULTILINE),
        re.search(r"^calls (\d+)$", printed, re.M),
    )
    assert stopped is not None
    assert calls is not None
    return Story(
        stopped=stopped[1],
        told={(int(rank), int(step)): said for rank, step, said in told},
        kept=kept,
        before=before,
        after=visible(location),
        calls=int(calls[1]),
    )


def problems(story: Story) -> list[str]:
    """What is wrong with how an orphan ended; empty when the fence held."""
    found = []
    if story.after != story.before:
        found.append(f"the orphan moved something: {story.before} became {story.after}")
    for rank in (0, 1):
        was_kept = GenerationId(1, 20) in story.kept
        expected = {"acknowledged", "fenced"} if was_kept else {"fenced"}
        if story.told[rank, 20] not in expected:
            found.append(f"rank {rank} was told {story.told[rank, 20]} of step 20, which the takeover kept: {was_kept}")
        if story.told[rank, 30] != "fenced":
            found.append(f"rank {rank} was told {story.told[rank, 30]} of step 30, after the takeover")
    if story.told[0, 20] != story.told[1, 20]:
        found.append(f"ranks were told differently: {story.told}")
    return found


def calls_after_the_check(root: Path) -> int:
    """How many calls rank 0 makes from the claim check of its second save to its end; an undisturbed job's count."""
    root.mkdir()
    command = [sys.executable, str(ORPHAN), str(root / "run"), "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=120)
    assert done.stdout.count("acknowledged") == 6
    calls = re.search(r"^calls (\d+)$", done.stdout, re.MULTILINE)
    assert calls is not None
    return int(calls[1])


def test_an_orphan_stopped_before_its_marker_is_fenced(tmp_path: Path) -> None:
    """A rank that slept through the takeover between its claim check and its COMMIT must not be believed."""
    story = live_through_a_takeover(tmp_path / "store", 1)
    assert problems(story) == []
    assert story.told[0, 20] == "fenced"
    assert GenerationId(1, 20) not in story.kept


@pytest.mark.slow
def test_an_orphan_stopped_anywhere_after_its_check_moves_nothing(
    tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """Whatever the orphan was about to write when it lost the run, it changes no answer, and its caller is told."""
    calls = calls_after_the_check(tmp_path / "undisturbed")
    assert calls > 10
    stories = [live_through_a_takeover(tmp_path / str(number), number) for number in range(1, calls + 1)]
    assert {story.stopped: problems(story) for story in stories if problems(story)} == {}
    assert {story.told[0, 20] for story in stories} == {"fenced", "acknowledged"}
    record_property("orphans stopped before one of their calls", len(stories))


def test_an_orphan_that_does_not_look_again_is_caught(tmp_path: Path) -> None:
    """The control: without the second look at the claims, some stopped orphan is told that a lost save was kept."""
    story = live_through_a_takeover(tmp_path / "store", 1, "--blind")
    assert any("rank 0 was told acknowledged of step 20" in problem for problem in problems(story))
