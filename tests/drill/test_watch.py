from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lastgood.drill.watch import Departures, Watch
from lastgood.errors import FormatError
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.location import Location
from lastgood.replica import keeper, trace
from lastgood.replica.trace import (
    TRACE_VERSION,
    Discovered,
    Mark,
    Refused,
    Saved,
    Started,
    Step,
    TraceWriter,
    trace_directory,
)
from lastgood.stores import LocalStore

KEYS = FamilyKeys("run")


@pytest.fixture
def family(tmp_path: Path) -> Location:
    return Location(store=LocalStore(tmp_path), keys=KEYS, generation=None)


def begin(tmp_path: Path, incarnation: int, rank: int, world_size: int = 2) -> TraceWriter:
    writer = TraceWriter(tmp_path / "run", incarnation, rank)
    writer.write(
        Started(
            at=Mark.now(),
            spans=(),
            version=TRACE_VERSION,
            incarnation=incarnation,
            rank=rank,
            world_size=world_size,
            pid=1,
            host="here",
            lag_steps=0,
            settings={},
        )
    )
    return writer


def step(number: int) -> Step:
    return Step(at=Mark.now(), spans=(), step=number, loss=1.0, grad_norm=None, learning_rates={})


def test_lives_are_followed_as_they_grow(tmp_path: Path, family: Location) -> None:
    """A drill decides on what ranks report while they run; each look must hold all of it, and only whole lines."""
    watch = Watch(family)
    assert watch.lives() == ()
    with begin(tmp_path, 1, 0) as one:
        assert not watch.life(1).is_complete
        with begin(tmp_path, 1, 1) as other:
            assert watch.life(1).is_complete
            one.write(Discovered(at=Mark.now(), spans=(), generation="00000001-0000000000000005", step=5))
            assert (watch.life(1).last_step, watch.life(1).first_saved_step) == (5, None)
            other.write(step(6))
            one.write(step(6))
            one.write(step(7))
            one.write(Saved(at=Mark.now(), spans=(), generation="00000001-0000000000000007", step=7))
            assert (watch.life(1).last_step, watch.life(1).first_saved_step) == (7, 7)
            with (trace_directory(tmp_path / "run", 1, 0) / "00000000.jsonl").open("ab") as torn:
                torn.write(b'{"kind":"st')
            assert watch.life(1).last_step == 7
    with begin(tmp_path, 2, 0, world_size=1) as later:
        assert [life.incarnation for life in watch.lives()] == [1, 2]
        assert watch.life(2).last_words is None
        later.write(Refused(at=Mark.now(), spans=(), findings=(), message="shape mismatch"))
        assert watch.life(2).last_words == "rank 0 refused: shape mismatch"


def test_a_settled_life_is_read_to_its_end(tmp_path: Path, family: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look reads a bounded part, but what a dead job did last decides how many steps its recovery lost."""
    monkeypatch.setattr(trace, "MAXIMUM_POLL_BYTES", 1000)
    with begin(tmp_path, 1, 0, world_size=1) as writer:
        for number in range(1, 41):
            writer.write(step(number))
    watch = Watch(family)
    looks = [watch.life(1).last_step for _ in range(2)]
    assert 0 < looks[0] < looks[1] < 40
    assert watch.settled(1).last_step == 40
    assert sorted(watch.settled(1).ranks[0].steps) == list(range(1, 41))


def test_a_trace_that_is_not_lawful_is_named(tmp_path: Path, family: Location) -> None:
    """A replica that writes nonsense must not be judged by what happened to parse."""
    with begin(tmp_path, 1, 0):
        with (trace_directory(tmp_path / "run", 1, 0) / "00000000.jsonl").open("ab") as nonsense:
            nonsense.write(b"{}\n")
        with pytest.raises(FormatError, match="line 2"):
            Watch(family).lives()


@pytest.mark.parametrize(("world_size", "last_word"), [(1, "commits/{}"), (2, "staging/{}~01234567/outcome.json")])
def test_a_publish_goes_on_until_its_last_word(
    tmp_path: Path, family: Location, world_size: int, last_word: str
) -> None:
    """Inside a publish means: begun, and nobody was told how it ended; other lives and older steps do not count."""
    generation, ours = GenerationId(1, 20), tmp_path / "run" / ".lastgood"
    writers = [begin(tmp_path, 1, rank, world_size) for rank in range(world_size)]
    watch = Watch(family)
    assert watch.publishing(1) is None
    (ours / "staging" / f"{GenerationId(2, 90)}~01234567").mkdir(parents=True)
    (ours / "staging" / "not-a-staging").mkdir()
    assert watch.publishing(1) is None
    (ours / "staging" / f"{GenerationId(1, 10)}~01234567").mkdir()
    (ours / "staging" / f"{generation}~01234567").mkdir()
    assert watch.publishing(1) == generation
    done = ours / last_word.format(generation)
    done.parent.mkdir(exist_ok=True)
    done.write_bytes(b"")
    assert watch.publishing(1) is None
    for writer in writers:
        writer.close()


def test_departures_are_dated() -> None:
    """The end of the last survivor ends a phase, so it must be seen when it happens, and not before."""
    with subprocess.Popen(["sleep", "1000"]) as one, subprocess.Popen(["sleep", "1000"]) as other:
        mine = {process.pid: process for process in keeper.descendants(os.getpid())}
        with Departures([mine[one.pid], mine[other.pid]]) as departures:
            departures.wait(0.01)
            assert (len(departures.left), departures.last_ns) == (2, 0)
            killed_ns = time.monotonic_ns()
            one.send_signal(signal.SIGKILL)
            departures.wait(20.0)
            assert departures.left == (mine[other.pid],)
            assert killed_ns < departures.last_ns < time.monotonic_ns()
            first_ns = departures.last_ns
            other.send_signal(signal.SIGKILL)
            departures.wait(20.0)
            assert departures.left == ()
            assert departures.last_ns > first_ns
    with Departures([mine[one.pid]]) as late:
        assert late.left == ()
        assert late.last_ns > 0
