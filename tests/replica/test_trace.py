from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from lastgood.documents import canonical_bytes
from lastgood.errors import FormatError, StorePermanentError, UsageError
from lastgood.manifest import RankExpectations, SampleIds
from lastgood.replica import trace
from lastgood.replica.trace import (
    TRACE_VERSION,
    Discovered,
    Loaded,
    Mark,
    NotFinite,
    Phase,
    Refused,
    Saved,
    Started,
    Step,
    Stopped,
    StopReason,
    Timeline,
    TraceReader,
    TraceRecord,
    TraceWriter,
    host_name,
    measured,
    number,
    trace_directory,
)
from lastgood.verdict import Finding, Reason


def started() -> Started:
    return Started(
        at=Mark.now(),
        spans=(),
        version=TRACE_VERSION,
        incarnation=3,
        rank=1,
        world_size=2,
        pid=os.getpid(),
        host=host_name(),
        lag_steps=0,
        settings={"device": "cpu"},
    )


def step(number_: int, loss: float = 0.5) -> Step:
    return Step(
        at=Mark.now(),
        spans=(),
        step=number_,
        loss=measured(loss),
        grad_norm=None,
        learning_rates={"decay": 1e-3},
        sample_ids=((1, 2), (3, "a\nb")),
        draws={"python": (0.1, 7)},
        optimizer_steps={"optimizer": number_},
        scalars={"scale": 65536.0, "skipped": 0},
        digests={"model": "blake3:00"},
    )


def every_kind() -> list[TraceRecord]:
    finding = Finding(reason=Reason.KEY_MISSING, message="key missing: w", offender="model.w")
    rank = RankExpectations(rank=1, sample_ids=SampleIds(ids=(1, 2)), rng_draws={"python": (0.5,)}, tensor_digests={})
    return [
        started(),
        Discovered(at=Mark.now(), spans=(), generation=None, step=None),
        Loaded(
            at=Mark.now(),
            spans=(),
            generation="00000002-0000000000000004",
            step=4,
            keys={"model": 12},
            expectations=rank,
            learning_rates={"decay": 1e-3},
            optimizer_steps={"optimizer": 4},
            scalars={"scale": 65536.0},
            findings=(finding,),
        ),
        step(5),
        Saved(at=Mark.now(), spans=(), generation="00000003-0000000000000005", step=5),
        Stopped(at=Mark.now(), spans=(), reason=StopReason.FENCED, step=5, message="fenced"),
        Refused(at=Mark.now(), spans=(), findings=(finding,), message="refused"),
    ]


def test_every_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """A supervisor judges by the records alone, so reading must give exactly what the rank meant."""
    records = every_kind()
    with TraceWriter(tmp_path, 3, 1) as writer:
        for record in records:
            writer.write(record)
    reader = TraceReader(tmp_path)
    assert tuple(reader.records(3, 1)) == tuple(records)
    assert (reader.incarnations(), reader.ranks(3)) == ((3,), (1,))
    assert list(reader.steps(3, 1)) == [5]
    assert tuple(reader.records(3, 0)) == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1, 2.0**-149, 1e300])
def test_loss_keeps_its_value_even_when_it_is_no_number(tmp_path: Path, value: float) -> None:
    """JSON has no NaN; a lost one would read as a healthy step, a rounded one as a divergence."""
    with TraceWriter(tmp_path, 1, 0) as writer:
        writer.write(step(1, value))
    back = TraceReader(tmp_path).steps(1, 0)[1].loss
    assert repr(number(back)) == repr(value)
    assert isinstance(back, NotFinite) != math.isfinite(value)


def test_segments_roll_by_size_and_read_as_one(tmp_path: Path) -> None:
    """A run of weeks must not grow one file without bound."""
    records = [step(k) for k in range(40)]
    with TraceWriter(tmp_path, 1, 0, segment_bytes=1000) as writer:
        for record in records:
            writer.write(record)
    segments = sorted(trace_directory(tmp_path, 1, 0).iterdir())
    assert len(segments) > 5
    assert max(path.stat().st_size for path in segments) <= 1000
    assert tuple(TraceReader(tmp_path).records(1, 0)) == tuple(records)


def test_one_look_reads_a_bounded_part_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of weeks, or of a replica gone wild, must neither fill the supervisor's memory nor lose a record."""
    records = tuple(step(k) for k in range(40))
    with TraceWriter(tmp_path, 1, 0, segment_bytes=1000) as writer:
        for record in records:
            writer.write(record)
    monkeypatch.setattr(trace, "MAXIMUM_POLL_BYTES", 1500)
    follower = TraceReader(tmp_path).follow(1, 0)
    looks = list(iter(follower.poll, ()))
    assert tuple(record for look in looks for record in look) == records
    assert max(sum(len(canonical_bytes(record)) for record in look) for look in looks) <= 1500
    assert tuple(TraceReader(tmp_path).records(1, 0)) == records


def test_follower_returns_each_record_once_while_it_is_written(tmp_path: Path) -> None:
    """A drill waits for a step of a living run; what it has seen must not come again, nor half of a line."""
    follower = TraceReader(tmp_path).follow(1, 0)
    assert follower.poll() == ()
    with TraceWriter(tmp_path, 1, 0, segment_bytes=1500) as writer:
        for k in range(30):
            record = step(k)
            writer.write(record)
            assert follower.poll() == (record,)
    path = sorted(trace_directory(tmp_path, 1, 0).iterdir())[-1]
    line = path.read_bytes().splitlines(keepends=True)[-1]
    with path.open("ab") as file:
        file.write(line[:9])
        file.flush()
        assert follower.poll() == ()
        file.write(line[9:])
    assert [record.step for record in follower.poll() if isinstance(record, Step)] == [29]


def cut(data: bytes) -> bytes:
    return data[:-7]


def zeros_after_power_loss(data: bytes) -> bytes:
    return data + bytes(4096)


def half_a_character(data: bytes) -> bytes:
    return data + b'{"kind":"step","x":"\xc3'


@pytest.mark.parametrize("tear", [cut, zeros_after_power_loss, half_a_character])
def test_torn_last_line_is_dropped(tmp_path: Path, tear: Callable[[bytes], bytes]) -> None:
    """A crash tears the last line at worst; what came before it is evidence still."""
    with TraceWriter(tmp_path, 1, 0) as writer:
        for k in range(3):
            writer.write(step(k))
    path = trace_directory(tmp_path, 1, 0) / "00000000.jsonl"
    path.write_bytes(tear(path.read_bytes()))
    assert list(TraceReader(tmp_path).steps(1, 0)) in ([0, 1], [0, 1, 2])


def damaged(damage: Callable[[bytes], bytes]) -> Callable[[Path], str]:
    def apply(directory: Path) -> str:
        path = directory / "00000000.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:1], damage(lines[1]), *lines[2:]]))
        return f"{path}: line 2"

    return apply


def torn_before_the_end(directory: Path) -> str:
    path = directory / "00000000.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    (directory / "00000001.jsonl").touch()
    return str(path)


def linked_elsewhere(directory: Path) -> str:
    path = directory / "00000000.jsonl"
    path.rename(directory / "elsewhere")
    path.symlink_to("elsewhere")
    return str(path)


def pipe(directory: Path) -> str:
    path = directory / "00000000.jsonl"
    path.unlink()
    os.mkfifo(path)
    return str(path)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(damaged(lambda line: line.replace(b'"step":1', b'"step":-1', 1)), id="step_below_zero"),
        pytest.param(damaged(lambda line: line.replace(b'"loss"', b'"lost"')), id="unknown_field"),
        pytest.param(damaged(lambda line: line.replace(b'"kind":"step"', b'"kind":"leap"')), id="unknown_kind"),
        pytest.param(damaged(lambda line: b'{"a":1,"a":2}\n'), id="duplicate_key"),
        pytest.param(damaged(lambda line: line.replace(b"0.5", b"NaN")), id="bare_nan"),
        pytest.param(damaged(lambda line: b"\n"), id="empty_line"),
        pytest.param(damaged(lambda line: line[:50] + b"\n"), id="line_cut_short"),
        torn_before_the_end,
        linked_elsewhere,
        pipe,
    ],
)
def test_unlawful_whole_line_is_refused_with_its_place(tmp_path: Path, damage: Callable[[Path], str]) -> None:
    """Only a torn tail is a crash's doing; anything else was changed, and evidence that was changed is none."""
    with TraceWriter(tmp_path, 1, 0) as writer:
        for k in range(3):
            writer.write(step(k))
    place = damage(trace_directory(tmp_path, 1, 0))
    with pytest.raises(FormatError) as caught:
        tuple(TraceReader(tmp_path).records(1, 0))
    assert place in caught.value.message


def test_second_writer_of_one_rank_is_refused(tmp_path: Path) -> None:
    """Two processes that believe to be one rank would interleave two lives in one file."""
    with TraceWriter(tmp_path, 1, 0), pytest.raises(UsageError, match="trace exists already"):
        TraceWriter(tmp_path, 1, 0)


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The loop must be able to say which path was at fault."""
    (tmp_path / ".lastgood").touch()
    with pytest.raises(StorePermanentError, match=r"\.lastgood/traces"):
        TraceWriter(tmp_path, 1, 0)


def test_value_on_its_way_is_fetched_one_record_later(tmp_path: Path) -> None:
    """Fetching a loss at once would wait for the device; one step later it has long arrived."""
    fetched = []

    def make() -> Step:
        fetched.append(1)
        return step(1)

    with TraceWriter(tmp_path, 1, 0) as writer:
        writer.write_later(make)
        assert (fetched, tuple(TraceReader(tmp_path).records(1, 0))) == ([], ())
        writer.write(step(2))
        assert list(TraceReader(tmp_path).steps(1, 0)) == [1, 2]
        writer.write_later(lambda: step(3))
    assert list(TraceReader(tmp_path).steps(1, 0)) == [1, 2, 3]


def test_timeline_hands_out_each_span_once() -> None:
    """A phase reported by two records would be subtracted twice from a recovery time."""
    timeline = Timeline()
    begin = time.monotonic_ns()
    with timeline.phase(Phase.IMPORT, begin_ns=begin):
        time.sleep(0.002)
    with timeline.phase(Phase.BUILD):
        pass
    first, second = timeline.take()
    assert (first.phase, first.begin_ns) == (Phase.IMPORT, begin)
    assert first.seconds >= 0.002
    assert first.end_ns <= second.begin_ns
    assert timeline.take() == ()


def test_launch_mark_lies_between_start_and_first_line() -> None:
    """The phase before our first line is measured from the kernel's own note, to its tick of 10 ms."""
    before = time.monotonic_ns()
    program = "import time; from lastgood.replica.trace import process_started_ns as p; print(p(), time.monotonic_ns())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    begun, now = map(int, done.stdout.split())
    assert before - 20_000_000 <= begun < now


def test_kill_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """The last step of a killed trace counts as recovery point, so a line must be out of the process once written."""
    program = (
        "import sys; from pathlib import Path; from tests.replica.test_trace import step\n"
        "from lastgood.replica.trace import TraceWriter\n"
        "writer, k = TraceWriter(Path(sys.argv[1]), 1, 0), 0\n"
        "while True:\n    writer.write(step(k)); print(k, flush=True); k += 1\n"
    )
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert child.stdout is not None
    with child:
        for _ in range(50):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        said = [int(line) for line in child.stdout.read().splitlines() if line.strip()]
    assert child.returncode == -signal.SIGKILL
    last = max(TraceReader(tmp_path).steps(1, 0))
    assert last >= (said[-1] if said else 49)


@pytest.mark.parametrize(("host", "last"), [("here", "0" * 32), ("there", "f" * 32)])
def test_the_last_life_is_the_one_that_began_last(tmp_path: Path, host: str, last: str) -> None:
    """Nonces sort by chance, and of a replica that was started twice the verdict must not rest on either. On one
    machine a wall clock that was set back misleads nobody; between machines there is no other.
    """
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    first, second = Mark(monotonic_ns=1000, wall=noon), Mark(monotonic_ns=2000, wall=noon - timedelta(hours=1))
    for life, mark, machine in (("f" * 32, first, "here"), ("0" * 32, second, host)):
        with TraceWriter(tmp_path, life, 1) as writer:
            writer.write(replace(started(), at=mark, host=machine))
    (trace_directory(tmp_path, "e" * 32, 0)).mkdir(parents=True)  # killed before its first record
    assert TraceReader(tmp_path).last_life() == last


def test_of_lives_that_claimed_a_number_the_last_is_the_highest(tmp_path: Path) -> None:
    """What a claim has ordered no clock orders anew: those of two machines need not agree."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for life, wall, host in ((1, noon, "here"), (2, noon - timedelta(hours=1), "there")):
        with TraceWriter(tmp_path, life, 0) as writer:
            writer.write(replace(started(), at=Mark(monotonic_ns=1000, wall=wall), host=host))
    assert TraceReader(tmp_path).last_life() == 2


def test_a_family_without_a_trace_has_no_last_life(tmp_path: Path) -> None:
    """A replica that was killed before its first record has begun, and nobody knows when."""
    assert TraceReader(tmp_path).last_life() is None
    for life in ("a" * 32, "b" * 32):
        trace_directory(tmp_path, life, 0).mkdir(parents=True)
    assert TraceReader(tmp_path).last_life() == "b" * 32
