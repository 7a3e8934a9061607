"""Starts ranks of the reference trainer as real processes, fast, and kills them.

Importing torch takes seconds a process on two shared cores. A fork server imports it once, so that a life of a job
costs a fraction of a second; what is forked is a process of its own, with its own pid, streams and sockets, and dies of
SIGKILL like any other. The way through torchrun is tested beside it, more slowly.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from lastgood.replica.trace import Saved, Step, TraceReader, TraceRecord

DEADLINE_SECONDS = 200.0
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lastgood.replica.trainer.life"])


def run_rank(arguments: Sequence[str], environ: Mapping[str, str], log: str) -> None:
    """The whole life of one rank, in the forked process."""
    began_ns = time.monotonic_ns()
    os.environ.update(environ)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    import torch

    from lastgood.replica.trainer.life import main

    if threads := environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))  # the fork server read the variable when it imported torch, not this rank
    code = main(arguments, os.environ, began_ns=began_ns)
    sys.stderr.flush()
    os._exit(code)


class Fleet:
    """One start of a job: `world_size` ranks with the same arguments. Nothing survives the `with` block.

    Args:
        family: Its directory; the parent must exist.
        world_size: How many ranks.
        arguments: For the trainer, without the family.
        environ: Added for the trainer.
        target: What each rank runs instead of the trainer; takes arguments, variables and the path of the log.
    """

    def __init__(
        self,
        family: Path,
        world_size: int,
        arguments: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        target: Callable[[Sequence[str], Mapping[str, str], str], None] = run_rank,
    ) -> None:
        self.family = family
        self.log = family.parent / f"{family.name}.log"
        self._lives = len(TraceReader(family).incarnations())
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.ranks: list[BaseProcess] = []
        for rank in range(world_size):
            variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), **(environ or {})}
            process = CONTEXT.Process(
                target=target, args=(["--family", str(family), *arguments], variables, str(self.log))
            )
            process.start()
            self.ranks.append(process)

    @property
    def incarnation(self) -> int:
        """The life that this start claimed; waits for its trace."""
        reader = TraceReader(self.family)
        self.until(lambda: len(reader.incarnations()) > self._lives)
        return reader.incarnations()[-1]

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition while at least one rank lives; fail with the log if it does not come true."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            alive = any(rank.is_alive() for rank in self.ranks)
            if not alive and condition():
                return
            assert alive, f"all ranks ended before it happened:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"it did not happen in time:\n{self.log.read_text()}"
            time.sleep(0.002)

    def kill_when(self, condition: Callable[[TraceRecord], bool], *, rank: int = 0) -> TraceRecord:
        """SIGKILL every rank at once as soon as the rank's trace of this life holds such a record; returns it."""
        follower = TraceReader(self.family).follow(self.incarnation, rank)
        seen: list[TraceRecord] = []

        def happened() -> bool:
            seen.extend(record for record in follower.poll() if condition(record))
            return bool(seen)

        self.until(happened)
        self.kill()
        return seen[0]

    def kill(self) -> None:
        """SIGKILL every rank, in an order of chance, and reap them."""
        for process in random.sample(self.ranks, len(self.ranks)):
            process.kill()
        for process in self.ranks:
            process.join(DEADLINE_SECONDS)
            assert process.exitcode == -signal.SIGKILL, f"a rank ended by itself: {process.exitcode}"

    def wait(self) -> list[int | None]:
        """Wait until every rank has ended; their exit codes."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        for process in self.ranks:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in self.ranks]

    def finish(self) -> None:
        """Wait for a good end."""
        codes = self.wait()
        assert codes == [0] * len(codes), f"exit codes {codes}:\n{self.log.read_text()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self.ranks:
            process.kill()
            process.join(DEADLINE_SECONDS)


def train(family: Path, world_size: int, arguments: Sequence[str], *, environ: Mapping[str, str] | None = None) -> None:
    """One start to its good end."""
    with Fleet(family, world_size, arguments, environ=environ) as fleet:
        fleet.finish()


def at_step(step: int) -> Callable[[TraceRecord], bool]:
    """True for the record of that completed step."""
    return lambda record: isinstance(record, Step) and record.step >= step


def at_save(step: int) -> Callable[[TraceRecord], bool]:
    """True for the record of the commit of that step."""
    return lambda record: isinstance(record, Saved) and record.step >= step
