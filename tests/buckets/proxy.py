"""A proxy before an S3 endpoint that does to chosen requests what networks, services and other writers do.

    with FaultProxy(server) as proxy:
        client = proxy.client()
        lost = proxy.inject(LostReply(), when=lambda request: request.method == "PUT" and request.key == "COMMIT")
        ...
        assert lost.fired == 1

Decides which fault meets which request, and keeps a log of all of them. The path, the query, the headers and `Host`
reach the server as they came, so signatures hold. Bodies are streamed; nothing is kept but the answers to lists.

Laws: a fault fires `times` times at most, after `skip` requests that would have matched; one request meets one fault,
the first that was injected; a fault of the body counts as fired only where the body was long enough to be hurt; what a
callback raises is raised again when the proxy ends, and when `check` is called.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast
from urllib.parse import urlsplit

from lastgood.testing.server import HOST, BucketServer
from tests.buckets.faults import (
    AbortBody,
    After,
    Answer,
    Before,
    Delay,
    DropContinuation,
    Fault,
    FlipBit,
    LostReply,
    Request,
    Reset,
    SlowBody,
    StaleList,
    Truncate,
    every,
)
from tests.buckets.servers import connect

__all__ = ["FaultProxy", "Injection", "Journal"]

BLOCK_BYTES: Final = 64 * 2**10
UPSTREAM_SECONDS: Final = 60
MAXIMUM_LIST_BYTES: Final = 16 * 2**20
HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "expect", "proxy-connection"})
CONTINUATIONS: Final = re.compile(
    rb"<(NextContinuationToken|NextKeyMarker|NextVersionIdMarker|NextMarker)>.*?</\1>", re.DOTALL
)


@dataclass(slots=True, kw_only=True)
class Injection:
    """A fault in its place.

    Args:
        when: Which requests it is meant for.
        times: How many of them it meets at most; None: all.
        skip: How many of them it lets pass first.
        fired: How many it has met.
    """

    fault: Fault
    when: Callable[[Request], bool]
    times: int | None
    skip: int
    fired: int = 0
    remembered: Mapping[str, _Answered] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Answered:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Journal(Protocol):
    """Whoever wants to know in which order objects were written."""

    def wants(self, request: Request) -> bool:
        """Whether a request is one of those whose order matters."""

    def turn(self) -> AbstractContextManager[object]:
        """Held while the server works on such a request, until it has answered."""

    def wrote(self, request: Request, body: bytes) -> None:
        """The server accepted it; called before the turn ends."""


class FaultProxy:
    """A proxy on a port of its own, from entry to exit. Its methods may be called from any thread.

    Args:
        server: What it stands before; may be stopped and started meanwhile.
        journal: Who keeps what is written, in its order.
    """

    def __init__(self, server: BucketServer, journal: Journal | None = None) -> None:
        self.server = server
        self.journal = journal
        self._lock = threading.Lock()
        self._injections: list[Injection] = []
        self._requests: list[Request] = []
        self._lists: dict[str, _Answered] = {}
        self._errors: list[BaseException] = []
        self._ended = threading.Event()
        self._listener = _Listener(self)
        self._thread = threading.Thread(target=self._listener.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def endpoint(self) -> str:
        """URL of the proxy."""
        return f"http://{HOST}:{self._listener.server_address[1]}"

    @property
    def environ(self) -> Mapping[str, str]:
        """The server's, but for the endpoint."""
        return {**self.server.environ, "AWS_ENDPOINT_URL_S3": self.endpoint}

    @property
    def requests(self) -> tuple[Request, ...]:
        """Everything that has arrived, in order."""
        with self._lock:
            return tuple(self._requests)

    def client(self, service: str = "s3", **config: Any) -> Any:
        """A boto3 client that speaks through the proxy, without retries unless asked."""
        return connect(self.environ, service, **config)

    def count(self, when: Callable[[Request], bool] = every) -> int:
        """How many such requests have arrived."""
        return sum(when(request) for request in self.requests)

    def inject(
        self, fault: Fault, *, when: Callable[[Request], bool] = every, times: int | None = 1, skip: int = 0
    ) -> Injection:
        """Let a fault meet requests from now on (`Injection`)."""
        with self._lock:
            injection = Injection(fault=fault, when=when, times=times, skip=skip, remembered=dict(self._lists))
            self._injections.append(injection)
        return injection

    def clear(self) -> None:
        """Take all faults away and forget all requests."""
        with self._lock:
            self._injections.clear()
            self._requests.clear()

    def check(self) -> None:
        """Raise what a callback raised, or what went wrong in the proxy itself."""
        with self._lock:
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._listener.shutdown()
        self._listener.hang_up()
        self._listener.server_close()  # waits for the threads
        self._thread.join()
        if error is None:
            self.check()

    def _meet(self, request: Request) -> Injection | None:
        """Take a request down, and say what it meets."""
        with self._lock:
            self._requests.append(request)
            for injection in self._injections:
                if injection.times is not None and injection.fired >= injection.times:
                    continue
                if not injection.when(request):
                    continue
                if isinstance(injection.fault, StaleList) and request.target not in injection.remembered:
                    continue
                if injection.skip:
                    injection.skip -= 1
                    continue
                injection.fired += 1
                request.fault = injection.fault
                return injection
        return None

    def _spare(self, request: Request, injection: Injection) -> None:
        """The fault could do no harm here."""
        with self._lock:
            injection.fired -= 1
            request.fault = None

    def _remember(self, target: str, answered: _Answered) -> None:
        with self._lock:
            self._lists[target] = answered

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._errors.append(error)


class _Hangup(Exception):
    """Nothing more goes to this client."""

    def __init__(self, *, reset: bool = True) -> None:
        super().__init__()
        self.reset = reset


class _Listener(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for them
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__((HOST, 0), _Handler)
        self.proxy = proxy
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.discard(request)
        # A reset connection must not be shut down first: that would be an end in peace.
        if request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[:4] == b"\0\0\0\0":
            super().shutdown_request(request)
        else:
            request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error; anything else was noted already."""

    def hang_up(self) -> None:
        """End idle connections, so that their threads end."""
        with self._guard:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def setup(self) -> None:
        super().setup()
        # Head and body are written apart; waiting for an acknowledgement in between costs 40 ms a request.
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    def log_message(self, *_: object) -> None:
        """The proxy keeps its own log."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def do_GET(self) -> None:
        proxy = self.server.proxy
        self._sent = Request(
            method=self.command, target=self.path, headers={name.lower(): value for name, value in self.headers.items()}
        )
        try:
            injection = proxy._meet(self._sent)
            self._serve(injection)
        except _Hangup as hangup:
            self._hang_up(reset=hangup.reset)
        except (OSError, http.client.HTTPException):
            # The client or the server has gone.
            self._hang_up(reset=True)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            proxy._fail(error)
            self._hang_up(reset=True)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the names that its base class looks for

    def _serve(self, injection: Injection | None) -> None:
        match injection.fault if injection else None:
            case Reset():
                raise _Hangup
            case Answer() as fault:
                for _ in self._body():
                    pass  # else the client would still be sending, and see a reset
                self._answer(fault)
                return
            case StaleList():
                assert injection is not None
                answered = injection.remembered[self.path]
                self._send_head(answered.status, answered.headers, len(answered.body))
                self._send(answered.body)
                return
            case Before(callback):
                callback(self._sent)
        with self._kept_upstream() as response:
            match injection.fault if injection else None:
                case LostReply():
                    response.read()
                    raise _Hangup
                case After(callback):
                    callback(self._sent)
                case Delay(hold):
                    if self.server.proxy._ended.wait(hold.total_seconds()):
                        raise _Hangup
            self._relay(response, injection)

    def _body(self) -> Iterator[bytes]:
        """The client's body, block by block."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                yield self._exactly(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass  # trailers
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            data = self._exactly(min(left, BLOCK_BYTES))
            left -= len(data)
            yield data

    def _exactly(self, size: int) -> bytes:
        data = self.rfile.read(size)
        if len(data) < size:
            raise _Hangup
        return data

    @contextlib.contextmanager
    def _kept_upstream(self) -> Iterator[http.client.HTTPResponse]:
        """Ask the server, and have what it accepts kept by the journal in the order in which it did."""
        journal = self.server.proxy.journal
        if journal is None or not journal.wants(self._sent):
            with self._upstream(self._body()) as response:
                yield response
            return
        # Whole before its turn: a client that dies half-way has then asked nothing, as it would have without us.
        body = b"".join(self._body())
        with contextlib.ExitStack() as stack:
            with journal.turn():
                response = stack.enter_context(self._upstream((body,)))
                if response.status < 300:
                    journal.wrote(self._sent, body)
            yield response

    @contextlib.contextmanager
    def _upstream(self, body: Iterable[bytes]) -> Iterator[http.client.HTTPResponse]:
        """Ask the server, on a connection of its own."""
        place = urlsplit(self.server.proxy.server.endpoint)
        connection = http.client.HTTPConnection(cast(str, place.hostname), place.port, timeout=UPSTREAM_SECONDS)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    connection.putheader(name, value)
            chunked = "Transfer-Encoding" in self.headers
            if chunked:
                connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            # A server may refuse before it has read the body.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for data in body:
                    connection.send(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
                if chunked:
                    connection.send(b"0\r\n\r\n")
            with contextlib.closing(connection.getresponse()) as response:
                yield response
        finally:
            connection.close()

    def _relay(self, response: http.client.HTTPResponse, injection: Injection | None) -> None:
        headers = tuple(
            (name, value)
            for name, value in response.getheaders()
            if name.lower() not in HOP_BY_HOP and name.lower() != "content-length"
        )
        length = response.length
        if self.command == "HEAD" or response.status in (204, 304):
            told = response.getheader("Content-Length")
            self._send_head(response.status, headers, None if told is None else int(told))
            return
        if self._sent.is_list or length is None:
            body = response.read(MAXIMUM_LIST_BYTES)
            if self._sent.is_list:
                self.server.proxy._remember(self.path, _Answered(response.status, headers, body))
            body = self._rewritten(body, injection)
            blocks: Iterator[bytes] = iter((body,))
            length = len(body)
        else:
            blocks = iter(lambda: response.read(BLOCK_BYTES), b"")
        self._deliver(response.status, headers, blocks, length, injection)

    def _rewritten(self, body: bytes, injection: Injection | None) -> bytes:
        if injection is None or not isinstance(injection.fault, DropContinuation):
            return body
        if b"<IsTruncated>true</IsTruncated>" not in body:
            self.server.proxy._spare(self._sent, injection)
            return body
        cut = CONTINUATIONS.sub(b"", body)
        return cut.replace(b"<IsTruncated>true</IsTruncated>", b"<IsTruncated>false</IsTruncated>")

    def _deliver(
        self,
        status: int,
        headers: tuple[tuple[str, str], ...],
        blocks: Iterator[bytes],
        length: int,
        injection: Injection | None,
    ) -> None:
        """Pass an answer on, hurt as it should be.

        Args:
            length: Of the whole body, in bytes.
        """
        fault = injection.fault if injection else None
        match fault:
            case AbortBody(needed) | Truncate(needed) | FlipBit(needed) if needed >= length:
                assert injection is not None
                self.server.proxy._spare(self._sent, injection)
                fault = None
        promised = fault.to_bytes if isinstance(fault, Truncate) else length
        self._send_head(status, headers, promised)
        begun = time.monotonic()
        for block in blocks:
            start = self._sent.sent_bytes
            match fault:
                case AbortBody(after_bytes, reset) if start + len(block) >= after_bytes:
                    self._send(block[: after_bytes - start])
                    raise _Hangup(reset=reset)
                case Truncate(to_bytes) if start + len(block) >= to_bytes:
                    self._send(block[: to_bytes - start])
                    return
                case FlipBit(at_byte, bit) if start <= at_byte < start + len(block):
                    hurt = bytearray(block)
                    hurt[at_byte - start] ^= 1 << bit
                    self._send(bytes(hurt))
                case SlowBody(rate):
                    self._trickle(block, rate, begun)
                case _:
                    self._send(block)

    def _trickle(self, block: bytes, rate: int, begun: float) -> None:
        piece = max(1, rate // 20)
        for at in range(0, len(block), piece):
            self._send(block[at : at + piece])
            ahead = self._sent.sent_bytes / rate - (time.monotonic() - begun)
            if self.server.proxy._ended.wait(max(0.0, ahead)):
                raise _Hangup

    def _answer(self, fault: Answer) -> None:
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{fault.code}</Code>'
            f"<Message>{fault.message}</Message><RequestId>proxy</RequestId></Error>"
        ).encode()
        self._send_head(fault.status, (("Content-Type", "application/xml"),), len(body))
        if self.command != "HEAD":
            self._send(body)

    def _send_head(self, status: int, headers: tuple[tuple[str, str], ...], length: int | None) -> None:
        self._sent.status = status
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send(self, data: bytes) -> None:
        self.wfile.write(data)
        self._sent.sent_bytes += len(data)

    def _hang_up(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:
            # Closing now discards what is unsent and sends RST.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
