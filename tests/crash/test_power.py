"""Power cuts: every legal loss and reordering of unflushed operations, at every moment of every act's history.

And the proof that the proof can fail: leaving out any one flush, or swapping two ordered steps, must be found.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.crash.filesystems import Operation, RecordingFileSystem
from tests.crash.power import PowerModel, materialize
from tests.crash.scenarios import ACTS, KEYS, SECOND, Act, build_base, copy_base, open_family, problems

# Thousands of small trees: in memory where the machine has such a place.
FAST = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
NAMED = {act.name: act for act in ACTS}


@functools.cache
def base() -> Path:
    return build_base(Path(tempfile.mkdtemp(prefix="lastgood-power-", dir=FAST)) / "base")


@pytest.fixture(scope="module", autouse=True)
def _cleaned() -> Iterator[None]:
    yield
    shutil.rmtree(base().parent)
    base.cache_clear()


def record(act: Act, root: Path, *, without: str = "") -> Sequence[Operation]:
    """The history of an act, with one flush left out if it is named."""
    files = RecordingFileSystem(without=frozenset({without}))
    act.perform(open_family(copy_base(base(), root, act), files), files)
    # The model starts from the tree as it was before the act, under the paths of the history.
    shutil.rmtree(root)
    copy_base(base(), root, act)
    return files.history


def survey_cuts(act: Act, root: Path, history: Sequence[Operation]) -> Iterator[str]:
    """Everything that is wrong in any tree that a power cut at any moment of the history may leave."""
    model = PowerModel(root)
    seen: set[tuple[bool, int]] = set()
    for index, operation in enumerate([None, *history]):
        if operation is not None:
            model.apply(operation)
        acknowledged = index == len(history)
        for tree in model.cuts():
            key = (acknowledged, hash(tuple(sorted(tree.items()))))
            if key not in seen:
                seen.add(key)
                with tempfile.TemporaryDirectory(dir=FAST) as scratch:
                    materialize(tree, Path(scratch))
                    moment = "after the act" if acknowledged else f"before call {index + 1} of {len(history)}"
                    found = problems(Path(scratch), act, acknowledged=acknowledged)
                    yield from (f"{moment}: {problem}" for problem in found)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_no_power_cut_offers_a_torn_generation_or_loses_an_acknowledged_one(act: Act, tmp_path: Path) -> None:
    """Whatever the medium kept of what was not flushed, the answer is the former one or the whole of the new one."""
    root = tmp_path / "root"
    history = record(act, root)
    assert any(operation.name.startswith("sync") for operation in history), "nothing was flushed"
    assert list(survey_cuts(act, root, history)) == []


# Each flush that the store makes, by the function that makes it, and an act that is lost without it.
FLUSHES = (
    ("sync_file", "persist", "publish"),
    ("sync_directory", "persist", "publish"),
    ("sync_directory", "install", "publish"),
    ("sync_file", "_write_temporary", "publish"),
    ("sync_directory", "create", "publish"),
    ("sync_directory", "create", "rollback"),
    ("sync_directory", "create", "quarantine"),
    ("sync_directory", "replace", "pointer-move"),
    ("sync_directory", "_make_parents", "fail-recorded"),
    ("sync_directory", "prepare", "first-start"),
    ("sync_directory", "discard", "sweep"),
)


@pytest.mark.parametrize(("flush", "function", "act"), FLUSHES)
def test_leaving_out_any_flush_is_found(flush: str, function: str, act: str, tmp_path: Path) -> None:
    """Every flush is there for a reason: without it, some power cut breaks what was promised."""
    history = record(NAMED[act], tmp_path / "whole")
    sites = {f"{o.name}@{o.site}" for o in history if o.name == flush and o.site.split(":")[0] == function}
    assert len(sites) == 1, f"expected one call of {flush} in {function}, found {sites}"
    root = tmp_path / "without"
    assert next(survey_cuts(NAMED[act], root, record(NAMED[act], root, without=sites.pop())), None)


def test_every_flush_of_the_store_is_on_the_list(tmp_path: Path) -> None:
    """A flush that is added must be shown to be needed; one that is not needed costs every save."""
    made = {
        (operation.name, operation.site.split(":")[0])
        for act in ACTS
        for operation in record(act, tmp_path / act.name)
        if operation.name.startswith("sync")
    }
    assert made == {(flush, function) for flush, function, _ in FLUSHES}


def step_of(operation: Operation) -> str:
    """Which step of the protocol an operation belongs to."""
    target = str(operation.paths[-1])
    if operation.name == "rename" and target.endswith("30") and "staging" not in target:
        return "install"
    for place, step in (
        ("/payload", "artifacts"),
        ("/receipts", "receipt"),
        ("/manifests", "manifest"),
        ("/commits", "commit"),
        ("/incarnations", "active"),
        ("/refusals", "refusal"),
        ("/records", "record"),
    ):
        if place in target:
            return step
    return "install" if target.endswith(KEYS.family) else "cache"


@pytest.mark.parametrize(
    ("act", "steps"),
    [
        ("publish", ["receipt", "manifest", "install", "commit", "active"]),
        ("fail-recorded", ["refusal", "record", "cache"]),
        ("quarantine", ["refusal", "cache"]),
    ],
)
def test_names_appear_in_the_order_of_the_steps(act: str, steps: list[str], tmp_path: Path) -> None:
    """Also where a swap would harm several ranks only, and no power cut of this one would show it."""
    history = record(NAMED[act], tmp_path / "root")
    named = [step_of(operation) for operation in history if operation.name in ("link", "rename")]
    assert [step for step, _ in itertools.groupby(named)] == steps
    flushes = [index for index, o in enumerate(history) if step_of(o) == "artifacts" and o.name.startswith("sync")]
    first = next(index for index, operation in enumerate(history) if operation.name == "link")
    assert all(index < first for index in flushes)
    assert bool(flushes) == (act == "publish")


def swapped(history: Sequence[Operation], first: str, second: str) -> list[Operation]:
    """The history in which everything of `second` happens before anything of `first`."""
    assert {first, second} <= {step_of(operation) for operation in history}
    begin = next(index for index, operation in enumerate(history) if step_of(operation) == first)
    moved = [operation for operation in history if step_of(operation) == second]
    rest = [operation for operation in history if step_of(operation) != second]
    return [*rest[:begin], *moved, *rest[begin:]]


@pytest.mark.parametrize(
    ("act", "first", "second"),
    [
        ("publish", "artifacts", "commit"),
        ("publish", "install", "commit"),
        ("publish", "manifest", "commit"),
        ("publish", "commit", "active"),
        ("fail-recorded", "refusal", "record"),
    ],
)
def test_swapping_ordered_steps_is_found(act: str, first: str, second: str, tmp_path: Path) -> None:
    """Each step is durable before the next begins; the other way round, some power cut breaks what was promised."""
    root = tmp_path / "root"
    history = swapped(record(NAMED[act], root), first, second)
    assert next(survey_cuts(NAMED[act], root, history), None)


@pytest.mark.parametrize(("first", "second"), [("sync_file", "link"), ("link", "sync_directory")])
def test_swapping_the_calls_of_one_document_is_found(first: str, second: str, tmp_path: Path) -> None:
    """A document is flushed before it gets its name, and gets its name before the name is flushed."""
    root = tmp_path / "root"
    history = list(record(NAMED["publish"], root))
    places = [index for index, operation in enumerate(history) if step_of(operation) == "commit"]
    one, other = (next(i for i in places if history[i].name == name) for name in (first, second))
    history.insert(one, history.pop(other))
    if second == "link":
        # The name is flushed before the bytes are, too.
        flush = next(i for i in places if history[i].name == "sync_directory")
        history.insert(one + 1, history.pop(flush))
    assert next(survey_cuts(NAMED["publish"], root, history), None)


def test_the_model_finds_a_pointer_written_in_place(tmp_path: Path) -> None:
    """The oldest mistake of all: rewriting a small file where it lies leaves it empty after a cut."""
    root = copy_base(base(), tmp_path / "root", NAMED["pointer-move"])
    pointer = root / KEYS.last_good
    history = [
        Operation("write_new", (pointer,), b'{"generation":null,"commit":null,"revision":1}\n', "test"),
        Operation("sync_directory", (pointer.parent,), b"", "test"),
    ]
    found = list(survey_cuts(NAMED["pointer-move"], root, history))
    assert any("no answer" in problem for problem in found)
    assert SECOND is NAMED["pointer-move"].before
