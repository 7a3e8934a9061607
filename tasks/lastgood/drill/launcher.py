"""The launcher: what starts the job, and what brings it back after a kill.

Decides how a declared command becomes a running job on this machine. Leaves every restart of ranks to the command
itself: with torchrun that is the very code that restarts production. Rules: the command is used as it is declared; only
a job that was killed whole, launcher included, is started again by the drill, with the same arguments, as a scheduler
requeues it; everything that was ever started is killed at the end.

Schedulers (Slurm, Kubernetes) join by filling `Launcher`.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from lastgood.config import ReplicaSettings
from lastgood.errors import UsageError
from lastgood.replica.contract import ReplicaEnvironment, render_command, replica_environ
from lastgood.replica.keeper import send_signal
from lastgood.replica.processes import ProcessIdentity, ReplicaProcess, find_program

__all__ = ["CommandLauncher", "Launcher"]

# torchrun alone prints some fifty lines about each failed attempt.
LOG_LINES: Final = 400


class Launcher(Protocol):
    """What a drill needs of whatever runs the job."""

    def launch(self) -> None:
        """Start the declared command; called again, with the same arguments, after the whole job was killed."""

    def agent(self) -> ProcessIdentity:
        """The launcher's own process of the newest launch."""

    def processes(self) -> tuple[ProcessIdentity, ...]:
        """Everything of any launch that lives now, orphans included."""

    def signal(self, process: ProcessIdentity, number: int) -> bool:
        """Send a signal to one that `processes` has named; False when it has ended already."""

    def exit_status(self) -> int | None:
        """Of the newest launch; minus the signal's number for a killed one; None while it runs."""

    def stop(self) -> None:
        """Kill everything of every launch; returns when nothing of it lives."""

    def log_tail(self) -> str:
        """The last lines that the newest launch printed, without secrets."""


class CommandLauncher:
    """Runs the declared command on this machine: torchrun, or whatever restarts its ranks by itself.

    Args:
        settings: The command as declared for the family.
        told: What the replica is told by the contract.
        home: The replica's HOME and TMPDIR.
        logs: A directory for what it prints, one file a launch.

    Raises:
        UsageError: The program or the directory is not there, or a placeholder is unknown.
    """

    def __init__(self, settings: ReplicaSettings, told: ReplicaEnvironment, *, home: Path, logs: Path) -> None:
        self._passed = {name: os.environ[name] for name in settings.pass_environment if name in os.environ}
        declared = {**self._passed, **settings.environment}
        self._environment = replica_environ(told, base=os.environ, home=home, declared=declared)
        self._command = render_command(settings.command, told, world_size=settings.world_size)
        self._directory = Path(settings.directory)
        self._logs = logs
        self._launched: list[ReplicaProcess] = []
        self._ours: set[ProcessIdentity] = set()
        find_program(self._command, self._environment, self._directory)

    def launch(self) -> None:
        log = self._logs / f"launch-{len(self._launched) + 1}.log"
        self._launched.append(ReplicaProcess.start(self._command, self._environment, self._directory, log))

    def agent(self) -> ProcessIdentity:
        return self._launched[-1].identity

    def processes(self) -> tuple[ProcessIdentity, ...]:
        living = tuple(process for launched in self._launched for process in launched.descendants())
        self._ours.update(living)
        return living

    def signal(self, process: ProcessIdentity, number: int) -> bool:
        if process not in self._ours:
            raise UsageError(f"process is not of this job: {process.pid}")
        return send_signal(process, number)

    def exit_status(self) -> int | None:
        return self._launched[-1].poll()

    def stop(self) -> None:
        for launched in self._launched:
            launched.kill_tree()

    def log_tail(self) -> str:
        return self._launched[-1].log_tail(lines=LOG_LINES, hide=self._passed) if self._launched else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
