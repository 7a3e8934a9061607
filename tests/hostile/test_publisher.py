"""Training code that uses the publisher wrongly is told so, at once, and nothing unlawful becomes discoverable."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lastgood import documents
from lastgood.errors import FormatError, PublishError, StoreError
from lastgood.family import Family
from lastgood.location import locate
from lastgood.manifest import Component, Topology
from lastgood.markers import Claim
from lastgood.publish import StagedArtifact, Staging
from lastgood.run import Run, SoloGroup
from tests.crash.scenarios import JOB, PRESENT


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.start(f"{tmp_path}/llm", SoloGroup(), allow_fresh=True)


def fill(staging: Staging) -> list[StagedArtifact]:
    artifacts = []
    for component in PRESENT:
        (staging.payload / f"{component.value}.bin").write_bytes(b"state")
        artifacts.append(StagedArtifact(path=f"{component.value}.bin", component=Component(component), rank=0))
    return artifacts


def latest(run: Run) -> object:
    return Family(locate(run.location.family_uri)).latest().generation


def test_a_step_staged_earlier_is_not_published_after_a_later_one(run: Run) -> None:
    """It was committed: commits of one life must rise, for a takeover keeps one last step a life."""
    early, late = run.stage(10), run.stage(20)
    run.publish(late, fill(late), job=JOB)
    with pytest.raises(PublishError, match="does not rise"):
        run.publish(early, fill(early), job=JOB)
    assert latest(run) == late.generation


def test_the_staging_of_another_life_is_refused(run: Run, tmp_path: Path) -> None:
    """It was moved into this family, out of the other one's hands."""
    other = Run.start(f"{tmp_path}/other", SoloGroup(), allow_fresh=True)
    staging = other.stage(10)
    with pytest.raises(PublishError, match="staging of another life"):
        run.publish(staging, fill(staging), job=JOB)
    other.publish(staging, fill(staging), job=JOB)
    assert latest(other) == staging.generation


def test_a_job_of_another_world_size_is_refused_and_not_acknowledged(run: Run) -> None:
    """The save was acknowledged, and then passed over by every reader."""
    job = type(JOB)(
        **{
            **{name: getattr(JOB, name) for name in JOB.__struct_fields__},
            "topology": Topology(world_size=2, strategy="test", layout={}),
        }
    )
    staging = run.stage(10)
    with pytest.raises(PublishError, match="job of another world size"):
        run.publish(staging, fill(staging), job=job)
    assert latest(run) is None


def pipe(payload: Path) -> str:
    os.mkfifo(payload / "pipe")
    return "pipe"


def link(payload: Path) -> str:
    (payload / "link").symlink_to("/etc/passwd")
    return "link"


WRONG: dict[str, Callable[[Path], str]] = {
    "absent": lambda payload: "absent",
    "outside": lambda payload: "../outcome.json",
    "absolute": lambda payload: "/etc/passwd",
    "pipe": pipe,
    "link": link,
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("wrong", list(WRONG))
def test_a_named_path_that_is_no_file_of_the_payload_is_the_callers_mistake(wrong: str, run: Run) -> None:
    """A pipe made the publish wait for ever for a writer; the others were failures of the store, or of the format."""
    staging = run.stage(10)
    artifacts = [*fill(staging), StagedArtifact(path=WRONG[wrong](staging.payload), component=Component.OTHER, rank=0)]
    with pytest.raises(PublishError):
        run.publish(staging, artifacts, job=JOB)
    assert latest(run) is None


def test_a_file_that_nfs_left_among_the_receipts_fails_nothing(run: Run) -> None:
    """`.nfs…` was parsed as a receipt."""
    staging = run.stage(10)
    receipts = staging.payload.parent / "receipts"
    receipts.mkdir()
    (receipts / ".nfs000000000001").write_bytes(b"")
    assert run.publish(staging, fill(staging), job=JOB).generation == staging.generation


def test_a_step_that_is_an_index_but_no_int_is_taken_as_one(run: Run) -> None:
    """A NumPy integer named the directory and then fitted no manifest."""

    class Index:
        def __index__(self) -> int:
            return 10

    assert run.stage(Index()).generation.step == 10  # type: ignore[arg-type]  # as training code does


def test_no_document_is_written_that_its_own_reader_refuses() -> None:
    """Structs check nothing when they are made, and a stored claim is never deleted."""
    for host in ("", "y" * 5000, "\udcff"):
        with pytest.raises(FormatError, match="would not be lawful"):
            documents.canonical_bytes(Claim(kind="start", nonce="0" * 32, host=host))


def test_every_rank_hears_of_a_start_that_failed_unexpectedly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 raised before it spoke, and the others waited in the broadcast until the launcher's own patience."""
    said: list[bytes] = []

    class Group:
        world_size = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def broadcast(self, data: bytes | None) -> bytes:
            if data is not None:
                said.append(data)
            assert said, "rank 0 said nothing"
            return said[0]

    def broken() -> str:
        raise RuntimeError("no host name")

    monkeypatch.setattr("socket.gethostname", broken)
    with ThreadPoolExecutor(1) as first, pytest.raises(RuntimeError, match="no host name"):
        first.submit(Run.start, f"{tmp_path}/llm", Group(0), allow_fresh=True).result()
    with pytest.raises(StoreError, match="rank 0 could not start: RuntimeError: no host name"):
        Run.start(f"{tmp_path}/llm", Group(1), allow_fresh=True)
