"""The keeper: a tiny parent that owns every process of one replica, and that nothing of it outlives.

Run by `processes` as a script of its own; imports the standard library only, for it must start in a blink and run where
nothing is installed. Decides how processes are found and killed; leaves everything about replicas to its caller.

Rules enforced here:

- It is a *child subreaper*: whatever loses its parent becomes its child, so sessions and process groups of their own
  (torchrun gives each worker one) and orphans of a killed agent stay in its tree.
- Its standard input is its lifeline: end of file means that its caller is gone or has had enough, and everything is
  killed. (PR_SET_PDEATHSIG fires when the spawning *thread* ends, so it cannot say that a process lives.)
- A process is its pid *and* the time the kernel created it. A signal is sent through a pidfd that was opened first and
  checked after, so it can never reach another process that was given the pid meanwhile. Nothing is found by name.
- A tree is stopped whole before any of it is killed, so that nothing forks away in between. The kernel's own word, that
  there is no child to wait for, ends it: a look through /proc can miss what forks and exits all the time.

Source: prctl(2), PR_SET_CHILD_SUBREAPER; pidfd_open(2); proc_pid_stat(5).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["MARK", "ProcessIdentity", "descendants", "kill_all", "kill_round", "marked", "send_signal"]

MARK = "LASTGOOD_KEPT"
"""The variable whose random value every process of one replica inherits: the second way to recognise one."""

KILL_SECONDS = 30.0
QUIET_SCANS = 3
MAXIMUM_SPECIFICATION_BYTES = 16 * 2**20

_PR_SET_CHILD_SUBREAPER = 36


class ProcessIdentity(NamedTuple):
    """One process, and no other that ever had or will have its pid.

    Args:
        pid: As the kernel numbers it now.
        created_ticks: When it was created, in clock ticks since boot.
    """

    pid: int
    created_ticks: int


class _Stat(NamedTuple):
    state: str
    parent: int
    identity: ProcessIdentity


def descendants(pid: int) -> tuple[ProcessIdentity, ...]:
    """The living descendants of a process, parents before children; what is dead but not yet reaped is left out.

    One look at a moving tree: a process that is losing its parent just now may be missed, so ask again before believing
    in none.
    """
    children: dict[int, list[ProcessIdentity]] = {}
    for stat in _living():
        children.setdefault(stat.parent, []).append(stat.identity)
    found: list[ProcessIdentity] = []
    parents = [pid]
    while parents:
        born = children.pop(parents.pop(), [])
        found.extend(born)
        parents.extend(child.pid for child in born)
    return tuple(found)


def marked(value: str) -> tuple[ProcessIdentity, ...]:
    """The living processes of this user that inherited `MARK` with this value, wherever they are now."""
    entry = f"{MARK}={value}".encode()
    return tuple(stat.identity for stat in _living() if entry in _environment(stat.identity.pid))


def send_signal(process: ProcessIdentity, number: int) -> bool:
    """Send a signal to this very process; False when it has ended already, reaped or not."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor stands for whatever had the pid when it was opened; only then is it asked who that is.
        stat = _stat(process.pid)
        if stat is None or stat.identity != process or _is_dead(stat):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        # Ended, or it took another user's rights; `kill_all` reports what it cannot reach.
        return False
    finally:
        os.close(descriptor)
    return True


def kill_all(
    find: Callable[[], tuple[ProcessIdentity, ...]], *, seconds: float = KILL_SECONDS
) -> tuple[ProcessIdentity, ...]:
    """Kill what `find` names, in rounds, until it names nothing several times in a row.

    Args:
        find: Looks for the living; called again and again.
        seconds: After this long, give up (a process in uninterruptible sleep cannot die yet).

    Returns:
        What is still alive.
    """
    deadline = time.monotonic() + seconds
    quiet = 0
    while quiet < QUIET_SCANS:
        found = kill_round(find)
        if found and time.monotonic() > deadline:
            return found
        quiet = 0 if found else quiet + 1
        time.sleep(0.001)
    return ()


def kill_round(find: Callable[[], tuple[ProcessIdentity, ...]]) -> tuple[ProcessIdentity, ...]:
    """Stop what `find` names until it names nothing new, then kill all of that at once; returns what was found."""
    stopped: dict[ProcessIdentity, None] = {}
    while fresh := [process for process in find() if process not in stopped]:
        for process in fresh:
            send_signal(process, signal.SIGSTOP)
            stopped[process] = None
    for process in stopped:
        send_signal(process, signal.SIGKILL)
    return tuple(stopped)


def _living() -> list[_Stat]:
    stats = (_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [stat for stat in stats if stat is not None and not _is_dead(stat)]


def _is_dead(stat: _Stat) -> bool:
    if stat.state not in "ZX":
        return False
    try:
        # A main thread that ended before the others looks like a zombie, but the process lives.
        return len(os.listdir(f"/proc/{stat.identity.pid}/task")) <= 1
    except OSError:
        return True


def _stat(pid: int) -> _Stat | None:
    data = _read(f"/proc/{pid}/stat")
    # The second field is the program's name in parentheses, which may itself hold spaces and parentheses.
    fields = data.rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    return _Stat(fields[0].decode(), int(fields[1]), ProcessIdentity(pid, int(fields[19])))


def _environment(pid: int) -> list[bytes]:
    return _read(f"/proc/{pid}/environ").split(b"\0")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        # It ended meanwhile, or belongs to another user and so was never ours.
        return b""


class _Log:
    """Takes what the replica prints and keeps the newest of it: two files of at most half the limit each."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        self._path = path
        self._half = limit_bytes // 2
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - held for the keeper's whole life
        self._written = 0

    def write(self, data: bytes) -> None:
        data = data[-self._half :]
        try:
            if self._written + len(data) > self._half:
                os.replace(self._path, f"{self._path}.old")
                self._file.close()
                self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115
                self._written = 0
            self._written += self._file.write(data) or 0
        except OSError:
            # A full disk must not keep the replica from being watched and killed.
            return


class _Keeper:
    """One replica's keeper process, from its specification to its end."""

    def __init__(self, specification: dict[str, Any]) -> None:
        self._specification = specification
        self._log = _Log(specification["log"], specification["log_bytes"])
        self._main = 0

    def run(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            self._tell("failed", f"cannot become a subreaper: {os.strerror(ctypes.get_errno())}")
            return
        wakeup, signalled = os.pipe()
        os.set_blocking(signalled, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(signalled)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: None)
        output, written = os.pipe()
        try:
            self._spawn(written)
        except OSError as error:
            self._tell("failed", os.strerror(error.errno or 0))
            return
        os.close(written)
        self._watch(wakeup, output)
        self._kill()
        # What the replica said last is what people look for.
        os.set_blocking(output, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(output, 65536):
                self._log.write(data)

    def _spawn(self, output: int) -> None:
        told = self._specification
        os.chdir(told["directory"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        self._main = os.posix_spawn(
            told["program"],
            told["command"],
            {**told["environment"], MARK: told["mark"]},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            # A session of its own: a replica that signals its process group must not reach its keeper.
            setsid=True,
            setsigmask=[],
            # Python ignores these and a program that it starts would inherit that.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
        os.close(nothing)
        stat = _stat(self._main)
        self._tell("started", f"{self._main} {stat.identity.created_ticks if stat else 0}")

    def _watch(self, wakeup: int, output: int) -> None:
        poll = select.poll()
        for descriptor in (0, wakeup, output):
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == 0:
                    return
                data = os.read(descriptor, 65536)
                if descriptor == output and data:
                    self._log.write(data)
                elif descriptor == output:
                    poll.unregister(output)
                elif any(number != signal.SIGCHLD for number in data):
                    return
                else:
                    self._reap()

    def _kill(self) -> None:
        """Kill until the kernel says that no child is left. Every orphan becomes a child, so nothing is left at all."""
        deadline = time.monotonic() + KILL_SECONDS
        while self._reap() and time.monotonic() < deadline:
            kill_round(lambda: descendants(os.getpid()))
            # A chain of processes that each fork and exit is too quick for a look through all of /proc. These are our
            # own children and only we reap them, so none of these pids can belong to anybody else.
            for pid in _read(f"/proc/self/task/{os.getpid()}/children").split():
                with contextlib.suppress(PermissionError):
                    os.kill(int(pid), signal.SIGKILL)

    def _reap(self) -> bool:
        """Take in every child that has ended; whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._main:
                self._tell("ended", str(os.waitstatus_to_exitcode(status)))

    def _tell(self, event: str, detail: str) -> None:
        try:
            os.write(1, f"{event} {detail}\n".encode())
        except OSError:
            # Nobody listens any more; the lifeline says so too.
            return


def main() -> None:
    """Read the specification from standard input, one JSON line, and keep until the input ends."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 65536)
        if not data or len(line) > MAXIMUM_SPECIFICATION_BYTES:
            return
        line += data
    _Keeper(json.loads(line)).run()


if __name__ == "__main__":
    main()
