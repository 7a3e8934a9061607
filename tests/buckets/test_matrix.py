"""Every fault at every request of verify, publish, restore and pointer update: nothing false is ever said.

Each operation is run once without faults, which tells its requests. Then, for each request and each fault, it is run
again with that fault at that request, each run in a place of its own (`ground`). What passes must be true, what fails
must be damaged (nothing here is), and no run may outlast the deadline that the settings imply.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import pytest

from lastgood.errors import PublishError, StoreError
from lastgood.family import Family
from lastgood.manifest import Component
from lastgood.publish import StagedArtifact
from lastgood.records import list_records
from lastgood.restore.materialize import make_copy, open_scratch
from lastgood.run import Run, SoloGroup
from lastgood.verdict import Outcome
from lastgood.verify import repair_pointers, verify_generation
from tests.buckets.faults import (
    EXPIRED_TOKEN,
    FORBIDDEN,
    INTERNAL_ERROR,
    SLOW_DOWN,
    AbortBody,
    Delay,
    DropContinuation,
    Fault,
    FlipBit,
    LostReply,
    Reset,
    SlowBody,
    StaleList,
    Truncate,
)
from tests.buckets.ground import AT_ONCE, SETTINGS, TIMEOUT_SECONDS, Ground, Place, chosen
from tests.crash.scenarios import JOB

ATTEMPT_SECONDS = TIMEOUT_SECONDS + 2.0 ** (SETTINGS.attempts - 2)
"""Longest that a sending may cost which met a fault: its silence, and botocore's longest pause before the next one."""
LOADED_SECONDS = 30.0
"""Longest that all the rest may take, on a machine that does much besides; by itself it takes one or two."""
TRIES = 5
"""On such a machine a run may meet trouble of its own, before the fault that it was to meet."""
PAGE = 2
"""Names a page of a listing, where one is to go missing."""

FAULTS: dict[str, tuple[Fault, int]] = {
    "reset": (Reset(), 1),
    "lost reply": (LostReply(), 1),
    "body aborted": (AbortBody(100), 1),
    "body closed": (AbortBody(0, reset=False), 1),
    "truncated": (Truncate(100), 1),
    "bit flipped": (FlipBit(50), 1),
    "slow down, a burst": (SLOW_DOWN, 2),
    "slow down for ever": (SLOW_DOWN, 1000),
    "internal error": (INTERNAL_ERROR, 1),
    "forbidden": (FORBIDDEN, 1),
    "expired token": (EXPIRED_TOKEN, 1),
    "a trickle": (SlowBody(1), 1),
    "a trickle for ever": (SlowBody(1), 1000),
    "silence": (Delay(timedelta(seconds=3 * TIMEOUT_SECONDS)), 1),
    "stale listing": (StaleList(), 1),
    "missing page": (DropContinuation(), 1),
}

EVERYWHERE = frozenset(
    {
        "reset",
        "lost reply",
        "slow down, a burst",
        "slow down for ever",
        "internal error",
        "forbidden",
        "expired token",
        "a trickle",
        "a trickle for ever",
        "silence",
    }
)
"""Faults that meet whatever request they are meant for; the others need a body that is long enough, or a listing."""

Act = Callable[[Place], bool]
"""Whether it came to the end that it has without any fault."""


def verify(place: Place) -> bool:
    """A verdict of a healthy generation is a pass, or says that it could not tell."""
    newest = Family(place.plain).survey().candidates[0]
    verdict = verify_generation(place.faulty.store, place.faulty.keys, newest)
    assert verdict.outcome in (Outcome.PASS, Outcome.INCONCLUSIVE), verdict.findings
    return verdict.outcome is Outcome.PASS


def publish(place: Place) -> bool:
    """A save that was acknowledged is whole for every reader, and one that was not leaves what was there."""
    before = Family(place.plain).survey().candidates
    settings = msgspec.structs.replace(SETTINGS, endpoint=place.proxy.endpoint)
    try:
        run = Run.start(place.faulty.family_uri, SoloGroup(), store=settings)
    except StoreError:
        assert Family(place.plain).survey().candidates == before
        return False
    try:
        staging = run.stage(before[0].step + 12)
        (staging.payload / "state.bin").write_bytes(b"weights" * 100)
        artifact = StagedArtifact(path="state.bin", component=Component.MODEL, rank=0)
        published = run.publish(staging, [artifact], job=JOB)
    except (StoreError, PublishError):
        for generation in Family(place.plain).survey().candidates:
            # What a reader is offered is whole, whether or not the publisher heard of it.
            assert verify_generation(place.plain.store, place.plain.keys, generation).outcome is Outcome.PASS
        return False
    finally:
        run.close()
    assert Family(place.plain).survey().candidates[0] == published.generation
    verdict = verify_generation(place.plain.store, place.plain.keys, published.generation)
    assert verdict.outcome is Outcome.PASS, verdict.findings
    return True


def restore(place: Place) -> bool:
    """A copy that may be loaded holds exactly what was saved."""
    newest = Family(place.plain).survey().candidates[0]
    with open_scratch(None, place.scratch, keep=False, purpose="restore") as opened:
        copy = make_copy(place.faulty.of(newest), opened)
        assert [check.findings for check in copy.checks if check.findings] == []
        if copy.manifest is None:
            return False
        verdict = verify_generation(copy.location.store, copy.location.keys, newest)
        assert [finding for finding in verdict.findings if finding.offender.startswith("model")] == []
    return True


def update_pointers(place: Place) -> bool:
    """A gate keeps its verdict or says that it could not; the caches are right after a repair."""
    family = Family(place.faulty)
    newest = Family(place.plain).survey().candidates[0]
    could_tell = False
    with contextlib.suppress(StoreError):
        judged = family.judge(newest)
        family.keep(judged.verdict, newest, judged.started_at, judged.measurements, attempt=1)
        repair_pointers(place.faulty.store, place.faulty.keys)
        could_tell = judged.verdict.outcome is Outcome.PASS
    repair_pointers(place.plain.store, place.plain.keys)
    assert Family(place.plain).survey().candidates[0] == newest
    kept = list_records(place.plain.store, place.plain.keys)
    assert {record.verdict.outcome for record in kept} <= {Outcome.PASS, Outcome.INCONCLUSIVE}
    return could_tell


ACTS: dict[str, Act] = {
    "verify": verify,
    "publish": publish,
    "restore": restore,
    "pointers": update_pointers,
}


@dataclass(frozen=True, kw_only=True)
class Met:
    """A run and the fault that it met.

    Args:
        sendings: So many requests met it.
        seconds: How long it took.
        came_through: It ended as it does without any fault.
        error: What was false.
    """

    sendings: int
    seconds: float
    came_through: bool
    error: Exception | None

    @property
    def deadline_seconds(self) -> float:
        return LOADED_SECONDS + self.sendings * ATTEMPT_SECONDS


def requests_of(ground: Ground, act: Act) -> int:
    """How many requests the operation makes where nothing happens to any."""
    for _ in range(TRIES):
        with ground.place() as place:
            if act(place):
                return len(place.proxy.requests)
    raise AssertionError(f"did not come to its end without any fault: {act.__name__}")


def meet(ground: Ground, act: Act, fault: str, number: int) -> Met:
    """Run an operation in a place of its own, with a fault from that request on."""
    what, times = FAULTS[fault]
    with ground.place() as place:
        if isinstance(what, StaleList):
            act(place)  # there must be a past to show
            place.proxy.clear()
        injection = place.proxy.inject(what, times=times, skip=number)
        raised, came_through, begun = None, False, time.monotonic()
        try:
            came_through = act(place)
        except Exception as error:  # noqa: BLE001 - raised again with the others
            met = next((one for one in place.proxy.requests if one.fault), None)
            error.add_note(f"{fault} from request {number} on: {met and (met.method, met.target)}")
            raised = error
        seconds = time.monotonic() - begun
        return Met(sendings=injection.fired, seconds=seconds, came_through=came_through, error=raised)


def meet_surely(ground: Ground, act: Act, fault: str, number: int) -> Met:
    for _ in range(TRIES):
        run = meet(ground, act, fault, number)
        if run.sendings or run.error or fault not in EVERYWHERE:
            break
    return run


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ACTS)
def test_no_fault_at_any_request_makes_anything_false(
    ground: Ground,
    name: str,
    fault: str,
    shorten_pages: Callable[[int], None],
    record_property: Callable[[str, object], None],
) -> None:
    """Nothing healthy fails, nothing torn passes, nothing hangs: whatever happens to whichever request."""
    act = ACTS[name]
    if fault == "missing page":
        shorten_pages(PAGE)
    count = requests_of(ground, act)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = tuple(pool.map(functools.partial(meet_surely, ground, act, fault), chosen(count)))
    if errors := [run.error for run in runs if run.error is not None]:
        raise ExceptionGroup(f"{name}, {fault}: {len(errors)} of {len(runs)} runs", errors)
    assert [run for run in runs if run.seconds > run.deadline_seconds] == []
    assert [run for run in runs if run.sendings > SETTINGS.attempts * count] == [], "retries have a bound"
    met = [run for run in runs if run.sendings]
    if fault in EVERYWHERE:
        assert len(met) == len(runs)
    through, longest = sum(run.came_through for run in met), max(run.seconds for run in runs)
    told = f"met at {len(met)} of {count} requests, {through} came through; the longest took {longest:.1f} s"
    record_property(f"{name}, {fault}", told)
