"""The embedded stack: a Prefect server on SQLite and a worker for each pool, on one machine, all of it ours to end.

    with Stack.start(home, environment={"LASTGOOD_CONFIG": "/srv/lastgood.toml"}) as stack:
        subprocess.run(["prefect", "--no-prompt", "deploy", "--all", …], env=stack.environ)

Decides which processes a stack is, what they are told and when they are ready; leaves what runs on it to `deploying`
and to the flows. It imports no Prefect: it starts programs and asks the server over HTTP.

Rules:

- Loopback only, on a port that nobody else has; no telemetry, no banner, no server but this one.
- Everything lives in one home directory (database, settings, logs), which one stack at a time may use.
- Every process is held by a keeper (`lastgood.replica.processes`): when the context ends, when starting fails half-way
  or when we are killed by SIGKILL, nothing is left. Nothing is ever found or killed by name.
- A variable of Prefect's in our own environment reaches nothing here, but for the authentication string: a stack must
  not talk to the server that its user's shell happens to name.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import http
import http.client
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from lastgood.errors import LastgoodError, UsageError
from lastgood.replica.keeper import send_signal
from lastgood.replica.processes import ReplicaProcess
from lastgood_prefect.pools import POOLS, PoolType, job_template, pool_of

__all__ = ["LASTGOOD", "Stack", "StackProcess"]

HOST: Final = "127.0.0.1"
START_TIMEOUT: Final = timedelta(minutes=6)
"""A first start migrates an empty database: 16 s on two idle cores, minutes on busy ones."""
STOP_TIMEOUT: Final = timedelta(seconds=10)
PORT_ATTEMPTS: Final = 3
PREFECT: Final = (sys.executable, "-m", "prefect")
LASTGOOD: Final = (sys.executable, "-m", "lastgood")
DEPLOY_TIMEOUT: Final = timedelta(minutes=6)
NOTHING_INSTALLED: Final = ("--install-policy", "never")
POLL_SECONDS: Final = 0.2
REQUEST_SECONDS: Final = 30.0
BUSY_SECONDS: Final = 30.0

_KEPT_VARIABLES: Final = ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_LOGGING_LEVEL")


class StackProcess:
    """A server or a worker: one process that can be killed, restarted and looked at; not shared between threads.

    Args:
        name: `server`, or `worker-<pool>`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        ready: Callable[[datetime], bool],
    ) -> None:
        self.name = name
        self.starts = 0
        self._command = tuple(command)
        self._environment = dict(environment)
        self._directory = directory
        self._ready = ready
        self._begun = datetime.now(UTC)
        self._current: ReplicaProcess | None = None
        self._former: list[ReplicaProcess] = []

    @property
    def pid(self) -> int:
        """Of the process as last started."""
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """What the process as last started prints; each start has a file of its own."""
        return self._log_path(self.starts)

    def poll(self) -> int | None:
        """Exit status, minus the signal's number for a killed one; None while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send a signal to this very process, if it still runs."""
        send_signal(self._process.identity, number)

    def kill(self) -> None:
        """Kill this very process by SIGKILL and wait for its end; what it had started lives on, as on any machine."""
        self.terminate(signal.SIGKILL)

    def terminate(self, number: int = signal.SIGTERM, timeout: timedelta = STOP_TIMEOUT) -> None:
        """Send a signal and wait for the end; kill what does not end in time."""
        self.send(number)
        if self._process.wait(timeout) is None:
            self.send(signal.SIGKILL)
            self._process.wait(timeout)

    def restart(self) -> None:
        """End the process if it still runs, start it again and wait until it is ready.

        Raises:
            LastgoodError: It did not become ready.
        """
        if self.poll() is None:
            self.terminate()
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process without waiting for anything. A former one must have ended."""
        if self._current is not None:
            # Orphans of a killed worker are runs that go on; they stay with their keeper until they or the stack end.
            self._former.append(self._current)
        for former in [one for one in self._former if not one.descendants()]:
            former.kill_tree()
            self._former.remove(former)
        self.starts += 1
        self._begun = datetime.now(UTC)
        self._current = ReplicaProcess.start(self._command, self._environment, self._directory, self.log_path)

    def wait_ready(self, timeout: timedelta = START_TIMEOUT) -> None:
        """Wait until the process does its work.

        Raises:
            LastgoodError: It ended, or took too long; its last words are in the message.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            # Its end first: whoever else answers under this address must not pass for it.
            status = self._process.wait(timedelta(seconds=POLL_SECONDS))
            if status is not None:
                raise LastgoodError(f"{self.name} ended with {status} before it was ready: {self._last_words()}")
            if self._ready(self._begun):
                return
            if time.monotonic() > deadline:
                raise LastgoodError(
                    f"{self.name} not ready after {timeout.total_seconds():.0f} s: {self._last_words()}",
                    hint=f"its log is {self.log_path}",
                )

    def close(self) -> None:
        """Kill it and everything that it ever started; returns when nothing of it lives."""
        for process in (*self._former, *([self._current] if self._current else [])):
            process.kill_tree()

    @property
    def _process(self) -> ReplicaProcess:
        assert self._current is not None, "launched by its stack"
        return self._current

    def _log_path(self, start: int) -> Path:
        return self._directory / "logs" / (f"{self.name}.log" if start == 1 else f"{self.name}-{start}.log")

    def _last_words(self) -> str:
        return self._process.log_tail(lines=20).strip() or "it said nothing"


class Stack:
    """A running server and its workers. Made by `start`.

    Args:
        home: Holds the database, the settings and the logs.
        environ: For programs that shall talk to this server; holds our own environment too.
        server: The server's process.
        workers: Pool → its worker's process.
    """

    def __init__(self, home: Path, port: int, environment: Mapping[str, str]) -> None:
        self.home = home
        self.port = port
        self.environ = _environ(home, port, environment)
        self.server = StackProcess(
            "server",
            (*PREFECT, "server", "start", "--host", HOST, "--port", str(port)),
            self.environ,
            home,
            lambda begun: self._healthy(),
        )
        self.workers: dict[str, StackProcess] = {}
        self._others: list[StackProcess] = []

    @property
    def processes(self) -> tuple[StackProcess, ...]:
        """All of them, the server first: the others need it."""
        return (self.server, *self.workers.values(), *self._others)

    @property
    def api_url(self) -> str:
        """Where clients find the server: what PREFECT_API_URL shall be."""
        return f"http://{HOST}:{self.port}/api"

    @property
    def ui_url(self) -> str:
        """Where people look."""
        return f"http://{HOST}:{self.port}"

    @classmethod
    @contextlib.contextmanager
    def start(
        cls,
        home: Path,
        *,
        pools: Sequence[str] = tuple(pool.name for pool in POOLS),
        environment: Mapping[str, str] = {},
        port: int | None = None,
    ) -> Iterator[Stack]:
        """Start a server and the workers of these pools; all of it ends with the context.

        Args:
            home: Made if it is missing; what an earlier stack left there is used again.
            pools: Work pools that get a worker here; one that is missing is created, of type `process`.
            environment: Variables for server, workers and flow runs, over our own.
            port: Of the server; None: one that is free.

        Raises:
            UsageError: Another stack uses this home, or the port is taken.
            LastgoodError: Something did not become ready; the message says what it printed last.
        """
        home = home.absolute()
        (home / "logs").mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            held.enter_context(_locked(home))
            stack = held.enter_context(cls._serving(home, environment, port))
            held.callback(stack._stop_clients)
            for pool in pools:
                stack._ensure_pool(pool)
                stack.workers[pool] = stack._worker(pool)
                stack.workers[pool].launch()
            for worker in stack.workers.values():
                worker.wait_ready()
            yield stack

    @classmethod
    @contextlib.contextmanager
    def _serving(cls, home: Path, environment: Mapping[str, str], port: int | None) -> Iterator[Stack]:
        """A stack whose server is ready, without workers."""
        if port is not None and not _is_free(port):
            raise UsageError(f"port is taken: {HOST}:{port}", hint="name another one, or none to get a free one")
        stack = cls._with_server(home, environment, port, PORT_ATTEMPTS)
        try:
            yield stack
        finally:
            try:
                stack.server.terminate()
            finally:
                stack.server.close()

    @classmethod
    def _with_server(cls, home: Path, environment: Mapping[str, str], port: int | None, attempts: int) -> Stack:
        stack = cls(home, port or _free_port(), environment)
        stack.server.launch()
        try:
            stack.server.wait_ready()
        except BaseException as error:
            stack.server.close()
            # Between our look and the server's start somebody else may have taken the port.
            lost = isinstance(error, LastgoodError) and port is None and not _is_free(stack.port)
            if lost and attempts > 1:
                return cls._with_server(home, environment, port, attempts - 1)
            raise
        return stack

    def run(self, name: str, command: Sequence[str]) -> StackProcess:
        """Start a further program that talks to the server; it ends with the stack.

        Args:
            name: Of its log.
            command: Program and arguments; it is told `environ`.
        """
        process = StackProcess(name, command, self.environ, self.home, lambda begun: True)
        self._others.append(process)
        process.launch()
        return process

    def deploy(self, *options: str) -> str:
        """Set up pools, limits, deployments and automations by `lastgood deploy`; the last line that it says.

        Raises:
            LastgoodError: It did not succeed; its last words are in the message.
        """
        log = self.home / "logs" / "deploy.log"
        with ReplicaProcess.start((*LASTGOOD, "deploy", *options), self.environ, self.home, log) as deploying:
            status = deploying.wait(DEPLOY_TIMEOUT)
            if status is None:
                raise LastgoodError(f"`lastgood deploy` did not end within {DEPLOY_TIMEOUT.total_seconds():.0f} s")
            said = deploying.log_tail(lines=20).strip()
        if status != 0:
            raise LastgoodError(f"`lastgood deploy` ended with {status}: {said}")
        return said.rpartition("\n")[2]

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """One request to the server's API, past any proxy; the status and the parsed answer.

        A busy SQLite makes the server say 503 and undo what it began; as Prefect's own client does, we ask again.

        Args:
            method: `GET`, `POST`, …
            path: Below the API, e.g. `/health`.
            body: Sent as JSON; None: no body.

        Raises:
            OSError: Nobody answers.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            status, data = self._exchange(method, f"/api{path}", None if body is None else json.dumps(body))
            if status != http.HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        try:
            return status, json.loads(data) if data else None
        except ValueError:
            return status, None

    def _exchange(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=REQUEST_SECONDS)
        headers = {"Content-Type": "application/json"}
        if secret := self.environ.get("PREFECT_API_AUTH_STRING"):
            headers["Authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"server at {self.api_url} answered no HTTP: {error}") from error
        finally:
            connection.close()

    def _ensure_pool(self, name: str) -> None:
        """Create a pool before its worker would, which knows nothing of our job templates."""
        status, _ = self.request("GET", f"/work_pools/{name}")
        pool = pool_of(name)
        if status != 404 or pool is None:
            return
        body = {
            "name": name,
            "description": pool.description,
            "type": PoolType.PROCESS.value,
            "base_job_template": job_template(pool, PoolType.PROCESS),
            "concurrency_limit": pool.concurrency_limit,
        }
        status, answer = self.request("POST", "/work_pools/", body)
        if status >= 300:
            raise LastgoodError(f"pool not created: {name}: server says {status}: {answer}")

    def ask(self, deployment: str, parameters: Mapping[str, object] = {}) -> dict[str, Any]:
        """Ask for a run of `<flow>/<deployment>`, as its page does; the run as the server made it.

        Raises:
            LastgoodError: The server does not answer, or would not start it.
        """
        found = self.require("GET", f"/deployments/name/{deployment}")
        body = {"parameters": dict(parameters)}
        run: dict[str, Any] = self.require("POST", f"/deployments/{found['id']}/create_flow_run", body)
        return run

    def require(self, method: str, path: str, body: object = None) -> Any:
        """The answer to a request that must succeed.

        Raises:
            LastgoodError: The server does not answer, or refused.
        """
        try:
            status, answer = self.request(method, path, body)
        except OSError as error:
            raise LastgoodError(f"server does not answer: {method} {path}: {error}") from error
        if status >= 300:
            raise LastgoodError(f"server refused {method} {path}: {status}: {json.dumps(answer)[:500]}")
        return answer

    def _worker(self, pool: str) -> StackProcess:
        name = f"{pool}-{os.urandom(3).hex()}"
        return StackProcess(
            f"worker-{pool}",
            (*PREFECT, "worker", "start", "--pool", pool, "--type", "process", "--name", name, *NOTHING_INSTALLED),
            self.environ,
            self.home,
            lambda begun: self._polls(pool, name, begun),
        )

    def _healthy(self) -> bool:
        try:
            return self.request("GET", "/health") == (200, True)
        except OSError:
            return False

    def _polls(self, pool: str, worker: str, begun: datetime) -> bool:
        """Whether the server heard of this worker after it was started."""
        try:
            status, found = self.request("POST", f"/work_pools/{pool}/workers/filter", {})
        except OSError:
            return False
        return status == 200 and any(
            one["name"] == worker and datetime.fromisoformat(one["last_heartbeat_time"]) >= begun for one in found
        )

    def _stop_clients(self) -> None:
        """Ask all but the server at once, then end whatever is left of them and of the runs that they started."""
        clients = [process for process in (*self.workers.values(), *self._others) if process.starts]
        try:
            for process in clients:
                process.send(signal.SIGTERM)
            for process in clients:
                process.terminate()
        finally:
            for process in clients:
                process.close()


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the home directory for as long as we live."""
    with (home / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"a stack is running in this home already: {home}", hint="name another --home") from None
        yield


def _environ(home: Path, port: int, environment: Mapping[str, str]) -> dict[str, str]:
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith("PREFECT_") or name in _KEPT_VARIABLES
    }
    for name in ("NO_PROXY", "no_proxy"):
        ours[name] = ",".join(filter(None, (ours.get(name), HOST, "localhost")))
    if "PREFECT_SERVER_API_AUTH_STRING" in ours:
        ours.setdefault("PREFECT_API_AUTH_STRING", ours["PREFECT_SERVER_API_AUTH_STRING"])
    return {
        **ours,
        # A pool's job names its program: `python`, and a replica's `torchrun`, are those of this installation.
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), ours.get("PATH", os.defpath))),
        "DO_NOT_TRACK": "1",
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_HOME": str((home / "prefect").absolute()),
        # A program must not ask a question that nobody sees.
        "PREFECT_CLI_PROMPT": "false",
        # JSON, so that no result that anything of ours stores needs unpickling.
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        # In memory, the default, leases end with the server and the slots that they held are never free again.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # Without a server a client must fail, not start a passing one with settings of its own.
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # The default of 10 s is most of the time between a commit and its verdict.
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        **environment,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does: a port whose last connections are still fading is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
