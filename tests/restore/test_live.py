"""Finding the live run's own steps: the right ones, quickly, and never at the checkpoint's expense."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lastgood.identity import FamilyKeys
from lastgood.location import Location
from lastgood.replica import trace
from lastgood.replica.trace import TraceReader, TraceWriter, trace_directory
from lastgood.restore.evidence import Control, Request
from lastgood.restore.live import read_control
from lastgood.stores import LocalStore
from lastgood.testing.restore_traces import healthy_restore
from lastgood.verdict import Rung

TRACES = healthy_restore()
MANIFEST = TRACES.manifest


def write(family: Path, incarnation: int, steps: range, *, segment_bytes: int = trace.MAXIMUM_SEGMENT_BYTES) -> None:
    """A trace of both ranks with these steps."""
    for rank in range(2):
        one = TRACES.control[rank][48_001]
        with TraceWriter(family, incarnation, rank, segment_bytes=segment_bytes) as writer:
            writer.write(TRACES.ranks[rank][0])
            for number in steps:
                writer.write(msgspec.structs.replace(one, step=number))


def located(root: Path) -> Location:
    return Location(store=LocalStore(root), keys=FamilyKeys("llm-7b"), generation=MANIFEST.id)


REQUEST = Request(manifest=MANIFEST, steps=4, rung=Rung.FULL, world_size=2)


def test_the_life_that_made_the_generation_is_the_control(tmp_path: Path) -> None:
    """A later life resumed from somewhere itself, so only the one that went on without a break is a control."""
    write(tmp_path / "llm-7b", 3, range(47_990, 48_003))
    write(tmp_path / "llm-7b", 4, range(48_001, 48_010))
    control = read_control(located(tmp_path), REQUEST)
    assert control.trouble is None
    assert {rank: sorted(steps) for rank, steps in control.steps.items()} == {
        rank: [48_001, 48_002] for rank in range(2)
    }


def test_a_family_without_a_trace_has_no_control(tmp_path: Path) -> None:
    """Training that writes no trace is restored all the same."""
    assert read_control(located(tmp_path), REQUEST) == Control()


def test_a_damaged_live_trace_takes_the_control_away_and_says_so(tmp_path: Path) -> None:
    """What a trace says of production is evidence; a bad line in it is no fault of the checkpoint."""
    write(tmp_path / "llm-7b", 3, range(47_990, 48_006))
    segment = trace_directory(tmp_path / "llm-7b", 3, 0) / "00000000.jsonl"
    segment.write_bytes(b"{}\n" + segment.read_bytes())
    control = read_control(located(tmp_path), REQUEST)
    assert control.steps == {}
    assert control.trouble is not None
    assert "line 1" in control.trouble


@pytest.mark.parametrize("first", [1, 2, 37, 60, 99, 100])
def test_steps_between_are_those_of_the_whole_trace(tmp_path: Path, first: int) -> None:
    """Wherever segments were rolled, halving must find exactly what reading everything finds."""
    write(tmp_path, 3, range(1, 101), segment_bytes=4096)
    reader = TraceReader(tmp_path)
    everything = reader.steps(3, 1)
    expected = {number: step for number, step in everything.items() if first <= number <= first + 3}
    assert reader.steps_between(3, 1, first, first + 3) == expected
    assert len(list(trace_directory(tmp_path, 3, 1).iterdir())) > 5


def test_a_long_trace_costs_its_wanted_segments_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a year leaves gigabytes of trace; a restore needs four lines of each rank's."""
    write(tmp_path, 3, range(1, 401), segment_bytes=4096)
    segments = len(list(trace_directory(tmp_path, 3, 0).iterdir()))
    read: list[Path] = []
    plain = trace._read_from

    def counting(path: Path, offset_bytes: int, most_bytes: int | None = None) -> bytes:
        read.append(path)
        return plain(path, offset_bytes, most_bytes)

    monkeypatch.setattr(trace, "_read_from", counting)
    assert len(TraceReader(tmp_path).steps_between(3, 0, 200, 203)) == 4
    assert len(read) < 12 < segments


def test_no_step_is_taken_for_another(tmp_path: Path) -> None:
    """Steps before and after what is compared must not stand in for it."""
    write(tmp_path / "llm-7b", 3, range(1, 10))
    assert read_control(located(tmp_path), REQUEST).steps == {}
    early = msgspec.structs.replace(MANIFEST, step=3, generation="00000003-0000000000000003")
    found = read_control(located(tmp_path), replace(REQUEST, manifest=early)).steps
    assert {rank: sorted(steps) for rank, steps in found.items()} == {rank: [4, 5, 6, 7] for rank in range(2)}
