"""Tier 1 against the hash commands, page cache warm: 1 GiB in 52 files, 1 GiB in 4,096 files, 1 to 8 GiB.

What is timed is `verify_generation` whole: commit, manifest, listing, every byte, chain and standing. Start-up is left
out: ours is taken inside a running interpreter; from each command's time, its time for an empty file is subtracted.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import peers
from benchmarks.harness import Benchmark, Row, Setting, compare, in_turn, run_command, wall
from lastgood.digest import Algorithm, FileDigest, HashRequest, hash_files
from lastgood.testing.build import BuiltFamily, Recipe, build_family
from lastgood.verdict import Outcome
from lastgood.verify import verify_generation

GIB = 2**30
SMALL_FILES = 4096
SMALL_BYTES = 256 * 1024
GROWN_BYTES = 64 * 2**20
GROWN_GIB = (2, 4, 8)
GROWTH_AT_MOST = 1.15
"""A GiB among many may take this many times what a GiB alone takes: the noise of a shared machine, no growth."""
MEMORY_AT_MOST_MIB = 200


def build_large(root: Path, algorithm: Algorithm) -> BuiltFamily:
    """One generation of 52 artifacts: a model, an optimizer twice as long and a random state for each of 16 ranks."""
    root.mkdir()
    recipe = Recipe(world_size=16, shard_bytes=GIB // (3 * 16), algorithms=(algorithm,))
    return build_family(root, "large", steps=(1,), recipe=recipe)


def build_small(root: Path) -> BuiltFamily:
    """One generation of `SMALL_FILES` files of one length, a few of which are shorter."""
    root.mkdir()
    recipe = Recipe(world_size=1, shard_bytes=SMALL_BYTES, extra_artifacts=SMALL_FILES - 7, extra_bytes=SMALL_BYTES)
    return build_family(root, "small", steps=(1,), recipe=recipe)


def build_grown(root: Path, gib: int) -> BuiltFamily:
    """One generation of so many GiB in artifacts of 64 MiB, the number of which grows with it."""
    root.mkdir()
    recipe = Recipe(world_size=1, extra_artifacts=16 * gib, extra_bytes=GROWN_BYTES)
    return build_family(root, "grown", steps=(1,), recipe=recipe)


def verify(built: BuiltFamily) -> None:
    verdict = verify_generation(built.store, built.keys, built.newest)
    assert verdict.outcome is Outcome.PASS, verdict


def artifacts(built: BuiltFamily) -> Path:
    return built.root / built.keys.artifacts(built.newest)


def write_checksums(built: BuiltFamily, path: Path, algorithm: Algorithm) -> Path:
    """The list of digests in the form that `sha256sum -c` and `b3sum --check` read."""
    directory = artifacts(built)
    names = sorted(str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file())
    requests = [HashRequest(path=str(directory / name), algorithms=(algorithm,)) for name in names]
    with path.open("w") as lines:
        for name, result in zip(names, hash_files(requests), strict=True):
            assert isinstance(result, FileDigest), result
            lines.write(f"{result.digests[0].value}  {name}\n")
    return path


def ours(built: BuiltFamily) -> Callable[[], float]:
    return lambda: wall(lambda: verify(built))


def theirs(built: BuiltFamily, command: Sequence[str | Path], for_nothing: Sequence[str | Path]) -> Callable[[], float]:
    """A peer's own time: its whole run less its run for an empty file."""
    start_up = statistics.median(run_command(for_nothing).wall_seconds for _ in range(5))
    return lambda: run_command(command, directory=artifacts(built)).wall_seconds - start_up


def verify_sha256(setting: Setting) -> tuple[Row, ...]:
    built = build_large(setting.workspace / "large", Algorithm.SHA256)
    checks = write_checksums(built, setting.workspace / "SHA256SUMS", Algorithm.SHA256)
    names = [line.split("  ")[1] for line in checks.read_text().splitlines()]
    sha256sum, openssl = peers.program("sha256sum"), peers.program("openssl")
    taken = in_turn(
        {
            "ours": ours(built),
            "openssl": theirs(built, [openssl, "dgst", "-sha256", *names], [openssl, "dgst", "-sha256", "/dev/null"]),
            "sha256sum": theirs(built, [sha256sum, "--check", "--quiet", checks], [sha256sum, "/dev/null"]),
        },
        setting.rounds,
    )
    return tuple(
        compare(
            "verify, 52 files of 1 GiB in all, warm, SHA-256",
            taken["ours"],
            taken[peer.name],
            against=against,
            at_most=at_most,
            detail=peers.version(peer),
        )
        for peer, against, at_most in (
            (sha256sum, "`sha256sum -c`", 0.15),
            (openssl, "`openssl dgst -sha256`", 0.75),
        )
    )


def verify_blake3(setting: Setting) -> tuple[Row, ...]:
    built = build_large(setting.workspace / "large", Algorithm.BLAKE3)
    return (_against_b3sum("verify, 52 files of 1 GiB in all, warm, BLAKE3", built, setting, at_most=1.2),)


def verify_small_files(setting: Setting) -> tuple[Row, ...]:
    built = build_small(setting.workspace / "small")
    return (_against_b3sum("verify, 4,096 files of 256 KiB, warm, BLAKE3", built, setting, at_most=1.6),)


def _against_b3sum(what: str, built: BuiltFamily, setting: Setting, *, at_most: float) -> Row:
    b3sum = peers.b3sum(setting.peers)
    checks = write_checksums(built, setting.workspace / "B3SUMS", Algorithm.BLAKE3)
    taken = in_turn(
        {
            "ours": ours(built),
            "b3sum": theirs(built, [b3sum, "--check", "--quiet", checks], [b3sum, "/dev/null"]),
        },
        # Such a run takes a fifth of a second, which a neighbour's burst can double: more rounds steady the median.
        3 * setting.rounds,
    )
    return compare(
        what, taken["ours"], taken["b3sum"], against="`b3sum --check`", at_most=at_most, detail=peers.version(b3sum)
    )


def verify_growth(setting: Setting) -> tuple[Row, ...]:
    one = build_grown(setting.workspace / "1", 1)
    per_gib: dict[int, float] = {}
    peak_mib = 0.0
    for gib in GROWN_GIB:
        # One size at a time beside the first, so that both fit the page cache of a machine with 16 GiB.
        many = build_grown(setting.workspace / str(gib), gib)
        taken = in_turn({"one": ours(one), "many": ours(many)}, setting.rounds)
        ratios = (seconds / gib / alone for seconds, alone in zip(taken["many"], taken["one"], strict=True))
        per_gib[gib] = statistics.median(ratios)
        peak_mib = max(peak_mib, _peak_memory_mib(many))
        shutil.rmtree(many.root)
    return (
        Row(
            what="verify 2, 4, 8 GiB, BLAKE3: seconds per GiB, the worst of the three",
            against="1 GiB",
            measured=max(per_gib.values()),
            at_most=GROWTH_AT_MOST,
            detail=", ".join(f"{gib} GiB: {ratio:.3f}" for gib, ratio in per_gib.items()),
        ),
        Row(
            what="verify 2, 4, 8 GiB: peak resident memory of the process",
            against="itself",
            measured=peak_mib,
            at_most=MEMORY_AT_MOST_MIB,
            unit="MiB",
            detail="VmHWM, which bounds anonymous memory from above",
        ),
    )


_PEAK = """
import sys
from pathlib import Path
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.stores import LocalStore
from lastgood.verdict import Outcome
from lastgood.verify import verify_generation
root, family, incarnation, step = sys.argv[1:]
generation = GenerationId(int(incarnation), int(step))
assert verify_generation(LocalStore(Path(root)), FamilyKeys(family), generation).outcome is Outcome.PASS
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")))
"""


def _peak_memory_mib(built: BuiltFamily) -> float:
    arguments = [str(built.root), built.family, str(built.newest.incarnation), str(built.newest.step)]
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *arguments], capture_output=True, text=True, check=True, timeout=600
    )
    return int(done.stdout) / 1024


BENCHMARKS = (
    Benchmark(name="verify-sha256", run=verify_sha256),
    Benchmark(name="verify-blake3", run=verify_blake3),
    Benchmark(name="verify-small-files", run=verify_small_files),
    Benchmark(name="verify-growth", run=verify_growth),
)
