"""Streams of records: durable offsets, shared by global batches, continued by any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lastgood.errors import UsageError
from lastgood.state import LineFiles, RankIdentity, RecordCursor
from lastgood.state.data import data_part, position_of


@pytest.fixture
def source(tmp_path: Path) -> LineFiles:
    """29 lines of different lengths in two files."""
    lines = [f"{'x' * (number % 5)}{number}\n" for number in range(29)]
    (tmp_path / "a.txt").write_text("".join(lines[:17]))
    (tmp_path / "b.txt").write_text("".join(lines[17:]))
    return LineFiles([tmp_path / "a.txt", tmp_path / "b.txt"])


def cursor(source: LineFiles, rank: int = 0, world_size: int = 1, microbatches: int = 2) -> RecordCursor:
    return RecordCursor(
        source, global_batch=8, identity=RankIdentity(rank=rank, world_size=world_size), microbatches=microbatches
    )


def values(batches: list[list[Any]]) -> list[bytes]:
    return [record.value for batch in batches for record in batch]


def test_every_offset_leads_to_its_record(source: LineFiles) -> None:
    """An offset is a durable name: reading from it must begin with that record, across files."""
    records = list(source.read(0))
    assert len(records) == 29
    for number, record in enumerate(records):
        assert next(source.read(int(record.id))).value == record.value
        if number + 1 < len(records):
            assert record.next_offset == records[number + 1].id


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_each_global_batch(source: LineFiles, world_size: int) -> None:
    """Together the ranks read each record of a whole batch once, and the tail ends the epoch."""
    parts = [values(list(cursor(source, rank, world_size, 1).follow())) for rank in range(world_size)]
    together = [
        value
        for start in range(0, len(parts[0]), 8 // world_size)
        for part in parts
        for value in part[start : start + 8 // world_size]
    ]
    assert together == [record.value for record in source.read(0)][:24]


def test_another_number_of_ranks_continues_at_the_same_record(source: LineFiles) -> None:
    """The position is global, so the rest of the epoch is the same multiset of records."""
    first = cursor(source)
    batches = first.follow()
    seen = values([next(batches), next(batches)])
    for rank in (0, 1):
        second = cursor(source, rank, 2)
        second.restore(first.position())
        seen.extend(values(list(second.follow())))
    assert sorted(seen) == sorted(record.value for record in list(source.read(0))[:24])


def test_the_last_batch_ends_the_epoch(source: LineFiles) -> None:
    """Saved exactly at the end, the run must go on with the next epoch, not with an empty one."""
    stream = cursor(source)
    assert len(list(stream.follow())) == 6
    assert (stream.epoch, stream.offset, stream.consumed) == (1, 0, 0)
    assert len(list(stream.follow())) == 6


def test_a_position_between_microbatches_is_not_saved(source: LineFiles) -> None:
    """Half a step's records are gone and their gradients are nowhere."""
    stream = cursor(source)
    next(batches := stream.follow())
    with pytest.raises(UsageError, match="inside a global batch"):
        stream.position()
    next(batches)
    assert stream.position()["consumed"] == 8


def test_a_peek_moves_nothing(source: LineFiles) -> None:
    """The ids said are those that come."""
    stream = cursor(source)
    ids = stream.peek(6)
    assert stream.position()["offset"] == 0
    batches = stream.follow()
    assert tuple(record.id for batch in (next(batches), next(batches)) for record in batch)[:6] == ids


@pytest.mark.parametrize(
    "change",
    [
        {"offset": -1},
        {"offset": 10**6},
        {"epoch": True},
        {"consumed": 3},
        {"fingerprint": "a.txt:3"},
        {"global_batch": 16},
        {"offset": 1.0},
        {"more": 1},
    ],
)
def test_absurd_positions_are_refused(source: LineFiles, change: dict[str, Any]) -> None:
    """An offset beyond the end would read as an epoch that is over."""
    stream = cursor(source)
    assert list(stream.problems({**stream.position(), **change}))
    assert not list(stream.problems(stream.position()))


def test_ranks_that_saved_different_offsets_are_refused(source: LineFiles) -> None:
    """One global stream has one position."""
    stream = cursor(source)
    part = data_part(position_of(stream, RankIdentity(rank=0, world_size=1)), "train")
    one, other = part.save(), part.save()
    assert not list(part.validate([one, one]))
    other["position"]["offset"] = 2
    assert any("different offsets" in str(said) for said in part.validate([one, other]))


def test_a_source_without_one_whole_batch_is_an_error(tmp_path: Path) -> None:
    """An epoch of no batches would loop for ever."""
    (tmp_path / "few.txt").write_text("1\n2\n")
    with pytest.raises(UsageError, match="fewer records than one global batch"):
        next(cursor(LineFiles([tmp_path / "few.txt"])).follow())
