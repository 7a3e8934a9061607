"""Whole restores of a replica without torch: real copies, real processes, real kills."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from lastgood.config import ReplicaSettings
from lastgood.errors import UsageError
from lastgood.identity import GenerationId
from lastgood.location import Location, locate
from lastgood.records import keep_verdict
from lastgood.restore.materialize import SPACE_MARGIN_BYTES, Scratch
from lastgood.restore.supervisor import RestoreResult, restore
from lastgood.verdict import Check, CheckState, Outcome, Reason, Rung, Tier
from tests.restore.fake_replica import LINGER_SECONDS

FAKE = Path(__file__).parent / "fake_replica.py"
STEPS = (10, 20, 30, 34)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a family that a live run of two ranks trained to step 34."""
    root = tmp_path_factory.mktemp("production")
    command = [sys.executable, str(FAKE), "--family", str(root / "fam"), "--world-size", "2", "--stop-step", "34"]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    return root


def generation(root: Path, step: int) -> Location:
    return locate(str(root / "fam" / str(GenerationId(1, step))))


def settings(*extra: str, **fields: object) -> ReplicaSettings:
    command = (sys.executable, str(FAKE), "--world-size", "{world_size}", *extra)
    return ReplicaSettings(command=command, **{"restore_timeout_seconds": 60.0, **fields})  # type: ignore[arg-type]


def misbehaving(how: str, **fields: object) -> ReplicaSettings:
    return settings("--misbehave", how, **fields)


def check_named(result: RestoreResult, name: str) -> Check:
    return next(check for check in result.verdict.checks if check.name == name)


def reasons(result: RestoreResult) -> set[Reason]:
    return {finding.reason for finding in result.verdict.findings}


def digest_of_tree(root: Path) -> dict[str, str]:
    """Path → kind, mode, mtime and content of everything below a root."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = f"{status.st_mode} {status.st_mtime_ns} {content}"
    return found


def lingering() -> Iterator[psutil.Process]:
    """What a fake replica started and nobody ended."""
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", LINGER_SECONDS]:
            yield process


def test_a_healthy_generation_passes_and_is_compared_with_the_live_run(trained: Path) -> None:
    """The promise of tier 2: a fresh process finds it, loads it, trains on as the live run did, and saves again."""
    result = restore(generation(trained, 20), settings())
    assert result.verdict.outcome is Outcome.PASS
    assert result.verdict.rung is Rung.FULL
    assert check_named(result, "control_loss").detail.startswith("steps 21–24 on 2 ranks")
    assert check_named(result, "save_after_resume").detail.startswith("fam/00000002-0000000000000024")


def test_the_newest_generation_passes_without_a_control_and_says_so(trained: Path) -> None:
    """The live run ended there, so nothing can be compared; what can be decided is, and the rest is named."""
    result = restore(generation(trained, 34), settings())
    assert result.verdict.outcome is Outcome.PASS
    assert check_named(result, "control_loss").state is CheckState.NOT_RUN


def test_production_is_byte_identical_after_restores(trained: Path) -> None:
    """A restore that touched what it proves could destroy it; not a name, byte or time may change."""
    before = digest_of_tree(trained)
    restore(generation(trained, 10), settings())
    restore(generation(trained, 10), misbehaving("crash"))
    assert digest_of_tree(trained) == before


def test_a_measured_restore_says_what_took_how_long(trained: Path) -> None:
    """Recovery time is what people plan by, so every phase of a restore is measured."""
    measured = restore(generation(trained, 10), settings()).measurements
    spans = (measured.discovery_seconds, measured.load_seconds, measured.first_step_seconds)
    assert all(span is not None and span > 0 for span in (*spans, measured.read_bytes_per_second))
    assert {"copy", "replica", "discover", "load", "step"} <= measured.phases.keys()
    assert sum(span or 0.0 for span in spans) <= measured.phases["replica"]


@pytest.mark.parametrize("how", ["copying", "waiting"])
def test_a_cancelled_restore_ends_at_once_and_proves_nothing(trained: Path, tmp_path: Path, how: str) -> None:
    """Whoever cancels a restore wants its machine back, and half a restore must neither prove nor bar anything."""
    copied, looks = [], iter(range(1000))

    def cancel() -> str | None:
        waiting = bool(copied) and how == "waiting" and next(looks) >= 20
        return "nobody waits for it" if waiting or how == "copying" else None

    result = restore(
        generation(trained, 20), misbehaving("hang"), scratch=tmp_path, progress=copied.append, cancel=cancel
    )
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert [(check.name, check.detail) for check in result.verdict.checks] == [
        ("cancelled", "cancelled: nobody waits for it")
    ]
    assert bool(copied) == (how == "waiting")
    assert list(tmp_path.iterdir()) == []


def test_a_pass_may_prove_the_generation(trained: Path, tmp_path: Path) -> None:
    """The verdict of a full restore is what moves LAST_GOOD; it must fit the record that does it."""
    location = generation(trained, 30)
    result = restore(location, settings())
    copy = locate(str(tmp_path / "fam"))
    subprocess.run(["cp", "-a", str(trained / "fam"), str(tmp_path)], check=True, timeout=30)
    kept = keep_verdict(
        copy.store, copy.keys, result.verdict, generation=result.generation, measurements=result.measurements
    )
    assert kept.effects.proves
    assert kept.record is not None
    assert kept.record.tier is Tier.RESTORE


@pytest.mark.parametrize(
    ("how", "reason", "check"),
    [
        ("crash", Reason.RESTORE_CRASHED, "replica_ended"),
        ("refuse", Reason.SHAPE_MISMATCH, "strict_load"),
        ("no-trace", Reason.TRACE_MISSING, "traces_written"),
        ("no-save", Reason.SAVE_AFTER_RESUME_FAILED, "save_after_resume"),
    ],
)
def test_a_replica_that_fails_is_named_by_its_one_reason(trained: Path, how: str, reason: Reason, check: str) -> None:
    """Whoever is woken must read what happened in one line, and not five consequences of it."""
    result = restore(generation(trained, 20), misbehaving(how))
    assert result.verdict.outcome is Outcome.FAIL
    assert reasons(result) == {reason}
    assert check_named(result, check).findings


def test_a_lost_random_stream_is_found_on_its_rank(trained: Path) -> None:
    """One rank of many that draws anew trains on without any error; only the comparison sees it."""
    result = restore(generation(trained, 20), misbehaving("reset-rng"))
    assert [finding.offender for finding in check_named(result, "rng_draws").findings] == ["rng/rank-00001/python"]


def test_a_loss_that_is_not_a_number_fails(trained: Path) -> None:
    """A run that trains on NaN looks alive to every scheduler."""
    assert Reason.LOSS_NOT_FINITE in reasons(restore(generation(trained, 34), misbehaving("nan")))


def test_a_replica_that_hangs_is_ended_at_its_deadline_with_all_it_started(trained: Path) -> None:
    """A stuck restore holds devices that the real job needs; sessions of their own must not save its children."""
    began = time.monotonic()
    result = restore(generation(trained, 20), misbehaving("hang"), timeout=timedelta(seconds=3))
    assert reasons(result) == {Reason.RESTORE_TIMED_OUT}
    assert time.monotonic() - began < 60
    assert list(lingering()) == []


def test_what_a_replica_leaves_running_is_ended_after_a_pass_too(trained: Path) -> None:
    """A daemon that outlives its restore would publish or hold memory long after anybody looks."""
    result = restore(generation(trained, 20), misbehaving("linger"))
    assert result.verdict.outcome is Outcome.PASS
    assert list(lingering()) == []


def test_the_replica_s_last_words_are_kept_without_what_was_passed_to_it(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says why it died; a credential that it printed must reach no record."""
    monkeypatch.setenv("FAKE_TOKEN", "s3cr3t-token-value")
    result = restore(generation(trained, 20), misbehaving("tell-secret", pass_environment=("FAKE_TOKEN",)))
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "token is <FAKE_TOKEN>" in check_named(result, "replica_ended").detail
    assert "s3cr3t" not in repr(result.verdict)


def test_a_command_that_is_not_there_is_a_usage_error_before_anything_is_read(trained: Path) -> None:
    """A mistyped launcher says nothing about a checkpoint, and must not cost a copy of it."""
    with pytest.raises(UsageError, match="no-such-launcher"):
        restore(generation(trained, 20), ReplicaSettings(command=("no-such-launcher",)))
    with pytest.raises(UsageError, match="directory not found"):
        restore(generation(trained, 20), settings(directory="/no/such/directory"))


def test_arguments_that_the_replica_refuses_leave_the_checkpoint_undecided(trained: Path) -> None:
    """A typo in lastgood.toml must not quarantine a family."""
    result = restore(generation(trained, 20), settings("--no-such-option"))
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "no-such-option" in check_named(result, "replica_ended").detail


def test_a_replica_that_cannot_even_begin_leaves_the_checkpoint_undecided(trained: Path) -> None:
    """A training environment that broke since the save ends at its imports, and no checkpoint is at fault for that."""
    broken = ReplicaSettings(command=(sys.executable, "-c", "import no_such_module"))
    result = restore(generation(trained, 20), broken)
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "no_such_module" in check_named(result, "replica_ended").detail


def test_an_unknown_generation_and_too_few_steps_are_usage_errors(trained: Path) -> None:
    """A name that nothing was published under is the caller's mistake, as is a smoke run too short to tell."""
    with pytest.raises(UsageError, match="no such generation"):
        restore(generation(trained, 25), settings())
    with pytest.raises(UsageError, match="at least 4, found 1"):
        restore(generation(trained, 20), settings(), steps=1)


def test_a_flipped_byte_is_found_while_copying_and_nothing_is_started(trained: Path, tmp_path: Path) -> None:
    """The bytes that are loaded are the bytes that were verified; wrong ones never reach a loader."""
    subprocess.run(["cp", "-a", str(trained / "fam"), str(tmp_path)], check=True, timeout=30)
    location = generation(tmp_path, 20)
    shard = location.store.local_directory(location.keys.artifacts(location.require_generation())) / "rng"
    target = shard / "rank-00001.json"
    data = bytearray(target.read_bytes())
    data[100] ^= 1
    target.write_bytes(data)
    result = restore(location, settings())
    assert reasons(result) == {Reason.DIGEST_MISMATCH}
    assert result.verdict.findings[0].offender == "rng/rank-00001.json"
    assert check_named(result, "replica_ended").state is CheckState.NOT_RUN


def test_a_scratch_that_is_too_small_is_inconclusive(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our disk is not the checkpoint's fault; the line says how much is needed."""
    monkeypatch.setattr(Scratch, "free_bytes", property(lambda _: SPACE_MARGIN_BYTES))
    result = restore(generation(trained, 20), settings())
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "bytes free" in check_named(result, "scratch_space").detail


def test_a_scratch_among_production_is_refused(trained: Path) -> None:
    """Production is read and never written, whatever directory somebody names."""
    for inside in (trained, trained / "fam", trained / "fam" / ".lastgood"):
        with pytest.raises(UsageError, match="production is only read"):
            restore(generation(trained, 20), settings(), scratch=inside)


def test_the_scratch_is_private_kept_on_wish_and_gone_otherwise(trained: Path, tmp_path: Path) -> None:
    """Weights are worth stealing, and a forgotten copy of them fills the disk."""
    kept = restore(generation(trained, 20), settings(), scratch=tmp_path, keep=True).scratch
    assert kept is not None
    assert kept.stat().st_mode & 0o777 == 0o700
    assert (kept / "replica.log").read_text().startswith("fake replica of 2 ranks")
    restore(generation(trained, 20), settings(), scratch=tmp_path)
    assert os.listdir(tmp_path) == [kept.name]


def test_load_only_climbs_one_rung_and_proves_nothing_more(trained: Path) -> None:
    """For what is too large to train here, a load is worth knowing of, under its own name."""
    result = restore(generation(trained, 20), settings(), load_only=True)
    assert (result.verdict.outcome, result.verdict.rung) == (Outcome.PASS, Rung.LOAD_ONLY)


def test_a_command_that_ignores_the_world_size_is_undecided(trained: Path) -> None:
    """Restoring two ranks' state with four is another claim than restoring it."""
    command = (sys.executable, str(FAKE), "--world-size", "2")
    result = restore(generation(trained, 20), ReplicaSettings(command=command), world_size=4)
    assert result.verdict.rung is Rung.TOPOLOGY_CHANGE
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
