"""A job of another framework, with the line that lastgood adds: its saves are sealed, it resumes from them, and each
can be restored by the framework's own resume.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lastgood.config import ReplicaSettings
from lastgood.location import locate
from lastgood.replica.trace import Saved, Step, Stopped, TraceReader
from lastgood.restore import restore
from lastgood.text import counted
from lastgood.verdict import Outcome, Rung, Verdict

EXAMPLES = Path(__file__).parents[2] / "examples"
FAULTY = Path(__file__).with_name("faulty_trainer.py")
ODD = Path(__file__).with_name("odd_lightning.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
FLIPPED_AT = -5
"""Within the last tensor of a safetensors file."""


def lastgood(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lastgood", *map(str, arguments)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert told.returncode == code, told.stdout + told.stderr
    return told


def train(example: str, output: Path, *arguments: str, policy: str = "verified") -> subprocess.CompletedProcess[str]:
    program = (sys.executable, EXAMPLES / example, output, "--resume", "{generation}", *arguments)
    return lastgood("exec", output, "--policy", policy, "--allow-fresh", "--", *program)


def restored(checkpoint: Path, *program: str | Path) -> Verdict:
    """Tier 2 by the program that trained, told where its copy lies and what to resume."""
    search = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    command = (sys.executable, *map(str, program[:-1]), "{family}", "--resume", "{resume}", *str(program[-1]).split())
    return restore(locate(str(checkpoint)), ReplicaSettings(command=command, environment=search)).verdict


def content_of(directory: Path) -> dict[str, tuple[str, int]]:
    """Of everything below: the digest of its bytes and when it was changed."""
    return {
        str(path.relative_to(directory)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "a directory",
            path.lstat().st_mtime_ns,
        )
        for path in directory.rglob("*")
    }


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a replica has: with others, sums differ in their last bits."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def sealed(output: Path) -> list[str]:
    return sorted(row["generation"] for row in json.loads(lastgood("inspect", output, "--json").stdout))


@pytest.mark.slow
def test_each_save_of_trainer_is_sealed_and_resumed_from(tmp_path: Path) -> None:
    """One callback, and from then on a flipped byte of the weights is seen, which nothing saw before."""
    output = tmp_path / "gpt"
    train("train_transformers.py", output, "--steps", "4", "--save-every", "2")
    assert sealed(output) == ["00000000-0000000000000002~checkpoint-2", "00000000-0000000000000004~checkpoint-4"]
    resumed = train("train_transformers.py", output, "--steps", "6", "--save-every", "2")
    assert f"resuming from {output}/checkpoint-4" in resumed.stdout
    weights = output / "checkpoint-6/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[FLIPPED_AT] ^= 1
    weights.write_bytes(data)
    assert "digest mismatch: model.safetensors" in lastgood("verify", output / "checkpoint-6", code=1).stdout
    assert lastgood("latest", output).stdout.strip() == f"{output}/checkpoint-4"


@pytest.mark.slow
def test_what_trainer_keeps_alone_is_restored_and_stays(tmp_path: Path) -> None:
    """`save_total_limit=1`, and a job that dies between two saves: the one checkpoint that is left is proven by the
    steps that were made after it, a resume that begins anew is refused by component, and nothing in production changes.
    """
    output = tmp_path / "gpt"
    job = "--steps 24 --save-every 8 --keep 1"
    died = subprocess.run([sys.executable, FAULTY, "dies", output, *job.split()], capture_output=True, timeout=300)
    assert died.returncode == -signal.SIGKILL, died.stderr
    checkpoint, before = output / "checkpoint-8", content_of(output)
    healthy = restored(checkpoint, EXAMPLES / "train_transformers.py", job)
    assert (healthy.outcome, healthy.rung) == (Outcome.PASS, Rung.FULL), healthy.checks
    made = {check.name: check for check in healthy.checks}
    assert made["control_loss"].detail.startswith("steps 9–12 on 1 rank: equal")
    assert made["save_after_resume"].outcome is Outcome.PASS
    # A smaller batch has another loss, and no other schedule; after what was asked for, a second `train` is not made.
    again = restored(checkpoint, FAULTY, "again", job)
    assert (again.outcome, again.rung) == (Outcome.PASS, Rung.UNWITNESSED), again.checks
    # What the first one saves then contradicts itself, so that sealing refuses it.
    for fault, components in (("restarts", {"scheduler", "save"}), ("forgets", {"scheduler", "optimizer"})):
        verdict = restored(checkpoint, FAULTY, fault, job)
        assert verdict.outcome is Outcome.FAIL
        assert {finding.offender.partition("/")[0] for finding in verdict.findings} == components, fault
    assert content_of(output) == before
    # What the second life saves takes the place of the first one's, which is never offered again.
    train("train_transformers.py", output, *job.split())
    assert [path.name for path in output.glob("checkpoint-*")] == ["checkpoint-24"]
    assert lastgood("latest", output).stdout.strip() == f"{output}/checkpoint-24"
    assert len(TraceReader(output).lives()) == 2


@pytest.mark.slow
def test_each_save_of_lightning_is_sealed_resumed_from_and_restored(tmp_path: Path) -> None:
    """A checkpoint that is one file is a generation like any other, and `save_top_k=1` of a replica removes nothing;
    what its script does once the restore has what it asked for is no part of it.
    """
    output = tmp_path / "line"
    train("train_lightning.py", output, "--steps", "10", "--save-every", "6", "--keep", "1")
    assert sealed(output) == ["00000000-0000000000000006~step=6.ckpt"]
    before = content_of(output)
    program = (EXAMPLES / "train_lightning.py").read_text(encoding="utf-8")
    fit = "    trainer.fit(Line(), data, ckpt_path=asked.resume or None)\n"
    assert program.count(fit) == 1
    (tmp_path / "twice.py").write_text(program.replace(fit, 2 * fit))
    verdict = restored(output / "step=6.ckpt", tmp_path / "twice.py", "--steps 10 --save-every 2 --keep 1")
    assert (verdict.outcome, verdict.rung) == (Outcome.PASS, Rung.FULL), verdict.findings or verdict.checks
    assert content_of(output) == before
    train("train_lightning.py", output, "--steps", "12", "--save-every", "6")
    assert len(sealed(output)) == 2
    assert lastgood("latest", output).stdout.strip() == f"{output}/step=12.ckpt"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "launcher", "ranks"), [("train_accelerate.py", (), 1), ("train_deepspeed.py", TORCHRUN, 2)]
)
def test_a_loop_with_two_calls_is_sealed_restored_and_resumed(
    tmp_path: Path, example: str, launcher: tuple[str, ...], ranks: int
) -> None:
    """A restore demands the trace of every rank, and each of them must name the life that rank 0 named."""
    output = tmp_path / "line"
    program = (sys.executable, *launcher, EXAMPLES / example, output, "--save-every", "2", "--resume", "{generation}")
    lastgood("exec", output, "--policy", "structural", "--allow-fresh", "--", *program, "--steps", "6")
    verdict = restored(output / "step-2", *launcher, EXAMPLES / example, "--save-every 2 --steps 6")
    assert (verdict.outcome, verdict.rung) == (Outcome.PASS, Rung.FULL), verdict.findings or verdict.checks
    details = {check.name: check.detail for check in verdict.checks}
    assert details["control_loss"].startswith(f"steps 3–6 on {counted(ranks, 'rank')}: equal")
    lastgood("exec", output, "--policy", "structural", "--allow-fresh", "--", *program, "--steps", "8")
    assert [int(name.partition("~")[0][-16:]) for name in sealed(output)] == [2, 4, 6, 8]
    reader = TraceReader(output)
    assert sorted(len(reader.steps(life, ranks - 1)) for life in reader.lives()) == [2, 6]


@pytest.mark.slow
def test_odd_jobs_on_lightning_are_traced_or_told_why_not(tmp_path: Path) -> None:
    """Optimizers in turn make a step each, and two callbacks of one directory are one life, for a replica of two lives
    looks as if it had died. Of two updates in one batch, and of a loss that is not returned, no restore is ever proven;
    and a replica that saves in two places would reach production: its user must be told, not guess.
    """
    program = (sys.executable, ODD, tmp_path)
    told = subprocess.run(program, check=True, capture_output=True, text=True, timeout=300)
    reader = TraceReader(tmp_path / "shared")
    (life,) = reader.lives()
    records = list(reader.records(life, 0))
    assert [one.step for one in records if isinstance(one, Step)] == list(range(1, 9))
    saved = [one.generation.partition("~")[2] for one in records if isinstance(one, Saved)]
    assert saved == ["step=4.ckpt", "step=5.ckpt", "step=8.ckpt"]
    assert isinstance(records[-1], Stopped)
    counts = {}
    for kind in ("turns", "both", "silent"):
        reader = TraceReader(tmp_path / kind)
        (life,) = reader.lives()
        counts[kind] = {number: list(step.optimizer_steps.values()) for number, step in reader.steps(life, 0).items()}
    assert counts == {"turns": {1: [1], 2: [1, 1], 3: [2, 1], 4: [2, 2]}, "both": {2: [1, 1], 4: [2, 2]}, "silent": {}}
    assert told.stderr.count("no restore of what this job saves will be proven") == 2
    assert "step 2 comes after step 0, and a restore asks for each" in told.stderr
    assert "no step is traced: training_step returns no loss" in told.stderr
    assert f"refused: replica saves in several directories: expected {tmp_path / 'turns'}, found also" in told.stdout
    assert not (tmp_path / "elsewhere").exists()
