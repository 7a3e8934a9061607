"""A family in memory for the unit tests: the protocol performed, one act after the other, over a counting store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, TypeVar, cast

from lastgood import documents
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.markers import Commit, Refusal, Release
from lastgood.protocol import Choice, Decision, Policy, Request, Steps, claims, commits, evidence, perform, survey
from lastgood.protocol.survey import RefusalName
from lastgood.stores.memory import MemoryStore

T = TypeVar("T")
R = TypeVar("R")

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = f"blake3:{'0' * 64}"


def nonce(letter: str) -> str:
    return letter * 32


def marker(generation: GenerationId, by: str) -> bytes:
    return documents.canonical_bytes(Commit(generation=str(generation), manifest=DIGEST, previous=None, nonce=by))


class MemoryFamily:
    """Acts by name; `objects` may be damaged at will."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.keys = FamilyKeys("llm")

    @property
    def objects(self) -> dict[str, bytes]:
        return self.store.objects

    def perform(self, steps: Steps[T]) -> T:
        return perform(self.store, steps)

    def answer(self, request: Request) -> object:
        def one() -> Steps[object]:
            return (yield request)

        return self.perform(one())

    def claim(self, letter: str) -> int:
        return self.perform(claims.claim(self.keys, nonce=nonce(letter), host="h"))

    def decide(
        self,
        number: int,
        letter: str,
        *,
        hint: GenerationId | None = None,
        allow_fresh: bool = False,
        policy: Policy = Policy.VERIFIED,
    ) -> Decision:
        steps = claims.decide(self.keys, number, nonce=nonce(letter), hint=hint, allow_fresh=allow_fresh, policy=policy)
        return self.perform(steps)

    def live(self, letter: str, *saves: int, allow_fresh: bool = False) -> int:
        """A whole life: claim, decide, publish these steps."""
        number = self.claim(letter)
        self.decide(number, letter, allow_fresh=allow_fresh)
        for step in saves:
            self.commit(number, step, letter)
        return number

    def commit(self, number: int, step: int, letter: str) -> commits.CommitOutcome:
        generation = GenerationId(number, step)
        return self.perform(commits.commit(self.keys, generation, marker(generation, nonce(letter))))

    def rollback(self, target: GenerationId, letter: str = "0") -> int:
        return self.perform(claims.rollback(self.keys, target, nonce=nonce(letter), host="h", reason="spike"))

    def refuse(
        self,
        generation: GenerationId | None,
        *,
        source: Literal["tier1", "tier2", "tier3", "operator"] = "tier2",
        tag: str = "0001",
        by: str = "gate",
    ) -> RefusalName:
        refusal = Refusal(
            source=source,
            generation=str(generation) if generation else None,
            reason="loss differs",
            findings=(),
            created_at=MOMENT,
            by=by,
        )
        name = RefusalName(source=source, tag=tag, generation=generation)
        return self.perform(evidence.refuse(self.keys, name, refusal))

    def release(self) -> tuple[str, ...]:
        return self.perform(evidence.release(self.keys, Release(reason="disk replaced", created_at=MOMENT, by="h")))

    def prove(self, generation: GenerationId) -> None:
        self.perform(evidence.prove(self.keys, generation, b"{}"))

    def choose(self, policy: Policy = Policy.VERIFIED) -> Choice:
        return self.perform(survey.choose(self.keys, policy=policy))

    @property
    def latest(self) -> GenerationId | None:
        return self.choose().generation

    def survey(self) -> survey.Survey:
        return self.perform(survey.take_survey(self.keys))


def until(steps: Steps[T], family: MemoryFamily, wanted: Request | type[R]) -> R:
    """Drive steps up to one request, or one kind of request, and return it without performing it."""
    request = next(steps)
    while not (isinstance(request, wanted) if isinstance(wanted, type) else request == wanted):
        request = steps.send(family.answer(request))
    return cast(R, request)


def finish(steps: Steps[T], family: MemoryFamily, request: Request) -> T:
    """Drive steps from a request to their end."""
    try:
        while True:
            request = steps.send(family.answer(request))
    except StopIteration as stop:
        result: T = stop.value
        return result
