"""Publishing by several ranks when something goes wrong: all are told at once, and nothing that was saved suffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lastgood.errors import Fenced, LastgoodError, PublishError, StorePermanentError, StoreTransientError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.manifest import Component, Topology
from lastgood.protocol import claim, decide, perform
from lastgood.publish import Published, Publisher, StagedArtifact
from lastgood.stores import LocalStore
from lastgood.stores.filesystem import FileSystem
from lastgood.verdict import Outcome
from lastgood.verify import verify_generation
from tests.crash.scenarios import JOB, KEYS, NONCE, PRESENT, open_family

WORLD_SIZE = 2
JOB_OF_TWO = type(JOB)(
    **{
        **{name: getattr(JOB, name) for name in JOB.__struct_fields__},
        "topology": Topology(world_size=WORLD_SIZE, strategy="test", layout={}),
    }
)


class Trouble(FileSystem):
    """Fails the calls that `refuses` chooses, as a disk would."""

    def __init__(self, refuses: Callable[[str, Path], OSError | None] = lambda call, path: None) -> None:
        self.refuses = refuses

    def _ask(self, call: str, path: Path) -> None:
        if (error := self.refuses(call, path)) is not None:
            raise error

    def write_new(self, path: Path, data: bytes) -> None:
        self._ask("write", path)
        super().write_new(path, data)

    def link(self, source: Path, target: Path) -> None:
        self._ask("link", target)
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self._ask("rename", target)
        super().rename(source, target)

    def remove_directory(self, path: Path) -> None:
        self._ask("rmdir", path)
        super().remove_directory(path)


def full_disk_at(call: str, part: str) -> Callable[[str, Path], OSError | None]:
    """A disk without room for whatever has `part` in its path."""
    return lambda seen, path: OSError(28, "no space") if seen == call and part in str(path) else None


@pytest.fixture
def family(tmp_path: Path) -> Location:
    """A family whose first incarnation has decided to start at step zero."""
    location = open_family(tmp_path)
    location.store.prepare((KEYS.incarnations, KEYS.manifests, KEYS.commits, KEYS.staging))
    perform(location.store, claim(KEYS, nonce=NONCE, host="here"))
    perform(location.store, decide(KEYS, 1, nonce=NONCE, allow_fresh=True))
    return location


def ranks(location: Location, files: Sequence[FileSystem], *, patience: float = 20.0) -> list[Publisher]:
    """One publisher a rank, each over a file port of its own."""
    return [
        Publisher(
            LocalStore(location.store.local_directory(KEYS.family).parent, port),
            KEYS,
            incarnation=1,
            nonce=NONCE,
            rank=rank,
            world_size=len(files),
            previous=None,
            patience=timedelta(seconds=patience),
        )
        for rank, port in enumerate(files)
    ]


def save(publisher: Publisher, rank: int, step: int, spoil: Callable[[Path], None] = lambda payload: None) -> Published:
    """One rank's part of a save; `spoil` has the payload in hand before it is published."""
    staging = publisher.stage(step)
    artifacts = []
    for component in PRESENT:
        path = f"{component.value}/rank-{rank:05d}.bin"
        (staging.payload / component.value).mkdir(exist_ok=True)
        (staging.payload / path).write_bytes(f"{step}/{path}".encode() * 50)
        artifacts.append(StagedArtifact(path=path, component=Component(component), rank=rank))
    spoil(staging.payload)
    return publisher.publish(staging, artifacts, job=JOB_OF_TWO)


def job_of_one(publisher: Publisher, step: int) -> Published:
    """A save of a job of one rank."""
    staging = publisher.stage(step)
    artifacts = []
    for component in PRESENT:
        path = f"{component.value}.bin"
        (staging.payload / path).write_bytes(f"{step}/{path}".encode())
        artifacts.append(StagedArtifact(path=path, component=Component(component), rank=0))
    return publisher.publish(staging, artifacts, job=JOB)


def together(publishers: Sequence[Publisher], step: int, **spoil: Any) -> list[Published | BaseException]:
    """Every rank saves one step at the same time; what each was told."""
    with ThreadPoolExecutor(len(publishers)) as threads:
        futures = [
            threads.submit(save, publisher, rank, step, spoil.get(f"rank_{rank}", lambda payload: None))
            for rank, publisher in enumerate(publishers)
        ]
        return [future.exception() or future.result() for future in futures]


def holds(location: Location, step: int) -> bool:
    """Whether tier 1 finds nothing wrong with the generation of a step."""
    return verify_generation(location.store, KEYS, GenerationId(1, step)).outcome is Outcome.PASS


def offered(location: Location) -> int | None:
    generation = Family(location).latest().generation
    return generation.step if generation else None


def test_every_rank_is_told_of_the_one_commit(family: Location) -> None:
    """Ranks that believe in different commits would chain their next save to different ones."""
    publishers = ranks(family, [FileSystem()] * WORLD_SIZE)
    for step in (10, 20):
        told = together(publishers, step)
        assert told[0] == told[1]
        assert holds(family, step)


def test_a_rank_that_cannot_vouch_fails_the_save_of_all_at_once(family: Location) -> None:
    """A shard that vanished before it was read back stops the commit, and nobody waits out the patience for it."""
    publishers = ranks(family, [FileSystem()] * WORLD_SIZE)
    together(publishers, 10)
    told = together(publishers, 20, rank_1=lambda payload: (payload / "model/rank-00001.bin").unlink())
    assert isinstance(told[1], LastgoodError)
    assert isinstance(told[0], PublishError)
    assert "rank 1 could not vouch" in str(told[0])
    assert offered(family) == 10


def test_what_is_raised_is_the_cause_even_if_the_others_cannot_be_told(family: Location) -> None:
    """On a full disk nothing can be said to anybody; the error must still name what went wrong first."""
    trouble = Trouble(full_disk_at("link", "/receipts/"))
    publishers = ranks(family, [FileSystem(), trouble], patience=0.5)
    told = together(publishers, 10, rank_1=lambda payload: (payload / "model/rank-00001.bin").unlink())
    assert isinstance(told[1], LastgoodError)
    assert "model/rank-00001.bin" in str(told[1])
    assert isinstance(told[0], PublishError)
    assert "none from rank 1" in str(told[0])


def test_a_file_that_nobody_vouches_for_is_refused(family: Location) -> None:
    """A loader that globs would read it, so it may not become part of a generation."""
    publishers = ranks(family, [FileSystem()] * WORLD_SIZE)
    told = together(publishers, 10, rank_1=lambda payload: (payload / "model/rank-00007.bin").write_bytes(b"old"))
    assert all(isinstance(each, PublishError) and "no rank vouches for" in str(each) for each in told)
    assert offered(family) is None


def test_two_processes_as_one_rank_are_refused(family: Location) -> None:
    """A launcher that gave two processes the same rank would mix their files."""
    first, second = ranks(family, [FileSystem()])[0], ranks(family, [FileSystem()])[0]
    job_of_one(first, 10)
    with pytest.raises(PublishError, match="receipt exists already"):
        job_of_one(second, 10)
    assert offered(family) == 10
    assert holds(family, 10)


def test_a_rank_that_never_comes_is_named(family: Location) -> None:
    """The others give up after their patience, and say who was missing."""
    publisher = ranks(family, [FileSystem()] * WORLD_SIZE, patience=0.2)[0]
    with pytest.raises(PublishError, match="none from rank 1"):
        save(publisher, 0, 10)


def test_steps_rise_and_a_failed_one_is_not_retried(family: Location) -> None:
    """A name serves one publish: retried, it could hold files of two attempts."""
    publisher = ranks(family, [FileSystem()])[0]
    publisher.stage(10)
    with pytest.raises(PublishError, match="does not rise"):
        publisher.stage(10)


def test_a_taken_over_job_is_told_fenced_on_every_rank_and_again_at_once(family: Location) -> None:
    """The orphan must stop: on all ranks, and without writing another shard."""
    publishers = ranks(family, [FileSystem()] * WORLD_SIZE)
    together(publishers, 10)
    perform(family.store, claim(KEYS, nonce="f" * 32, host="elsewhere"))
    assert [type(each) for each in together(publishers, 20)] == [Fenced, Fenced]
    for publisher in publishers:
        with pytest.raises(Fenced):
            publisher.stage(30)
    assert offered(family) == 10


def test_a_fenced_rank_is_told_so_even_if_it_cannot_tell_the_others(family: Location) -> None:
    """The word `fenced` must not be lost behind a full disk: the job would try again."""
    trouble = Trouble()
    publishers = ranks(family, [trouble, FileSystem()], patience=1)
    together(publishers, 10)
    perform(family.store, claim(KEYS, nonce="f" * 32, host="elsewhere"))
    trouble.refuses = full_disk_at("link", "outcome.json")
    told = together(publishers, 20)
    assert isinstance(told[0], Fenced)
    assert isinstance(told[1], PublishError)


@pytest.mark.parametrize(
    "error", [OSError(28, "no space"), OSError(5, "input/output error")], ids=["permanent", "transient"]
)
def test_a_disk_that_fails_behind_the_marker_breaks_no_chain(error: OSError, family: Location) -> None:
    """The marker may be there although its publish failed; the next one names it, or tier 1 would bar a good save."""
    trouble = Trouble()
    publisher = ranks(family, [trouble])[0]
    job_of_one(publisher, 10)
    trouble.refuses = lambda call, path: error if call == "rename" and path.name.endswith(".active") else None
    with pytest.raises((StorePermanentError, StoreTransientError)):
        job_of_one(publisher, 20)
    trouble.refuses = lambda call, path: None
    job_of_one(publisher, 30)
    assert [holds(family, step) for step in (10, 20, 30)] == [True, True, True]
    assert offered(family) == 30


def test_a_staging_that_cannot_be_removed_fails_no_save(family: Location) -> None:
    """NFS keeps an open file under another name, and its directory cannot go; the save beside it is committed."""
    trouble = Trouble(lambda call, path: OSError(39, "not empty") if call == "rmdir" else None)
    publisher = ranks(family, [trouble])[0]
    for step in (10, 20, 30):
        job_of_one(publisher, step)
    assert offered(family) == 30
