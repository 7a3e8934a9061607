"""Families with a past: saves, takeovers and evidence of every tier, written as documents in a second.

For tests and benchmarks of what reads evidence: the ledger, the report, a page. Everything follows from a family's name
and a `Past`, so two calls give the same bytes. The documents are lawful and stand to each other as the protocol would
have left them: claims and decisions, chained COMMITs, manifests, records with the refusals, passes and releases that
follow from them. No gate ran and no tensor exists; payloads of a few bytes lie there where a `Past` says so, and tier 1
holds on them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from lastgood import documents
from lastgood.checks import DRILL_CHECKS, GENERATION_CHECKS, RESTORE_CHECKS
from lastgood.digest import Algorithm, hash_bytes
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import FORMAT_VERSION, Artifact, Component, Identity, Manifest, Receipt, manifest_digest
from lastgood.markers import Claim, Commit, Passed, Refusal, Release, ResumeRecord
from lastgood.protocol.commits import commit_digest
from lastgood.protocol.survey import RefusalName
from lastgood.records import Measurements, Record, RecordName, effects_of
from lastgood.records.record import SCHEMA_VERSION
from lastgood.testing.build import Recipe, build_job
from lastgood.verdict import Check, CheckState, Finding, Outcome, Reason, Rung, Tier, Verdict, judge

__all__ = ["HOSTILE", "Past", "StoredDocument", "fabricate", "fabricate_documents"]

HOSTILE: Final = "<script>alert(1)</script>**b**[x](javascript:1)|`\x1b[31m\u202etxt\u0000&amp;"
"""HTML, Markdown, a terminal's escape, a reversal of text and a NUL: lawful as a run's name, and raw nowhere else."""

WORLD_SIZE = 2
STEPS_BETWEEN_SAVES = 100

_CHECKS = {
    Tier.MANIFEST: GENERATION_CHECKS,
    Tier.RESTORE: (*(name for name in GENERATION_CHECKS if name not in ("chain", "standing")), *RESTORE_CHECKS),
    Tier.DRILL: DRILL_CHECKS,
}
_FAILS = {
    Tier.MANIFEST: ("digests", Reason.DIGEST_MISMATCH, "digest mismatch"),
    Tier.RESTORE: ("sample_ids", Reason.SAMPLE_IDS_DIVERGED, "sample ids diverged"),
    Tier.DRILL: ("rto", Reason.RTO_EXCEEDED, "recovery took too long"),
}
_COULD_NOT = {Tier.MANIFEST: "digests", Tier.RESTORE: "replica_ended", Tier.DRILL: "fault_fired"}
_DRILL_PHASES = ("stop", "relaunch", "launch", "import", "join", "build", "discover", "load", "first_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a family has behind it. Every save is judged by tier 1; numbers of faults are spread over it by the seed.

    Args:
        until: When the newest save was made, aware.
        saves: Publishes begun, the faulty ones among them.
        interval: Between two saves.
        lives: Starts of the job, each resuming the last save of the one before.
        restore_every: Saves from one restore (tier 2) to the next, counted back from the newest; 0: never.
        drill_every: Likewise of drills (tier 3).
        failed_verifications: Saves that tier 1 barred.
        failed_restores: Restores that failed, each with the quarantine that followed.
        failed_drills: Drills that missed the RTO.
        inconclusive: Gates whose first attempt told nothing.
        abandoned: Publishes that left a staging directory and no COMMIT.
        burned: Slots that were given up.
        fenced: Last saves of the first life, that the second did not keep.
        quarantined: The quarantine of the last failed restore is in force; else every one was released.
        under_way: One more publish has begun and not ended.
        payload: `all` saves have their artifacts, or only the `newest` one and the newest proven one: enough for
            `latest`.
        words: Appended to whatever a job or a machine may name: run, dataset, tensors, host, origin.
        seed: Another one spreads the faults in another way.
    """

    until: datetime
    saves: int = 24
    interval: timedelta = timedelta(minutes=20)
    lives: int = 1
    restore_every: int = 4
    drill_every: int = 8
    failed_verifications: int = 0
    failed_restores: int = 0
    failed_drills: int = 0
    inconclusive: int = 0
    abandoned: int = 0
    burned: int = 0
    fenced: int = 0
    quarantined: bool = False
    under_way: bool = False
    payload: str = "all"
    words: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument:
    """One object of a family: its key relative to the root, and its bytes."""

    key: str
    data: bytes


def fabricate(root: Path, family: str, past: Past) -> tuple[GenerationId, ...]:
    """Write a family with a past below an existing root; returns its commits, oldest first. Nothing is flushed."""
    made: set[str] = set()
    for document in fabricate_documents(family, past):
        path = f"{root}/{document.key}"
        directory = path.rpartition("/")[0]
        if directory not in made:
            os.makedirs(directory, exist_ok=True)
            made.add(directory)
        # Plainly, for a benchmark writes a quarter of a million of them.
        with open(path, "wb", buffering=0) as file:
            file.write(document.data)
    commits = root / FamilyKeys(family).commits
    return tuple(sorted(GenerationId.parse(path.name) for path in commits.iterdir()))


def fabricate_documents(family: str, past: Past) -> Iterator[StoredDocument]:
    """Every document of a family with a past, in an order in which it may have been written."""
    return _Family(family, past).documents()


class _Family:
    """One family while its past is told."""

    def __init__(self, family: str, past: Past) -> None:
        self._keys = FamilyKeys(family)
        self._past = past
        self._random = random.Random(f"{family} {past.seed}")
        self._template = build_job(family, 0, Recipe(world_size=WORLD_SIZE))
        self._saves = [self._generation(number) for number in range(past.saves)]
        self._plan()

    def _generation(self, number: int) -> GenerationId:
        life = 1 + number * self._past.lives // self._past.saves
        return GenerationId(life, STEPS_BETWEEN_SAVES * (number + 1))

    def _plan(self) -> None:
        past, newest = self._past, self._past.saves - 1
        first_life = [number for number, save in enumerate(self._saves) if save.incarnation == 1]
        self._fenced = frozenset(first_life[-past.fenced :]) if past.fenced and past.lives > 1 else frozenset()
        firsts = {min(n for n, save in enumerate(self._saves) if save.incarnation == life) for life in self._lives()}
        restored = self._every(past.restore_every) - self._fenced
        drilled = self._every(past.drill_every) - self._fenced
        # What a later life resumed from, and the newest save, are whole; so is whatever was restored or drilled.
        whole = {newest, *restored, *drilled, *self._fenced, *(first - 1 for first in firsts)}
        spare = self._shuffled(frozenset(range(past.saves)) - whole)
        self._abandoned, spare = frozenset(spare[: past.abandoned]), spare[past.abandoned :]
        self._burned, spare = frozenset(spare[: past.burned]), spare[past.burned :]
        self._failed = {
            Tier.MANIFEST: frozenset(spare[: past.failed_verifications]),
            Tier.RESTORE: frozenset(self._shuffled(restored - {newest})[: past.failed_restores]),
            Tier.DRILL: frozenset(self._shuffled(drilled - {newest})[: past.failed_drills]),
        }
        self._gates = {Tier.RESTORE: restored, Tier.DRILL: drilled}
        judged = frozenset(range(past.saves)) - self._abandoned - self._burned
        gates = [(number, Tier.MANIFEST) for number in sorted(judged)]
        gates += [(number, tier) for tier, numbers in self._gates.items() for number in sorted(numbers)]
        self._random.shuffle(gates)
        self._inconclusive = frozenset(gates[: past.inconclusive])
        proven = restored - self._failed[Tier.RESTORE] - self._failed[Tier.MANIFEST]
        self._with_payload = frozenset(range(past.saves)) if past.payload == "all" else {newest, *sorted(proven)[-1:]}

    def _lives(self) -> range:
        return range(1, self._past.lives + 1)

    def _every(self, step: int) -> frozenset[int]:
        return frozenset(range(self._past.saves - 1, -1, -step)) if step else frozenset()

    def _shuffled(self, numbers: frozenset[int]) -> list[int]:
        shuffled = sorted(numbers)
        self._random.shuffle(shuffled)
        return shuffled

    def _moment(self, number: int) -> datetime:
        return self._past.until - (self._past.saves - 1 - number) * self._past.interval

    def documents(self) -> Iterator[StoredDocument]:
        previous: str | None = None
        life = 0
        last_kept: dict[int, GenerationId] = {}
        commits: dict[GenerationId, str] = {}
        for number, save in enumerate(self._saves):
            if save.incarnation != life:
                life = save.incarnation
                source = last_kept.get(life - 1)
                previous = commits[source] if source is not None else None
                yield from self._start(life, source, previous, last_kept)
            if number in self._abandoned:
                yield self._staged(save)
                continue
            manifest = self._manifest(number, save)
            digest = manifest_digest(manifest)
            burned = number in self._burned
            if not burned:
                yield from self._payload(number, save)
                yield StoredDocument(key=self._keys.manifest(save), data=manifest)
            marker = documents.canonical_bytes(
                Commit(
                    generation=str(save),
                    manifest=None if burned else digest,
                    previous=None if burned else previous,
                    nonce=_nonce(self._keys.family, life),
                    burned=burned,
                )
            )
            yield StoredDocument(key=self._keys.commit(save), data=marker)
            if burned:
                continue
            previous = commits[save] = commit_digest(marker)
            if number not in self._fenced:
                last_kept[life] = save
            yield from self._evidence(number, save, digest)
        if self._past.under_way:
            yield self._staged(GenerationId(life, STEPS_BETWEEN_SAVES * (self._past.saves + 1)))

    # What a job writes.

    def _start(
        self, life: int, source: GenerationId | None, commit: str | None, kept: dict[int, GenerationId]
    ) -> Iterator[StoredDocument]:
        nonce = _nonce(self._keys.family, life)
        claim = Claim(kind="start", nonce=nonce, host=self._named("trainer"))
        yield StoredDocument(key=self._keys.claim(life), data=documents.canonical_bytes(claim))
        decision = ResumeRecord(
            nonce=nonce,
            from_generation=str(source) if source else None,
            from_commit=commit,
            keeps={str(older): save.step for older, save in kept.items()},
        )
        yield StoredDocument(key=self._keys.resume(life), data=documents.canonical_bytes(decision))

    def _contents(self, save: GenerationId) -> Iterator[tuple[str, int, bytes]]:
        for rank in range(WORLD_SIZE):
            yield f"model/rank-{rank:05d}.bin", rank, f"{self._keys.family} {save} {rank}".encode()

    def _payload(self, number: int, save: GenerationId) -> Iterator[StoredDocument]:
        if number in self._with_payload:
            for path, _, content in self._contents(save):
                yield StoredDocument(key=f"{self._keys.artifacts(save)}/{path}", data=content)

    def _manifest(self, number: int, save: GenerationId) -> bytes:
        counters = (msgspec.structs.replace(self._template.counters[0], value=save.step), *self._template.counters[1:])
        job = msgspec.structs.replace(
            self._template,
            run=self._named(self._template.run),
            dataset=Identity(name=self._named("bytes"), revision="1"),
            counters=counters,
        )
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            family=self._keys.family,
            generation=str(save),
            incarnation=save.incarnation,
            step=save.step,
            staging=self._staging(save),
            created_at=self._moment(number),
            job=job,
            artifacts=tuple(
                Artifact(
                    path=path,
                    component=Component.MODEL,
                    rank=rank,
                    bytes=len(content),
                    digests=(hash_bytes(content, Algorithm.BLAKE3),),
                )
                for path, rank, content in self._contents(save)
            ),
            expectations=None,
        )
        return documents.canonical_bytes(manifest)

    def _staging(self, save: GenerationId) -> str:
        return f"{save}~{_nonce(self._keys.family, save.incarnation)[:8]}"

    def _staged(self, save: GenerationId) -> StoredDocument:
        """What a killed publish leaves: the receipt of one rank of two."""
        staging = self._staging(save)
        receipt = Receipt(staging=staging, rank=1, world_size=WORLD_SIZE)
        key = f"{self._keys.staging}/{staging}/receipts/rank-00001.json"
        return StoredDocument(key=key, data=documents.canonical_bytes(receipt))

    # What gates write.

    def _evidence(self, number: int, save: GenerationId, manifest: str) -> Iterator[StoredDocument]:
        yield from self._gate(Tier.MANIFEST, number, save, manifest)
        for tier, numbers in self._gates.items():
            if number in numbers:
                yield from self._gate(tier, number, save, manifest)

    def _gate(self, tier: Tier, number: int, save: GenerationId, manifest: str) -> Iterator[StoredDocument]:
        outcomes = [Outcome.FAIL if number in self._failed[tier] else Outcome.PASS]
        if (number, tier) in self._inconclusive:
            outcomes.insert(0, Outcome.INCONCLUSIVE)
        for attempt, outcome in enumerate(outcomes, start=1):
            record = self._record(tier, number, save, manifest, attempt, outcome)
            name = RecordName.of(save, manifest, tier, attempt)
            yield from self._effects(record, name, save, number)
            yield StoredDocument(key=name.key(self._keys), data=documents.canonical_bytes(record))

    def _record(
        self, tier: Tier, number: int, save: GenerationId, manifest: str, attempt: int, outcome: Outcome
    ) -> Record:
        begun = self._moment(number) + {1: timedelta(seconds=5), 2: timedelta(minutes=2), 3: timedelta(minutes=5)}[tier]
        begun += timedelta(minutes=attempt - 1)
        took = self._measurements(tier, save, outcome)
        return Record(
            schema_version=SCHEMA_VERSION,
            family=self._keys.family,
            generation=str(save),
            manifest=manifest,
            attempt=attempt,
            verdict=self._verdict(tier, save, outcome),
            started_at=begun,
            finished_at=begun + timedelta(seconds=took.seconds or 0.0),
            host=self._named(f"gate-{number % 3}"),
            lastgood="0.0.0",
            measurements=took,
            origin=self._named(f"http://127.0.0.1:4200/runs/flow-run/{number:08x}") if number % 2 else None,
        )

    def _verdict(self, tier: Tier, save: GenerationId, outcome: Outcome) -> Verdict:
        subject = f"{self._keys.family}/{save}"
        blamed, reason, message = _FAILS[tier]
        checks = []
        for name in _CHECKS[tier]:
            state, detail = CheckState.RAN, f"{WORLD_SIZE} of {WORLD_SIZE} ranks"
            findings: tuple[Finding, ...] = ()
            if outcome is Outcome.FAIL and name == blamed:
                offender = self._named(f"{name}/rank-00001")
                text = f"{message}: {offender} in {subject}: expected 1, found 2"
                findings = (Finding(reason=reason, message=text, offender=offender, expected="1", found="2"),)
            elif outcome is Outcome.INCONCLUSIVE and name == _COULD_NOT[tier]:
                state, detail = CheckState.INCONCLUSIVE, self._named("the store did not answer")
            checks.append(Check(name=name, state=state, detail=detail, findings=findings))
        return judge(tier=tier, rung=Rung.FULL, subject=subject, checks=checks, required=_CHECKS[tier])

    def _measurements(self, tier: Tier, save: GenerationId, outcome: Outcome) -> Measurements:
        payload_bytes = sum(len(content) for _, _, content in self._contents(save))
        if tier is Tier.MANIFEST:
            return Measurements(seconds=self._about(0.4), read_bytes=payload_bytes)
        if outcome is Outcome.INCONCLUSIVE:
            return Measurements(seconds=self._about(5.0))
        phases = {phase: self._about(1.0 + place) for place, phase in enumerate(_DRILL_PHASES)}
        if tier is Tier.RESTORE:
            took = {"copy": self._about(2.0), "replica": self._about(30.0)}
            return Measurements(
                seconds=sum(took.values()),
                read_bytes=payload_bytes,
                read_seconds=took["copy"],
                discovery_seconds=phases["discover"],
                load_seconds=phases["load"],
                first_step_seconds=phases["first_step"],
                phases=took,
            )
        rto = sum(phases.values())
        return Measurements(
            seconds=rto + self._about(20.0),
            read_bytes=payload_bytes,
            read_seconds=2.0,
            discovery_seconds=phases["discover"],
            load_seconds=phases["load"],
            first_step_seconds=phases["first_step"],
            rpo_loss_steps=self._random.randrange(STEPS_BETWEEN_SAVES),
            rto_seconds=rto + 0.25,
            phases={**phases, "unaccounted": 0.25},
        )

    def _about(self, seconds: float) -> float:
        return round(seconds * self._random.uniform(0.8, 1.25), 6)

    def _effects(self, record: Record, name: RecordName, save: GenerationId, number: int) -> Iterator[StoredDocument]:
        effects, tier = effects_of(record.verdict), record.tier
        if effects.proves:
            passed = Passed(generation=str(save), record=name.prefix(self._keys), created_at=record.finished_at)
            yield StoredDocument(key=f"{self._keys.proven}/{save}", data=documents.canonical_bytes(passed))
        if not effects.refuses:
            return
        refusal_name = RefusalName(source=f"tier{int(tier)}", tag=f"{record.attempt:04d}", generation=save)
        refusal = Refusal(
            source=refusal_name.source,  # type: ignore[arg-type]  # one of the literals, since there are three tiers
            generation=str(save),
            reason=f"tier {int(tier)} failed",
            findings=record.verdict.findings,
            created_at=record.finished_at,
            by=record.host,
        )
        yield StoredDocument(key=f"{self._keys.refusals}/{refusal_name}", data=documents.canonical_bytes(refusal))
        last = number == max(self._failed[tier])
        if refusal_name.quarantines and not (self._past.quarantined and last):
            release = Release(reason="the cause was fixed", created_at=record.finished_at, by=self._named("operator"))
            yield StoredDocument(key=f"{self._keys.releases}/{refusal_name}", data=documents.canonical_bytes(release))

    def _named(self, text: str) -> str:
        return f"{text} {self._past.words}" if self._past.words else text


def _nonce(family: str, life: int) -> str:
    return f"{random.Random(f'{family} {life}').getrandbits(128):032x}"
