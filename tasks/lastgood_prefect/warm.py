"""A run's Python that need not import Prefect first: `python -m lastgood_prefect.warm`, as a process pool's command.

Importing Prefect takes nine tenths of a short run. So the first run of a worker goes its ordinary way, and leaves a
process beside it that imports everything and waits; later runs are forks of that. Decides how a run gets there and
back; what a run does is Prefect's `prefect.engine`, here as there. Rules:

- Whatever is in doubt, the run goes its ordinary way: nobody listens, the code changed, another environment.
- The process that waits belongs to one worker and ends with it, but not before the runs that it forked.
- A run behaves as if its worker had started it: same standard streams, environment and directory, signals passed on,
  exit status passed back. It dies with whoever the worker believes to be it, and with the process that forked it.
- Only this user is answered. The process that waits never runs a flow, has one thread and opens no connection, so
  there is nothing that a fork could inherit half-done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["main"]

SERVE: Final = "serve"
ENGINE: Final = "prefect.engine"
PRELOADED: Final = ("prefect.flow_engine", "prefect.task_engine", "lastgood_prefect.verifying")
ANSWER_SECONDS: Final = 5.0
MAXIMUM_REQUEST_BYTES: Final = 16 * 2**20
PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_LENGTH: Final = struct.Struct("!I")
_STATUS: Final = struct.Struct("!i")
_CREDENTIALS: Final = struct.Struct("3i")
_STREAMS: Final = 3
_PR_SET_PDEATHSIG: Final = 1


class Request(NamedTuple):
    """What a run needs of the process that its worker started.

    Args:
        directory: Where it starts.
        environment: All of it.
        streams: Descriptors of its standard input, output and error.
    """

    directory: str
    environment: dict[str, str]
    streams: list[int]


def main() -> int:
    """Run `prefect.engine` in a fork of the process that waits, else in this one."""
    if sys.argv[1:2] == [SERVE]:
        request = _Waiting(int(sys.argv[2]), sys.argv[3]).serve()
        return 0 if request is None else _become(request)
    worker = os.getppid()
    address = _address(worker, os.environ)
    status = _run_elsewhere(address)
    if status is None:
        _leave_waiting(worker, address)
        os.execv(sys.executable, [sys.executable, "-m", ENGINE])
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


# What the worker starts.


def _address(worker: int, environment: Mapping[str, str]) -> str:
    """Where the process waits that serves this worker's runs in this environment, by the abstract name of a socket."""
    # Prefect reads its settings when it is imported; what differs from run to run begins with two underscores.
    settings = sorted(
        (name, value)
        for name, value in environment.items()
        if name.startswith(("PREFECT_", "PYTHON", "LASTGOOD_")) and not name.startswith("PREFECT__")
    )
    told = json.dumps([sys.executable, __file__, _created(worker), settings])
    return f"lastgood-warm-{os.getuid()}-{worker}-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


def _created(pid: int) -> str:
    """When a process was created, in ticks since boot; its pid may be another one's later."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return "ended"


def _leave_waiting(worker: int, address: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
    with contextlib.suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", "lastgood_prefect.warm", SERVE, str(worker), address],
            env=environment,
            # Python looks for modules here first, and a run's directory is one that anybody may make again in /tmp.
            cwd="/",
            # The worker reads our streams to their end, and that must not be the end of the process that waits.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _run_elsewhere(address: str) -> int | None:
    """The exit status of a run that was forked for us, negative for a signal; None if nobody did."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(f"\0{address}")
            if _peer(connection) != os.getuid():
                return None
            _send_request(connection)
            if not _receive(connection, _LENGTH.size):
                return None
        except OSError:
            return None
        connection.settimeout(None)
        for number in PASSED_ON:
            signal.signal(number, lambda received, frame: connection.send(bytes([received])))
        with contextlib.suppress(OSError):
            if status := _receive(connection, _STATUS.size):
                return int(_STATUS.unpack(status)[0])
    sys.stderr.write("lastgood: the process that this run was forked from has ended, and the run with it\n")
    return 1


def _send_request(connection: socket.socket) -> None:
    data = json.dumps([os.getcwd(), dict(os.environ)], ensure_ascii=True).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(data))], range(_STREAMS))
    connection.sendall(data)


def _peer(connection: socket.socket) -> int:
    """The user at the other end, as the kernel knows it."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


def _receive(connection: socket.socket, count: int) -> bytes:
    """So many bytes, or none at all when the other end closed before."""
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            return b""
        data += more
    return data


# What waits.


class _Run(NamedTuple):
    pid: int
    connection: socket.socket


class _Waiting:
    """Has imported everything and forks a run for whoever asks.

    Args:
        worker: Whose runs these are.
        address: Where to listen.
    """

    def __init__(self, worker: int, address: str) -> None:
        self._worker = worker
        self._address = address
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._poll = select.poll()
        self._loaded: dict[str, int] = {}
        self._by_process: dict[int, _Run] = {}
        self._by_connection: dict[int, _Run] = {}

    def serve(self) -> Request | None:
        """Fork runs until the worker has ended; None then, and in each fork what it is to do."""
        try:
            worker = os.pidfd_open(self._worker)
            # Taken before the imports, so that a second one of us ends here; nobody is heard before they are done.
            self._listener.bind(f"\0{self._address}")
        except OSError:
            return None
        self._import()
        self._listener.listen()
        self._poll.register(worker, select.POLLIN)
        self._poll.register(self._listener, select.POLLIN)
        while self._listener.fileno() >= 0 or self._by_process:
            for descriptor, _ in self._poll.poll():
                if descriptor == worker:
                    self._poll.unregister(worker)
                    self._stop_listening()
                elif descriptor == self._listener.fileno():
                    if (request := self._accept()) is not None:
                        return request
                elif descriptor in self._by_process:
                    self._report(descriptor)
                elif descriptor in self._by_connection:
                    self._pass_on(descriptor)
        return None

    def _import(self) -> None:
        import gc
        import importlib

        for name in PRELOADED:
            importlib.import_module(name)
        # What is imported is shared with every fork until one writes to it; a collection would write to all of it.
        gc.collect()
        gc.freeze()
        self._loaded = _loaded_files()

    def _stop_listening(self) -> None:
        if self._listener.fileno() >= 0:
            self._poll.unregister(self._listener)
            self._listener.close()

    def _accept(self) -> Request | None:
        """Fork for whoever connected; returns in the fork only."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            self._stop_listening()  # no descriptor is left: runs go their ordinary way, those that we forked go on
            return None
        connection.settimeout(ANSWER_SECONDS)
        if _loaded_files() != self._loaded:
            self._stop_listening()
            connection.close()
            return None
        try:
            request = _read_request(connection)
        except (OSError, ValueError):
            connection.close()
            return None
        if _has_left(connection):
            _close(request.streams)  # it waited too long for us, and is the run itself by now
            connection.close()
            return None
        ours = os.getpid()
        pid = process = -1
        try:
            pid = os.fork()
            if pid == 0:
                self._leave_in_fork(connection, ours)
                return request
            process = os.pidfd_open(pid)
        except OSError:
            # Of processes or descriptors there are no more; the runs that we forked need us, whatever we cannot do now.
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            connection.close()
            return None
        finally:
            if pid != 0:
                _close(request.streams)
        connection.settimeout(None)
        run = _Run(pid, connection)
        self._by_process[process] = self._by_connection[connection.fileno()] = run
        self._poll.register(process, select.POLLIN)
        self._poll.register(connection, select.POLLIN)
        with contextlib.suppress(OSError):
            connection.send(_LENGTH.pack(pid))
        return None

    def _leave_in_fork(self, connection: socket.socket, parent: int) -> None:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        for run in self._by_process.values():
            run.connection.close()
        for process in self._by_process:
            os.close(process)
        self._listener.close()
        connection.close()

    def _report(self, process: int) -> None:
        """A run has ended: tell its process at the worker how."""
        run = self._by_process.pop(process)
        self._poll.unregister(process)
        os.close(process)
        _, status = os.waitpid(run.pid, 0)
        descriptor = run.connection.fileno()
        if self._by_connection.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
            with contextlib.suppress(OSError):
                run.connection.send(_STATUS.pack(os.waitstatus_to_exitcode(status)))
        run.connection.close()

    def _pass_on(self, descriptor: int) -> None:
        """A signal for a run, or the end of whoever was told to be it."""
        run = self._by_connection[descriptor]
        try:
            numbers = run.connection.recv(64)
        except OSError:
            numbers = b""
        for number in numbers or bytes([signal.SIGKILL]):
            os.kill(run.pid, number)  # our own child, not waited for yet: the pid is nobody else's
        if not numbers:
            del self._by_connection[descriptor]
            self._poll.unregister(descriptor)


def _read_request(connection: socket.socket) -> Request:
    if _peer(connection) != os.getuid():
        raise ValueError("another user")
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, _STREAMS)
    try:
        length = int(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else 0
        data = _receive(connection, length) if 0 < length <= MAXIMUM_REQUEST_BYTES else b""
        if not data or len(streams) != _STREAMS:
            raise ValueError("not a request")
        directory, environment = json.loads(data)
    except BaseException:
        _close(streams)
        raise
    return Request(directory, environment, list(streams))


def _has_left(connection: socket.socket) -> bool:
    """Whether whoever asked hears us no more."""
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _loaded_files() -> dict[str, int]:
    """Module that is loaded → when its file was last changed; flows are read anew by every run.

    All of ours, and of others what stands at the top: an installer writes each file of a package anew.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        path: Any = getattr(module, "__file__", None)
        package, _, below = name.partition(".")
        if path and (not below or package in ("lastgood", "lastgood_prefect")):
            with contextlib.suppress(OSError):
                found[name] = os.stat(path).st_mtime_ns
    return found


def _become(request: Request) -> int:
    """In a fork: be the run, as a Python of its own would be."""
    import random
    import runpy

    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    if not sys.flags.safe_path:
        sys.path[0] = request.directory  # as `python -m` does
    random.seed()
    sys.argv = [ENGINE]
    sys.modules.pop(ENGINE, None)
    runpy.run_module(ENGINE, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
