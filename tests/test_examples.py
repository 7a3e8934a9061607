"""The examples are what people copy first: each must train, go on where it stood, and come back when it is restored."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lastgood.config import ReplicaSettings
from lastgood.family import Family
from lastgood.location import locate
from lastgood.replica.trace import TraceReader
from lastgood.restore import restore
from lastgood.verdict import Outcome
from lastgood.verify import verify_generation

pytest.importorskip("torch", reason="the examples train")

ROOT = Path(__file__).resolve().parents[1]
REGISTERED = str(ROOT / "examples" / "train_registered.py")


def train(*command: str) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def losses(family: Path, incarnation: int) -> dict[int, float]:
    return {step: float(record.loss) for step, record in TraceReader(family).steps(incarnation, 0).items()}


def test_readmes_loop_runs_as_printed(tmp_path: Path) -> None:
    """A snippet that leaves out a name is where a newcomer gives up."""
    loop = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    assert "/checkpoints/" in loop
    script = tmp_path / "train.py"
    script.write_text(loop.replace("/checkpoints/", f"{tmp_path}/"), encoding="utf-8")
    train(str(script))
    location = locate(f"{tmp_path}/llm-7b")
    first = Family(location).latest().generation
    assert first is not None
    assert verify_generation(location.store, location.keys, first).outcome is Outcome.PASS
    # The next life finds nothing left to do, and must not fail on that.
    train(str(script))
    assert Family(location).survey().claims.newest == 2


def test_registered_loop_goes_on_where_it_stood_and_can_be_restored(tmp_path: Path) -> None:
    """It is shown as the way to a full pass of tier 2, so it must reach one."""
    train(REGISTERED, str(tmp_path / "control"), "--steps", "45")
    train(REGISTERED, str(tmp_path / "f"), "--steps", "25")
    train(REGISTERED, str(tmp_path / "f"), "--steps", "45")
    control = losses(tmp_path / "control", 1)
    assert losses(tmp_path / "f", 2) == {step: control[step] for step in range(26, 46)}
    saved = next(name for name in sorted(path.name for path in (tmp_path / "control").iterdir()) if name.endswith("30"))
    result = restore(locate(f"{tmp_path}/control/{saved}"), ReplicaSettings(command=(sys.executable, REGISTERED)))
    assert result.verdict.outcome is Outcome.PASS, result.verdict.checks
