"""The acts whose crashes are proved harmless, and what must hold after each."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from lastgood import documents
from lastgood.documents import Document
from lastgood.errors import LastgoodError
from lastgood.family import Family
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.location import Location
from lastgood.manifest import (
    REQUIRED_COMPONENTS,
    AbsentComponent,
    Component,
    ComponentPromise,
    Counter,
    CounterMeaning,
    Determinism,
    Environment,
    Identity,
    JobDescription,
    Purpose,
    Topology,
    manifest_digest,
)
from lastgood.markers import ActivePointer, Commit, GenerationPointer, QuarantineNotice
from lastgood.protocol import claim, decide, perform, refresh_caches
from lastgood.protocol.commits import commit_digest
from lastgood.publish import Published, Publisher, StagedArtifact
from lastgood.reconcile import sweep
from lastgood.records import keep_verdict
from lastgood.run import Run, SoloGroup
from lastgood.stores import LocalStore, Store
from lastgood.stores.filesystem import FileSystem
from lastgood.verdict import Check, CheckState, Finding, Outcome, Reason, Rung, Tier, judge
from lastgood.verify import verify_generation

Pointer = TypeVar("Pointer", bound=Document)

KEYS = FamilyKeys("llm")
NONCE = "0123456789abcdef" * 2
SECOND_NONCE = "fedcba9876543210" * 2
FIRST, SECOND, THIRD = GenerationId(1, 10), GenerationId(1, 20), GenerationId(1, 30)

# Two artifacts in two directories: enough for every order, and few enough to try every subset.
PRESENT = (Component.MODEL, Component.OPTIMIZER)

JOB = JobDescription(
    run="llm",
    counters=(Counter(name="optimizer_step", value=10, names=CounterMeaning.COMPLETED),),
    code="commit-1",
    configuration="configuration-1",
    environment=Environment(python="3.11.7", lastgood="0.1.0"),
    topology=Topology(world_size=1, strategy="single", layout={}),
    model=Identity(name="tiny", revision="1"),
    tokenizer=None,
    dataset=Identity(name="text", revision="1"),
    purpose=Purpose.RESUMABLE,
    promises=tuple(ComponentPromise(component=component, determinism=Determinism.EXACT) for component in PRESENT),
    absent=tuple(
        AbsentComponent(component=component, reason="this proof is about names and bytes")
        for component in REQUIRED_COMPONENTS
        if component not in PRESENT
    ),
)


def open_family(root: Path, files: FileSystem | None = None) -> Location:
    return Location(store=LocalStore(root, files), keys=KEYS, generation=None)


def publisher(location: Location, previous: str | None) -> Publisher:
    return publisher_over(location.store, previous)


def publisher_over(store: Store, previous: str | None = None) -> Publisher:
    return Publisher(
        store,
        KEYS,
        incarnation=1,
        nonce=NONCE,
        rank=0,
        world_size=1,
        previous=previous,
        patience=timedelta(seconds=30),
    )


def publish(location: Location, files: FileSystem, step: int, *, by: Publisher) -> Published:
    """Publish a step whose artifacts are written through the same file port, so that they are part of its history."""
    staging = by.stage(step)
    artifacts = []
    for component in PRESENT:
        files.make_directory(staging.payload / component.value)
        path = f"{component.value}/rank-00000.bin"
        files.write_new(staging.payload / path, hashlib.sha256(f"{step}/{component}".encode()).digest() * 4)
        artifacts.append(StagedArtifact(path=path, component=Component(component), rank=0))
    return by.publish(staging, artifacts, job=JOB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something a process does to a family.

    Args:
        name: For the test's id.
        perform: Does it, over a store and the file port below it.
        before: What is offered if it never took effect; None: nothing.
        after: What must be offered once it returned; None: nothing may be offered.
        on_empty_root: It begins without a family.
        prepared: What it finds beside the two generations; the same bytes and names every time.
        kept: What must be on the medium once it returned, beside the answer: what is not, in words.
    """

    name: str
    perform: Callable[[Location, FileSystem], object]
    before: GenerationId | None
    after: GenerationId | None
    kept: Callable[[Location], list[str]]
    on_empty_root: bool = False
    prepared: Callable[[Path], None] | None = None


def _publish_next(location: Location, files: FileSystem) -> object:
    previous = location.store.get(KEYS.commit(SECOND), limit_bytes=2**16)
    return publish(location, files, THIRD.step, by=publisher(location, commit_digest(previous or b"")))


def _active_is_third(location: Location) -> list[str]:
    pointer = _read(location, KEYS.active(1), ActivePointer)
    return [] if pointer and pointer.generation == str(THIRD) else [f"active pointer names {pointer}"]


def _move_pointer(location: Location, files: FileSystem) -> object:
    return perform(location.store, refresh_caches(KEYS))


def _caches_exist(location: Location) -> list[str]:
    found = [_read(location, KEYS.last_good, GenerationPointer), _read(location, KEYS.quarantine, QuarantineNotice)]
    return [] if all(found) else [f"a cache is gone: {found}"]


def _roll_back(location: Location, files: FileSystem) -> object:
    return Family(location).rollback(FIRST, reason="loss spiked after step 10")


def _quarantine(location: Location, files: FileSystem) -> object:
    return Family(location).quarantine(reason="restores differ", generation=SECOND)


def _start(location: Location, files: FileSystem) -> object:
    location.store.prepare((KEYS.incarnations, KEYS.commits))
    number = perform(location.store, claim(KEYS, nonce=NONCE, host="host"))
    return perform(location.store, decide(KEYS, number, nonce=NONCE))


def _took_over(location: Location) -> list[str]:
    cut = Family(location).survey().cut
    return [] if cut.decided_by == 2 else [f"the takeover is gone: decided by {cut.decided_by}"]


def _first_start(location: Location, files: FileSystem) -> object:
    location.store.prepare((KEYS.incarnations, KEYS.commits))
    number = perform(location.store, claim(KEYS, nonce=NONCE, host="host"))
    return perform(location.store, decide(KEYS, number, nonce=NONCE, allow_fresh=True))


def _decided_first(location: Location) -> list[str]:
    cut = Family(location).survey().cut
    return [] if cut.decided_by == 1 else [f"the first decision is gone: decided by {cut.decided_by}"]


def _record_fail(location: Location, files: FileSystem) -> object:
    finding = Finding(reason=Reason.SHARD_MISSING, message="shard missing", offender="model/rank-00000.bin")
    check = Check(name="artifacts", state=CheckState.RAN, detail="1 of 2", findings=(finding,))
    verdict = judge(
        tier=Tier.MANIFEST, rung=Rung.FULL, subject=f"{KEYS.family}/{SECOND}", checks=[check], required=["artifacts"]
    )
    manifest = location.store.get(KEYS.manifest(SECOND), limit_bytes=2**20) or b""
    return keep_verdict(
        location.store,
        KEYS,
        verdict,
        generation=SECOND,
        manifest=manifest_digest(manifest),
        started_at=datetime.now(UTC),
    )


def _record_exists(location: Location) -> list[str]:
    names = location.store.names(f"{KEYS.records}/{SECOND}").files
    return [] if names else ["the record is gone"]


def _leave_a_dead_publish(root: Path) -> None:
    """Life 1 installed a third generation and died before its COMMIT; life 2 decided without it."""
    location, files = open_family(root), FileSystem()
    store = _Dying(root)
    with contextlib.suppress(_Died):
        publish(Location(store=store, keys=KEYS, generation=None), files, THIRD.step, by=publisher_over(store))
    number = perform(location.store, claim(KEYS, nonce=SECOND_NONCE, host="host"))
    perform(location.store, decide(KEYS, number, nonce=SECOND_NONCE))


class _Died(BaseException):
    """Whoever published is gone."""


class _Dying(LocalStore):
    """The store of a publisher that dies before its COMMIT."""

    def create(self, key: str, data: bytes) -> bool:
        if key.startswith(f"{KEYS.commits}/"):
            raise _Died
        return super().create(key, data)


def _sweep(location: Location, files: FileSystem) -> object:
    return sweep(location, now=datetime.now(UTC) + timedelta(days=30))


def _is_swept(location: Location) -> list[str]:
    data = location.store.get(KEYS.commit(THIRD), limit_bytes=2**16)
    found = [] if data is not None and documents.parse(Commit, data, "commit").burned else ["the slot is not burned"]
    lying = (location.store.last_changed(KEYS.artifacts(THIRD)), *location.store.names(KEYS.staging).directories)
    return found + (["something is left of the dead publish"] if any(lying) else [])


ACTS = (
    Act(name="publish", perform=_publish_next, before=SECOND, after=THIRD, kept=_active_is_third),
    Act(name="first-start", perform=_first_start, before=None, after=None, kept=_decided_first, on_empty_root=True),
    Act(name="start", perform=_start, before=SECOND, after=SECOND, kept=_took_over),
    Act(name="pointer-move", perform=_move_pointer, before=SECOND, after=SECOND, kept=_caches_exist),
    Act(name="rollback", perform=_roll_back, before=SECOND, after=FIRST, kept=_caches_exist),
    # A quarantine without any proven generation leaves nothing to offer.
    Act(name="quarantine", perform=_quarantine, before=SECOND, after=None, kept=_caches_exist),
    Act(name="sweep", perform=_sweep, before=SECOND, after=SECOND, kept=_is_swept, prepared=_leave_a_dead_publish),
    Act(name="fail-recorded", perform=_record_fail, before=SECOND, after=FIRST, kept=_record_exists),
)


def build_base(root: Path) -> Path:
    """A family with two committed generations of incarnation 1, everything durable."""
    root.mkdir(parents=True, exist_ok=True)
    family = root / KEYS.family
    run = Run.start(str(family), SoloGroup(), allow_fresh=True)
    files = FileSystem()
    location = open_family(root)
    for step in (FIRST.step, SECOND.step):
        staging = run.stage(step)
        artifacts = []
        for component in PRESENT:
            files.make_directory(staging.payload / component.value)
            path = f"{component.value}/rank-00000.bin"
            files.write_new(staging.payload / path, hashlib.sha256(f"{step}/{component}".encode()).digest() * 4)
            artifacts.append(StagedArtifact(path=path, component=component, rank=0))
        run.publish(staging, artifacts, job=JOB)
    run.close()
    shutil.rmtree(location.store.local_directory(KEYS.staging))
    (root / KEYS.family / ".lastgood" / "staging").mkdir()
    return root


def copy_base(base: Path, root: Path, act: Act) -> Path:
    """What an act begins with."""
    if act.on_empty_root:
        root.mkdir()
    else:
        shutil.copytree(base, root)
    if act.prepared is not None:
        act.prepared(root)
    return root


def problems(root: Path, act: Act, *, acknowledged: bool) -> list[str]:
    """Everything that is not as it must be after a crash during (or after) an act."""
    try:
        return _problems(open_family(root), act, acknowledged)
    except LastgoodError as error:
        return [f"no answer: {error.message}"]


def _problems(location: Location, act: Act, acknowledged: bool) -> list[str]:
    answer = Family(location).latest().generation
    lawful = {act.after} if acknowledged else {act.before, act.after}
    found = [] if answer in lawful else [f"offered {answer}, lawful: {sorted(map(str, lawful))}"]
    found += _incomplete_commits(location)
    found += _half_removed(location)
    if answer is not None:
        found += _failed_on_record(location, answer)
    found += _wrong_pointers(location)
    return found + (act.kept(location) if acknowledged else [])


def _incomplete_commits(location: Location) -> list[str]:
    """A COMMIT vouches for everything below it, from the moment anybody can see it."""
    found = []
    survey = Family(location).survey()
    for generation in (*survey.candidates, *survey.fenced):
        if Family(location).is_burned(generation):
            continue
        verdict = verify_generation(location.store, KEYS, generation)
        for check in verdict.checks:
            if check.name != "standing" and check.outcome is not Outcome.PASS:
                found.append(f"{generation} is committed, but {check.name}: {check.outcome} {check.detail}")
    return found


def _half_removed(location: Location) -> list[str]:
    """A tree goes by its name first: under a lawful name it is whole or not there."""
    found = []
    for name in location.store.names(KEYS.family).directories:
        if name != ".lastgood":
            files = [stored.key for stored in location.store.walk(f"{KEYS.family}/{name}")]
            if len(files) != len(PRESENT):
                found.append(f"{name} lies there with {len(files)} of {len(PRESENT)} artifacts")
    return found


def _failed_on_record(location: Location, answer: GenerationId) -> list[str]:
    prefix = f"{KEYS.records}/{answer}"
    stored = [
        location.store.get(f"{prefix}/{name}", limit_bytes=2**20) or b"" for name in location.store.names(prefix).files
    ]
    return [f"offered {answer} has a fail on record" for data in stored if b'"outcome":"fail"' in data]


def _wrong_pointers(location: Location) -> list[str]:
    active = _read(location, KEYS.active(1), ActivePointer)
    _read(location, KEYS.last_good, GenerationPointer)
    _read(location, KEYS.quarantine, QuarantineNotice)
    if active is not None and location.store.stat(f"{KEYS.commits}/{active.generation}") is None:
        return [f"active pointer names {active.generation}, which is not committed"]
    return []


def _read(location: Location, key: str, kind: type[Pointer]) -> Pointer | None:
    data = location.store.get(key, limit_bytes=2**20)
    return None if data is None else documents.parse(kind, data, key)
