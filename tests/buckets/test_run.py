"""A life of a run on a bucket: published, verified, resumed from a copy, its trace beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from lastgood.cli import run as command_line
from lastgood.errors import PublishError, ResumeRefused, StoreTransientError
from lastgood.family import Family
from lastgood.location import locate
from lastgood.manifest import Component
from lastgood.publish import StagedArtifact
from lastgood.reconcile import sweep
from lastgood.replica.shipping import traces_at_hand
from lastgood.replica.trace import TraceReader
from lastgood.replica.tracing import RunTrace
from lastgood.restore.materialize import make_copy, open_scratch
from lastgood.run import Run, SoloGroup
from lastgood.stores.scratch import SharedCopy
from lastgood.verdict import Outcome, Reason
from lastgood.verify import verify_generation
from tests.buckets.servers import SeaweedFS
from tests.crash.scenarios import JOB

pytestmark = pytest.mark.usefixtures("s3_environ")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies are made, watched."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


def save(run: Run, step: int, data: bytes = b"weights") -> None:
    staging = run.stage(step)
    (staging.payload / "state").mkdir()
    (staging.payload / "state" / "model.bin").write_bytes(data)
    artifact = StagedArtifact(path="state/model.bin", component=Component.MODEL, rank=0)
    run.publish(staging, [artifact], job=JOB)


def test_what_was_published_is_verified_and_resumed(bucket: str, scratch: Path) -> None:
    """The whole way of a checkpoint, and nothing of it stays on the machine."""
    uri = f"s3://{bucket}/runs/llm"
    run = Run.start(uri, SoloGroup(), allow_fresh=True)
    save(run, 10)
    save(run, 20, b"newer")
    run.close()
    location = locate(uri)
    newest = Family(location).survey().candidates[0]
    assert verify_generation(location.store, location.keys, newest).outcome is Outcome.PASS
    again = Run.start(uri, SoloGroup())
    assert again.resumed is not None
    assert again.resumed.generation == newest
    assert (again.resumed.directory / "state" / "model.bin").read_bytes() == b"newer"
    save(again, 30)
    assert not again.resumed.directory.exists(), "the copy is given back at the first save"
    again.close()


def test_damage_in_the_bucket_is_never_loaded(bucket: str, seaweedfs: SeaweedFS) -> None:
    """The bytes that would be loaded are the bytes that were verified."""
    uri = f"s3://{bucket}/runs/llm"
    run = Run.start(uri, SoloGroup(), allow_fresh=True)
    save(run, 10)
    run.close()
    key = "runs/llm/00000001-0000000000000010/state/model.bin"
    seaweedfs.client().put_object(Bucket=bucket, Key=key, Body=b"wEights")
    location = locate(uri)
    verdict = verify_generation(location.store, location.keys, Family(location).survey().candidates[0])
    assert [finding.reason for finding in verdict.findings] == [Reason.DIGEST_MISMATCH]
    with pytest.raises(ResumeRefused) as refused:
        Run.start(uri, SoloGroup())
    assert [finding.reason for finding in refused.value.findings] == [Reason.DIGEST_MISMATCH]


def test_a_private_copy_says_what_it_read_of_the_bucket_and_how_fast(bucket: str, tmp_path: Path) -> None:
    """What a restore costs in a bucket is the reading: its bandwidth decides how often it can be done."""
    uri = f"s3://{bucket}/runs/llm"
    run = Run.start(uri, SoloGroup(), allow_fresh=True)
    save(run, 10, b"w" * 3_000_000)
    run.close()
    family = locate(uri)
    location = family.of(Family(family).survey().candidates[0])
    with open_scratch(location, tmp_path, keep=False, purpose="restore") as place:
        copy = make_copy(location, place)
    assert copy.read_bytes == 3_000_000
    assert copy.read_seconds is not None
    assert 0 < copy.read_seconds <= copy.seconds


def test_a_failed_publish_leaves_what_was_there(bucket: str, seaweedfs: SeaweedFS) -> None:
    """An object that somebody put under the generation's name is neither taken for ours nor replaced."""
    uri = f"s3://{bucket}/runs/llm"
    run = Run.start(uri, SoloGroup(), allow_fresh=True)
    save(run, 10)
    key = "runs/llm/00000001-0000000000000020/state/model.bin"
    seaweedfs.client().put_object(Bucket=bucket, Key=key, Body=b"another")
    with pytest.raises(Exception, match="not stored as sent"):
        save(run, 20)
    assert str(Family(locate(uri)).survey().candidates[0]) == "00000001-0000000000000010"
    save(run, 30)
    assert str(Family(locate(uri)).survey().candidates[0]) == "00000001-0000000000000030"
    run.close()


def test_a_file_that_nobody_names_is_refused_here_too(bucket: str) -> None:
    """It would not be sent, and whoever resumes would miss it."""
    run = Run.start(f"s3://{bucket}/runs/llm", SoloGroup(), allow_fresh=True)
    staging = run.stage(10)
    for name in ("model.bin", "forgotten.pt"):
        (staging.payload / name).write_bytes(b"weights")
    artifact = StagedArtifact(path="model.bin", component=Component.MODEL, rank=0)
    with pytest.raises(PublishError, match=r"no rank vouches for: .*forgotten\.pt"):
        run.publish(staging, [artifact], job=JOB)
    run.close()


def test_reconcile_removes_what_a_killed_publish_left(bucket: str, seaweedfs: SeaweedFS) -> None:
    """A job that is preempted in the middle of its upload leaves objects and no receipt; nobody may resume them."""
    uri = f"s3://{bucket}/runs/llm"
    first = Run.start(uri, SoloGroup(), allow_fresh=True)
    save(first, 10)
    staging = first.stage(20)
    (staging.payload / "model.bin").write_bytes(b"weights")
    store = first.location.store
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(store), "hash", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patched.setattr(type(store), "create", only_begun(type(store).create))
        with pytest.raises(KeyboardInterrupt):
            first.publish(staging, [StagedArtifact(path="model.bin", component=Component.MODEL, rank=0)], job=JOB)
    Run.start(uri, SoloGroup()).close()
    left = "runs/llm/00000001-0000000000000020/model.bin"
    assert seaweedfs.client().head_object(Bucket=bucket, Key=left)
    swept = sweep(locate(uri), older_than=timedelta(seconds=-5))
    assert [str(generation) for generation in swept.burned] == ["00000001-0000000000000020"]
    assert [stored.key for stored in store.walk("llm/00000001-0000000000000020")] == []
    assert str(Family(locate(uri)).survey().candidates[0]) == "00000001-0000000000000010"


def only_begun(create: Callable[..., bool]) -> Callable[..., bool]:
    """A `create` that is killed before it says anything but that a publish was begun."""

    def created(store: object, key: str, data: bytes) -> bool:
        if "/begun/" not in key:
            raise KeyboardInterrupt
        return create(store, key, data)

    return created


def test_a_trace_is_in_the_bucket_after_every_save(bucket: str) -> None:
    """The control of a restore is what the live run did, wherever its family lies."""
    uri = f"s3://{bucket}/runs/llm"
    run = Run.start(uri, SoloGroup(), allow_fresh=True)
    with RunTrace.of(run) as trace:
        for step in range(1, 21):
            trace.step(step, 1.0 / step)
            if step % 10 == 0:
                save(run, step)
                trace.saved(Family(run.location).survey().candidates[0])
                with traces_at_hand(run.location, 1, 1, step) as family:
                    assert len(TraceReader(family).steps_between(1, 0, 1, step)) == step
    run.close()


def test_the_command_line_speaks_of_a_bucket_as_of_a_directory(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One form of URI everywhere, and a configuration that says where its service is."""
    uri = f"s3://{bucket}/runs/llm"
    run = Run.start(uri, SoloGroup(), allow_fresh=True)
    save(run, 10)
    run.close()
    configuration = tmp_path / "lastgood.toml"
    configuration.write_text(
        f'[families.llm]\nroot = "s3://{bucket}/runs"\n[stores."s3://{bucket}"]\nconcurrency = 2\n'
    )
    for arguments in (["verify", uri], ["latest", uri], ["status", "llm", "--config", str(configuration)]):
        assert command_line(arguments) == 0, arguments
    capsys.readouterr()
    command_line(["latest", uri])
    assert capsys.readouterr().out.strip() == f"{uri}/00000001-0000000000000010"


def test_a_copy_is_fetched_once_for_all_processes_of_a_machine(scratch: Path) -> None:
    """Eight ranks on a machine read a terabyte once, and the last one to leave removes it."""
    program = (
        "import json, sys, tempfile, time; from lastgood.stores.scratch import SharedCopy\n"
        "tempfile.tempdir = sys.argv[1]; filled = []\n"
        "def fill(path): filled.append(1); time.sleep(0.2); (path / 'x').write_text('x')\n"
        "copy = SharedCopy('resume-1', fill)\n"
        "print(json.dumps([len(filled), (copy.path / 'x').read_text()]), flush=True)\n"
        "sys.stdin.read(); copy.close()\n"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(scratch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    told = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout is not None]
    assert sorted(filled for filled, _ in told) == [0, 0, 0, 1]
    assert {content for _, content in told} == {"x"}
    ranks[0].kill()  # one that dies holds nobody up, and its share is given back by the kernel
    for rank in ranks[1:]:
        rank.communicate()
    assert list(scratch.iterdir()) == []
    ranks[0].communicate()


def test_a_copy_that_is_being_removed_is_nobody_elses(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred gigabytes take a while to go; whoever comes meanwhile fetches anew, and loads no half of it."""
    remove = shutil.rmtree
    seen: list[bool] = []

    def removing(path: Path, **options: bool) -> None:
        seen.append((scratch / "lastgood-resume-3").exists())
        remove(path, **options)

    copy = SharedCopy("resume-3", lambda path: (path / "x").touch())
    monkeypatch.setattr(shutil, "rmtree", removing)
    copy.close()
    assert seen == [False]
    assert list(scratch.iterdir()) == []


def test_a_copy_that_failed_is_fetched_by_the_next() -> None:
    """Half a copy is never taken for a whole one."""

    def fail(path: Path) -> None:
        (path / "half").write_text("x")
        raise ResumeRefused("wrong")

    with pytest.raises(ResumeRefused):
        SharedCopy("resume-2", fail)
    copy = SharedCopy("resume-2", lambda path: (path / "whole").touch())
    assert [one.name for one in copy.path.iterdir()] == ["whole"]
    copy.close()


def held_by_a_process_that_stopped(scratch: Path, name: str) -> subprocess.Popen[str]:
    """Another process that has begun to fetch a copy and does nothing until it gets a line."""
    program = (
        "import sys, tempfile; from lastgood.stores.scratch import SharedCopy\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "def fill(path): (path / 'half').write_text('x'); print('begun', flush=True); sys.stdin.readline()\n"
        f"copy = SharedCopy({name!r}, fill); sys.stdin.read()\n"
    )
    fetcher = subprocess.Popen(
        [sys.executable, "-c", program, str(scratch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert fetcher.stdout is not None
    assert fetcher.stdout.readline() == "begun\n"
    return fetcher


def test_a_copy_that_stands_still_is_not_waited_for_without_end(scratch: Path) -> None:
    """A rank that hangs while it fetches must not hang its machine in silence; what it has so far stays its own."""
    with held_by_a_process_that_stopped(scratch, "resume-4") as fetcher:
        with pytest.raises(StoreTransientError, match=r"copy stands still: .*lastgood-resume-4") as late:
            SharedCopy("resume-4", lambda path: None, patience=timedelta(seconds=0.5))
        assert late.value.hint is not None
        assert "fuser" in late.value.hint
        assert (scratch / "lastgood-resume-4" / "content" / "half").read_text() == "x"
        fetcher.kill()
    SharedCopy("resume-4", lambda path: (path / "whole").touch()).close()


def test_a_copy_that_grows_is_waited_for(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terabyte takes longer than any patience, and there is nothing wrong with it."""
    now, patience = 0.0, timedelta(seconds=60)
    with held_by_a_process_that_stopped(scratch, "resume-5") as fetcher:

        def sleep(seconds: float) -> None:
            """Time passes by half of the patience, and another part has come."""
            nonlocal now
            now += patience.total_seconds() / 2
            (scratch / "lastgood-resume-5" / "content" / f"part-{now:.0f}").touch()
            if now == 10 * patience.total_seconds():
                assert fetcher.stdin is not None
                fetcher.stdin.write("go on\n")
                fetcher.stdin.flush()
                while not (scratch / "lastgood-resume-5" / "whole").exists():
                    time.sleep(0.01)

        monkeypatch.setattr("lastgood.stores.scratch.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
        copy = SharedCopy("resume-5", lambda path: None, patience=patience)
        assert (copy.path / "part-600").exists()
        copy.close()
        fetcher.communicate()
