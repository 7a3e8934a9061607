"""What every test shares: programs that must be there, and figures that must be seen.

- `@pytest.mark.service("strace")` names the programs that a test needs. Without one, the test is skipped with its
  reason on a developer's machine and fails in CI, where a skipped crash proof would look like a passed one.
- `record_property("kill points", 512)`, which is pytest's own fixture, adds a figure to the closing section "measured",
  which `make proof` keeps in `docs/proof.md`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail a test whose program or device is not on this machine."""
    for mark in item.iter_markers("service"):
        missing = [program for program in mark.args if shutil.which(program) is None]
        if missing and os.environ.get("CI") == "true":
            pytest.fail(f"not installed: {', '.join(missing)} (.ci/run must install it)", pytrace=False)
        if missing:
            pytest.skip(f"not installed: {', '.join(missing)}")
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA device on this machine")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that passing tests recorded, one a line."""
    measured = [
        f"{report.nodeid}: {name} = {value}"
        for report in terminalreporter.getreports("passed")
        if report.when == "call"
        for name, value in report.user_properties
    ]
    if measured:
        terminalreporter.section("measured")
        for line in measured:
            terminalreporter.line(line)
