"""`latest` and `exec`: a launch script must never start on something that may not be resumed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood.testing.build import BuiltFamily
from tests.cli.conftest import Told

Call = Callable[..., Told]


def test_latest_prints_the_newest_uri_and_nothing_else_on_stdout(call: Call, family: BuiltFamily, uri: str) -> None:
    """A shell takes stdout as the answer, so it holds the answer alone."""
    told = call("latest", uri)
    assert (told.code, told.out) == (0, f"{uri}/{family.newest}\n")
    assert "unverified" in told.err


def test_latest_skips_a_generation_whose_shard_is_gone_and_says_so(call: Call, family: BuiltFamily, uri: str) -> None:
    """An incomplete newest generation is passed over by name, never silently."""
    (family.root / family.family / str(family.newest) / "model/rank-00001.safetensors").unlink()
    told = call("latest", uri)
    assert told.out == f"{uri}/{family.generations[-2]}\n"
    assert "shard_missing" in told.err
    assert "model/rank-00001.safetensors" in told.err


def test_deep_reads_bytes_that_sizes_cannot_tell(call: Call, family: BuiltFamily, uri: str) -> None:
    """A flipped byte keeps its file's size: only `--deep` sees it before the trainer does."""
    shard = family.root / family.family / str(family.newest) / "model/rank-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    assert call("latest", uri).out == f"{uri}/{family.newest}\n"
    deep = call("latest", uri, "--deep")
    assert deep.out == f"{uri}/{family.generations[-2]}\n"
    assert "digest_mismatch" in deep.err


def test_json_carries_what_was_passed_over(call: Call, uri: str) -> None:
    """Scripts get the same facts as people."""
    call("rollback", uri, "00000001-0000000000000012", "--reason", "loss spiked")
    told = call("latest", uri, "--json")
    document = json.loads(told.out)
    assert document["step"] == 12
    assert [entry["findings"][0]["reason"] for entry in document["passed_over"]] == ["generation_fenced"] * 2


def empty(root: Path) -> None:
    """A family in which nobody has published."""
    shutil.rmtree(root / "llm-7b")


def torn(root: Path) -> None:
    """Every generation lost its model."""
    for directory in root.glob("llm-7b/0*/model"):
        shutil.rmtree(directory)


def quarantined(root: Path) -> None:
    """An operator's quarantine, and nothing proven."""
    command = [sys.executable, "-m", "lastgood", "quarantine", str(root / "llm-7b"), "--reason", "restores differ"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("spoil", [empty, torn, quarantined], ids=lambda spoil: spoil.__name__)
def test_exec_never_starts_the_trainer_when_nothing_may_be_resumed(
    spoil: Callable[[Path], None], family: BuiltFamily, uri: str, tmp_path: Path
) -> None:
    """Proved with a real shell script: the marker that the trainer would leave is not there."""
    spoil(family.root)
    trainer = tmp_path / "train.sh"
    trainer.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    trainer.chmod(0o755)
    script = tmp_path / "launch.sh"
    script.write_text(
        f'set -u\n"$1" -m lastgood exec {uri} -- {trainer} {{generation}}\necho "exec $?"\n'
        f'g=$("$1" -m lastgood latest {uri}) || echo "latest $?"\necho "said [$g]"\n'
    )
    told = subprocess.run(["/bin/sh", str(script), sys.executable], capture_output=True, text=True, timeout=60)
    assert told.stdout == "exec 1\nlatest 1\nsaid []\n"
    assert "nothing" in told.stderr
    assert not (tmp_path / "started").exists()


def test_exec_becomes_the_command_with_the_generation_filled_in(family: BuiltFamily, uri: str) -> None:
    """The trainer replaces us: its exit status and output are its own."""
    script = ["sh", "-c", 'echo "resume $0"; exit 7', "{generation}"]
    told = subprocess.run(
        [sys.executable, "-m", "lastgood", "exec", uri, "--", *script], capture_output=True, text=True
    )
    assert (told.returncode, told.stdout) == (7, f"resume {uri}/{family.newest}\n")


def test_allow_fresh_starts_an_empty_family_and_refuses_one_that_holds_commits(
    family: BuiltFamily, uri: str, tmp_path: Path
) -> None:
    """Step zero over existing commits would lose them; on an empty family it is the only way to begin."""
    echo = ["--allow-fresh", "--", "echo", "from [{generation}]"]
    fresh = [sys.executable, "-m", "lastgood", "exec", f"{family.root}/new", *echo]
    began = subprocess.run(fresh, capture_output=True, text=True)
    assert began.stdout == "from []\n"
    assert (
        began.stderr.splitlines()[-1]
        == "lastgood: starts at step zero: nothing was ever committed here, and --allow-fresh allows it"
    ), "what was allowed must not read like a refusal"
    torn(family.root)
    refused = subprocess.run([sys.executable, "-m", "lastgood", "exec", uri, *echo], capture_output=True, text=True)
    assert (refused.returncode, refused.stdout) == (1, "")


def test_a_missing_root_is_could_not_tell_and_a_missing_program_is_usage(call: Call, uri: str, tmp_path: Path) -> None:
    """An unmounted file system must not look like a family without checkpoints."""
    missing = call("latest", f"{tmp_path}/nowhere/llm-7b")
    assert (missing.code, missing.out) == (2, "")
    assert f"root is not a directory: {tmp_path}/nowhere" in missing.err
    assert call("exec", f"{tmp_path}/nowhere/llm-7b", "--allow-fresh", "--", "true").code == 2
    program = call("exec", uri, "--", "no-such-trainer")
    assert program.code == 64
    assert "cannot start no-such-trainer" in program.err


def test_exec_explains_itself_as_json_and_leaves_stdout_to_the_command(family: BuiltFamily, uri: str) -> None:
    """A launcher that parses why nothing was started must not find it mixed with what the trainer prints."""
    started = subprocess.run(
        [sys.executable, "-m", "lastgood", "exec", uri, "--json", "--", "echo", "{generation}"],
        capture_output=True,
        text=True,
    )
    assert started.stdout == f"{uri}/{family.newest}\n"
    assert json.loads(started.stderr)["generation"] == str(family.newest)
    empty(family.root)
    refused = subprocess.run(
        [sys.executable, "-m", "lastgood", "exec", uri, "--json", "--", "echo", "started"],
        capture_output=True,
        text=True,
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert [finding["reason"] for finding in json.loads(refused.stderr)["findings"]] == ["nothing_to_resume"]


def test_an_option_of_the_trainer_is_never_taken_for_one_of_ours(call: Call, uri: str) -> None:
    """Without the two dashes `--deep` of a training script would vanish, and the script train otherwise."""
    told = call("exec", uri, "echo", "{generation}", "--deep")
    assert told.code == 64
    assert "no `--` before COMMAND" in told.err
    started = subprocess.run(
        [sys.executable, "-m", "lastgood", "exec", uri, "--", "echo", "--deep", "--", "--json"],
        capture_output=True,
        text=True,
    )
    assert started.stdout == "--deep -- --json\n"
    assert call("exec", "--help").code == 0
