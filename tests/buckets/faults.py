"""What can happen to a request on its way to a bucket and back: values that a test hands to the proxy.

Decides the words; `proxy` does what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

__all__ = [
    "EXPIRED_TOKEN",
    "FORBIDDEN",
    "INTERNAL_ERROR",
    "SLOW_DOWN",
    "AbortBody",
    "After",
    "Answer",
    "Before",
    "Delay",
    "DropContinuation",
    "Fault",
    "FlipBit",
    "LostReply",
    "Request",
    "Reset",
    "SlowBody",
    "StaleList",
    "Truncate",
    "every",
]


@dataclass(slots=True, kw_only=True)
class Request:
    """One request that reached the proxy, and what became of it.

    Args:
        method: As sent.
        target: Path and query as sent.
        headers: Names in lower case.
        status: Of the answer that was passed on, or None where none was.
        sent_bytes: How much of a body was passed on.
        fault: What it met, if anything.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    status: int | None = None
    sent_bytes: int = 0
    fault: Fault | None = None

    @property
    def path(self) -> str:
        """Decoded, with the leading slash."""
        return unquote(urlsplit(self.target).path)

    @property
    def bucket(self) -> str:
        """Name of the bucket, or nothing."""
        return self.path[1:].partition("/")[0]

    @property
    def key(self) -> str:
        """Key of the object, or nothing for a request about a bucket."""
        return self.path[1:].partition("/")[2]

    @property
    def query(self) -> Mapping[str, str]:
        """Parameters, those without a value included."""
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def range(self) -> str | None:
        """Value of the Range header."""
        return self.headers.get("range")

    @property
    def is_list(self) -> bool:
        """Whether it lists objects or their versions."""
        return self.method == "GET" and not self.key and not {"list-type", "versions"}.isdisjoint(self.query)


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset; the server never hears of the request."""


@dataclass(frozen=True, slots=True)
class LostReply:
    """The server does what it was asked and answers; the connection is reset and the answer lost."""


@dataclass(frozen=True, slots=True)
class Delay:
    """The server has answered, and the answer is held back for so long."""

    hold: timedelta


@dataclass(frozen=True, slots=True)
class Answer:
    """An error of the service's own; the server never hears of the request."""

    status: int
    code: str
    message: str = "made by a test"


SLOW_DOWN: Final = Answer(503, "SlowDown")
INTERNAL_ERROR: Final = Answer(500, "InternalError")
FORBIDDEN: Final = Answer(403, "AccessDenied")
EXPIRED_TOKEN: Final = Answer(400, "ExpiredToken")


@dataclass(frozen=True, slots=True)
class Before:
    """Something happens before the server hears of the request: with `skip=1`, between the first and the second range.

    Args:
        callback: Called in the proxy's thread; e.g. replaces or deletes the object through the server's own client.
    """

    callback: Callable[[Request], object]


@dataclass(frozen=True, slots=True)
class After:
    """The server has done what it was asked; something happens before anybody hears of it.

    Args:
        callback: Called in the proxy's thread; e.g. kills whoever asked.
    """

    callback: Callable[[Request], object]


@dataclass(frozen=True, slots=True)
class AbortBody:
    """The head promises the whole body; so much of it comes, and then the connection is reset, or closed in peace."""

    after_bytes: int
    reset: bool = True


@dataclass(frozen=True, slots=True)
class Truncate:
    """A shorter body, and a head that agrees with it: HTTP alone shows no fault."""

    to_bytes: int


@dataclass(frozen=True, slots=True)
class FlipBit:
    """One bit of the body is wrong."""

    at_byte: int
    bit: int = 0


@dataclass(frozen=True, slots=True)
class SlowBody:
    """The body comes slowly but steadily."""

    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class StaleList:
    """A list is answered as it last was when the fault was injected; one that was not asked before passes unharmed."""


@dataclass(frozen=True, slots=True)
class DropContinuation:
    """A page of a list claims to be the last one; whoever trusts it misses the pages after it."""


Fault = (
    Reset
    | LostReply
    | Delay
    | Answer
    | Before
    | After
    | AbortBody
    | Truncate
    | FlipBit
    | SlowBody
    | StaleList
    | DropContinuation
)


def every(request: Request) -> bool:
    """Any request at all."""
    return True
