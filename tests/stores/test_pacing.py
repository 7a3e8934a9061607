"""What counts as too slow, by a clock of the test's own; over real connections it is shown in tests/buckets."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from http.client import HTTPResponse

import pytest
import urllib3

from lastgood.stores.s3 import pacing
from lastgood.stores.s3.pacing import BodyTooSlow
from lastgood.stores.settings import StoreSettings


class Raw:
    """A body whose pieces come after so many seconds each."""

    def __init__(self, *pieces: tuple[float, int]) -> None:
        self._pieces = list(pieces)
        self.now = 0.0
        self.closed = False

    def read1(self, limit_bytes: int) -> bytes:
        seconds, length = self._pieces.pop(0) if self._pieces else (0.0, 0)
        self.now += seconds
        if length > limit_bytes:
            self._pieces.insert(0, (0.0, length - limit_bytes))
        return b"x" * min(length, limit_bytes)

    def close(self) -> None:
        self.closed = True


def paced(raw: Raw) -> pacing._PacedBody:
    """At least ten bytes a second over each ten seconds."""
    body = pacing._PacedBody(raw, 10.0, 10.0)
    body._clock = lambda: raw.now
    return body


@pytest.mark.parametrize(
    "pieces",
    [
        ((9.0, 1),),
        ((5.0, 50), (5.0, 50), (10.0, 100)),
        ((1.0, 10**6), (9.9, 1), (0.0, 1)),
        ((5.0, 99), (5.0, 1)),
        ((30.0, 0),),
    ],
    ids=["short", "at the limit", "fast, then slow for less than a stretch", "slow at first", "the end"],
)
def test_what_comes_fast_enough_comes_whole(pieces: Sequence[tuple[float, int]]) -> None:
    """Nobody on a thin line is cut off who keeps what the settings ask."""
    assert len(paced(Raw(*pieces)).read()) == sum(length for _, length in pieces)


@pytest.mark.parametrize(
    "pieces",
    [((1.0, 1),) * 20, ((1.0, 10**6), *((1.0, 1),) * 20), ((11.0, 109),)],
    ids=["a trickle", "one that began fast", "one piece, late"],
)
def test_what_trickles_is_given_up_after_one_stretch(pieces: Sequence[tuple[float, int]]) -> None:
    """What came before is no credit: a connection that stalls after a gigabyte would else be held for a day."""
    raw = Raw(*pieces)
    with pytest.raises(BodyTooSlow, match=r"came too slowly: \d+ bytes in 1\d.0 s, expected at least 1\d\d"):
        paced(raw).read()
    assert raw.closed
    assert raw.now < 22.0


def test_a_reader_that_takes_its_time_is_not_the_services_fault() -> None:
    """Hashing on a busy machine, or a slow disk, must not look like a slow store."""
    raw = Raw(*((0.1, 10),) * 50)
    body, read = paced(raw), 0
    while piece := body.read(10):
        read += len(piece)
        raw.now += 1000.0
    assert read == 500


def test_the_longest_reading_is_told_by_the_settings() -> None:
    """Whoever sets a timeout can tell how long a verdict may take."""
    settings = StoreSettings(attempts=3, timeout_seconds=10.0, minimum_bytes_per_second=1000.0)
    assert settings.reading_seconds(0) == 30.0
    assert settings.reading_seconds(10**6) == 1030.0


class Told(Raw):
    """A body as urllib3 shows it that is not read from a socket."""

    length_remaining = 10**6


def test_a_buffer_is_filled_by_what_has_come_and_a_trickle_into_it_is_given_up() -> None:
    """The way of every artifact: no piece waits for the buffer to be full, or a trickle would never be looked at."""
    raw = Told((5.0, 300), (5.0, 700), *((1.0, 1),) * 20)
    body, buffer = paced(raw), memoryview(bytearray(512))
    assert [body.readinto(buffer) for _ in range(3)] == [300, 512, 188]
    assert bytes(buffer[:188]) == b"x" * 188
    assert [body.readinto(buffer) for _ in range(19)] == [1] * 19
    with pytest.raises(BodyTooSlow):
        body.readinto(buffer)
    assert raw.closed


def test_bytes_come_from_the_socket_as_long_as_urllib3_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hides it costs CPU and nothing else, so nobody but a test would notice."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000)
        answer = HTTPResponse(here, method="GET")
        answer.begin()
        raw = urllib3.HTTPResponse(
            answer, dict(answer.headers), preload_content=False, decode_content=False, original_response=answer
        )
        body, buffer, read = pacing._PacedBody(raw, 10.0, 10.0), memoryview(bytearray(600)), 0
        with monkeypatch.context() as patch:
            patch.delattr(urllib3.HTTPResponse, "read1")
            while read < 1000:
                read += body.readinto(buffer)
        assert (read, body.readinto(buffer)) == (1000, 0)
        assert answer.isclosed()
