"""What may be resumed of a directory of checkpoints that nobody sealed, and whether a start at step zero loses one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from lastgood.errors import StoreTransientError, UsageError
from lastgood.formats import structural
from lastgood.formats.emptiness import is_no_checkpoint
from lastgood.formats.examination import Examination, examine
from lastgood.formats.root import Root
from lastgood.formats.sealing import seal
from lastgood.formats.source import Source, open_source
from lastgood.formats.structural import choose_structurally, framework_choice
from lastgood.formats.verdicts import verify_place
from lastgood.location import locate_place
from lastgood.stores import LocalStore
from lastgood.stores.port import ObjectReader
from lastgood.testing.build import build_family, build_life
from lastgood.verdict import Reason
from lastgood.verify import Depth
from tests.foreign import toy_known, write_toy
from tests.formats.readers import layouts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs" / "llm"
    root.mkdir(parents=True)
    return root


@pytest.fixture
def toy() -> Iterator[None]:
    with toy_known():
        yield


def is_empty(root: Path) -> bool:
    return choose_structurally(locate_place(str(root)), may_be_absent=True).is_empty


# Whether it is empty


def test_a_directory_without_a_finished_save_is_empty(root: Path) -> None:
    """The very first start, also after a job that died before its first save was whole, needs no operator."""
    assert is_empty(root)
    assert is_empty(root.parent / "absent")
    (root / "checkpoint-2").mkdir()
    (root / "attempts" / "nothing").mkdir(parents=True)
    (root / "runs").mkdir()
    (root / "runs" / "events.out.tfevents.1.host").write_bytes(b"loss")
    (root / "train.log").write_text("step 1")
    assert is_empty(root)


@pytest.mark.parametrize(("keep_ratio", "is_start"), [(0.5, True), (0, True), (1, False)])
def test_a_first_save_that_was_killed_in_its_last_file_is_no_finished_one(
    root: Path, keep_ratio: float, is_start: bool
) -> None:
    """Trainer writes its state last and in place: half of it is a save under way, zeros in it were whole once."""
    layouts.trainer(root / "checkpoint-8", 8)
    path = root / "checkpoint-8" / "trainer_state.json"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep_ratio)] if is_start else bytes(len(data)))
    assert is_empty(root) is is_start


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_family_of_our_own_is_refused_by_name(tmp_path: Path, is_gone: bool) -> None:
    """By step alone an orphan's generation would be offered, or a fresh start where all lie in another's trash."""
    (tmp_path / "runs").mkdir()
    family = build_life(build_family(tmp_path / "runs", "llm"), steps=(13,))
    if is_gone:
        for generation in family.generations:
            shutil.rmtree(family.root / family.keys.artifacts(generation))
    with pytest.raises(UsageError, match=f"4, the newest {family.newest}"):
        choose_structurally(locate_place(str(family.root / family.family)), may_be_absent=True)


@pytest.mark.usefixtures("toy")
def test_a_commit_counts_though_its_checkpoint_is_gone(root: Path) -> None:
    """Whoever lost the files must look for them before a run begins anew."""
    seal(locate_place(str(write_toy(root, 100))))
    shutil.rmtree(root / "toy-100")
    assert not is_empty(root)


@pytest.mark.parametrize("spelling", ["00000000-0000000000000100~toy-100", "not-an-id"])
def test_a_commit_that_nobody_can_read_counts(root: Path, spelling: str) -> None:
    """What stands there may be the only word of a finished save, however it is spelled."""
    commits = root / ".lastgood" / "commits"
    commits.mkdir(parents=True)
    (commits / spelling).write_text("torn")
    offer = choose_structurally(locate_place(str(root)))
    assert not offer.is_empty
    assert spelling in offer.findings[0].message


@pytest.mark.parametrize(
    "path", ["weights.npz", "step_500/weights.npz", "lightning_logs/version_0/checkpoints/e.ckpt", "notes/link"]
)
def test_what_nobody_knows_is_not_taken_for_nothing(root: Path, path: str) -> None:
    """It may be the checkpoint of a framework that no reader knows, so it is named and nothing starts over it."""
    unknown = root / path
    unknown.parent.mkdir(parents=True, exist_ok=True)
    if path.endswith("link"):
        unknown.symlink_to("/somewhere/else")
    else:
        unknown.write_bytes(b"weights")
    offer = choose_structurally(locate_place(str(root)))
    assert not offer.is_empty
    assert path in offer.findings[0].message


@pytest.mark.parametrize("name", ["latest", "latest_checkpointed_iteration.txt"])
def test_a_pointer_to_nothing_says_that_a_save_was_finished(root: Path, name: str) -> None:
    """It is written last, so what it names was whole once and is gone."""
    (root / name).write_text("500")
    offer = choose_structurally(locate_place(str(root)))
    assert not offer.is_empty
    assert name in offer.findings[0].message


def test_names_that_are_no_checkpoints() -> None:
    """Logs and configuration beside a run must not stop its first start; what could hold tensors must."""
    for name in ("run.log", "args.json", ".hidden", "a/b/metrics.csv", "events.out.tfevents.17.node-1", "NOTES.MD"):
        assert is_no_checkpoint(name)
    for name in ("model", "x.npz", "x.h5", "x.msgpack", "x.pkl", "x.tmp", "latest_checkpoint.txt", "json", "x.log.gz"):
        assert not is_no_checkpoint(name)


# Which one is offered


@pytest.mark.usefixtures("toy")
def test_the_newest_is_looked_into_first_and_no_older_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names without a step: reading every byte of every checkpoint to offer one would take a night."""
    for name, step in (("b", 100), ("a", 300), ("c", 200)):
        write_toy(root, step, name=name)
    looked = []

    def counted(source: Source, *, depth: Depth) -> Examination:
        looked.append(source.name)
        return examine(source, depth=depth)

    monkeypatch.setattr(structural, "examine", counted)
    assert choose_structurally(locate_place(str(root)), deep=True).name == "a"
    assert looked == ["a"]
    (root / "a" / "rank-1.rng").unlink()
    looked.clear()
    offer = choose_structurally(locate_place(str(root)), deep=True)
    assert (offer.name, [one.name for one in offer.passed_over], looked) == ("c", ["a"], ["a", "c"])


@pytest.mark.usefixtures("toy")
def test_verify_of_a_root_judges_the_newest_by_step_where_names_tell_none(root: Path) -> None:
    """The first name is nobody's newest, and a fault in what a resume would load would not be seen."""
    for name, step in (("a", 100), ("b", 300), ("c", 200)):
        write_toy(root, step, name=name)
    place = locate_place(str(root))
    source = open_source(place.store, place.key)
    assert source is not None
    newest = verify_place(place, source, every=False, read_payload=False)
    every = verify_place(place, source, every=True, read_payload=False)
    assert [one.subject for one in newest] == ["runs/llm", "runs/llm/b"]
    assert [one.subject[-1] for one in every[1:]] == ["b", "c", "a"]


def test_a_torn_one_that_tells_no_step_may_be_the_newest(root: Path) -> None:
    """Its step was in the bytes that are gone: it is told of, and judged, beside the newest that tells its own."""
    for step in (1, 2, 3):
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([weight])
        for _ in range(step):
            weight.sum().backward()
            optimizer.step()
        torch.save({"model": {"w": weight.data}, "optimizer": optimizer.state_dict()}, root / f"{step}.pt")
    torch.save({"w": torch.ones(2)}, root / "export.pt")
    os.truncate(root / "3.pt", 700)
    place = locate_place(str(root))
    offer = choose_structurally(place)
    assert (offer.name, [one.name for one in offer.passed_over]) == ("2.pt", ["3.pt"])
    source = open_source(place.store, place.key)
    assert source is not None
    judged = verify_place(place, source, every=False, read_payload=False)
    assert [one.subject for one in judged] == ["runs/llm", "runs/llm/3.pt", "runs/llm/2.pt"]


class _Failing(LocalStore):
    """Opens every file but those of one name."""

    fails_on = "x.pt"

    @contextmanager
    def open(self, prefix: str, path: str) -> Iterator[ObjectReader]:  # type: ignore[override]  # any reader
        if path.endswith(self.fails_on):
            raise StoreTransientError(f"cannot read {path}: timed out")
        with super().open(prefix, path) as reader:
            yield reader


@pytest.mark.usefixtures("toy")
def test_what_the_store_cannot_read_is_neither_offered_nor_passed_over(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it may be wrong, and an older one instead would lose what is whole."""
    for step in (100, 200):
        write_toy(root, step)
        torch.save({"w": torch.ones(2)}, root / f"toy-{step}" / ("x.pt" if step == 200 else "y.pt"))
    assert choose_structurally(locate_place(str(root))).name == "toy-200"
    monkeypatch.setattr("lastgood.stores.open_store", lambda uri, _: _Failing(Path(uri)))
    with pytest.raises(StoreTransientError, match="toy-200: could not read 1 part: "):
        choose_structurally(locate_place(str(root)))
    (root / "toy-200" / "rank-1.rng").unlink()  # torn whatever the rest of it holds
    assert choose_structurally(locate_place(str(root))).name == "toy-100"


# Names that are as one framework's, over another one's files


def write_saves(root: Path, *files: str) -> Root:
    """Two saves under names of one's own, which are also torchtitan's."""
    for name in ("step-8", "step-12"):
        (root / name).mkdir()
        for file in files:
            (root / name / file).write_bytes(b"saved")
    place = locate_place(str(root))
    return Root(store=place.store, prefix=place.key, names=place.store.names(place.key))


def test_names_alone_are_no_rule_of_a_framework(root: Path) -> None:
    """Whoever calls Accelerate's saves `step-8` is not told what torchtitan would do; the numbers order them."""
    rule = framework_choice(write_saves(root, "model.safetensors", "optimizer.bin", "random_states_0.pkl"))
    assert rule is not None
    assert rule.is_only_named
    assert rule.consequence is None
    assert [candidate.name for candidate in rule.candidates] == ["step-12", "step-8"]


def test_a_pointer_counts_over_names_that_are_as_another_frameworks(root: Path) -> None:
    """DeepSpeed follows `latest` whatever its tags are called, so one into nothing is found under any names."""
    (root / "latest").write_text("step-99")
    rule = framework_choice(write_saves(root, "mp_rank_00_model_states.pt"))
    assert rule is not None
    assert rule.pointer == "latest"
    assert [finding.reason for finding in rule.findings] == [Reason.POINTER_DANGLING]
    assert [candidate.name for candidate in rule.candidates] == ["step-12", "step-8"]


def test_a_torn_save_of_the_framework_itself_is_judged_by_its_rule(root: Path) -> None:
    """Without its metadata torchtitan passes a save over and begins anew in silence, which has to be said."""
    rule = framework_choice(write_saves(root, "__0_0.distcp"))
    assert rule is not None
    assert not rule.is_only_named
    assert rule.consequence == "trains from step zero without an error"
