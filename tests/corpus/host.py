"""A process that loads a framework once and forks every rank of every run from itself.

Loading transformers or DeepSpeed takes many times as long as the run of a tiny model, and much is loaded only then, so
the host loads what its first ranks had to. Each rank is a process of its own all the same: what it raises, prints,
leaks or hangs on stays with it, and the host ends it at the deadline.

`Host` is the caller's side; `python -m tests.corpus PROGRAM` is the process. One JSON job a line goes in, one line
comes back when all ranks have ended.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.corpus.job import Job
from tests.corpus.observing import Observation, Observer, log_path, read

POLL_SECONDS = 0.02
LEARNED_JOBS = 3
"""Jobs after which the host knows what a rank loads: training, saving, resuming."""
REPOSITORY = Path(__file__).resolve().parents[2]

# Nothing here may call home or look for a device; one thread a rank, for two share a core and sums must not move.
QUIET: Mapping[str, str] = {
    "ACCELERATE_USE_CPU": "true",
    "CUDA_VISIBLE_DEVICES": "",
    "DO_NOT_TRACK": "1",
    "DS_ACCELERATOR": "cpu",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_DISABLED": "true",
}


class Host:
    """Runs jobs of one program, one after the other; a context manager, and starting it waits for the imports."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._home = tempfile.TemporaryDirectory(prefix="lastgood-corpus-")
        home = self._home.name
        environment = {**os.environ, **QUIET, "HF_HOME": home, "TRITON_CACHE_DIR": home, "TORCH_EXTENSIONS_DIR": home}
        path = [str(REPOSITORY), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.corpus", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=home,  # frameworks leave things in the working directory
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the host; its ranks have ended before."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._home.cleanup()

    def run(self, job: Job) -> tuple[Observation | None, ...]:
        """Run a job to its end or its deadline; what each rank observed, None of those that were ended.

        Raises:
            RuntimeError: The host itself ended.
        """
        if job.program != self.program:
            raise ValueError(f"job for another host: expected {self.program}, found {job.program}")
        job.report.mkdir(parents=True, exist_ok=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(job, enc_hook=str) + b"\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError(f"host of {self.program} ended with status {self._process.wait()}")
        return tuple(read(job.report, rank) for rank in range(job.ranks))


def serve(program: str) -> None:
    """Be the host: load the program, then run one job a line until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what imports print is no answer
    module = importlib.import_module(f"tests.corpus.programs.{program}")
    for number, line in enumerate(sys.stdin.buffer):
        job = msgspec.json.decode(line, type=Job, dec_hook=lambda kind, value: kind(value))
        _run_ranks(job, module.train)
        if number < LEARNED_JOBS:
            _load_what_was_needed(job)
        answers.write(b"done\n")
        answers.flush()


def _load_what_was_needed(job: Job) -> None:
    """Load the modules that the first rank loaded while it ran, so that later ranks find them."""
    with contextlib.suppress(FileNotFoundError):
        for name in msgspec.json.decode(_modules_path(job).read_bytes(), type=list[str]):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _modules_path(job: Job) -> Path:
    return job.report / "modules.json"


def _run_ranks(job: Job, train: object) -> None:
    port = _free_port()
    running: set[int] = set()
    for rank in range(job.ranks):
        child = os.fork()
        if child == 0:
            _be_rank(job, rank, port, train)
        with contextlib.suppress(OSError):  # whichever of the two is first, so that nobody signals a group too early
            os.setpgid(child, child)
        running.add(child)
    deadline = time.monotonic() + job.deadline_seconds
    while running and time.monotonic() < deadline:
        running -= {child for child in running if os.waitpid(child, os.WNOHANG)[0] == child}
        time.sleep(POLL_SECONDS)
    for child in running:
        os.killpg(child, signal.SIGKILL)  # and what it started: a compiler, say
        os.waitpid(child, 0)


def _be_rank(job: Job, rank: int, port: int, train: object) -> None:
    """Train as one rank, in a forked child; never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        log = os.open(log_path(job.report, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if job.launched:
            place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "NODE_RANK": 0, "MASTER_PORT": port}
            sizes = {"WORLD_SIZE": job.ranks, "LOCAL_WORLD_SIZE": job.ranks}
            os.environ.update({name: str(value) for name, value in (place | sizes).items()})
        observer = Observer(job.report, rank)
        error: BaseException | None = None
        try:
            train(job, observer)  # type: ignore[operator]
        except BaseException as raised:  # noqa: BLE001 (whatever ends a rank is what is observed of it)
            error = raised
        observer.write(error)
        if rank == 0:
            _modules_path(job).write_bytes(msgspec.json.encode(sorted(sys.modules)))
        status = 0 if error is None else 1
    finally:
        # Not sys.exit: what a fork inherited is not this rank's to tear down. Peers see the closed connections at once.
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
