"""Verification against the hash commands, page cache warm: 1 GiB in 52 files, 1 GiB in 4,096 files, 1 to 8 GiB.

A contender's time leaves start-up out: ours is taken inside a running interpreter; from each command's the time that it
takes for an empty file is subtracted.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peers
from benchmarks.harness import Benchmark, Row, Setting, compare, in_turn, run_command, wall
from lastgood.digest import Algorithm, Digest, FileDigest, HashRequest, RootDirectory, hash_files

GIB = 2**30
LINEAR_GIB = (1, 2, 4, 8)
LINEAR_AT_MOST = 1.15
"""A GiB among many may take this many times what a GiB alone takes: the noise of a shared machine, no growth."""
MEMORY_AT_MOST_MIB = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A directory of files and what each of them must hold, as a manifest or a checksum file lists it."""

    directory: Path
    digests: dict[str, tuple[int, Digest]]

    def checksum_file(self, path: Path) -> Path:
        """The list in the form that `sha256sum -c` and `b3sum --check` read."""
        path.write_text("".join(f"{digest.value}  {name}\n" for name, (_, digest) in self.digests.items()))
        return path


def verify(listed: Listed) -> None:
    """Hash every listed file and compare: the work of tier 1 on payload, by the engine that it uses."""
    requests = [
        HashRequest(path=name, algorithms=(digest.algorithm,), size_bytes=size_bytes)
        for name, (size_bytes, digest) in listed.digests.items()
    ]
    with RootDirectory(listed.directory) as root:
        for result, (_, digest) in zip(hash_files(requests, root=root), listed.digests.values(), strict=True):
            assert isinstance(result, FileDigest), result
            assert result.digests == (digest,), result


def make_files(directory: Path, *, count: int, size_bytes: int) -> Path:
    """Files of different content, written once and so in the page cache."""
    directory.mkdir()
    block = random.Random(52).randbytes(size_bytes)
    for number in range(count):
        with (directory / f"rank-{number:05}.bin").open("wb") as file:
            file.write(number.to_bytes(8, "big"))
            file.write(memoryview(block)[8:])
    return directory


def listed(directory: Path, algorithm: Algorithm) -> Listed:
    names = sorted(path.name for path in directory.iterdir())
    requests = [HashRequest(path=name, algorithms=(algorithm,)) for name in names]
    digests: dict[str, tuple[int, Digest]] = {}
    with RootDirectory(directory) as root:
        for name, result in zip(names, hash_files(requests, root=root), strict=True):
            assert isinstance(result, FileDigest), result
            digests[name] = (result.size_bytes, result.digests[0])
    return Listed(directory=directory, digests=digests)


def command(listed: Listed, command: Sequence[str | Path], for_nothing: Sequence[str | Path]) -> Callable[[], float]:
    """A peer's own time: its whole run less its run for an empty file."""
    start_up = statistics.median(run_command(for_nothing).wall_seconds for _ in range(5))
    return lambda: run_command(command, directory=listed.directory).wall_seconds - start_up


def verify_sha256(setting: Setting) -> tuple[Row, ...]:
    large = listed(make_files(setting.workspace / "large", count=52, size_bytes=GIB // 52), Algorithm.SHA256)
    checks = large.checksum_file(setting.workspace / "SHA256SUMS")
    sha256sum, openssl = peers.program("sha256sum"), peers.program("openssl")
    taken = in_turn(
        {
            "ours": lambda: wall(lambda: verify(large)),
            "openssl": command(large, [openssl, "dgst", "-sha256", *large.digests], [openssl, "dgst", "/dev/null"]),
            "sha256sum": command(large, [sha256sum, "--check", "--quiet", checks], [sha256sum, "/dev/null"]),
        },
        setting.rounds,
    )
    what = "verify, 52 files of 1 GiB in all, warm, SHA-256"
    return (
        compare(
            what,
            taken["ours"],
            taken["sha256sum"],
            against="`sha256sum -c`",
            at_most=0.15,
            detail=peers.version(sha256sum),
        ),
        compare(
            what,
            taken["ours"],
            taken["openssl"],
            against="`openssl dgst -sha256`",
            at_most=0.75,
            detail=peers.version(openssl),
        ),
    )


def verify_blake3(setting: Setting) -> tuple[Row, ...]:
    files = listed(make_files(setting.workspace / "large", count=52, size_bytes=GIB // 52), Algorithm.BLAKE3)
    return (_against_b3sum("verify, 52 files of 1 GiB in all, warm, BLAKE3", files, setting, at_most=1.2),)


def verify_small_files(setting: Setting) -> tuple[Row, ...]:
    files = listed(make_files(setting.workspace / "small", count=4096, size_bytes=256 * 1024), Algorithm.BLAKE3)
    return (_against_b3sum("verify, 4,096 files of 256 KiB, warm, BLAKE3", files, setting, at_most=1.6),)


def _against_b3sum(what: str, files: Listed, setting: Setting, *, at_most: float) -> Row:
    b3sum = peers.b3sum(setting.peers)
    checks = files.checksum_file(setting.workspace / "B3SUMS")
    taken = in_turn(
        {
            "ours": lambda: wall(lambda: verify(files)),
            "b3sum": command(files, [b3sum, "--check", "--quiet", checks], [b3sum, "/dev/null"]),
        },
        # Such a run takes a fifth of a second, which a neighbour's burst can double: more rounds steady the median.
        3 * setting.rounds,
    )
    return compare(
        what, taken["ours"], taken["b3sum"], against="`b3sum --check`", at_most=at_most, detail=peers.version(b3sum)
    )


def verify_growth(setting: Setting) -> tuple[Row, ...]:
    per_gib = 52
    directory = make_files(setting.workspace / "grown", count=per_gib * max(LINEAR_GIB), size_bytes=GIB // per_gib)
    everything = listed(directory, Algorithm.BLAKE3)
    parts = {
        gib: Listed(directory=directory, digests=dict(list(everything.digests.items())[: gib * per_gib]))
        for gib in LINEAR_GIB
    }
    taken = in_turn({str(gib): _verifier(part) for gib, part in parts.items()}, setting.rounds)
    alone = taken[str(LINEAR_GIB[0])]
    growth = {
        gib: statistics.median(seconds / gib / one for seconds, one in zip(taken[str(gib)], alone, strict=True))
        for gib in LINEAR_GIB
    }
    peak_mib = _peak_memory_mib(directory)
    return (
        Row(
            what="verify 1, 2, 4, 8 GiB, BLAKE3: slowest GiB",
            against="1 GiB alone",
            measured=max(growth.values()),
            at_most=LINEAR_AT_MOST,
            detail=", ".join(f"{gib} GiB: {ratio:.3f}" for gib, ratio in growth.items()),
        ),
        Row(
            what="verify 8 GiB, both algorithms: peak resident memory of the process",
            against="itself",
            measured=peak_mib,
            at_most=MEMORY_AT_MOST_MIB,
            unit="MiB",
            detail="VmHWM, which bounds anonymous memory from above",
        ),
    )


def _verifier(part: Listed) -> Callable[[], float]:
    return lambda: wall(lambda: verify(part))


_PEAK = """
import os, sys
from lastgood.digest import Algorithm, FileDigest, HashRequest, RootDirectory, hash_files
with RootDirectory(sys.argv[1]) as root:
    requests = [HashRequest(path=name, algorithms=tuple(Algorithm)) for name in os.listdir(sys.argv[1])]
    assert all(isinstance(result, FileDigest) for result in hash_files(requests, root=root))
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")))
"""


def _peak_memory_mib(directory: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, directory], capture_output=True, text=True, check=True, timeout=600
    )
    return int(done.stdout) / 1024


BENCHMARKS = (
    Benchmark(name="verify-sha256", run=verify_sha256),
    Benchmark(name="verify-blake3", run=verify_blake3),
    Benchmark(name="verify-small-files", run=verify_small_files),
    Benchmark(name="verify-growth", run=verify_growth),
)
