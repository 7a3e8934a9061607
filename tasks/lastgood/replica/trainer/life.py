"""One life of one rank, from the command line to the exit code.

Decides the order of a start, how a rank ends, and what it says then. Exit codes: 0 done; 1 refused, fenced or not
published; 2 the store failed; 64 usage; 70 anything unexpected, with its traceback; 143 asked to end by SIGTERM.
Otherwise one line on stderr says why.

A rank that is asked to end does so at once and saves nothing: ranks are told one by one, a save needs all of them at
the same step, and the launcher that restarts them waits for this very exit.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
import torch._dynamo  # the first optimizer imports it anyway, and here it is counted as what it is

from lastgood.errors import Fenced, LastgoodError, ResumeRefused
from lastgood.location import locate
from lastgood.redaction import redact, spell_out
from lastgood.replica.events import Phase, StopReason, Timeline, process_started_ns
from lastgood.replica.trainer.build import build
from lastgood.replica.trainer.faults import Fault, fault_from_environ
from lastgood.replica.trainer.loop import Loop
from lastgood.replica.trainer.parallel import World, join
from lastgood.replica.trainer.report import Reporter
from lastgood.replica.trainer.settings import Settings, parse_settings
from lastgood.run import Run
from lastgood.state.group import TorchGroup
from lastgood.verify.checks import check_claims

__all__ = ["main"]

EXIT_UNEXPECTED = 70
EXIT_TERMINATED = 128 + signal.SIGTERM
# Known to torchrun; they tell a person which start of which job claimed an incarnation.
LAUNCHER_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID")


class Terminated(BaseException):
    """SIGTERM arrived. Not an `Exception`: no handler of ordinary errors may swallow it."""


def main(arguments: Sequence[str], environ: Mapping[str, str], *, began_ns: int) -> int:
    """Run one rank and return its exit code.

    Args:
        arguments: The command line without the program.
        environ: The contract's and the launcher's variables.
        began_ns: When the first line of this process ran, on the monotonic clock.
    """
    timeline = Timeline()
    timeline.add(Phase.LAUNCH, min(process_started_ns(), began_ns), began_ns)
    timeline.add(Phase.IMPORT, began_ns, time.monotonic_ns())
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        _live(parse_settings(arguments, environ), environ, timeline)
    except Terminated:
        return _say(environ, "ended by SIGTERM", EXIT_TERMINATED)
    except LastgoodError as error:
        hint = f" (hint: {error.hint})" if error.hint else ""
        return _say(environ, f"{error.message}{hint}", error.exit_code)
    except Exception as error:  # noqa: BLE001 - the last frame of the process: everything ends here, with its traceback
        sys.stderr.write(spell_out(error))
        return _say(environ, f"{type(error).__name__}: {error}", EXIT_UNEXPECTED)
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def _live(settings: Settings, environ: Mapping[str, str], timeline: Timeline) -> None:
    fault = fault_from_environ(environ, is_replica=settings.is_replica)
    begin_ns = time.monotonic_ns()
    _prepare(settings)
    with join(settings, environ) as world:
        timeline.add(Phase.JOIN, begin_ns, time.monotonic_ns())
        with timeline.phase(Phase.BUILD):
            training = build(settings, world)
            training.registry.audit(roots=(training,))
        reporter = Reporter(timeline, world.device)
        run = _start(settings, environ, world, reporter, fault)
        loop = Loop(training, settings, world, run, reporter, fault)
        try:
            loop.begin()
            loop.train()
        except ResumeRefused:
            raise  # its record is written
        except BaseException as error:
            reporter.stopped(_stop_reason(error), training.step, str(error))
            raise


def _start(
    settings: Settings, environ: Mapping[str, str], world: World, reporter: Reporter, fault: Fault | None
) -> Run:
    begin_ns = time.monotonic_ns()
    try:
        run = Run.start(
            settings.family,
            TorchGroup(),
            resume=settings.resume,
            allow_fresh=settings.allow_fresh,
            launcher={name: environ[name] for name in LAUNCHER_VARIABLES if environ.get(name)},
            objects=check_claims if fault is None else fault.objects,
        )
    except ResumeRefused as error:
        if error.incarnation is not None:
            _open_trace(settings, error.incarnation, world, reporter)
            reporter.refused(error.findings, error.message)
        raise
    end_ns = time.monotonic_ns()
    _open_trace(settings, run.incarnation, world, reporter)
    reporter.timeline.add(Phase.DISCOVER, begin_ns, end_ns)
    reporter.discovered(run.resumed)
    return run


def _open_trace(settings: Settings, incarnation: int, world: World, reporter: Reporter) -> None:
    if settings.trace:
        location = locate(settings.family)
        told = {"strategy": settings.strategy.value, "stock_ddp": str(settings.stock_ddp)}
        reporter.started(location, incarnation, world, told)


def _prepare(settings: Settings) -> None:
    # torchdata 0.11 calls a function that torch 2.13 deprecates; may go with the release that does not.
    warnings.filterwarnings("ignore", category=UserWarning, module="torchdata")
    # cuBLAS sums in one order only with a workspace of its own, and torch refuses to multiply without.
    # Source: cuBLAS documentation, "Results Reproducibility".
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    if settings.threads:
        torch.set_num_threads(settings.threads)


def _stop_reason(error: BaseException) -> StopReason:
    if isinstance(error, Fenced):
        return StopReason.FENCED
    return StopReason.SIGNAL if isinstance(error, Terminated) else StopReason.FAILED


def _terminate(*_: object) -> NoReturn:
    raise Terminated


def _say(environ: Mapping[str, str], message: str, code: int) -> int:
    sys.stderr.write(f"lastgood.replica.trainer: rank {environ.get('RANK', '0')}: {redact(message)}\n")
    return code
