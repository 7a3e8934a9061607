"""Hints from HTTP requests: what MinIO, Ceph and SeaweedFS post when an object was written.

Decides who may give hints, and when a sender is told that it may forget one; leaves bodies to `decoding`, durability to
`spool` and HTTP to uvicorn and Starlette. Rules:

- A request must know the secret: as `Authorization: Bearer …`, or in the opaque data of each Ceph record. It is
  compared in constant time, and comes from the environment alone.
- 202 is answered once every hint of the body is on disk. 503 asks the sender to keep its own copy.
- A body is bounded in bytes and in the seconds that it may take.
- What was accepted stays in the spool until a run was acknowledged for it, through any number of restarts.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lastgood.errors import LastgoodError, UsageError
from lastgood.identity import GenerationId
from lastgood.text import printable
from lastgood_prefect.hints import Hint
from lastgood_prefect.relay.decoding import MAXIMUM_BODY_BYTES, UndecodableEvent, decode
from lastgood_prefect.relay.reading import Reader
from lastgood_prefect.relay.spool import Spool, SpoolError

__all__ = ["PATH", "SECRET_VARIABLE", "WebhookHints", "check_secret"]

PATH: Final = "/events"
SECRET_VARIABLE: Final = "LASTGOOD_RELAY_SECRET"
MINIMUM_SECRET_CHARACTERS: Final = 16
BODY_SECONDS: Final = 10.0
MAXIMUM_CONNECTIONS: Final = 100
START_SECONDS: Final = 10.0
END_SECONDS: Final = 5

_log = logging.getLogger("lastgood.watch")


def check_secret(secret: str | None) -> str:
    """The secret, if it is one.

    Raises:
        UsageError: Absent, short, or not of visible ASCII characters, which is what a header carries.
    """
    if not secret:
        raise UsageError(
            f"no secret: {SECRET_VARIABLE} is not set",
            hint="set it to the token that senders are configured with, e.g. of `openssl rand -hex 32`",
        )
    if len(secret) < MINIMUM_SECRET_CHARACTERS or not all("!" <= character <= "~" for character in secret):
        raise UsageError(
            f"not a secret: {SECRET_VARIABLE}: expected at least {MINIMUM_SECRET_CHARACTERS} visible ASCII characters"
        )
    return secret


class WebhookHints:
    """Listens, and says what was posted. A `HintSource`.

    Args:
        reader: Of the configured families.
        spool: Where accepted hints are kept; closed with this.
        secret: What senders must know.
        host: To listen on.
        port: 0: one that is free.
        tick: The longest that `wait` takes.

    Raises:
        UsageError: Nobody can listen there.
        SpoolError: What was accepted before cannot be read.
    """

    def __init__(
        self, reader: Reader, spool: Spool, *, secret: str, host: str, port: int, tick: timedelta = timedelta(seconds=1)
    ) -> None:
        self._reader = reader
        self._spool = spool
        self._secret = secret.encode()
        self._tick_seconds = tick.total_seconds()
        self._changed = threading.Condition()
        self._pending: set[Hint] = set(spool.hints())
        self._returned: set[Hint] = set()
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise UsageError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
        if self._pending:
            _log.info("%d hints were accepted before and are looked after now", len(self._pending))
        self._server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=[Route(PATH, self._receive, methods=["POST"])]),
                access_log=False,
                http="h11",
                lifespan="off",
                limit_concurrency=MAXIMUM_CONNECTIONS,
                log_config=None,
                log_level="warning",
                loop="asyncio",
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=END_SECONDS,
                ws="none",
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="webhook", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    def wait(self) -> tuple[frozenset[str], frozenset[str]]:
        if not self._thread.is_alive():
            raise LastgoodError("the webhook's server ended by itself", hint="its last words are above")
        with self._changed:
            if not self._pending:
                self._changed.wait(self._tick_seconds)
            hinted = frozenset(hint.family for hint in self._pending)
            self._returned |= self._pending
            self._pending.clear()
        return hinted, frozenset()

    def acknowledge(self, unasked: Mapping[str, frozenset[GenerationId]]) -> None:
        done = {hint for hint in self._returned if hint.is_done(unasked)}
        self._returned -= done
        with self._changed:
            # What was posted again since is looked after again, for it may be newer than the look.
            done -= self._pending
            try:
                # Within the lock, so that none is posted again and acknowledged while its copy is being removed.
                self._spool.remove(done)
            except SpoolError as error:
                _log.warning("%s; what is kept too long is looked after once more", printable(error.message))
                self._returned |= done

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(START_SECONDS + END_SECONDS)
        self._socket.close()
        self._spool.close()

    async def _receive(self, request: Request) -> Response:
        knows_secret = self._is_secret_in(request.headers.get("authorization"))
        if "authorization" in request.headers and not knows_secret:
            return self._refused()
        body = await _body(request)
        if not knows_secret and not self._is_secret_with_each_record_of(body):
            return self._refused()
        try:
            events = self._reader.decode(body)
        except UndecodableEvent as error:
            _log.warning("%s", printable(error.message))
            return Response(f"{error.message}\n", 400, media_type="text/plain")
        hints = self._reader.hints(events)
        try:
            await run_in_threadpool(self._accept, hints)
        except SpoolError as error:
            _log.warning("%s", printable(error.message))
            return Response("not kept; send it again\n", 503, {"Retry-After": "10"}, media_type="text/plain")
        return Response(status_code=202)

    def _accept(self, hints: frozenset[Hint]) -> None:
        """Keep hints on disk, then let them be looked after."""
        if not hints:
            return
        with self._changed:
            # What is returned is on disk, but may be removed from it as soon as this lock is released.
            self._spool.add(hints - self._pending)
            self._pending |= hints
            self._changed.notify_all()

    def _is_secret_in(self, header: str | None) -> bool:
        scheme, _, token = (header or "").partition(" ")
        return scheme.lower() == "bearer" and self._is_secret(token.strip())

    def _is_secret_with_each_record_of(self, body: bytes) -> bool:
        try:
            events = decode(body)
        except UndecodableEvent:
            return False
        return bool(events) and all(self._is_secret(event.opaque) for event in events)

    def _is_secret(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._secret)

    def _refused(self) -> Response:
        self._reader.counters.refused += 1
        return Response("unknown secret\n", 401, {"WWW-Authenticate": "Bearer"}, media_type="text/plain")


async def _body(request: Request) -> bytes:
    """The whole body.

    Raises:
        HTTPException: Too large, or too slow.
    """
    received = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                received += chunk
                if len(received) > MAXIMUM_BODY_BYTES:
                    raise HTTPException(413, f"expected at most {MAXIMUM_BODY_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, f"expected a body within {BODY_SECONDS:.0f} seconds") from None
    return bytes(received)
