"""Starting a replica so that everything it starts can be named, killed and known to be gone.

    with ReplicaProcess.start(command, environment, directory, log_path) as replica:
        replica.wait(timedelta(minutes=5))

Decides how a supervisor holds a replica; `keeper` does the holding, in a process of its own. Rules: nothing is ever
killed by name or by a bare pid; when the context ends, or the supervisor dies in any way, SIGKILL included, no process
of the replica is left; what it prints is kept up to a limit. Tiers 2 and 3 start every replica through here.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lastgood.errors import LastgoodError, StorePermanentError, UsageError
from lastgood.redaction import redact
from lastgood.replica import keeper
from lastgood.replica.keeper import ProcessIdentity

__all__ = ["ProcessIdentity", "ReplicaProcess", "find_program", "replica_home"]

MAXIMUM_LOG_BYTES: Final = 16 * 2**20
MAXIMUM_HOME_BYTES: Final = 60
SHORTEST_SECRET: Final = 8
START_TIMEOUT: Final = timedelta(seconds=30)
END_TIMEOUT: Final = timedelta(seconds=keeper.KILL_SECONDS + 5)


class ReplicaProcess:
    """A running command and everything that it started; not shared between threads. Made by `start`.

    Args:
        pid: Of the command itself.
        identity: The same, told apart from any other process that ever has this pid.
        log_path: What it printed last; the part before lies beside it, under `.old`.
    """

    def __init__(
        self, kept: subprocess.Popen[bytes], identity: ProcessIdentity, mark: str, log_path: Path, early: bytes
    ) -> None:
        self.pid = identity.pid
        self.identity = identity
        self.log_path = log_path
        self._keeper = kept
        self._mark = mark
        self._told = early
        self._returncode: int | None = None
        self._closed = False

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        log_path: Path,
        *,
        log_bytes: int = MAXIMUM_LOG_BYTES,
    ) -> Self:
        """Start a command under a keeper of its own.

        Args:
            command: Program and arguments; no shell reads them.
            environment: The whole environment, e.g. from `contract.replica_environ`.
            directory: Working directory.
            log_path: Where standard output and error go; replaced. Its directory must exist.
            log_bytes: The most that is kept of them.

        Raises:
            UsageError: The program or the directory is not there or may not be used; it is named.
            StorePermanentError: The log cannot be written.
            LastgoodError: The keeper did not start.
        """
        program = find_program(command, environment, directory)
        mark = secrets.token_hex(16)
        specification = {
            "program": program,
            "command": list(command),
            "environment": dict(environment),
            "directory": str(directory.absolute()),
            "log": str(log_path.absolute()),
            "log_bytes": log_bytes,
            "mark": mark,
        }
        kept = _start_keeper(log_path)
        try:
            _lifeline(kept, specification)
            event, detail, early = _first_event(kept)
            if event == "failed":
                raise UsageError(f"cannot start replica: {program} in {directory}: {detail}")
            pid, created_ticks = detail.split()
            return cls(kept, ProcessIdentity(int(pid), int(created_ticks)), mark, log_path, early)
        except BaseException:
            _end(kept)
            _release(kept)
            raise

    @property
    def returncode(self) -> int | None:
        """Exit status of the command as far as known; minus the signal's number for a killed one."""
        return self._returncode

    def poll(self) -> int | None:
        """The command's exit status, or None while it runs. What it started may live on: see `descendants`."""
        return self.wait(timedelta(0))

    def wait(self, timeout: timedelta) -> int | None:
        """Wait until the command ends, or for as long as `timeout`; None if it still runs.

        Raises:
            LastgoodError: The keeper is gone, so nobody can tell.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while self._take_events() is None and self._listen(max(0.0, deadline - time.monotonic())):
            pass
        if self._returncode is None and not self._closed and self._keeper.poll() is not None:
            raise LastgoodError(
                "keeper of the replica is gone: it was killed from outside",
                hint="whatever the replica left running is killed when its context ends",
            )
        return self._returncode

    def descendants(self) -> tuple[ProcessIdentity, ...]:
        """Everything of the replica that lives now, the command first, orphans included."""
        inside = keeper.descendants(self._keeper.pid) if self._keeper.returncode is None else ()
        seen = set(inside)
        return (*inside, *(process for process in keeper.marked(self._mark) if process not in seen))

    def signal(self, process: ProcessIdentity, number: int) -> bool:
        """Send a signal to one process of this replica; False when it has ended already.

        Raises:
            UsageError: The process is not of this replica.
        """
        if process not in self.descendants():
            if keeper.send_signal(process, 0):
                raise UsageError(f"process is not of this replica: {process.pid}")
            return False
        return keeper.send_signal(process, number)

    def kill_tree(self) -> None:
        """Kill everything of the replica; returns when nothing of it lives. May be repeated.

        Raises:
            LastgoodError: Something cannot be killed (uninterruptible sleep); its pids are named.
        """
        if not self._closed:
            self._closed = True
            _end(self._keeper)
            self._take_events()
            _release(self._keeper)
            self._clean_log()
        # Nothing is left unless the keeper itself was killed or stopped; then its children lost their reaper, not
        # their mark.
        left = keeper.kill_all(lambda: keeper.marked(self._mark))
        if left:
            raise LastgoodError(f"cannot kill processes of the replica: {', '.join(str(one.pid) for one in left)}")

    def log_tail(self, *, lines: int = 40, hide: Mapping[str, str] | None = None) -> str:
        """The last lines that the replica printed, for people.

        Args:
            lines: At most so many.
            hide: Name → value of what was handed to the replica and must not be shown; long enough values only.
        """
        text = b""
        for path in (self.log_path.with_name(f"{self.log_path.name}.old"), self.log_path):
            with contextlib.suppress(OSError):
                text += path.read_bytes()
        shown = "\n".join(text.decode("utf-8", errors="replace").splitlines()[-lines:])
        for name, value in (hide or {}).items():
            if len(value) >= SHORTEST_SECRET:
                shown = shown.replace(value, f"<{name}>")
        return shown

    def _clean_log(self) -> None:
        """Leave no secret in what was printed, for it may be kept. The halves become one: a secret may lie across."""
        halves = (self.log_path.with_name(f"{self.log_path.name}.old"), self.log_path)
        try:
            printed = b"".join(half.read_bytes() for half in halves if half.exists())
            clean = redact(printed.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            if clean != printed:
                halves[1].write_bytes(clean)
                halves[0].unlink(missing_ok=True)
        except OSError:
            # A full disk, say: what cannot be cleaned is not kept.
            for half in halves:
                with contextlib.suppress(OSError):
                    half.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill_tree()

    def _listen(self, seconds: float) -> bool:
        """Read what the keeper says, waiting at most so long for it; False when there is nothing more to hear."""
        stdout = self._keeper.stdout
        if stdout is None or stdout.closed or not _readable(stdout.fileno(), seconds):
            return False
        data = os.read(stdout.fileno(), 4096)
        self._told += data
        return bool(data)

    def _take_events(self) -> int | None:
        """Take in what the keeper has said so far; the command's exit status if that was among it."""
        while b"\n" in self._told or self._listen(0.0):
            line, found, rest = self._told.partition(b"\n")
            if not found:
                continue
            self._told = rest
            event, _, detail = line.decode().partition(" ")
            if event == "ended":
                self._returncode = int(detail)
        return self._returncode


@contextlib.contextmanager
def replica_home(scratch: Path) -> Iterator[Path]:
    """A directory for a replica's HOME and TMPDIR: in the scratch, or elsewhere where that path would be too long.

    Programs put sockets into TMPDIR (the workers of a data loader do), and the kernel takes at most 108 bytes of path.

    Args:
        scratch: A directory of the supervisor's own.
    """
    home = scratch / "home"
    if len(os.fsencode(home)) <= MAXIMUM_HOME_BYTES:
        home.mkdir()
        yield home
    else:
        with tempfile.TemporaryDirectory(prefix="lastgood-", ignore_cleanup_errors=True) as short:
            yield Path(short)


def find_program(command: Sequence[str], environment: Mapping[str, str], directory: Path) -> str:
    """The path of a command's program, found as the replica itself would find it.

    Raises:
        UsageError: The directory or the program is not there, or may not be executed.
    """
    if not directory.is_dir():
        raise UsageError(f"replica directory not found: {directory}")
    name = command[0] if command else ""
    if not name:
        raise UsageError("replica command is empty")
    place = str(directory / name) if "/" in name else name
    found = shutil.which(place, path=environment.get("PATH", os.defpath))
    if found is None:
        where = str(directory) if "/" in name else "PATH"
        hint = "is the environment of the training job activated, or its program named by a full path?"
        raise UsageError(f"program of the replica not found: {name}: looked in {where}", hint=hint)
    return os.path.abspath(found)


def _start_keeper(log_path: Path) -> subprocess.Popen[bytes]:
    try:
        log = log_path.open("wb")
    except OSError as error:
        raise StorePermanentError(f"log cannot be written: {log_path}: {error.strerror}") from error
    with log:
        return subprocess.Popen(
            # Isolated and without site-packages: quick to start, and blind to the variables of whoever started us.
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
            # Signals of a terminal reach the supervisor, which decides; the keeper sees its lifeline end.
            start_new_session=True,
        )


def _lifeline(kept: subprocess.Popen[bytes], specification: Mapping[str, object]) -> None:
    """Send the specification and leave the pipe open: as long as it is, the supervisor lives."""
    assert kept.stdin is not None
    try:
        kept.stdin.write(json.dumps(specification).encode() + b"\n")
        kept.stdin.flush()
    except BrokenPipeError:
        # The keeper died at once; `_first_event` says so.
        return


def _first_event(kept: subprocess.Popen[bytes]) -> tuple[str, str, bytes]:
    """The keeper's first word, and what came after it in the same breath."""
    assert kept.stdout is not None
    deadline = time.monotonic() + START_TIMEOUT.total_seconds()
    told = b""
    while b"\n" not in told:
        remaining = deadline - time.monotonic()
        data = os.read(kept.stdout.fileno(), 4096) if _readable(kept.stdout.fileno(), max(0.0, remaining)) else b""
        if not data:
            raise LastgoodError(f"keeper of the replica did not start within {START_TIMEOUT.total_seconds():.0f} s")
        told += data
    line, _, early = told.partition(b"\n")
    event, _, detail = line.decode(errors="replace").partition(" ")
    return event, detail, early


def _readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _end(kept: subprocess.Popen[bytes]) -> None:
    """End the keeper's lifeline and wait until it has killed its tree; do its work should it not answer."""
    if kept.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            kept.stdin.close()
    try:
        kept.wait(END_TIMEOUT.total_seconds())
    except subprocess.TimeoutExpired:
        keeper.kill_all(lambda: keeper.descendants(kept.pid))
        kept.kill()
        kept.wait()


def _release(kept: subprocess.Popen[bytes]) -> None:
    if kept.stdout is not None:
        kept.stdout.close()
