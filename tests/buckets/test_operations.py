"""What `docs/operations.md` prints for a bucket is what people will type: it is run as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.buckets.servers import SeaweedFS

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
BUCKET = "training"


def section(title: str) -> str:
    text = OPERATIONS.read_text(encoding="utf-8")
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def block(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None, f"no block of {language}"
    return found[1]


@pytest.mark.slow
def test_the_way_from_an_empty_bucket_to_a_verdict_is_as_printed(seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    """Each command exits with 0, and the last one shows the verdict of the newest save."""
    seaweedfs.client().create_bucket(Bucket=BUCKET)
    told = section("From an empty bucket to a first verdict")
    (tmp_path / "lastgood.toml").write_text(block(told, "toml"), encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, **seaweedfs.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    commands = [line.removeprefix("$ ") for line in block(told, "console").splitlines() if line.startswith("$ ")]
    assert len(commands) == 6
    said = ""
    for command in commands:
        done = subprocess.run(
            shlex.split(command), cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        said = done.stdout
    assert "READY" in said
    assert re.search(r"tier 1 +pass +00000001-0{14}20", said), said
