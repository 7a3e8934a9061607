"""Who acts in the model: thin stages that call the protocol's own steps, and say what they then believe.

The order of calls is that of `run.Run`, `publish.Publisher`, `family.Family` and of the gates. Everything is looked up
on its module when it is called, so that a mutant of the protocol is what the actors meet.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from lastgood import documents
from lastgood.errors import Fenced, ResumeRefused, StoreTransientError, UsageError
from lastgood.identity import GenerationId
from lastgood.markers import Commit, Refusal, Release
from lastgood.protocol import Create, List, Policy, Replace, claims, commits, evidence, survey
from lastgood.protocol.survey import RefusalName
from tests.protocol.engine import Actor, Delete, Fact, Steps, Then
from tests.protocol.invariants import GHOST, KEYS

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = f"blake3:{'0' * 64}"


def generation(incarnation: int, step: int) -> GenerationId:
    return GenerationId(incarnation, step)


def life(letter: str) -> str:
    """The nonce of a life, from one hexadecimal digit."""
    return letter * 32


def marker(target: GenerationId, nonce: str) -> bytes:
    return documents.canonical_bytes(Commit(generation=str(target), manifest=DIGEST, previous=None, nonce=nonce))


def unlucky(losses: int, *actors: Actor) -> tuple[Actor, ...]:
    """The same actors, each losing up to so many replies."""
    return tuple(replace(actor, losses=losses) for actor in actors)


# ---- lives of the run


def start(
    nonce: str, saves: int, *, hint: GenerationId | None = None, allow_fresh: bool = False, asks_first: bool = False
) -> Actor:
    """A restart: claims, decides, publishes. `asks_first`: it notes whether it was superseded before it began."""
    return Actor(name=nonce[0], stage=_claim, arguments=(nonce, saves, hint, allow_fresh, asks_first))


def dead_claim(nonce: str) -> Actor:
    """A start that dies before it decides."""

    def claim_only() -> Steps:
        yield from claims.claim(KEYS, nonce=nonce, host=nonce[0])
        return None

    return Actor(name=nonce[0], stage=claim_only)


def orphan(number: int, nonce: str, *steps: int, asks_first: bool = False) -> Actor:
    """A life that was decided long ago and goes on publishing."""
    return Actor(name="orphan", stage=_publish, arguments=(nonce, number, steps, asks_first))


def _claim(nonce: str, saves: int, hint: GenerationId | None, allow_fresh: bool, asks_first: bool) -> Steps:
    try:
        number = yield from claims.claim(KEYS, nonce=nonce, host=nonce[0])
    except StoreTransientError:
        return None
    yield Fact("owns", (number, nonce))
    return Then(_decide, (nonce, number, saves, hint, allow_fresh, asks_first))


def _decide(
    nonce: str, number: int, saves: int, hint: GenerationId | None, allow_fresh: bool, asks_first: bool
) -> Steps:
    if asks_first and _newest((yield List(KEYS.incarnations))) > number:
        yield Fact("began-superseded", (number,))
    try:
        decision = yield from claims.decide(KEYS, number, nonce=nonce, hint=hint, allow_fresh=allow_fresh)
    except (Fenced, ResumeRefused, StoreTransientError):
        return None
    yield Fact("decided", (number, decision.generation, hint))
    begun = decision.generation.step if decision.generation else 0
    return Then(_publish, (nonce, number, tuple(range(begun + 1, begun + 1 + saves)), asks_first))


def _newest(names: tuple[str, ...]) -> int:
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _publish(nonce: str, number: int, steps: tuple[int, ...], asks_first: bool) -> Steps:
    if not steps:
        return None
    target = generation(number, steps[0])
    if asks_first and _newest((yield List(KEYS.incarnations))) > number:
        yield Fact("publish-superseded", (target, nonce))
    try:
        outcome = yield from commits.commit(KEYS, target, marker(target, nonce))
    except StoreTransientError:
        # Serial commits: what is unknown is sent again before anything else.
        return Then(_publish, (nonce, number, steps, asks_first))
    if outcome is not commits.CommitOutcome.ACKNOWLEDGED:
        return None
    yield Fact("acknowledged", (target, nonce))
    return Then(_publish, (nonce, number, steps[1:], asks_first))


def zombie(target: GenerationId, nonce: str) -> Actor:
    """A COMMIT that was sent, timed out, and lands when it likes."""

    def land() -> Steps:
        yield Create(KEYS.commit(target), marker(target, nonce))
        return None

    return Actor(name="zombie", stage=land)


# ---- operators and gates


def go_back(target: GenerationId) -> Actor:
    return Actor(name="operator", stage=_go_back, arguments=(target,))


def _go_back(target: GenerationId) -> Steps:
    try:
        nonce = life(str(target.step % 10))
        number = yield from claims.rollback(KEYS, target, nonce=nonce, host="o", reason="loss spiked")
    except (UsageError, StoreTransientError):
        return None
    yield Fact("rolled-back", (number, target))
    return Then(refresh)


def refresh() -> Steps:
    yield from evidence.refresh_caches(KEYS)
    return None


def gate(name: str, target: GenerationId, outcome: str, *, tier: int = 2) -> Actor:
    """A gate that judged a generation and stores what it found."""
    return Actor(name=name, stage=_judge, arguments=(name, target, outcome, tier))


def refusal_of(by: str, target: GenerationId, tier: int) -> tuple[RefusalName, Refusal]:
    source: Literal["tier1", "tier2"] = "tier1" if tier == 1 else "tier2"
    refusal = Refusal(
        source=source, generation=str(target), reason="loss differs", findings=(), created_at=MOMENT, by=by
    )
    return RefusalName(source=source, tag="0001", generation=target), refusal


def late_gate(name: str, back: int, outcome: str, tier: int) -> Actor:
    """A gate that picks the newest commit but `back` when it begins."""

    def pick() -> Steps:
        names = yield List(KEYS.commits)
        target = GenerationId.parse(names[max(0, len(names) - 1 - back)])
        return Then(_judge, (name, target, outcome, tier))

    return Actor(name=name, stage=pick)


def late_rollback(back: int) -> Actor:
    """An operator who goes back to the newest candidate but `back`."""

    def pick() -> Steps:
        candidates = (yield from survey.take_survey(KEYS)).candidates
        return Then(_go_back, (candidates[min(back, len(candidates) - 1)],))

    return Actor(name="operator", stage=pick)


def _judge(by: str, target: GenerationId, outcome: str, tier: int) -> Steps:
    try:
        yield from evidence.conclude(
            KEYS,
            f"{KEYS.records}/{target}/tier{tier}",
            encode=lambda attempt: json.dumps({"outcome": outcome, "by": by, "attempt": attempt}).encode(),
            agrees=lambda stored: json.loads(stored)["outcome"] == outcome,
            attempt=1,
            refusal=refusal_of(by, target, tier) if outcome == "fail" else None,
            passed=(target, b"{}") if outcome == "pass" and tier == 2 else None,
        )
    except StoreTransientError:
        return None
    yield Fact("judged", (target, tier, outcome, by))
    return None


def lift(*, refreshes: bool = True) -> Actor:
    """An operator who releases the family."""
    return Actor(name="releaser", stage=_lift, arguments=(refreshes,))


def _lift(refreshes: bool) -> Steps:
    yield from evidence.release(KEYS, Release(reason="bad disk replaced", created_at=MOMENT, by="o"))
    return Then(refresh) if refreshes else None


def quarantine() -> Actor:
    """An operator who quarantines the family and bars nothing."""

    def put() -> Steps:
        name = RefusalName(source="operator", tag="aaaa", generation=None)
        refusal = Refusal(
            source="operator", generation=None, reason="bad disk", findings=(), created_at=MOMENT, by="operator"
        )
        yield from evidence.refuse(KEYS, name, refusal)
        return None

    return Actor(name="operator", stage=put)


def reconcile(name: str) -> Actor:
    return Actor(name=name, stage=refresh)


def reader(name: str, policy: Policy = Policy.VERIFIED) -> Actor:
    return Actor(name=name, stage=_read, arguments=(name, policy))


def _read(name: str, policy: Policy) -> Steps:
    yield Replace(f"{GHOST}/reading/{name}", policy.value.encode())
    choice = yield from survey.choose(KEYS, policy=policy)
    if choice.generation is not None:
        yield Fact("offered", (name, choice.generation))
    return Then(_close, (name,))


def _close(name: str) -> Steps:
    yield Delete(f"{GHOST}/reading/{name}")
    return None


# ---- cleaning


def slow_publisher(target: GenerationId, nonce: str) -> Actor:
    """Writes its artifacts, pauses for as long as it likes, and commits."""

    def write() -> Steps:
        yield Replace(f"{KEYS.artifacts(target)}/data", b"tensors")
        yield Replace(f"{GHOST}/artifacts/{target}", b"")
        return Then(_publish, (nonce, target.incarnation, (target.step,), False))

    return Actor(name="publisher", stage=write)


def sweeper(target: GenerationId) -> Actor:
    return Actor(name="sweeper", stage=sweep, arguments=(target,))


def sweep(target: GenerationId) -> Steps:
    """Give up an unfinished generation of a life that was cut: burn its slot, then delete."""
    if not (yield from commits.abandon(KEYS, target, life("5"))):
        return None
    yield Delete(f"{KEYS.artifacts(target)}/data")
    return None
