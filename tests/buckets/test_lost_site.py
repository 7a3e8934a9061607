"""The drill of a lost site, watched: what a restore from a bucket opens and to whom it speaks, call by call.

`tests/restore/test_elsewhere.py` takes the producer's disk away; here it stays in reach, and strace says whether any of
it was touched. Rule: a restore that opened one path below it, or spoke to anybody but the bucket, has failed the drill,
whatever it says of itself.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lastgood.copying import Selection, copy_family
from lastgood.location import locate
from lastgood.verdict import Outcome
from tests.buckets.servers import SeaweedFS
from tests.restore.test_elsewhere import HIDE
from tests.restore.test_supervisor import FAKE

pytestmark = [pytest.mark.slow, pytest.mark.service("strace")]

BUCKET = "lost-site"

STRACE = ("strace", "-f", "-qq", "--seccomp-bpf", "-y", "-e", "trace=/^(open|execve).*,creat,connect")
"""The documented way (docs/operations.md): descriptors are shown with the path that the kernel knows them by."""

_NAMED = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<below>[^>]*)>, )?"(?P<path>(?:[^"\\]|\\.)*)"')
_GIVEN = re.compile(r"= \d+<(?P<path>/[^>]*)>$", re.MULTILINE)
_ENDPOINT = re.compile(r'sin6?_port=htons\((?P<port>\d+)\).*?inet_(?:addr\(|pton\(AF_INET6, )"(?P<address>[^"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a command and all that it started did.

    Args:
        status: How it ended.
        told: What it printed.
        asked: Every path that something was opened or started by, whether or not that succeeded.
        opened: Every file that a descriptor was given for, links followed.
        endpoints: Every address and port that was connected to.
    """

    status: int
    told: str
    asked: frozenset[Path]
    opened: frozenset[Path]
    endpoints: frozenset[tuple[str, int]]


def watch(command: Sequence[str], log: Path, hidden: Path | None = None) -> Watched:
    """Run a command under strace, on a machine that lacks a directory if one is hidden."""
    hide = ["unshare", "--map-root-user", "--mount", "sh", "-c", HIDE, "sh", str(hidden)] if hidden else []
    done = subprocess.run(
        [*hide, *STRACE, "-o", str(log), *command], check=False, timeout=120, capture_output=True, text=True
    )
    text = log.read_text(encoding="utf-8", errors="replace")
    calls = [line for line in text.splitlines() if re.match(r"\d+ +(open|creat|execve)", line)]
    named = [found for line in calls if (found := _NAMED.search(line))]
    return Watched(
        status=done.returncode,
        told=done.stdout + done.stderr,
        asked=frozenset(Path(os.path.normpath(os.path.join(one["below"] or "/", one["path"]))) for one in named),
        opened=frozenset(Path(one["path"]) for one in _GIVEN.finditer(text)),
        endpoints=frozenset((one["address"], int(one["port"])) for one in _ENDPOINT.finditer(text)),
    )


def below(paths: frozenset[Path], directory: Path) -> list[Path]:
    return sorted(path for path in paths if path == directory or directory in path.parents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A producer's disk that is still there, and the second copy.

    Args:
        producer: The root of a family that a live run trained to step 34.
        remote: URI of the root in a bucket where its newest generations lie, too.
        endpoint: Address and port of that bucket.
    """

    producer: Path
    remote: str
    endpoint: tuple[str, int]

    @property
    def claim(self) -> Path:
        return self.producer / "fam" / ".lastgood" / "incarnations" / "00000001"


@pytest.fixture(scope="module")
def site(seaweedfs: SeaweedFS, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One for all tests here, none of which writes to either place."""
    here = tmp_path_factory.mktemp("producer")
    command = [sys.executable, str(FAKE), "--family", str(here / "fam"), "--world-size", "2", "--stop-step", "34"]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    seaweedfs.client().create_bucket(Bucket=BUCKET)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweedfs.environ.items():
            patch.setenv(name, value)
        copy_family(locate(str(here / "fam")), locate(f"s3://{BUCKET}/far/fam"), Selection(newest=2))
        yield Site(producer=here, remote=f"s3://{BUCKET}/far", endpoint=("127.0.0.1", seaweedfs.s3_port))


def drill(site: Site, directory: Path, *, replica: Sequence[str] = ()) -> list[str]:
    command = [*replica, sys.executable, str(FAKE), "--world-size", "{world_size}"]
    file = directory / "lastgood.toml"
    file.write_text(f'[families.fam]\nroot = "{site.remote}"\n[families.fam.replica]\ncommand = {command}\n')
    return [sys.executable, "-m", "lastgood", "restore", "fam", "--no-record", "--config", str(file)]


def reading(site: Site) -> tuple[str, ...]:
    """A trainer that reads one file of the producer's disk before it begins."""
    return ("sh", "-c", f'head -c 1 {site.claim} >/dev/null && exec "$@"', "sh")


def test_a_restore_from_the_bucket_opens_nothing_of_the_producers_disk_and_speaks_to_nobody_else(
    site: Site, tmp_path: Path
) -> None:
    """The disk is in reach, so a pass is worth something only if every opened file and every endpoint was looked at."""
    seen = watch(drill(site, tmp_path), tmp_path / "calls")
    assert seen.status == 0, seen.told
    assert below(seen.asked | seen.opened, site.producer) == []
    assert below(seen.opened, tmp_path / "lastgood.toml"), "what was opened is seen"
    assert seen.endpoints == {site.endpoint}


def test_a_trainer_that_reads_the_producers_disk_is_caught_where_the_restore_passes(site: Site, tmp_path: Path) -> None:
    """The watch must be able to fail: the restore itself cannot know that it read where nothing would be left."""
    seen = watch(drill(site, tmp_path, replica=reading(site)), tmp_path / "calls")
    assert seen.status == 0, seen.told
    assert below(seen.opened, site.producer) == [site.claim]


@pytest.mark.service("unshare")
@pytest.mark.usefixtures("namespaces")
def test_a_trainer_that_reads_the_producers_disk_fails_the_drill_in_which_that_disk_is_gone(
    site: Site, tmp_path: Path
) -> None:
    """Hidden as docs/operations.md says, the same restore does not pass, and no descriptor leads there."""
    seen = watch(drill(site, tmp_path, replica=reading(site)), tmp_path / "calls", hidden=site.producer)
    assert seen.status == Outcome.INCONCLUSIVE.exit_code, seen.told
    assert below(seen.asked, site.producer) == [site.claim]
    assert below(seen.opened, site.producer) == []
    assert site.claim.is_file(), "only whoever ran the drill saw an empty disk"


def test_the_watch_is_the_documented_one() -> None:
    """What is tested must be what is typed: the page names the calls that are looked at."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    assert shlex.join(STRACE) in page
