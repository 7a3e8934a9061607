"""SIGKILL's image through the file port: dying before every mutating call, and in the middle of every write."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from lastgood.manifest import Component
from lastgood.publish import StagedArtifact
from lastgood.run import Run, SoloGroup
from tests.crash.filesystems import Killed, KillingFileSystem
from tests.crash.scenarios import ACTS, JOB, KEYS, SECOND, THIRD, Act, build_base, copy_base, open_family, problems

# A name serves one publish, so a step that died is never repeated: the next step is taken (the test below).
REPEATABLE = [act for act in ACTS if act.name not in ("publish", "start", "first-start")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_base(tmp_path_factory.mktemp("crash") / "base")


@pytest.mark.parametrize("torn", [None, 0.0, 0.5], ids=["before", "empty", "half"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_dying_at_any_call_leaves_the_former_answer_or_the_new_one(
    act: Act, torn: float | None, base: Path, tmp_path: Path
) -> None:
    """A kill at any mutating call must leave a family that offers what it did before, or the whole of the new."""
    kills, found = 0, []
    for kill_at in range(1, 1000):
        root = tmp_path / str(kill_at)
        copy_base(base, root, act)
        files = KillingFileSystem(kill_at, torn=torn)
        with contextlib.suppress(Killed):
            act.perform(open_family(root, files), files)
        if files.killed_in is None:
            # The act ended before its call of that number: every call has been tried.
            found += problems(root, act, acknowledged=True)
            break
        kills += 1
        found += [f"killed in {files.killed_in.name}: {p}" for p in problems(root, act, acknowledged=False)]
        shutil.rmtree(root)
    assert kills >= 8, f"only {kills} kills: is the act still going through the file port?"
    assert not found


@pytest.mark.parametrize("act", REPEATABLE, ids=lambda act: act.name)
def test_an_act_repeated_after_a_kill_ends_as_if_undisturbed(act: Act, base: Path, tmp_path: Path) -> None:
    """Whoever died must be able to do it again: no crash may leave something that blocks the next try."""
    for kill_at in range(1, 1000):
        root = tmp_path / str(kill_at)
        copy_base(base, root, act)
        files = KillingFileSystem(kill_at)
        with contextlib.suppress(Killed):
            act.perform(open_family(root, files), files)
        if files.killed_in is None:
            break
        again = open_family(root)
        act.perform(again, KillingFileSystem(0))
        assert not problems(root, act, acknowledged=True), f"killed in {files.killed_in}"
        shutil.rmtree(root)


def test_a_restart_after_any_kill_in_a_publish_publishes_its_next_step(base: Path, tmp_path: Path) -> None:
    """Whatever a killed publish left behind, the next life of the run resumes and saves."""
    publish = next(act for act in ACTS if act.name == "publish")
    for kill_at in range(1, 1000, 3):
        root = tmp_path / str(kill_at)
        shutil.copytree(base, root)
        files = KillingFileSystem(kill_at)
        with contextlib.suppress(Killed):
            publish.perform(open_family(root, files), files)
        run = Run.start(str(root / KEYS.family), SoloGroup())
        assert run.resumed is not None
        assert run.resumed.generation in (SECOND, THIRD)
        staging = run.stage(40)
        (staging.payload / "state.bin").write_bytes(b"state")
        published = run.publish(staging, [StagedArtifact(path="state.bin", component=Component.MODEL, rank=0)], job=JOB)
        run.close()
        assert published.generation.incarnation == 2
        shutil.rmtree(root)
        if files.killed_in is None:
            break
