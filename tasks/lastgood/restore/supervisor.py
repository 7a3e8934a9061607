"""One restore from beginning to end: copy, start, wait, read, judge.

Decides what is asked of a replica and what happens when it does not answer. Leaves the copy to `materialize`, processes
to `replica.processes`, every judgement to `compare`. Rules: production is only read; the replica is the family's own
command, told by the contract alone; whatever happens, nothing of it is left running; what is wrong with the request or
the machine is an error or an inconclusive verdict, never a fail of the checkpoint. Recording is for the caller.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from lastgood.config import ReplicaSettings
from lastgood.errors import FormatError, StoreError, UsageError
from lastgood.identity import GenerationId
from lastgood.location import Location
from lastgood.manifest import Manifest
from lastgood.records import Measurements
from lastgood.replica.contract import ReplicaEnvironment, render_command, replica_environ
from lastgood.replica.processes import ReplicaProcess, find_program
from lastgood.replica.trace import LifeName, TraceReader
from lastgood.restore.cancel import Cancel, Cancelled, cancelled_verdict, heed, heeding, never
from lastgood.restore.compare import Comparison, compare, rung_of
from lastgood.restore.divergence import not_run
from lastgood.restore.evidence import Evidence, RankTrace, ReplicaEnd, Request, read_rank
from lastgood.restore.live import read_control
from lastgood.restore.materialize import VERIFIED, Copy, Scratch, make_copy, open_scratch
from lastgood.restore.measure import measure
from lastgood.stores.port import Progress
from lastgood.verdict import Check, CheckState, Finding, Reason, Rung, Tier, Verdict, judge
from lastgood.verify import Depth, verify_generation

__all__ = ["RestoreResult", "restore", "without_secrets"]

MINIMUM_STEPS = 4
"""Fewer cannot tell: a NaN three steps after the load is a fault of the load (NVIDIA/Megatron-LM#5281)."""
LOOK_SECONDS = 0.1
"""How often a waiting restore asks whether it shall end."""
STARVED_BYTES = 16 * 2**20
LOG_LINES = 40
MAXIMUM_TAIL = 6000
SHORTEST_SECRET = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What a restore found and how long it took.

    Args:
        generation: Which.
        verdict: Of tier 2.
        measurements: Seconds and bytes.
        scratch: Where everything still lies, if it was to be kept.
    """

    generation: GenerationId
    verdict: Verdict
    measurements: Measurements
    scratch: Path | None


def restore(
    location: Location,
    settings: ReplicaSettings,
    *,
    steps: int | None = None,
    world_size: int | None = None,
    load_only: bool = False,
    timeout: timedelta | None = None,
    scratch: Path | None = None,
    keep: bool = False,
    progress: Progress | None = None,
    cancel: Cancel = never,
) -> RestoreResult:
    """Restore one generation in fresh processes and make it train (tier 2).

    Args:
        location: Names the generation.
        settings: How the family's replica is started.
        steps: Optimizer steps after the load, at least 4; None for the settings' own number.
        world_size: Ranks to start; another number than the manifest's proves only that change.
        load_only: Stop after the load: a weaker rung, which never proves a generation.
        timeout: For the replica, from its start; None for the settings'.
        scratch: Where to make the private copy; None for the system's temporary directory.
        keep: Leave the copy, the traces and the log.
        progress: Told how many bytes have been copied so far.
        cancel: Asked whether to end at once; then the verdict is inconclusive, and nothing of the replica is left.

    Raises:
        UsageError: No such generation, a command that cannot be started, an unlawful argument; nothing is judged.
        StoreError: Our own scratch cannot be written.
    """
    generation = location.require_generation()
    if steps is not None and steps < MINIMUM_STEPS:
        raise UsageError(f"too few steps: expected at least {MINIMUM_STEPS}, found {steps}")
    if world_size is not None and world_size < 1:
        raise UsageError(f"too few ranks: expected at least 1, found {world_size}")
    wished = 0 if load_only else settings.smoke_steps if steps is None else steps
    deadline = timedelta(seconds=settings.restore_timeout_seconds) if timeout is None else timeout
    # Before anything is copied: a terabyte read for a mistyped command would be a poor answer.
    find_program(settings.command, {**os.environ, **settings.environment}, Path(settings.directory))
    began = time.monotonic()
    with open_scratch(location, scratch, keep=keep, purpose="restore") as place:
        try:
            copy = make_copy(location, place, progress=heeding(cancel, progress))
            request, evidence = None, None
            if copy.manifest is not None:
                request = _request(copy.manifest, wished, world_size, load_only=load_only)
                if _missing_device(copy.manifest) is None:
                    evidence = _replay(location, copy, request, settings, place, deadline, cancel)
            verdict = _verdict(location, copy, request, evidence)
            measurements = measure(copy, evidence)
        except Cancelled as error:
            verdict = cancelled_verdict(Tier.RESTORE, _subject(location), error.message)
            measurements = Measurements(seconds=time.monotonic() - began)
        return RestoreResult(
            generation=generation,
            verdict=without_secrets(verdict, settings),
            measurements=measurements,
            scratch=place.directory if keep else None,
        )


def _subject(location: Location) -> str:
    return f"{location.keys.family}/{location.require_generation()}"


def _verdict(location: Location, copy: Copy, request: Request | None, evidence: Evidence | None) -> Verdict:
    """Judge what was copied and, if the replica was started, what it did."""
    if request is None or evidence is None:
        device = _missing_device(copy.manifest) if copy.manifest is not None else None
        why = device.detail if device else "the copy was not verified"
        stopped = not_run("replica_ended", f"nothing was started: {why}")
        comparison = Comparison(checks=(*((device,) if device else ()), stopped), notes=(), required=("replica_ended",))
    else:
        comparison = compare(request, evidence)
    return judge(
        tier=Tier.RESTORE,
        rung=Rung.FULL if request is None else request.rung if evidence is None else rung_of(request, evidence),
        subject=_subject(location),
        checks=(*copy.checks, *comparison.checks),
        notes=(*copy.notes, *comparison.notes),
        required=(*VERIFIED, *comparison.required),
    )


def _request(manifest: Manifest, steps: int, world_size: int | None, *, load_only: bool) -> Request:
    saved = manifest.job.topology.world_size
    ranks = saved if world_size is None else world_size
    rung = Rung.TOPOLOGY_CHANGE if ranks != saved else Rung.LOAD_ONLY if load_only else Rung.FULL
    return Request(manifest=manifest, steps=steps, rung=rung, world_size=ranks)


def _missing_device(manifest: Manifest) -> Check | None:
    """Inconclusive where the checkpoint was saved on a kind of device that this machine lacks."""
    cuda = manifest.job.environment.cuda
    if cuda is None or any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    detail = f"saved with CUDA {cuda} on {manifest.job.environment.device}, no NVIDIA device is on this machine"
    return Check(name="device", state=CheckState.INCONCLUSIVE, detail=detail)


def _replay(
    location: Location,
    copy: Copy,
    request: Request,
    settings: ReplicaSettings,
    place: Scratch,
    deadline: timedelta,
    cancel: Cancel,
) -> Evidence:
    """Run the replica on the copy and collect what it left behind."""
    end = _run(copy.location, request, settings, place, deadline, cancel)
    family = copy.location.local_family
    lives, ranks, trouble = _read_traces(family)
    starved = None
    if end.exit_status != 0 and place.free_bytes < STARVED_BYTES:
        starved = f"scratch is full: {place.directory}: {place.free_bytes} bytes free"
    return Evidence(
        end=end,
        ranks=ranks,
        lives=lives,
        control=read_control(location, request),
        saved=_verify_save(copy.location, request, ranks),
        has_asked=_has_claimed(copy.location, request.manifest),
        trouble=trouble,
        starved=starved,
    )


def _run(
    location: Location,
    request: Request,
    settings: ReplicaSettings,
    place: Scratch,
    deadline: timedelta,
    cancel: Cancel,
) -> ReplicaEnd:
    told = ReplicaEnvironment(
        is_replica=True,
        family=location.family_uri,
        resume=location.uri,
        stop_step=request.manifest.step + request.steps,
        trace=True,
    )
    declared = {**_passed(settings), **settings.environment}
    environment = replica_environ(told, base=os.environ, home=place.home, declared=declared)
    command = render_command(settings.command, told, world_size=request.world_size)
    begin = time.monotonic()
    with ReplicaProcess.start(command, environment, Path(settings.directory), place.log) as replica:
        status = _wait(replica, begin + deadline.total_seconds(), cancel)
        seconds = time.monotonic() - begin
        # Stopped before its last words are read: a replica that still runs would go on adding to them.
        replica.kill_tree()
        tail = replica.log_tail(lines=LOG_LINES)
    if len(tail) > MAXIMUM_TAIL:
        # From a line's beginning: half of a credential would not be recognised as one.
        tail = tail[-MAXIMUM_TAIL:].partition("\n")[2]
    return ReplicaEnd(
        exit_status=status,
        seconds=seconds,
        deadline_seconds=deadline.total_seconds(),
        log_tail=tail,
    )


def _wait(replica: ReplicaProcess, deadline: float, cancel: Cancel) -> int | None:
    """The replica's exit status, or None if it still runs at the deadline."""
    while (left := deadline - time.monotonic()) > 0:
        heed(cancel)
        status = replica.wait(timedelta(seconds=min(left, LOOK_SECONDS)))
        if status is not None:
            return status
    return replica.poll()


def _passed(settings: ReplicaSettings) -> dict[str, str]:
    return {name: os.environ[name] for name in settings.pass_environment if name in os.environ}


def without_secrets(verdict: Verdict, settings: ReplicaSettings) -> Verdict:
    """The verdict without any value that was handed through from our environment, for it may be a credential that the
    replica printed or reported.
    """
    secrets = {name: value for name, value in _passed(settings).items() if len(value) >= SHORTEST_SECRET}
    if not secrets:
        return verdict

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            for name, secret in secrets.items():
                value = value.replace(secret, f"<{name}>")
            return value
        if isinstance(value, dict):
            return {key: clean(inner) for key, inner in value.items()}
        return [clean(inner) for inner in value] if isinstance(value, list | tuple) else value

    return msgspec.convert(clean(msgspec.to_builtins(verdict)), Verdict)


def _read_traces(family: Path) -> tuple[int, dict[int, RankTrace], str | None]:
    """How many lives the replica had, the traces of the last one, and why one could not be read."""
    reader = TraceReader(family)
    ranks: dict[int, RankTrace] = {}
    lives: tuple[LifeName, ...] = ()
    try:
        lives = reader.lives()
        last = reader.last_life()
        if last is not None:
            for rank in reader.ranks(last):
                ranks[rank] = read_rank(rank, reader.records(last, rank))
    except FormatError as error:
        return len(lives), ranks, error.message
    return len(lives), ranks, None


def _has_claimed(location: Location, manifest: Manifest) -> bool:
    """Whether the scratch family holds a claim that the copy did not come with."""
    names = location.store.names(location.keys.incarnations).files
    return any(int(name) > manifest.incarnation for name in names if name.isascii() and name.isdigit())


def _verify_save(location: Location, request: Request, ranks: Mapping[int, RankTrace]) -> Verdict | None:
    """Tier 1 of the newest generation that the replica says it saved after its steps."""
    names = _saved_generations(request, ranks.values())
    if not names:
        return None
    try:
        generation = GenerationId.parse(max(names))
        return verify_generation(location.store, location.keys, generation, depth=Depth.FULL)
    except StoreError:
        return None
    except (FormatError, UsageError) as error:
        # It was said to be committed and is not there, or under no lawful name.
        finding = Finding(reason=Reason.COMMIT_MISSING, message=error.message, offender=max(names))
        missing = Check(name="commit", state=CheckState.RAN, detail=max(names), findings=(finding,))
        return judge(tier=Tier.MANIFEST, rung=Rung.FULL, subject=max(names), checks=(missing,), required=("commit",))


def _saved_generations(request: Request, ranks: Iterable[RankTrace]) -> set[str]:
    return {saved.generation for trace in ranks for saved in trace.saved if saved.step in request.smoke_steps}
