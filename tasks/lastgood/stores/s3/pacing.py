"""How slowly an answer may come: a body that trickles is never silent, and would be waited for without end.

Decides when a body is too slow. Of every stretch of waiting as long as the settings' timeout, at least their minimum a
second must have come; what the reader does with the bytes meanwhile is not counted. A body that comes slower is given
up as a silent one is: botocore sends the request again, or the reading is taken up where it ended.

It holds for every body, of listings and of errors too, so it stands where botocore sends: it takes the answer before
botocore reads it. Left to silence alone are heads of answers; what is sent is bounded block by block by the connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from typing import Any

from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError
from urllib3.exceptions import HTTPError
from urllib3.exceptions import ReadTimeoutError as Silence

from lastgood.stores.settings import StoreSettings

__all__ = ["BodyTooSlow", "pace"]

PIECE_BYTES = 2**20
"""What one read asks for at most; it returns with whatever has come, and less would cost more calls."""
SLOW_BY_NATURE = "CompleteMultipartUpload"
"""While S3 puts an object together it answers with blanks, for minutes, so that nobody hangs up."""

FIRST_FAILURE = 300
"""From this status on the body says what is wrong, whatever was asked for."""


class BodyTooSlow(HTTPClientError):  # type: ignore[misc]  # botocore ships no annotations
    """The body came, but slower than anybody should wait for."""

    fmt = "the answer came too slowly: {came_bytes} bytes in {seconds:.1f} s, expected at least {minimum_bytes}"


def pace(client: Any, settings: StoreSettings) -> None:
    """Let no answer to this client of boto3 come slower than the settings say."""
    # The only way to a body before botocore has read it; the session has no public name.
    session = client._endpoint.http_session

    def send(request: Any, event_name: str, **_: object) -> Any:
        is_stream, request.stream_output = request.stream_output, True
        answer = session.send(request)
        patience = settings.attempts if event_name.endswith(f".{SLOW_BY_NATURE}") else 1
        answer.raw = _PacedBody(
            answer.raw, patience * settings.timeout_seconds, settings.minimum_bytes_per_second / patience
        )
        if not is_stream or answer.status_code >= FIRST_FAILURE:
            _read_whole(answer, request.url)
        return answer

    client.meta.events.register_last("before-send.s3", send)


def _read_whole(answer: Any, url: str) -> None:
    """Read a body while what goes wrong with it still counts as having gone wrong with the request."""
    try:
        answer.content  # noqa: B018 - reads it
    except Silence as error:
        raise ReadTimeoutError(endpoint_url=url, error=error) from error
    except HTTPError as error:
        raise ConnectionClosedError(endpoint_url=url, error=error) from error


class _PacedBody:
    """What botocore asks of a raw body, in pieces as they come.

    Args:
        raw: Of urllib3.
        stretch_seconds: Of waiting, after which what has come is looked at.
        minimum_bytes_per_second: Of waiting.
    """

    def __init__(self, raw: Any, stretch_seconds: float, minimum_bytes_per_second: float) -> None:
        self._raw = raw
        self._stretch_seconds = stretch_seconds
        self._minimum = minimum_bytes_per_second
        self._waited_seconds = 0.0
        self._came_bytes = 0
        self._clock: Callable[[], float] = time.monotonic

    def read(self, amt: int | None = None) -> bytes:
        """At most `amt` bytes, as soon as there are any; without a number all of them."""
        return b"".join(self.stream()) if amt is None else self._piece(amt)

    def readinto(self, buffer: memoryview) -> int:
        """At most as many bytes as it holds, as soon as there are any; 0 once all have come."""
        begun = self._clock()
        count = self._receive(buffer)
        self._judge(count, self._clock() - begun)
        return count

    def stream(self) -> Iterator[bytes]:
        """All that is left, piece by piece."""
        while piece := self._piece(PIECE_BYTES):
            yield piece

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._raw.close()

    def _piece(self, limit_bytes: int) -> bytes:
        begun = self._clock()
        piece: bytes = self._raw.read1(min(limit_bytes, PIECE_BYTES))
        self._judge(len(piece), self._clock() - begun)
        return piece

    def _receive(self, buffer: memoryview) -> int:
        """From the socket into the buffer. urllib3 can only make an object of each piece, and the kernel clears every
        page of it first; it has no public name for what it reads from, so whatever looks otherwise goes its way.
        """
        body: Any = getattr(self._raw, "_fp", None)
        left = self._raw.length_remaining
        if left and isinstance(body, HTTPResponse) and not body.isclosed() and body.length == left:
            count: int = body.fp.readinto1(buffer[:left])
            if count:
                body.length = left - count
                self._raw.length_remaining -= count
                return count
        # The end, or what should not be one: urllib3 says which, and takes the connection back.
        piece: bytes = self._raw.read1(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def _judge(self, came_bytes: int, waited_seconds: float) -> None:
        self._waited_seconds += waited_seconds
        self._came_bytes += came_bytes
        if came_bytes and self._waited_seconds >= self._stretch_seconds:
            minimum = int(self._minimum * self._waited_seconds)
            if self._came_bytes < minimum:
                self._raw.close()
                raise BodyTooSlow(came_bytes=self._came_bytes, seconds=self._waited_seconds, minimum_bytes=minimum)
            self._waited_seconds, self._came_bytes = 0.0, 0
