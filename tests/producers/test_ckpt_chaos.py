"""A tool that is not ours kills Trainer at file events of its saves; the structural policy brings every one back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_transformers.py"
PROOF = os.environ.get("LASTGOOD_PROOF") == "1"
POINTS = 1000 if PROOF else 4
"""Of the events of three saves; the tool spreads fewer over all of them, and over torn files."""
VERDICT = re.compile(r"^(PASS|HARD_FAIL|SILENT_DIVERGENCE|LOST_WORK): (\d+)$", re.MULTILINE)


def chaos(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt_chaos", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=14_000)


@pytest.mark.slow
def test_a_trainer_killed_anywhere_resumes_from_its_newest_whole_checkpoint(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """No start that fails, no step lost that was saved, and the weights of a run that nobody killed."""
    job = f"{sys.executable} {EXAMPLE} {{out}} --unsealed --steps 6 --save-every 2 --final {{out}}/final.pt"
    launched = f"{sys.executable} -m lastgood exec {{out}} --policy structural --allow-fresh -- {job}"
    told = chaos(
        "run",
        *("--max-points", str(POINTS), "--jobs", "2"),
        *("--step-regex", r"resuming from .*checkpoint-(\d+)"),
        *("--checkpoint-glob", "{out}/checkpoint-*", "--result-file", "{out}/final.pt"),
        *("--fail-on", "HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK"),
        *("--resume-cmd", f"{launched} --resume {{generation}}"),
        *("--", *job.split()),
        cwd=tmp_path,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    verdicts = Counter({name: int(count) for name, count in VERDICT.findall(told.stdout)})
    assert set(verdicts) == {"PASS"}
    # The control, and every point; at full count a few more than forty events, many of them torn as well.
    assert verdicts["PASS"] >= (40 if PROOF else POINTS)
    record_property("resumed", f"{verdicts['PASS']} of {verdicts.total()} kills")


@pytest.mark.slow
@pytest.mark.skipif(not PROOF, reason="the peer's own figures, for comparison: LASTGOOD_PROOF=1")
def test_the_own_resume_of_trainer_fails_where_it_was_killed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The same kills without a launcher that looks first: what the policy is for."""
    told = chaos("bench", "hf_trainer", "--jobs", "2", cwd=tmp_path)
    counts = {name: told.stdout.count(name) for name in ("HARD_FAIL", "PASS")}
    assert counts["HARD_FAIL"] > 0
    record_property("verdicts", told.stdout.strip().splitlines()[-4:])
