"""Servers of buckets for tests and demonstrations: real programs on loopback, for as long as a block lasts.

    with SeaweedFS() as server:
        os.environ.update(server.environ)

Decides how such a server is given ports, awaited, stopped and killed; a subclass says which programs it consists of.
Speaks no S3 itself (only the stores do): ready means that the endpoint answers over HTTP. Rules enforced here:

- It listens on 127.0.0.1 alone, and its credentials are random: whoever reaches another server by mistake is refused.
- A keeper (lastgood.replica.keeper) holds each program, so none outlives this process, however that ends.
- `stop` is SIGTERM, then SIGKILL once its time is up; `kill` is SIGKILL at once, which is what a crash looks like.
"""

from __future__ import annotations

import http.client
import os
import random
import secrets
import shutil
import signal
import socket
import sysconfig
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from lastgood.errors import LastgoodError
from lastgood.replica.processes import ReplicaProcess

__all__ = ["HOST", "REGION", "BucketServer", "free_ports", "program_path"]

HOST: Final = "127.0.0.1"
REGION: Final = "us-east-1"
START_TIMEOUT: Final = timedelta(seconds=60)
STOP_TIMEOUT: Final = timedelta(seconds=20)
ATTEMPTS: Final = 3
LOG_BYTES: Final = 4 * 2**20
# Below the range from which Linux takes the ports of outgoing connections (32768 and up), so that none of those can
# take a port between our look and the server's start.
LOWEST_PORT: Final = 12000
HIGHEST_PORT: Final = 32767


class _Unready(Exception):
    """The server ended before it was ready."""


class BucketServer(ABC):
    """A server of buckets that this process owns: started on entry, gone after exit; not shared between threads.

    Args:
        home: Where its data, settings and logs lie, and stay; a temporary directory, gone at exit, if None.
    """

    name: ClassVar[str]

    def __init__(self, home: Path | None = None) -> None:
        self.access_key = secrets.token_hex(10).upper()
        self.secret_key = secrets.token_hex(20)
        self.ports: tuple[int, ...] = ()
        self._given = home
        self._home: Path | None = None
        self._programs: list[ReplicaProcess] = []

    @property
    def endpoint(self) -> str:
        """URL of the S3 API; the same after `stop` and `start`."""
        return f"http://{HOST}:{self.s3_port}"

    @property
    def home(self) -> Path:
        """Where everything of this server lies."""
        assert self._home is not None, "has a home from entry to exit"
        return self._home

    @property
    def pids(self) -> tuple[int, ...]:
        """Its programs, the one that serves S3 last; empty while it is stopped."""
        return tuple(program.pid for program in self._programs)

    @property
    def environ(self) -> Mapping[str, str]:
        """What a process needs in its environment to use this server, and nothing of the user's own accounts."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,  # the only one that botocore reads
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def start(self) -> None:
        """Start it, on the ports that it had before if it was stopped, and wait until it answers.

        Raises:
            UsageError: Its program is not installed, or is not the one that we know.
            LastgoodError: It did not become ready; the end of its log is in the message.
        """
        assert not self._programs, "runs already"
        if self._home is None:
            self._home = self._given or Path(tempfile.mkdtemp(prefix=f"lastgood-{self.name.lower()}-"))
            self._home.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, ATTEMPTS + 1):
            fresh = not self.ports
            self.ports = self.ports or self._choose_ports()
            try:
                self._launch()
                return
            except _Unready as error:
                told = self.log_tail()
                self.kill()
                # Somebody else may have taken a port that was just free; a server that had its ports has no choice.
                if not fresh or attempt == ATTEMPTS:
                    raise LastgoodError(f"{self.name} did not start: {error}\n{told}") from None
                self.ports = ()
            except BaseException:
                self.kill()
                raise

    def stop(self) -> None:
        """Ask it to end, and end it if it does not in time; may be repeated."""
        for program in reversed(self._programs):
            if program.poll() is None:
                program.signal(program.identity, signal.SIGTERM)
                # Not every program ends when asked to (one whose data is gone waits for ever); `kill` is next.
                program.wait(STOP_TIMEOUT)
        self.kill()

    def kill(self) -> None:
        """Kill it with all that it started, as a crash would; its data stay, and `start` may follow."""
        while self._programs:
            self._programs.pop().kill_tree()
        self._tidy()

    def log_tail(self) -> str:
        """What its programs printed last, for people."""
        return "\n".join(program.log_tail(hide={"secret key": self.secret_key}) for program in self._programs)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            # Nobody will see what a gentle end would still write into a home that goes with it, and it takes seconds.
            if self._given is None:
                self.kill()
            else:
                self.stop()
        finally:
            self._leave()

    @property
    def s3_port(self) -> int:
        """The first of its ports."""
        return self.ports[0]

    @abstractmethod
    def _launch(self) -> None:
        """Start every program with `_run`, each followed by `_await`."""

    def _choose_ports(self) -> tuple[int, ...]:
        return free_ports(1)

    def _tidy(self) -> None:  # noqa: B027 - most programs leave nothing
        """Remove what the program leaves outside its home."""

    def _run(self, command: Sequence[str], *, log: str, environment: Mapping[str, str] | None = None) -> ReplicaProcess:
        """Start one program in the home, with none of our own environment."""
        program = ReplicaProcess.start(
            command,
            {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(self.home),
                "TMPDIR": str(self.home),
                "LC_ALL": "C",
            }
            | dict(environment or {}),
            self.home,
            self.home / log,
            log_bytes=LOG_BYTES,
        )
        self._programs.append(program)
        return program

    def _await(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready`, unless a program ends before or the time is up."""
        deadline = time.monotonic() + START_TIMEOUT.total_seconds()
        while not ready():
            for program in self._programs:
                if (status := program.poll()) is not None:
                    raise _Unready(f"ended with status {status} before it was ready")
            if time.monotonic() > deadline:
                raise _Unready(f"not ready after {START_TIMEOUT.total_seconds():.0f} s")
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Whether the endpoint answers an unsigned request with anything but a failure of its own."""
        connection = http.client.HTTPConnection(HOST, self.s3_port, timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < 500
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _leave(self) -> None:
        if self._home is not None and self._given is None:
            shutil.rmtree(self._home, ignore_errors=True)
        self._home = None


def free_ports(count: int, *, twin: int = 0) -> tuple[int, ...]:
    """Ports of loopback on which nobody listens now; the caller copes with one that is taken a moment later.

    Args:
        count: How many.
        twin: Where not 0, the port so much higher is free too.
    """
    chosen: list[int] = []
    candidates = list(range(LOWEST_PORT, HIGHEST_PORT - twin))
    random.SystemRandom().shuffle(candidates)
    for port in candidates:
        taken = {used + step for used in chosen for step in (0, twin)}
        if {port, port + twin} & taken:
            continue
        if _is_free(port) and (not twin or _is_free(port + twin)):
            chosen.append(port)
        if len(chosen) == count:
            return tuple(chosen)
    raise LastgoodError(f"no {count} free ports on {HOST} between {LOWEST_PORT} and {HIGHEST_PORT}")


def program_path(name: str) -> Path | None:
    """A program that was installed beside this interpreter, or else one on the path; None if there is neither."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    return None if found is None else Path(found)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port whose last connections are still fading is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
