"""A tree that is only read: what is ours lies elsewhere, at whatever depth the tree is opened."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lastgood.digest import Algorithm, HashRequest
from lastgood.errors import StorePermanentError, UsageError
from lastgood.stores import LocalStore, Store, StoreSettings, access_to
from lastgood.stores.apart import ApartStore
from lastgood.stores.grading import Grade, KeptGrade, StoreGrade, graded
from lastgood.stores.port import Trouble

LIMIT = 2**20
WRITING: dict[str, Callable[[Store, str], object]] = {
    "create": lambda store, key: store.create(key, b"x"),
    "replace": lambda store, key: store.replace(key, b"x"),
    "compare_and_swap": lambda store, key: store.compare_and_swap(key, b"x", expected=None),
    "delete": lambda store, key: store.delete(key),
    "clock": lambda store, key: store.clock(key),
    "prepare": lambda store, key: store.prepare([key]),
    "payload": lambda store, key: store.payload(f"{key}/.lastgood/staging/a", key),
    "staging_path": lambda store, key: store.staging_path(key),
    "persist": lambda store, key: store.persist(key, ["model.bin"], (Algorithm.BLAKE3,)),
    "install": lambda store, key: store.install(f"{key}/.lastgood/staging/a", key),
    "discard": lambda store, key: store.discard(key),
}


class Graded(LocalStore):
    """A root that keeps its grade, as a bucket does."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._kept: KeptGrade | None = None

    def grade(self) -> StoreGrade | None:
        return self._kept.summary if self._kept is not None else None

    def keep_grade(self, grade: KeptGrade) -> str | None:
        self._kept = grade
        return "kept"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "mnt" / "team"
    (tree / "llm" / "step-1").mkdir(parents=True)
    (tree / "llm" / "step-1" / "model.bin").write_bytes(b"weights")
    (tmp_path / "evidence").mkdir()
    return tree


def opened(tree: Path, root: Path) -> Store:
    """The store at a root, with evidence elsewhere for the tree."""
    settings = StoreSettings(evidence=str(tree.parents[1] / "evidence"))
    return access_to(str(tree / "llm"), {str(tree): settings}).open(str(root))


def everything(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in (root, *root.rglob("*"))}


@pytest.mark.parametrize(("depth", "prefix"), [(1, "mnt/team/"), (2, "team/"), (3, ""), (4, None)])
def test_the_same_document_is_meant_at_whatever_depth_the_tree_is_opened(
    depth: int, prefix: str | None, tree: Path
) -> None:
    """A path to a checkpoint opens the store further down than the name of its family does."""
    before = everything(tree)
    root = [tree.parents[1], tree.parent, tree, tree / "llm"][depth - 1]
    store = opened(tree, root)
    start = f"{prefix}llm/" if prefix is not None else ""
    ours = f"{start}.lastgood"
    store.prepare([f"{ours}/commits"])
    assert store.create(f"{ours}/commits/1", b"done")
    assert (tree.parents[1] / "evidence/llm/.lastgood/commits/1").read_bytes() == b"done"
    assert store.get(f"{ours}/commits/1", limit_bytes=LIMIT) == b"done"
    assert store.names(f"{ours}/commits").files == ("1",)
    assert [found.key for found in store.walk(ours)] == [f"{ours}/commits/1"]
    found = store.stat(f"{ours}/commits/1")
    assert found is not None
    assert found.key == f"{ours}/commits/1"
    assert store.local_directory(ours) == tree.parents[1] / "evidence/llm/.lastgood"
    assert [found.key for found in store.walk(f"{start}step-1")] == [f"{start}step-1/model.bin"]
    assert everything(tree) == before


@pytest.mark.parametrize("name", WRITING)
def test_nothing_is_written_into_the_tree(name: str, tree: Path) -> None:
    """It may be somebody else's, or mounted so that the first write would be the last of a long work."""
    before, store = everything(tree), opened(tree, tree)
    with pytest.raises(StorePermanentError, match=r"only read: .*llm/step-1: `evidence` of lastgood\.toml"):
        WRITING[name](store, "llm/step-1")
    assert store.sweep("llm", before=datetime.now(UTC)) == ()
    assert everything(tree) == before


def test_a_publish_is_refused_before_it_claims(tree: Path) -> None:
    """A claim would fence whatever was sealed, for a job that can save nothing there."""
    with pytest.raises(StorePermanentError, match="only read"):
        opened(tree, tree).prepare(["llm/.lastgood/incarnations", "llm/.lastgood/staging"])
    assert list((tree.parents[1] / "evidence").iterdir()) == []


def test_evidence_in_both_places_is_refused(tree: Path) -> None:
    """Whichever half is not looked at may bar what the other one offers."""
    (tree / "llm" / ".lastgood" / "refusals").mkdir(parents=True)
    for key in ("llm/.lastgood/commits", "llm/.lastgood"):
        with pytest.raises(StorePermanentError, match="evidence in two places"):
            opened(tree, tree).names(key)


def test_evidence_that_comes_to_lie_in_the_tree_is_seen_by_who_runs_already(tree: Path) -> None:
    """A relay runs for weeks: what a callback barred in the tree meanwhile must not be offered, nor added to."""
    store = opened(tree, tree)
    store.prepare(["llm/.lastgood/refusals"])
    assert store.names("llm/.lastgood/refusals").files == ()
    (tree / "llm" / ".lastgood" / "refusals").mkdir(parents=True)
    for again in (
        lambda: store.names("llm/.lastgood/refusals"),
        lambda: tuple(store.walk("llm/.lastgood/records")),
        lambda: store.create("llm/.lastgood/refusals/a", b"x"),
    ):
        with pytest.raises(StorePermanentError, match="evidence in two places"):
            again()
    (tree / "llm" / ".lastgood").rename(tree.parent / "brought-together")
    assert store.names("llm/.lastgood/refusals").files == ()


def test_a_verdict_of_a_tree_that_went_away_meanwhile_is_not_kept(tree: Path) -> None:
    """A mount that drops in the middle of a reading leaves files missing, and a fail on record bars for good."""
    store = opened(tree, tree)
    store.prepare(["llm/.lastgood/records"])
    assert store.names("llm/.lastgood/records").files == ()
    (tree / "llm").rename(tree.parent / "away")
    for mounted in (False, True):
        if mounted:
            (tree / "llm").mkdir()
        for again in (
            lambda: store.create("llm/.lastgood/records/fail", b"x"),
            lambda: store.names("llm/.lastgood/records"),
            lambda: opened(tree, tree / "llm").names(".lastgood/records"),
        ):
            with pytest.raises(
                StorePermanentError, match=r"nothing lies there: .*/llm,|root is not a directory: .*/llm"
            ):
                again()


@pytest.mark.parametrize("is_left", [False, True], ids=["gone", "empty"])
def test_what_was_read_while_a_tree_went_away_is_not_told(tree: Path, is_left: bool) -> None:
    """A listing that a mount ends under is short, and what is hashed after it is missing: neither was deleted."""
    store = opened(tree, tree)
    store.prepare(["llm/.lastgood/records"])
    assert store.names("llm/.lastgood/records").files == ()
    (tree / "llm" / "step-1" / "optimizer.bin").write_bytes(b"moments")
    walking = store.walk("llm/step-1")
    next(walking)
    (tree / "llm").rename(tree.parent / "away")
    if is_left:
        (tree / "llm").mkdir()
    requests = [HashRequest(path="model.bin", algorithms=(Algorithm.BLAKE3,), size_bytes=7)]
    for again in (lambda: list(walking), lambda: list(store.hash("llm/step-1", requests))):
        with pytest.raises(StorePermanentError, match=r"nothing lies there: .*/llm,"):
            again()


def test_a_file_that_is_missing_from_a_tree_that_is_there_is_told(tree: Path) -> None:
    """It was deleted, and whoever asks must hear of it."""
    store = opened(tree, tree)
    store.prepare(["llm/.lastgood/records"])
    assert store.names("llm/.lastgood/records").files == ()
    requests = [HashRequest(path="gone.bin", algorithms=(Algorithm.BLAKE3,), size_bytes=7)]
    assert [found.trouble for found in store.hash("llm/step-1", requests)] == [Trouble.MISSING]


def test_a_tree_of_which_nothing_is_known_may_be_empty(tree: Path) -> None:
    """Nobody has sealed anything there so far, and nothing of what is not there can be barred."""
    assert opened(tree, tree).names("another/.lastgood/refusals").files == ()


def test_a_grade_is_found_again_where_it_was_kept(tree: Path) -> None:
    """It is of the root that is written to, so nothing of the tree is in it: others who use that root know none."""
    evidence = Graded(tree.parents[1] / "evidence")
    store = ApartStore(LocalStore(tree.parent / "not-mounted"), evidence, tree_root=str(tree))
    found = graded(store.probe(), now=datetime(2026, 1, 1, tzinfo=UTC))
    assert found.grade is Grade.REFUSED
    assert store.keep_grade(found) == "kept"
    assert store.grade() == evidence.grade() == StoreGrade(grade=Grade.FULL)


def test_evidence_that_is_not_mounted_is_no_empty_family(tree: Path) -> None:
    """A bar that cannot be read must not look like one that was never set."""
    (tree.parents[1] / "evidence").rmdir()
    with pytest.raises(StorePermanentError, match=r"root is not a directory: .*evidence"):
        opened(tree, tree).names("llm/.lastgood/refusals")


def test_another_tree_keeps_its_evidence_beside_it(tree: Path) -> None:
    """The key stands for one root, and a longer one that says only how it is verified does not undo it."""
    stores = {str(tree): StoreSettings(evidence="/evidence"), str(tree / "llm"): StoreSettings(concurrency=2)}
    assert access_to(str(tree.parent / "team-b"), stores).evidence is None
    access = access_to(str(tree / "llm"), stores)
    assert access.evidence is not None
    assert access.evidence.root == "/evidence"
    assert access.settings == stores[str(tree / "llm")]


def test_a_tree_that_is_named_through_a_link_is_refused(tree: Path) -> None:
    """By that path what is barred elsewhere would be offered, and a seal written into the tree."""
    link = tree.parent / "link"
    link.symlink_to(tree)
    stores = {str(tree): StoreSettings(evidence=str(tree.parents[1] / "evidence"))}
    with pytest.raises(UsageError, match=r"named through a link: .*link/llm") as caught:
        access_to(str(link / "llm"), stores)
    assert caught.value.hint == "name it by that path"


def test_a_link_from_one_place_of_a_tree_to_another_is_refused(tree: Path) -> None:
    """Evidence lies by the path: what is barred by one name of a directory would be offered by the other."""
    link = tree / "newest"
    link.symlink_to(tree / "llm")
    (tree / "away").symlink_to(tree.parents[1])
    stores = {str(tree): StoreSettings(evidence=str(tree.parents[1] / "evidence"))}
    with pytest.raises(UsageError, match=rf"named through a link: {link}/8: it is {tree}/llm/8, whose evidence"):
        access_to(str(link / "8"), stores)
    elsewhere = access_to(str(tree / "away"), stores)
    assert elsewhere.evidence is not None, "what lies on another disk under a name of the tree is known by that name"


def test_a_link_that_the_file_itself_names_is_no_other_tree(tree: Path) -> None:
    """Whoever knows a tree by its link writes that down, and asks by it."""
    link = tree.parent / "link"
    link.symlink_to(tree)
    access = access_to(str(link / "llm"), {str(link): StoreSettings(evidence="/evidence")})
    assert access.evidence is not None
    assert access.evidence.tree == str(link)


def test_a_tree_that_is_known_by_its_link_is_refused_without_it(tree: Path) -> None:
    """The refusal says the name that is known: the one that was given is the tree's own already."""
    link = tree.parent / "link"
    link.symlink_to(tree)
    with pytest.raises(
        UsageError, match=rf"named through a link: {tree}/llm: it is {link}/llm, whose evidence"
    ) as caught:
        access_to(str(tree / "llm"), {str(link): StoreSettings(evidence="/evidence")})
    assert caught.value.hint == "name it by that path"


def test_two_slashes_at_the_beginning_are_one(tree: Path) -> None:
    """POSIX leaves them to the system, Linux takes them for one, and no root would be found by their spelling."""
    evidence = str(tree.parents[1] / "evidence")
    access = access_to(f"/{tree}/llm", {str(tree): StoreSettings(evidence=evidence)})
    assert access.evidence is not None
    assert access.open(f"/{tree}").uri == str(tree)
