"""A Dask scheduler and its workers as an operator starts them: programs of their own, here on loopback."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from distributed import Client

from lastgood.replica.processes import ReplicaProcess
from lastgood.testing.server import HOST, free_ports, program_path

__all__ = ["DaskCluster"]

START_SECONDS = 120


class DaskCluster:
    """`dask scheduler`, from entry, and as many `dask worker` as are asked for; gone at exit.

    Args:
        home: For their logs and what workers keep.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._programs = ExitStack()
        self.scheduler: ReplicaProcess
        self.address = f"tcp://{HOST}:{free_ports(1)[0]}"

    def start_worker(self, name: str, environment: Mapping[str, str]) -> ReplicaProcess:
        """One thread of one process, which nobody starts again; it knows nothing of Prefect's server."""
        place = ("--local-directory", str(self._home / name))
        return self._run("worker", environment, self.address, "--nthreads", "1", "--no-nanny", *place, name=name)

    def await_workers(self, count: int) -> None:
        """Until so many have told the scheduler that they are there."""
        with Client(self.address, timeout=START_SECONDS, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=START_SECONDS)

    def _run(self, what: str, environment: Mapping[str, str], *arguments: str, name: str = "") -> ReplicaProcess:
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
        program = ReplicaProcess.start(
            [str(program_path("dask")), what, "--host", HOST, "--no-dashboard", *arguments],
            {**kept, "HOME": str(self._home), "TMPDIR": str(self._home), **environment},
            self._home,
            self._home / f"{name or what}.log",
        )
        return self._programs.enter_context(program)

    def __enter__(self) -> Self:
        self.scheduler = self._run("scheduler", {}, "--port", self.address.rpartition(":")[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._programs.close()
