"""A forked run is like one that its worker started, whatever lies where the process waits that it was forked from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FORKED = """
import sys
from lastgood_prefect import warm
warm.ENGINE = "probe"
warm._become(warm.Request(sys.argv[1], {"OF_THE_RUN": "yes"}, []))
"""


def test_a_forked_run_imports_from_its_own_directory(tmp_path: Path) -> None:
    """The first run's directory in /tmp is gone when a later run begins, and anybody may have made it again."""
    for name in ("first", "own"):
        (tmp_path / name).mkdir()
        words = f"import os, sys; print({name!r}, sorted(os.environ)[-1], os.getcwd() == sys.path[0])"
        (tmp_path / name / "probe.py").write_text(words, encoding="utf-8")
    command = [sys.executable, "-c", FORKED, str(tmp_path / "own")]
    said = subprocess.run(command, cwd=tmp_path / "first", capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["own", "OF_THE_RUN", "True"]
