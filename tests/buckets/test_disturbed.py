"""Another object, or none, under whoever reads: what passes must be true by what lies there now, and what fails, too.

At each reading of an object by verify, publish, restore and pointer update the body breaks off, and before it is taken
up the object is replaced or deleted. Nothing here is healthy afterwards, so nothing may be said of what was there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
import pytest

from lastgood.errors import FormatError, PublishError, ResumeRefused, StoreError
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.manifest import Component
from lastgood.publish import StagedArtifact
from lastgood.records import list_records
from lastgood.restore.materialize import VERIFIED, make_copy, open_scratch
from lastgood.run import Run, SoloGroup
from lastgood.verdict import Outcome, Verdict
from lastgood.verify import repair_pointers, verify_generation
from tests.buckets.faults import AbortBody, Before, Request
from tests.buckets.ground import AT_ONCE, SETTINGS, Ground, Place, chosen
from tests.crash.scenarios import JOB

BROKEN_OFF = AbortBody(20, reset=False)
"""Shorter than every document and artifact here."""

Act = Callable[[Place], None]


@dataclass
class Reading:
    """One reading of an object, which breaks off.

    Args:
        left: So many are let be before.
        key: Of the object.
    """

    left: int
    key: str | None = field(default=None)

    def breaks_off(self, request: Request) -> bool:
        if not is_reading(request):
            return False
        self.left -= 1
        if self.left == -1:
            self.key = request.key
        return self.left == -1

    def is_taken_up(self, request: Request) -> bool:
        return is_reading(request) and request.key == self.key


def is_reading(request: Request) -> bool:
    return request.method == "GET" and bool(request.key)


def newest_of(place: Place) -> GenerationId:
    return Family(place.plain).survey().candidates[0]


def check_verdict(place: Place, generation: GenerationId, verdict: Verdict) -> None:
    """What was said with certainty is what anybody finds now."""
    truth = verify_generation(place.plain.store, place.plain.keys, generation)
    assert verdict.outcome in (truth.outcome, Outcome.INCONCLUSIVE), (verdict.findings, truth.findings)


def verify(place: Place) -> None:
    newest = newest_of(place)
    check_verdict(place, newest, verify_generation(place.faulty.store, place.faulty.keys, newest))


def restore(place: Place) -> None:
    """A copy that may be loaded is whole, by its own manifest."""
    newest = newest_of(place)
    with open_scratch(None, place.scratch, keep=False, purpose="restore") as opened:
        copy = make_copy(place.faulty.of(newest), opened)
        if copy.manifest is not None and not any(check.findings for check in copy.checks):
            verdict = verify_generation(copy.location.store, copy.location.keys, newest)
            assert [check for check in verdict.checks if check.name in VERIFIED and check.findings] == []


def publish(place: Place) -> None:
    """What was acknowledged is what readers are offered, and whole."""
    before = newest_of(place)
    settings = msgspec.structs.replace(SETTINGS, endpoint=place.proxy.endpoint)
    try:
        run = Run.start(place.faulty.family_uri, SoloGroup(), store=settings)
    except (StoreError, FormatError, ResumeRefused):
        return
    try:
        staging = run.stage(before.step + 12)
        (staging.payload / "state.bin").write_bytes(b"weights" * 100)
        artifact = StagedArtifact(path="state.bin", component=Component.MODEL, rank=0)
        published = run.publish(staging, [artifact], job=JOB)
    except (StoreError, PublishError, FormatError):
        return
    finally:
        run.close()
    assert newest_of(place) == published.generation
    verdict = verify_generation(place.plain.store, place.plain.keys, published.generation)
    assert verdict.outcome is Outcome.PASS, verdict.findings


def update_pointers(place: Place) -> None:
    """What is on record was true when it was judged, whatever is disturbed after that."""
    family, newest = Family(place.faulty), newest_of(place)
    with contextlib.suppress(StoreError, FormatError):
        judged = family.judge(newest)
        check_verdict(place, newest, judged.verdict)
        family.keep(judged.verdict, newest, judged.started_at, judged.measurements, attempt=1)
        for record in list_records(place.plain.store, place.plain.keys):
            assert record.verdict.outcome is judged.verdict.outcome
        repair_pointers(place.faulty.store, place.faulty.keys)


ACTS: dict[str, Act] = {
    "verify": verify,
    "publish": publish,
    "restore": restore,
    "pointers": update_pointers,
}


def disturb(ground: Ground, act: Act, is_deleted: bool, number: int) -> tuple[bool, Exception | None]:
    """Whether a reading was disturbed, and what was false."""
    client, reading, raised = ground.server.client(), Reading(number), None

    def change(request: Request) -> None:
        there = {"Bucket": request.bucket, "Key": request.key}
        if is_deleted:
            client.delete_object(**there)
        else:
            found = client.get_object(**there)["Body"].read()
            client.put_object(**there, Body=bytes(255 - byte for byte in found))

    with ground.place() as place:
        place.proxy.inject(BROKEN_OFF, when=reading.breaks_off)
        changed = place.proxy.inject(Before(change), when=reading.is_taken_up)
        try:
            act(place)
        except Exception as error:  # noqa: BLE001 - raised again with the others
            error.add_note(f"reading {number}: {reading.key}")
            raised = error
        return bool(changed.fired), raised


@pytest.mark.slow
@pytest.mark.parametrize("is_deleted", [False, True], ids=["replaced", "deleted"])
@pytest.mark.parametrize("name", ACTS)
def test_nothing_is_said_of_an_object_that_is_another_one_by_now(
    ground: Ground, name: str, is_deleted: bool, record_property: Callable[[str, object], None]
) -> None:
    """Half of the one and half of the other is neither a pass nor a copy nor a save."""
    act = ACTS[name]
    with ground.place() as place:
        act(place)
        count = place.proxy.count(is_reading)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = tuple(pool.map(functools.partial(disturb, ground, act, is_deleted), chosen(count)))
    if errors := [error for _, error in runs if error is not None]:
        raise ExceptionGroup(f"{name}: {len(errors)} of {len(runs)} runs", errors)
    met = sum(was_disturbed for was_disturbed, _ in runs)
    assert met
    record_property(name, f"disturbed at {met} of {count} readings")
