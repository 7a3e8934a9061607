"""One life of a run: every rank hears one answer, and a save that failed in the background is heard exactly once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from lastgood.errors import PublishError, ResumeRefused, UsageError
from lastgood.family import Family
from lastgood.location import locate
from lastgood.manifest import Component, Purpose
from lastgood.publish import Published, StagedArtifact
from lastgood.run import Run, SoloGroup
from lastgood.testing.build import Recipe, build_job
from lastgood.verdict import Reason
from tests.crash.scenarios import JOB

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def family(tmp_path: Path) -> str:
    return str(tmp_path / "llm")


def write(payload: Path) -> Sequence[StagedArtifact]:
    """What a job of one rank writes."""
    (payload / "state.bin").write_bytes(b"weights")
    return [StagedArtifact(path="state.bin", component=Component.MODEL, rank=0)]


def fail(payload: Path) -> Sequence[StagedArtifact]:
    """A write that finds the disk full."""
    raise OSError(28, "no space left on device")


def save(run: Run, step: int) -> Published:
    staging = run.stage(step)
    return run.publish(staging, write(staging.payload), job=JOB)


def test_a_background_save_is_committed_before_the_run_closes(family: str) -> None:
    """Closing waits for the save, and what was acknowledged is told to whoever asked."""
    told: list[Published] = []
    run = Run.start(family, SoloGroup(), allow_fresh=True)
    run.publish_in_background(run.stage(10), write, job=JOB, then=told.append)
    run.close()
    resumed = Run.start(family, SoloGroup()).resumed
    assert resumed is not None
    assert [published.generation for published in told] == [resumed.generation]


@pytest.mark.parametrize(
    "next_call",
    [lambda run: run.wait(), lambda run: run.stage(20), lambda run: run.close()],
    ids=["wait", "stage", "close"],
)
def test_a_failed_background_save_fails_the_next_call_once(next_call: Callable[[Run], object], family: str) -> None:
    """Told never, the job would train on unsaved; told twice, a job that dealt with it could not go on."""
    run = Run.start(family, SoloGroup(), allow_fresh=True)
    run.publish_in_background(run.stage(10), fail, job=JOB)
    with pytest.raises(OSError, match="no space left"):
        next_call(run)
    run.wait()
    assert save(run, 30).generation.step == 30
    run.close()


def test_the_next_save_waits_for_the_one_in_the_background(family: str) -> None:
    """Two saves at once would be one more copy of the state, and commits out of order."""
    run = Run.start(family, SoloGroup(), allow_fresh=True)
    go_on, order = threading.Event(), []

    def slowly(payload: Path) -> Sequence[StagedArtifact]:
        go_on.wait(30)
        order.append("written")
        return write(payload)

    run.publish_in_background(run.stage(10), slowly, job=JOB)
    threading.Timer(0.2, go_on.set).start()
    save(run, 20)
    order.append("next")
    run.close()
    assert order == ["written", "next"]


PROGRAM = """
import time
from lastgood.run import Run, SoloGroup
from tests.test_run import JOB, fail, write

def slowly(payload):
    time.sleep(0.5)
    return {write}(payload)

run = Run.start({family!r}, SoloGroup(), allow_fresh=True)
run.publish_in_background(run.stage(10), slowly, job=JOB)
print("trained", end="")
{end}
"""


@pytest.mark.parametrize(
    ("writes", "end", "code"),
    [("write", "run.close()", 0), ("fail", "run.close()", 1), ("fail", "", 1), ("write", "", 1)],
    ids=["closed", "failed", "failed-unclosed", "cut-short"],
)
def test_the_exit_status_tells_of_the_last_save(writes: str, end: str, code: int, family: str) -> None:
    """A scheduler sees the exit status alone: a job whose last save is not there must not look finished."""
    program = PROGRAM.format(write=writes, family=family, end=end)
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (code, "trained"), ended.stderr
    resumable = code == 0
    if resumable:
        assert Run.start(family, SoloGroup()).resumed is not None
    else:
        assert "publish failed" in ended.stderr or "no space left" in ended.stderr
        with pytest.raises(ResumeRefused):
            Run.start(family, SoloGroup())


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, box: list[bytes], spoken: threading.Event) -> None:
        self.rank, self.world_size, self._box, self._spoken = rank, 2, box, spoken

    def broadcast(self, data: bytes | None) -> bytes:
        if data is not None:
            self._box.append(data)
            self._spoken.set()
        assert self._spoken.wait(30)
        return self._box[0]


def start_two(family: str, **how: object) -> list[Run | BaseException]:
    """What each of two ranks got from one start."""
    box: list[bytes] = []
    spoken = threading.Event()
    with ThreadPoolExecutor(2) as ranks:
        started = [ranks.submit(Run.start, family, Threads(rank, box, spoken), **how) for rank in range(2)]  # type: ignore[arg-type]
        return [each.exception() or each.result() for each in started]


def test_every_rank_starts_the_same_life_or_hears_the_same_refusal(family: str) -> None:
    """One rank that trained on alone would wait in its first collective for ever."""
    refused = start_two(family)
    assert [type(each) for each in refused] == [ResumeRefused] * 2
    assert {str(each) for each in refused} == {str(refused[0])}
    assert all(isinstance(r, ResumeRefused) and r.findings[-1].reason is Reason.NOTHING_TO_RESUME for r in refused)
    claimed = [each.incarnation for each in refused if isinstance(each, ResumeRefused)]
    assert claimed == [1, 1], "a trace of the refused life needs its number"
    runs = start_two(family, allow_fresh=True)
    assert [run.incarnation for run in runs if isinstance(run, Run)] == [2, 2]


def test_one_of_several_ranks_may_not_start_as_if_it_were_alone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun a forgotten group makes every rank fence the others, until the last one publishes its part alone;
    that rank 0 publishes for all of them is lawful.
    """
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UsageError, match="rank 1 of 2 starts as a job of its own") as caught:
        Run.start(family, SoloGroup(), allow_fresh=True)
    assert "TorchGroup" in (caught.value.hint or "")
    assert not Path(family).exists(), "a refused start claims nothing"
    monkeypatch.setenv("RANK", "0")
    assert Run.start(family, SoloGroup(), allow_fresh=True).incarnation == 1


def test_a_hint_of_another_family_or_of_no_generation_is_a_usage_error(family: str, tmp_path: Path) -> None:
    """A mistyped `--resume` must not be taken for a checkpoint that is not there, on any rank."""
    for hint in (str(tmp_path / "other/00000001-0000000000000010"), family):
        assert [type(each) for each in start_two(family, resume=hint, allow_fresh=True)] == [UsageError] * 2


def test_a_step_given_up_is_not_published(family: str) -> None:
    """Whoever abandons a step frees the others from waiting; the name stays used."""
    run = Run.start(family, SoloGroup(), allow_fresh=True)
    staging = run.stage(10)
    run.abandon(staging, "interrupted")
    with pytest.raises(PublishError):
        run.publish(staging, write(staging.payload), job=JOB)
    assert save(run, 20).generation.step == 20
    run.close()


def test_a_save_that_nothing_could_resume_is_not_acknowledged(tmp_path: Path) -> None:
    """An acknowledged save is a promise: a job that forgot its optimizer hears of it now, not at the interruption."""
    run = Run.start(f"{tmp_path}/llm", SoloGroup(), allow_fresh=True)
    staging = run.stage(10)
    (staging.payload / "model.bin").write_bytes(b"weights")
    only_model = StagedArtifact(path="model.bin", component=Component.MODEL, rank=0)
    forgetful = msgspec.structs.replace(build_job("llm", 10, Recipe(world_size=1)), promises=(), absent=())
    with pytest.raises(PublishError, match=r"nothing could resume it: .*component missing: optimizer"):
        run.publish(staging, [only_model], job=forgetful)
    run.close()
    assert Family(locate(f"{tmp_path}/llm")).latest().generation is None


def test_an_export_of_weights_is_published_with_nothing_but_weights(tmp_path: Path) -> None:
    """It claims to be no checkpoint, so nothing is missing from it; and it is never offered to a resume."""
    run = Run.start(f"{tmp_path}/llm", SoloGroup(), allow_fresh=True)
    staging = run.stage(10)
    (staging.payload / "model.bin").write_bytes(b"weights")
    export = msgspec.structs.replace(
        build_job("llm", 10, Recipe(world_size=1)), promises=(), absent=(), purpose=Purpose.WEIGHTS_ONLY
    )
    run.publish(staging, [StagedArtifact(path="model.bin", component=Component.MODEL, rank=0)], job=export)
    run.close()
    assert Family(locate(f"{tmp_path}/llm")).latest().generation is None
