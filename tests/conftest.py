"""What every test shares: programs that must be there, and figures that must be seen.

- `@pytest.mark.service("strace")` names the programs that a test needs. Without one, the test is skipped with its
  reason on a developer's machine and fails in CI, where a skipped crash proof would look like a passed one.
- `golden("schemas/Manifest.json", content)` compares with a file under tests/goldens; `--update-goldens` rewrites it.
- `corpus["deepspeed_3"]` is a real checkpoint that its framework writes when a test first asks (tests/corpus); slow.
- `namespaces` lets a test hide a directory from the commands that it runs.
- `record_property("kill points", 512)`, which is pytest's own fixture, adds a figure to the closing section "measured",
  which `make proof` keeps in `docs/proof/`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.corpus import Corpus

GOLDENS = Path(__file__).parent / "goldens"
ORCHESTRATED = frozenset({"flows", "prefect", "pipeline", "deployments", "stack", "browser", "relay", "infra"})
"""Folders whose tests start Prefect in this process, or servers below it."""

# How fast a machine draws or runs an example says nothing of what the example shows.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    """One flag rewrites every golden; the difference is then read in version control."""
    parser.addoption("--update-goldens", action="store_true", help="rewrite the files under tests/goldens")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, bytes], None]:
    """Compare content with the golden file of that name, or rewrite it when asked to."""

    def compare(name: str, content: bytes) -> None:
        path = GOLDENS / name
        if request.config.getoption("--update-goldens"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        assert path.is_file(), f"no golden {name}: run with --update-goldens and read what it writes"
        assert content == path.read_bytes(), f"{name} changed: if on purpose, run with --update-goldens"

    return compare


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Real checkpoints of every framework, each written once; LASTGOOD_CORPUS names a directory that keeps them."""
    from tests.corpus import Corpus  # loads NumPy, which a conftest should not

    if kept := os.environ.get("LASTGOOD_CORPUS"):
        return Corpus(Path(kept))
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "corpus"
    directory.mkdir(exist_ok=True)
    return Corpus(directory)


@pytest.fixture
def namespaces() -> None:
    """A kernel that lets us hide a directory; no package can bring one, so without it there is nothing to run."""
    hide = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run(hide, check=False, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the orchestrated tests last: Prefect's threads draw from Python's global random stream and its server is a
    child of ours, and tests that compare streams bit for bit, or count processes, must meet neither. Processes that
    share the tests (`make test`) take them file by file in this order, so that it holds in each.
    """
    tests = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(tests).parts[0] in ORCHESTRATED)


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
