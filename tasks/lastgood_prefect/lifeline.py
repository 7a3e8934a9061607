"""Work that ends with what started it: the worker that could stop it, the server that could cancel it.

    with lifeline(timedelta(hours=1)) as line:
        result = line.run(lambda cancel: restore(location, settings, cancel=cancel))

Decides when the work of a flow run has nobody left who could end it, and sees to it that it ends; leaves the processes
of a replica to their keeper, which kills them when we end or let go of them. Measured on Prefect 3.9: an engine whose
worker was killed goes on under another parent, and one whose server is gone goes on too, for nothing tells it.

Rules:

- A request to end is an answer that the work asks for (`restore.cancel`); Prefect's own handler of SIGTERM stays where
  it is, for only with it a cancelled run is told from a crashed one.
- Work that does not end within `GRACE_SECONDS` is ended with this process, by SIGKILL; the keeper does the rest. From
  the death of worker or server to the last rank gone it takes less than 10 s.
- A server that answers slowly is there: only one that cannot be reached at all, or is silent for long, is gone.
- A run that no worker started (a script, a test) answers to whoever holds its terminal; only its server is watched.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import Enum
from typing import Final, Self, TypeVar

import httpx
from prefect.settings import (
    PREFECT_API_SSL_CERT_FILE,
    PREFECT_API_TLS_INSECURE_SKIP_VERIFY,
    PREFECT_API_URL,
)

from lastgood.restore.cancel import Cancel

__all__ = ["Contact", "Lifeline", "Server", "Worker", "lifeline"]

LOOK_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 2.0
UNREACHABLE_SECONDS: Final = 4.0
"""After so long without a connection the server counts as gone: a restart takes longer, a lost packet does not."""
SILENT_SECONDS: Final = 60.0
"""A server that takes connections may be busy; one that answers none of them for this long cannot cancel anything."""
GRACE_SECONDS: Final = 3.0
RETURN_SECONDS: Final = 120.0
"""How long a run whose server went away waits for it, to say what became of the work."""

_RUN_VARIABLE: Final = "PREFECT__FLOW_RUN_ID"
"""Set by whatever starts the engine for a run that a worker took."""

Result = TypeVar("Result")


class Contact(Enum):
    """What one look at the server gave."""

    HEARD = "heard"
    SLOW = "slow"
    LOST = "lost"


class Server:
    """The configured Prefect server, asked whether it is there; not shared between threads.

    Args:
        url: Of its API.
        verify: Whether, and by which certificates, its identity is checked.
    """

    def __init__(self, url: str, verify: ssl.SSLContext | bool = True) -> None:
        self.url = url
        # A connection of its own for each look: one that is kept alive would hide that no new one can be made.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(verify=verify, timeout=ANSWER_SECONDS, limits=limits)

    @classmethod
    def configured(cls) -> Self | None:
        """The server of the settings; None where Prefect runs without one."""
        url = PREFECT_API_URL.value()
        if not url:
            return None
        if PREFECT_API_TLS_INSECURE_SKIP_VERIFY.value():
            return cls(url, verify=False)
        certificates = PREFECT_API_SSL_CERT_FILE.value()
        return cls(url, verify=ssl.create_default_context(cafile=certificates) if certificates else True)

    def look(self) -> Contact:
        """Ask once, for at most a few seconds."""
        try:
            status = self._client.get(f"{self.url.rstrip('/')}/health").status_code
        except httpx.ReadTimeout:
            return Contact.SLOW
        except httpx.HTTPError:
            return Contact.LOST
        # A proxy before a server that is gone answers with 5xx; whatever else answers is the server, or guards it.
        return Contact.LOST if status >= 500 else Contact.HEARD

    def close(self) -> None:
        self._client.close()


class Worker:
    """The process that started this one, known by its pid's descriptor and by the other end of our output.

    The pipe also tells of a worker that died before we looked: by then our parent is somebody else.

    Args:
        pid: Of the process; None: of our parent.
    """

    def __init__(self, pid: int | None = None) -> None:
        try:
            self._descriptor = os.pidfd_open(os.getppid() if pid is None else pid)
        except ProcessLookupError:
            # It ended between two system calls; whoever adopted us is watched in vain, and the pipe tells.
            self._descriptor = os.pidfd_open(os.getppid())

    @classmethod
    def of_this_run(cls) -> Self | None:
        """The worker of the run under way; None for a run that no worker started."""
        return cls() if _RUN_VARIABLE in os.environ and os.getppid() > 0 else None

    @property
    def signs(self) -> dict[int, int]:
        """Descriptor → the event by which it tells of the end; of a pipe without a reader the kernel tells unasked."""
        return {self._descriptor: select.POLLIN, **dict.fromkeys(_piped_outputs(), 0)}

    def silence(self) -> None:
        """Write what nobody reads any more into nothing: Prefect's console answers a broken pipe by leaving the run."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        for output in _piped_outputs():
            os.dup2(nothing, output)
        os.close(nothing)

    def close(self) -> None:
        os.close(self._descriptor)


class Lifeline:
    """Watches over one piece of work from a thread of its own. Made by `lifeline`.

    Args:
        server: None: there is none to watch.
        worker: None: there is none to watch.
        limit: The longest that the work may take.
    """

    def __init__(self, server: Server | None, worker: Worker | None, *, limit: timedelta) -> None:
        self._server = server
        self._worker = worker
        self._limit = limit
        self._why: str | None = None
        self._server_is_lost = False
        self._done = os.eventfd(0)

    def run(self, work: Callable[[Cancel], Result]) -> Result:
        """Do the work, which asks the given function whether to end; once it has returned nothing is killed."""
        watch = threading.Thread(target=self._watch, name="lastgood-lifeline", daemon=True)
        watch.start()
        try:
            return work(lambda: self._why)
        finally:
            os.eventfd_write(self._done, 1)
            watch.join()

    def await_server(self) -> None:
        """Where the work was ended because the server was lost: wait a while for it, so that it hears of the end."""
        deadline = time.monotonic() + RETURN_SECONDS
        while self._server_is_lost and self._server is not None and time.monotonic() < deadline:
            if self._server.look() is Contact.HEARD:
                return
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        os.close(self._done)
        if self._worker is not None:
            self._worker.close()
        if self._server is not None:
            self._server.close()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._done, select.POLLIN)
        signs = self._worker.signs if self._worker is not None else {}
        for descriptor, event in signs.items():
            poll.register(descriptor, event)
        began = reached = heard = time.monotonic()
        while self._why is None:
            ready = {descriptor for descriptor, _ in poll.poll(LOOK_SECONDS * 1000)}
            if self._done in ready:
                return
            if ready and self._worker is not None:
                self._worker.silence()
                self._why = "the worker that started this run is gone"
                break
            contact = self._server.look() if self._server is not None else Contact.HEARD
            now = time.monotonic()
            reached = now if contact is not Contact.LOST else reached
            heard = now if contact is Contact.HEARD else heard
            self._server_is_lost = now - reached >= UNREACHABLE_SECONDS or now - heard >= SILENT_SECONDS
            if self._server_is_lost and self._server is not None:
                self._why = f"no answer from the Prefect server at {self._server.url} for {now - heard:.0f} s"
            elif now - began >= self._limit.total_seconds():
                self._why = f"not done within {self._limit.total_seconds():g} s"
        self._enforce()

    def _enforce(self) -> None:
        """Give the work a moment to end, then end all of this process."""
        if select.select([self._done], [], [], GRACE_SECONDS)[0]:
            return
        with contextlib.suppress(OSError):  # nobody need read it
            os.write(2, f"lastgood: {self._why}, and the work does not end: ending this process\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def lifeline(limit: timedelta, *, needs_server: bool = True) -> Iterator[Lifeline]:
    """Watch over the run under way; what is done after the work, in the context, is done whatever became of the server.

    Args:
        limit: The longest that the work may take.
        needs_server: Whether the work ends with the server, too: not where it is there to outlast that.
    """
    line = Lifeline(Server.configured() if needs_server else None, Worker.of_this_run(), limit=limit)
    try:
        yield line
        line.await_server()
    finally:
        line.close()


def _piped_outputs() -> list[int]:
    """Standard output and error, as far as they are pipes."""
    return [output for output in (1, 2) if _is_pipe(output)]


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False
