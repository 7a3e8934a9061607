"""Restores of a second copy, on a machine from which the first one cannot be reached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lastgood.copying import Selection, copy_family
from lastgood.location import locate
from lastgood.restore.supervisor import restore
from lastgood.verdict import CheckState, Outcome
from tests.restore.test_supervisor import FAKE, settings

HIDE = 'mount -t tmpfs -o mode=000,size=4k none "$1" && shift && exec "$@"'
"""The documented way (docs/operations.md): below the directory nothing is left for whoever runs after this."""


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Path, Path]:
    """A producer's root with a family that a live run trained to step 34, and a copy of its newest generations."""
    here, there = tmp_path / "producer", tmp_path / "remote"
    here.mkdir()
    there.mkdir()
    command = [sys.executable, str(FAKE), "--family", str(here / "fam"), "--world-size", "2", "--stop-step", "34"]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    copy_family(locate(str(here / "fam")), locate(str(there / "fam")), Selection(newest=2))
    return here, there


def hidden(directory: Path, configuration: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of ours on a machine whose directory is empty."""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", HIDE, "sh", str(directory)]
    ours = [sys.executable, "-m", "lastgood", *arguments, "--config", str(configuration)]
    return subprocess.run([*command, *ours], check=False, timeout=120, capture_output=True, text=True)


def configure(root: Path, *extra: str) -> Path:
    file = root / "lastgood.toml"
    command = [sys.executable, str(FAKE), "--world-size", "{world_size}"]
    file.write_text(f'[families.fam]\nroot = "{root}"\n[families.fam.replica]\ncommand = {[*extra, *command]}\n')
    return file


def test_a_copy_restores_with_the_live_run_as_its_control(copied: tuple[Path, Path]) -> None:
    """Traces travel with the generations, so a restore from the remote tier compares with what really happened."""
    location = locate(str(copied[1] / "fam" / "00000001-0000000000000030"))
    result = restore(location, settings())
    assert result.verdict.outcome is Outcome.PASS
    control = next(check for check in result.verdict.checks if check.name == "control_loss")
    assert control.state is CheckState.RAN
    assert control.detail.startswith("steps 31–34")


@pytest.mark.service("unshare")
@pytest.mark.usefixtures("namespaces")
def test_a_restore_from_the_copy_needs_no_byte_of_the_producers_disk(copied: tuple[Path, Path]) -> None:
    """The drill of a lost site: with the producer's disk out of reach for supervisor and replica, the copy restores."""
    here, there = copied
    told = hidden(here, configure(there), "restore", "fam")
    assert told.returncode == 0, told.stdout + told.stderr
    assert (here / "fam").is_dir(), "only whoever ran the drill saw an empty disk"


@pytest.mark.service("unshare")
@pytest.mark.usefixtures("namespaces")
def test_a_replica_that_needs_the_producers_disk_never_passes_the_drill(copied: tuple[Path, Path]) -> None:
    """A tokenizer or data that is still looked for in the old place must be found now; the copy is not to blame."""
    here, there = copied
    reads = ["sh", "-c", f'cat {here}/fam/.lastgood/LAST_GOOD {here}/fam/*/* >/dev/null && exec "$@"', "sh"]
    configuration = configure(there, *reads)
    (here / "fam" / ".lastgood" / "LAST_GOOD").touch()
    told = hidden(here, configuration, "restore", "fam", "--no-record")
    assert told.returncode == Outcome.INCONCLUSIVE.exit_code, told.stdout + told.stderr
    assert str(here) in told.stdout, "the replica's last words name the file"


@pytest.mark.service("unshare")
@pytest.mark.usefixtures("namespaces")
def test_the_first_copy_is_out_of_reach_in_the_drill(copied: tuple[Path, Path]) -> None:
    """The means itself must be able to fail: asked for the producer's own family, nothing is there."""
    here, there = copied
    told = hidden(here, configure(there), "latest", str(here / "fam"))
    assert told.returncode != 0
