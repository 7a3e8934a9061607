"""Adopting a stranger's checkpoint: what is refused, what is on record afterwards, and who comes at the same time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lastgood.digest import HashRequest
from lastgood.errors import ResumeRefused, SealRefused, UsageError
from lastgood.family import Family
from lastgood.formats import sealing
from lastgood.formats.examination import open_place
from lastgood.formats.sealing import Sealed, Wish, seal
from lastgood.formats.source import Source
from lastgood.formats.structural import choose_structurally
from lastgood.identity import GenerationId
from lastgood.location import Location, Place, locate, locate_ours, locate_place
from lastgood.manifest import Component, Determinism, Purpose
from lastgood.protocol import claim, decide, perform
from lastgood.reconcile import tidy
from lastgood.stores import LocalStore
from lastgood.verdict import Outcome, Reason
from lastgood.verify import verify_family
from tests.foreign import toy_known, write_toy, write_toy_file


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with toy_known():
        yield


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "llm"


def adopt(path: Path, wish: Wish | None = None) -> Sealed:
    return seal(locate_place(str(path)), wish)


def offered(run: Path) -> str | None:
    generation = Family(locate(str(run))).latest().generation
    return str(generation) if generation else None


def verdict(sealed: Sealed) -> Outcome:
    return Family(sealed.location).verify(sealed.location.require_generation()).outcome


def test_a_sealed_checkpoint_is_a_generation_like_any_other(run: Path) -> None:
    """Afterwards tier 1 reads it, `latest` offers it, and its own files are as they were."""
    directory = write_toy(run, 500)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}
    sealed = adopt(directory, Wish(reason="taken over from the old cluster"))
    manifest = sealed.manifest
    assert manifest.generation == "00000000-0000000000000500~toy-500"
    assert (manifest.job.topology.world_size, manifest.job.purpose) == (2, Purpose.RESUMABLE)
    assert [artifact.path for artifact in manifest.artifacts] == sorted(before)
    assert {artifact.path: artifact.component for artifact in manifest.artifacts}["toy.json"] is Component.OTHER
    assert {promise.determinism for promise in manifest.job.promises} == {Determinism.NONE}
    assert {entry.component: entry.reason for entry in manifest.job.absent}[Component.DATA] == "toys have no data"
    assert manifest.seal is not None
    assert manifest.seal.reason == "taken over from the old cluster"
    assert verdict(sealed) is Outcome.PASS
    assert offered(run) == manifest.generation
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()} == before


def test_what_the_files_do_not_state_stays_unsaid(run: Path) -> None:
    """A made-up code id or model would pass for knowledge."""
    job = adopt(write_toy(run, 500)).manifest.job
    assert (job.code, job.configuration, job.model, job.dataset, job.environment.python) == (None,) * 5


def test_a_single_file_is_sealed_verified_and_found(run: Path) -> None:
    """Lightning's checkpoint is one file beside its siblings, and none of them is a stranger in it."""
    sealed, newer = adopt(write_toy_file(run, 7)), adopt(write_toy_file(run, 8))
    assert sealed.manifest.is_single_file
    assert (verdict(sealed), verdict(newer)) == (Outcome.PASS, Outcome.PASS)
    assert Family(locate(str(run))).latest().uri == str(run / "toy-8.safetensors")
    assert locate(str(run / "toy-7.safetensors")).generation == sealed.manifest.id
    data = (run / "toy-8.safetensors").read_bytes()
    (run / "toy-8.safetensors").write_bytes(data.replace(b"weights of 8", b"Weights of 8", 1))
    assert verdict(newer) is Outcome.FAIL
    assert offered(run) == sealed.manifest.generation
    (run / "toy-7.safetensors").unlink()
    assert offered(run) is None


def test_a_flipped_byte_is_caught_once_it_is_sealed(run: Path) -> None:
    """No checksum inside covers these bytes, so nothing else could tell."""
    directory = write_toy(run, 500)
    sealed = adopt(directory)
    data = bytearray((directory / "model.toy").read_bytes())
    data[50] ^= 1
    (directory / "model.toy").write_bytes(data)
    found = Family(sealed.location).verify(sealed.location.require_generation())
    assert [(finding.reason, finding.offender) for finding in found.findings] == [(Reason.DIGEST_MISMATCH, "model.toy")]


@pytest.mark.parametrize("spoil", ["unfinished", "missing", "weights"])
def test_what_training_cannot_resume_is_not_sealed(run: Path, spoil: str) -> None:
    """A seal says that there is something to go back to."""
    directory = write_toy(run, 500)
    match spoil:
        case "unfinished":
            (directory / "unfinished").touch()
        case "missing":
            (directory / "rank-1.rng").unlink()
        case "weights":
            for name in ("optimizer.toy", "rank-0.rng", "rank-1.rng"):
                (directory / name).unlink()
            (directory / "toy.json").write_text('{"step": 500}')
    with pytest.raises(SealRefused, match="not sealed"):
        adopt(directory)
    assert not (run / ".lastgood").exists()


def test_an_export_is_sealed_as_what_it_is(run: Path) -> None:
    """Weights alone are worth a digest, and never a resume."""
    directory = write_toy(run, 500)
    for name in ("optimizer.toy", "rank-0.rng", "rank-1.rng"):
        (directory / name).unlink()
    (directory / "toy.json").write_text('{"step": 500}')
    sealed = adopt(directory, Wish(weights_only=True, world_size=1))
    assert sealed.manifest.job.purpose is Purpose.WEIGHTS_ONLY
    assert offered(run) is None
    assert not adopt(directory, Wish(weights_only=True, world_size=1)).is_new


def test_what_the_files_do_not_tell_must_be_said(run: Path) -> None:
    """A step or a world size that is guessed decides what is restored, and on how many ranks."""
    directory = write_toy(run, 500, ranks=None)
    with pytest.raises(UsageError, match="world size not told"):
        adopt(directory)
    assert adopt(directory, Wish(world_size=4)).manifest.job.topology.world_size == 4
    (other := write_toy(run, 600)).joinpath("toy.json").write_text('{"world_size": 2}')
    with pytest.raises(UsageError, match="step not told"):
        adopt(other)
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    sealed = adopt(other, Wish(step=600, as_of=moment))
    assert (sealed.manifest.step, sealed.manifest.created_at) == (600, moment)


def test_what_the_files_state_is_not_talked_over(run: Path) -> None:
    """Whoever says another number than the checkpoint means another checkpoint."""
    directory = write_toy(run, 500)
    for wish in (Wish(step=501), Wish(world_size=4)):
        with pytest.raises(UsageError, match="contradicted"):
            adopt(directory, wish)


def test_a_repeated_seal_changes_nothing(run: Path) -> None:
    """A callback seals each save again after a restart."""
    directory = write_toy(run, 500)
    first = adopt(directory)
    ours = {path: path.read_bytes() for path in (run / ".lastgood").rglob("*") if path.is_file()}
    second = adopt(directory)
    assert (first.is_new, second.is_new, second.manifest) == (True, False, first.manifest)
    os.utime(directory / "model.toy")  # as a tool that carries a tree elsewhere does
    assert not adopt(directory).is_new
    assert {path: path.read_bytes() for path in (run / ".lastgood").rglob("*") if path.is_file()} == ours


def test_of_seals_at_once_one_commit_remains(run: Path) -> None:
    """Every rank of a job may call the helper that rank 0 should."""
    directory = write_toy(run, 500)
    with ThreadPoolExecutor(max_workers=8) as workers:
        sealed = list(workers.map(lambda _: adopt(directory), range(8)))
    assert sum(one.is_new for one in sealed) == 1
    assert len({one.manifest.generation for one in sealed}) == 1
    assert len(os.listdir(run / ".lastgood/commits")) == 1
    assert verdict(sealed[0]) is Outcome.PASS


def test_an_interrupted_seal_is_taken_up(run: Path) -> None:
    """Killed between manifest and COMMIT it offers nothing, and the next one finishes it."""
    directory = write_toy(run, 500)
    sealed = adopt(directory)
    (run / ".lastgood/commits" / sealed.manifest.generation).unlink()
    assert offered(run) is None
    again = adopt(directory, Wish(reason="another reason"))
    assert (again.is_new, again.manifest) == (True, sealed.manifest)
    assert offered(run) == sealed.manifest.generation


def test_a_checkpoint_that_changes_meanwhile_is_not_sealed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is hashed while its job still writes is a mixture."""
    directory = write_toy(run, 500)
    hashing = LocalStore.hash

    def hash_and_write(self: LocalStore, prefix: str, requests: list[HashRequest], progress: object = None) -> object:
        yield from hashing(self, prefix, requests, None)
        (directory / "optimizer.toy").write_bytes((directory / "optimizer.toy").read_bytes())

    monkeypatch.setattr(LocalStore, "hash", hash_and_write)
    with pytest.raises(SealRefused, match="changed while it was read"):
        adopt(directory)
    assert not (run / ".lastgood").exists()


def test_a_file_that_comes_after_the_listing_is_not_left_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed without it, the healthy checkpoint would fail for a file that nobody expected, and be barred for good."""
    directory = write_toy(run, 500)

    def open_and_write(place: Place) -> Source:
        source = open_place(place)
        (directory / "late.toy").write_bytes(b"late")
        return source

    monkeypatch.setattr(sealing, "open_place", open_and_write)
    with pytest.raises(SealRefused, match="changed while it was read"):
        adopt(directory)
    assert not (run / ".lastgood").exists()


def test_of_seals_at_once_that_say_different_steps_at_most_one_is_committed(run: Path) -> None:
    """Two COMMITs of one name would each vouch for the same bytes, at two places in the order."""
    directory = write_toy(run, 500)
    (directory / "toy.json").write_text('{"world_size": 2}')

    def attempt(step: int) -> Sealed | None:
        try:
            return adopt(directory, Wish(step=step))
        except SealRefused:
            return None

    with ThreadPoolExecutor(max_workers=4) as workers:
        sealed = [one for one in workers.map(attempt, (5, 6, 7, 8)) if one is not None]
    commits = os.listdir(run / ".lastgood/commits")
    assert len(commits) <= 1
    assert {one.manifest.generation for one in sealed} == set(commits)


def test_a_seal_that_another_step_overtook_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one was committed while this one hashed; both readings of the step cannot be right."""
    directory = write_toy(run, 500)
    (directory / "toy.json").write_text('{"world_size": 2}')
    hashing = LocalStore.hash

    def overtaken(self: LocalStore, prefix: str, requests: list[HashRequest], progress: object = None) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "hash", hashing)
            adopt(directory, Wish(step=6))
        return hashing(self, prefix, requests, None)

    monkeypatch.setattr(LocalStore, "hash", overtaken)
    with pytest.raises(SealRefused, match=r"another seal is on record: .*: of step 6, not 5"):
        adopt(directory, Wish(step=5))
    assert os.listdir(run / ".lastgood/commits") == ["00000000-0000000000000006~toy-500"]


def test_a_name_that_is_written_anew_is_not_sealed_again(run: Path) -> None:
    """`last.ckpt` is another checkpoint every hour; two seals of one path would vouch for each other's bytes."""
    path = write_toy_file(run, 8)
    adopt(path)
    path.unlink()
    write_toy_file(run, 9).rename(path)
    with pytest.raises(SealRefused, match="sealed as something else"):
        adopt(path)


def test_links_are_not_sealed(run: Path) -> None:
    """What a link leads to may be replaced without a trace in the directory that was hashed."""
    directory = write_toy(run, 500)
    (directory / "extra.toy").symlink_to(directory / "model.toy")
    with pytest.raises(SealRefused, match="not a regular file"):
        adopt(directory)


def test_what_no_loader_reads_is_left_out(run: Path) -> None:
    """NFS leaves names of its own, and their vanishing is no fault."""
    directory = write_toy(run, 500)
    (directory / ".nfs000123").touch()
    sealed = adopt(directory)
    (directory / ".nfs000123").unlink()
    assert verdict(sealed) is Outcome.PASS


def test_nothing_and_nowhere_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    """A misspelt path is no damaged checkpoint."""
    (tmp_path / "runs").mkdir()
    with pytest.raises(UsageError, match="nothing lies there"):
        adopt(tmp_path / "runs/llm/toy-1")
    with pytest.raises(UsageError, match="no directory above it"):
        seal(locate_place("/toy-1"))


# Beside decisions of the family.


def rolled_back(run: Path, target: str) -> int:
    return Family(locate(str(run))).rollback(GenerationId.parse(target), reason="the loss diverged")


def write_anew(directory: Path) -> None:
    """Another model in the same lengths, every file written again, as a trainer that went back does."""
    for path in directory.iterdir():
        path.write_bytes(path.read_bytes().replace(b"model of", b"MODEL of"))


def chosen(run: Path) -> str | None:
    return choose_structurally(locate_place(str(run))).name


def claimed(run: Path) -> int:
    """A start that claimed its number and has not decided."""
    return perform(locate(str(run)).store, claim(locate(str(run)).keys, nonce="b" * 32, host="here"))


def test_after_a_rollback_seals_carry_its_number(run: Path) -> None:
    """The branch that was cut stays cut, and what is trained from there on is newer than all of it."""
    older, cut, lying = write_toy(run, 100), write_toy(run, 200), write_toy(run, 300)
    kept = adopt(older).manifest.generation
    adopt(cut)
    assert rolled_back(run, kept) == 1
    assert offered(run) == kept
    for branch in (cut, lying):
        with pytest.raises(SealRefused, match="cut by a rollback"):
            adopt(branch)
    again = write_toy(run, 150)
    sealed = adopt(again)
    assert sealed.manifest.generation == "00000001-0000000000000150~toy-150"
    assert offered(run) == sealed.manifest.generation
    assert verdict(sealed) is Outcome.PASS
    assert verify_family(sealed.location.store, sealed.location.keys).outcome is Outcome.PASS


def test_a_name_of_the_cut_branch_may_be_written_and_sealed_anew(run: Path) -> None:
    """A trainer that went back saves the same steps under the same names, and often in the same lengths."""
    older, cut, lying = write_toy(run, 100), write_toy(run, 200), write_toy(run, 300)
    kept = adopt(older).manifest.generation
    adopt(cut)
    rolled_back(run, kept)
    for directory, step in ((cut, 200), (lying, 300)):
        write_anew(directory)
        assert chosen(run) == directory.name
        sealed = adopt(directory)
        assert sealed.manifest.generation == f"00000001-{step:016d}~toy-{step}"
        assert locate(str(directory)).generation == sealed.manifest.id
        assert verdict(sealed) is Outcome.PASS
    assert offered(run) == "00000001-0000000000000300~toy-300"


def test_a_second_rollback_cuts_what_was_written_anew_and_never_sealed(run: Path) -> None:
    """A seal of a branch that was cut before vouches for nothing that lies under its name today."""
    older, cut = write_toy(run, 100), write_toy(run, 200)
    kept = adopt(older).manifest.generation
    adopt(cut)
    rolled_back(run, kept)
    write_anew(cut)
    assert rolled_back(run, kept) == 2
    assert chosen(run) == "toy-100"
    with pytest.raises(SealRefused, match="cut by a rollback"):
        adopt(cut)


def test_a_rollback_that_is_undone_vouches_for_its_target_again(run: Path) -> None:
    """What lay there at either rollback is kept all the same, for its seal is."""
    older, newer = adopt(write_toy(run, 100)), adopt(write_toy(run, 200))
    rolled_back(run, older.manifest.generation)
    rolled_back(run, newer.manifest.generation)
    assert (offered(run), chosen(run)) == (newer.manifest.generation, "toy-200")
    assert not adopt(run / "toy-200").is_new


@pytest.mark.parametrize("touch", ["link", "mode", "time of the directory"])
def test_no_touch_that_writes_nothing_brings_a_cut_checkpoint_back(run: Path, touch: str) -> None:
    """Backups link every file and administrators change modes; neither trains a model."""
    kept = adopt(write_toy(run, 100)).manifest.generation
    sealed, lying = write_toy(run, 200), write_toy(run, 300)
    adopt(sealed)
    rolled_back(run, kept)
    for path in (*sealed.iterdir(), *lying.iterdir()):
        match touch:
            case "link":
                os.link(path, run.parent / f"{path.parent.name}-{path.name}")
            case "mode":
                path.chmod(0o600)
            case _:
                os.utime(path.parent)
    assert chosen(run) == "toy-100"
    for directory in (sealed, lying):
        with pytest.raises(SealRefused, match="cut by a rollback"):
            adopt(directory)


def test_a_save_of_the_cut_branch_that_finishes_after_the_rollback_stays_cut(run: Path) -> None:
    """Its first files are of the branch that was given up, so the last ones make no new checkpoint of it."""
    kept = adopt(write_toy(run, 100)).manifest.generation
    unfinished = write_toy(run, 300)
    rng = (unfinished / "rank-1.rng").read_bytes()
    (unfinished / "rank-1.rng").unlink()
    rolled_back(run, kept)
    (unfinished / "rank-1.rng").write_bytes(rng)
    assert chosen(run) == "toy-100"
    with pytest.raises(SealRefused, match="cut by a rollback"):
        adopt(unfinished)


def test_a_cut_single_file_that_is_written_anew_is_a_new_checkpoint(run: Path) -> None:
    """By its own door, too, and a copy of the cut one that keeps its times is not."""
    kept, cut = adopt(write_toy_file(run, 7)), write_toy_file(run, 8)
    adopt(cut)
    backup = run.parent / "backup"
    shutil.copy2(cut, backup)
    rolled_back(run, kept.manifest.generation)
    cut.unlink()
    shutil.copy2(backup, cut)
    assert chosen(run) == "toy-7.safetensors"
    cut.write_bytes(cut.read_bytes().replace(b"weights of 8", b"Weights of 8"))
    assert chosen(run) == "toy-8.safetensors"
    assert adopt(cut).manifest.generation == "00000001-0000000000000008~toy-8.safetensors"


def test_a_rollback_to_a_seal_whose_twin_would_be_offered_is_refused(run: Path) -> None:
    """A decision keeps steps, and two names may be of one; what the operator named must be what is resumed."""
    first, twin = adopt(write_toy(run, 100, name="toy-a")), adopt(write_toy(run, 100, name="toy-b"))
    with pytest.raises(UsageError, match=r"cannot roll back to .*toy-a alone: .*toy-b is of the same step"):
        rolled_back(run, first.manifest.generation)
    rolled_back(run, twin.manifest.generation)
    assert offered(run) == twin.manifest.generation
    Family(twin.location).quarantine(reason="it diverges", generation=twin.manifest.id)
    rolled_back(run, first.manifest.generation)
    Family(twin.location).release(reason="looked at")
    assert offered(run) == first.manifest.generation


def test_a_seal_of_the_same_step_that_comes_during_a_rollback_is_told(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept by the decision and would be resumed in the place of what the operator named."""
    first, late = adopt(write_toy(run, 100, name="toy-a")), write_toy(run, 100, name="toy-b")
    create = LocalStore.create

    def overtaken(store: LocalStore, key: str, data: bytes) -> bool:
        if "/incarnations/" in key:
            monkeypatch.setattr(LocalStore, "create", create)
            adopt(late)
        return create(store, key, data)

    monkeypatch.setattr(LocalStore, "create", overtaken)
    with pytest.raises(ResumeRefused, match=r"rolled back \(incarnation 1\), but .*toy-b was sealed meanwhile") as told:
        rolled_back(run, first.manifest.generation)
    assert "lastgood quarantine" in str(told.value.hint)
    twin = adopt(late)
    Family(twin.location).quarantine(reason="late", generation=twin.manifest.id)
    Family(twin.location).release(reason="that one alone")
    assert offered(run) == first.manifest.generation


def test_a_barred_seal_says_how_its_name_is_sealed_again(run: Path) -> None:
    """A trainer that repeats the step writes the same name; only giving the barred one up makes room for it."""
    kept, barred = adopt(write_toy(run, 100)), adopt(write_toy(run, 200))
    Family(barred.location).quarantine(reason="it diverges", generation=barred.manifest.id)
    write_anew(run / "toy-200")
    with pytest.raises(SealRefused, match="sealed as something else") as refused:
        adopt(run / "toy-200")
    assert refused.value.hint is not None
    assert f"lastgood rollback {run} GENERATION" in refused.value.hint
    rolled_back(run, kept.manifest.generation)
    (run / "toy-200" / "model.toy").write_bytes(b"yet another")
    for path in (run / "toy-200").iterdir():
        path.write_bytes(path.read_bytes())
    assert adopt(run / "toy-200").manifest.generation == "00000001-0000000000000200~toy-200"


def test_a_claim_without_a_decision_is_named_before_anything_is_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hashed terabytes first would be told to seal it again, for ever."""
    kept = adopt(write_toy(run, 100)).manifest.generation
    directory = write_toy(run, 200)
    assert claimed(run) == 1
    with monkeypatch.context() as patch:
        patch.delattr(LocalStore, "hash")
        with pytest.raises(
            SealRefused, match=r"claimed and not decided: llm/\.lastgood/incarnations/00000001"
        ) as refused:
            adopt(directory)
        assert refused.value.hint is not None
        assert "lastgood rollback" in refused.value.hint
        assert not adopt(run / "toy-100").is_new
    assert rolled_back(run, kept) == 2
    write_anew(directory)
    assert adopt(directory).is_new


def test_where_a_job_publishes_by_itself_nothing_is_sealed_behind_its_back(run: Path) -> None:
    """Its decision keeps no later seal, so one would be on record and never offered."""
    kept = adopt(write_toy(run, 100)).manifest
    keys, store = locate(str(run)).keys, locate(str(run)).store
    number = perform(store, claim(keys, nonce="a" * 32, host="here"))
    decision = perform(store, decide(keys, number, nonce="a" * 32))
    assert decision.generation == kept.id
    with pytest.raises(SealRefused, match="publishes here by itself"):
        adopt(write_toy(run, 200))
    assert offered(run) == kept.generation


def test_a_sweep_never_touches_what_others_wrote(run: Path) -> None:
    """A seal that was interrupted before a rollback must not be taken for a publish of ours that died."""
    kept = adopt(write_toy(run, 100)).manifest.generation
    rolled_back(run, kept)
    sealed = adopt(write_toy(run, 150))
    (run / ".lastgood/commits" / sealed.manifest.generation).unlink()
    rolled_back(run, kept)
    swept = tidy(locate(str(run)), older_than=timedelta(0), now=datetime.now(UTC) + timedelta(days=9))
    assert (run / "toy-150/model.toy").exists()
    assert not [name for name in swept.removed if "toy" in name]


def test_what_was_never_sealed_is_none_of_ours(run: Path) -> None:
    """A command that shows anything must find it all the same."""
    directory = write_toy(run, 100)
    assert locate_ours(str(directory)) is None
    adopt(write_toy(run, 200))
    assert locate_ours(str(directory)) is None
    with pytest.raises(UsageError, match="not a generation"):
        locate(str(directory))
    sealed = locate_ours(str(run / "toy-200"))
    assert isinstance(sealed, Location)
    assert sealed.generation is not None
