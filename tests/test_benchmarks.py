"""The benchmark harness: runs in turn, judges medians, and can miss a target."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import (
    bench_bucket,
    bench_foreign,
    bench_latency,
    bench_ledger,
    bench_pipeline,
    bench_report,
    bench_start,
    bench_training,
    bench_verify,
    peers,
    training,
)
from benchmarks.harness import Benchmark, PeerMissing, Row, Setting, collect, compare, in_turn, markdown, run_command
from lastgood.digest import Algorithm


def row(measured: float) -> Row:
    return Row(what="work", against="peer", measured=measured, at_most=1.0)


def test_contenders_run_in_alternating_order_and_the_first_round_is_not_judged() -> None:
    """A neighbour's burst and a cold cache must meet both, or the ratio measures them."""
    ran: list[str] = []

    def contender(name: str) -> float:
        ran.append(name)
        return float(len(ran))

    taken = in_turn({"a": lambda: contender("a"), "b": lambda: contender("b")}, rounds=2)
    assert ran == ["a", "b", "b", "a", "a", "b"]
    assert taken == {"a": (4.0, 5.0), "b": (3.0, 6.0)}


def test_the_median_of_the_paired_ratios_is_judged() -> None:
    """One disturbed round decides nothing; medians of unpaired times could."""
    one = compare("work", (1.0, 2.0, 90.0), (2.0, 2.0, 30.0), against="peer", at_most=1.0)
    assert one.measured == 1.0
    assert one.is_met
    assert not compare("work", (1.1,), (1.0,), against="peer", at_most=1.0).is_met
    assert "**missed**" in markdown([row(1.1)])
    assert "| met |" in markdown([row(0.9)])


def test_a_failed_peer_is_an_error_and_no_time() -> None:
    """A peer that stops early would look fast."""
    with pytest.raises(RuntimeError, match="failed with 3: no luck"):
        run_command([sys.executable, "-c", "import sys; sys.exit(print('no luck', file=sys.stderr) or 3)"])


@pytest.mark.parametrize(("measured", "code"), [(0.9, 0), (1.1, 1), (None, 2)])
def test_the_exit_code_says_whether_the_targets_were_met(
    measured: float | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """CI reads the code, people the table; a peer that is missing never passes as met."""

    def run(setting: Setting) -> Sequence[Row]:
        assert list(setting.workspace.iterdir()) == []
        (setting.workspace / "left").write_text("over")
        if measured is None:
            raise PeerMissing("not installed: peer")
        return [row(measured)]

    monkeypatch.setattr(command, "collect", lambda: {"one": Benchmark(name="one", run=run)})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "one", "--json", "--workspace", str(tmp_path)])
    assert command.main() == code
    document = json.loads(capsys.readouterr().out)
    assert [one["is_met"] for one in document["rows"]] == ([] if measured is None else [measured < 1])
    assert document["missing"] == ([] if measured is not None else ["one: not installed: peer"])
    assert list(tmp_path.iterdir()) == [], "the workspace is removed"


def test_the_benchmarks_of_the_folder_are_found_by_name() -> None:
    """A benchmark that nobody runs measures nothing."""
    assert {"verify-sha256", "verify-blake3", "verify-small-files", "verify-growth"} <= set(collect())
    assert {"load", "publish", "trace", "start"} <= set(collect())


def test_a_small_difference_of_large_times_is_not_lost_in_their_scatter() -> None:
    """Steps scatter by more than the percent that a trace may cost; neighbours scatter together."""
    untraced = [0.050, 0.061, 0.055, 0.049, 0.080]
    dear = bench_training.with_and_without([one + 0.001 for one in untraced], untraced, [0.001])
    cheap = bench_training.with_and_without([one + 0.0001 for one in untraced], untraced, [0.0001])
    assert dear.measured == pytest.approx(1 + 0.001 / 0.055)
    assert not dear.is_met
    assert cheap.is_met


SLOW = frozenset(
    {"bucket", "latency", "pipeline", "report"}
)  # a server and a worker to start, or Great Expectations many times


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which a benchmark shows that it works, and nothing about speed."""
    monkeypatch.setattr(bench_verify, "GIB", 2**18)
    monkeypatch.setattr(bench_verify, "SMALL_FILES", 20)
    monkeypatch.setattr(bench_verify, "SMALL_BYTES", 4096)
    monkeypatch.setattr(bench_verify, "GROWN_BYTES", 2**14)
    monkeypatch.setattr(bench_bucket, "OBJECTS", 2)
    monkeypatch.setattr(bench_bucket, "OBJECT_BYTES", 2**16)
    monkeypatch.setattr(bench_latency, "SAVES", 2)
    monkeypatch.setattr(bench_foreign, "SPARSE_BYTES", 2**30)
    monkeypatch.setattr(bench_foreign, "DENSE_BYTES", 2**22)
    monkeypatch.setattr(bench_foreign, "TREE_CHECKPOINTS", 8)
    monkeypatch.setattr(bench_ledger, "RECORDS", 60)
    monkeypatch.setattr(bench_ledger, "SAVES", 40)
    monkeypatch.setattr(bench_pipeline, "ARTIFACTS", 20)
    monkeypatch.setattr(bench_start, "LEAST_ROUNDS", 1)
    monkeypatch.setattr(bench_report, "RECORDS_A_FAMILY", 22)
    monkeypatch.setattr(bench_training, "PUBLISHING_PAIRS", 1)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contenders that need torch, with a small model, and without a start of Python for each."""
    small = ("--width", "32", "--layers", "1", "--fast-forward", "3")
    monkeypatch.setattr(training, "LARGE", small)
    monkeypatch.setattr(training, "TRACED", small)
    monkeypatch.setattr(training, "STEPS_A_ROUND", 2)
    monkeypatch.setattr(
        bench_training, "training", lambda subject, how, setting: training.SUBJECTS[subject](setting.workspace, how)
    )


@pytest.fixture
def installed_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched for a test: Prefect is this environment's own, b3sum is on the path or missing."""

    def b3sum(folder: Path) -> Path:
        return peers.program("b3sum")

    monkeypatch.setattr(peers, "b3sum", b3sum)
    monkeypatch.setattr(peers, "prefect", lambda folder: Path(sys.executable))


@pytest.mark.usefixtures("tiny", "in_this_process", "installed_peers")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in collect()]
)
def test_every_benchmark_runs_to_its_rows(name: str, tmp_path: Path) -> None:
    """A benchmark is run by hand, once in weeks; one that broke meanwhile would be found only then."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    try:
        rows = collect()[name].run(Setting(rounds=1, workspace=workspace, peers=tmp_path / "peers"))
    except PeerMissing as error:
        pytest.skip(str(error))
    assert rows
    # At these sizes a peer's work may last less than its start, which is taken off: the sign of a ratio is noise here.
    assert all(math.isfinite(one.measured) and one.measured for one in rows)


@pytest.mark.usefixtures("tiny")
def test_the_timed_verification_sees_a_flipped_byte(tmp_path: Path) -> None:
    """A verification that compares nothing would be fast."""
    built = bench_verify.build_small(tmp_path / "small")
    bench_verify.verify(built)
    with (bench_verify.artifacts(built) / "extra" / "00003.bin").open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(AssertionError, match="digest_mismatch"):
        bench_verify.verify(built)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("algorithm", "program"), [(Algorithm.SHA256, "sha256sum"), (Algorithm.BLAKE3, "b3sum")])
def test_the_peer_is_given_the_same_files_to_check(algorithm: Algorithm, program: str, tmp_path: Path) -> None:
    """A peer with fewer files, or with checksums of others, would be no peer."""
    built = bench_verify.build_small(tmp_path / "small")
    checks = bench_verify.write_checksums(built, tmp_path / "checks", algorithm)
    assert len(checks.read_text().splitlines()) == 20
    if shutil.which(program) is None:
        pytest.skip(f"not installed: {program}")
    run_command([program, "--check", "--quiet", checks], directory=bench_verify.artifacts(built))


@pytest.mark.usefixtures("tiny")
def test_the_large_archives_are_torchs_own(tmp_path: Path) -> None:
    """A look at what torch could not load would measure something that nobody has."""
    import torch

    storages = [4096, 8192]
    path = tmp_path / "part.pt"
    bench_foreign.write_archive(path, bench_foreign._pickled(storages), storages, filled=True)
    loaded = torch.load(path, weights_only=True)
    assert {name: value.numel() for name, value in loaded.items()} == {"t0": 1024, "t1": 2048}
