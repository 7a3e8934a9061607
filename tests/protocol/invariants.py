"""What must hold in every state, computed from the stored documents alone and without the code under test.

`haunt` writes down what the store forgets (under `ghost/`): which COMMIT landed after a takeover, which pointer a
superseded life moved, what was lawful to offer at some moment of a read. Source: docs/protocol.md, "What must hold".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from lastgood.identity import FamilyKeys, GenerationId
from lastgood.protocol import Get, List, Policy, survey
from tests.protocol.engine import Facts, Objects, listed

KEYS = FamilyKeys("llm")
GHOST = "ghost"
# A decision has no limit on its own incarnation.
NO_LIMIT = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A store, read by somebody who knows the rules and has no reason to be clever."""

    commits: Mapping[GenerationId, Mapping[str, Any]]
    claims: Mapping[int, Mapping[str, Any]]
    resumes: Mapping[int, Mapping[str, Any]]
    refusals: Mapping[str, Mapping[str, Any]]
    releases: frozenset[str]
    proven: frozenset[GenerationId]

    @property
    def decided(self) -> dict[int, Mapping[str, int]]:
        decisions = {n: claim["rollback"]["keeps"] for n, claim in self.claims.items() if claim.get("rollback")}
        return decisions | {n: resume["keeps"] for n, resume in self.resumes.items()}

    @property
    def candidates(self) -> frozenset[GenerationId]:
        decided = self.decided
        if not decided:
            return frozenset(g for g in self.commits if g.incarnation == 0)
        newest = max(decided)
        limits = {int(n): step for n, step in decided[newest].items()} | {newest: NO_LIMIT}
        return frozenset(g for g in self.commits if g.step <= limits.get(g.incarnation, -1))

    @property
    def barred(self) -> frozenset[GenerationId]:
        named = (refusal["generation"] for refusal in self.refusals.values())
        return frozenset(GenerationId.parse(name) for name in named if name)

    @property
    def quarantine(self) -> frozenset[str]:
        return frozenset(n for n, r in self.refusals.items() if r["source"] != "tier1" and n not in self.releases)

    def lawful(self, policy: Policy = Policy.VERIFIED) -> frozenset[GenerationId]:
        """What may be offered at this moment."""
        fit = frozenset(g for g in self.candidates - self.barred if not self.commits[g].get("burned"))
        return fit & self.proven if self.quarantine or policy is Policy.PROVEN else fit

    @property
    def newest_proven(self) -> GenerationId | None:
        return max((self.candidates & self.proven) - self.barred, default=None)


@cache
def _document(data: bytes) -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(data)
    return document


def see(objects: Objects) -> Seen:
    def documents(prefix: str) -> dict[str, Mapping[str, Any]]:
        return {name: _document(objects[f"{prefix}/{name}"]) for name in listed(objects, prefix)}

    incarnations = documents(KEYS.incarnations)
    return Seen(
        commits={GenerationId.parse(name): document for name, document in documents(KEYS.commits).items()},
        claims={int(name): document for name, document in incarnations.items() if name.isdecimal()},
        resumes={int(name[:8]): document for name, document in incarnations.items() if name.endswith(".resume")},
        refusals=documents(KEYS.refusals),
        releases=frozenset(listed(objects, KEYS.releases)),
        proven=frozenset(map(GenerationId.parse, listed(objects, KEYS.proven))),
    )


def is_pointer(key: str) -> bool:
    return key.endswith((".active", "/ACTIVE", "/LAST_GOOD", "/QUARANTINE"))


def is_replaced(key: str) -> bool:
    """Whether a key may change once it is there."""
    return is_pointer(key) or "/.lastgood/" not in key


def haunt(before: Objects, after: dict[str, bytes]) -> None:
    """Note what the store itself does not remember."""
    for key in before.keys() - after.keys():
        if "/.lastgood/" in key:
            after[f"{GHOST}/deleted/{key.rpartition('/.lastgood/')[2]}"] = b""
    changed = [key for key, data in list(after.items()) if before.get(key) != data]
    past = see(before)
    for key in changed:
        name = key.rpartition("/")[2]
        if key in before and not is_replaced(key) and not key.startswith(GHOST):
            after[f"{GHOST}/overwritten/{name}"] = b""
        if key.startswith(f"{KEYS.commits}/"):
            incarnation = GenerationId.parse(name).incarnation
            if max(past.decided, default=0) > incarnation:
                after[f"{GHOST}/late/{name}"] = b""
            if max(past.claims, default=0) > incarnation:
                after[f"{GHOST}/superseded/{name}"] = b""
        if key.endswith((".active", "/ACTIVE")):
            incarnation = GenerationId.parse(_document(after[key])["generation"]).incarnation
            if max(past.decided, default=0) > incarnation and key != KEYS.active(incarnation):
                after[f"{GHOST}/moved/{name}"] = b""
        if key.startswith(f"{KEYS.refusals}/") and name in past.releases:
            after[f"{GHOST}/born-lifted/{name}"] = b""
    for reader in listed(after, f"{GHOST}/reading"):
        policy = Policy(after[f"{GHOST}/reading/{reader}"].decode())
        for generation in see(after).lawful(policy):
            after[f"{GHOST}/lawful-for-{reader}/{generation}"] = b""


def settled(objects: Objects) -> Objects:
    """A history in which every publish was acknowledged."""
    commits = see(objects).commits.items()
    return {**objects, **{f"{GHOST}/acknowledged/{g}": commit["nonce"].encode() for g, commit in commits}}


def latest(objects: Objects) -> GenerationId | None:
    """What the code under test offers when nobody interferes."""
    steps = survey.choose(KEYS)
    reply: object = None
    try:
        while True:
            match steps.send(reply):
                case List(prefix):
                    reply = listed(objects, prefix)
                case Get(key):
                    reply = objects.get(key)
                case _:
                    reply = ()
    except StopIteration as stop:
        generation: GenerationId | None = stop.value.generation
        return generation


def check_store(objects: Objects) -> str | None:
    """What must hold of a store, whoever made it."""
    for mark, what in (
        ("deleted", "deleted, though the audit must remain"),
        ("overwritten", "overwritten, though it is created once"),
        ("moved", "moved by a superseded life"),
        ("born-lifted", "a fail whose quarantine was lifted before it was stored"),
    ):
        for key in objects:
            if key.startswith(f"{GHOST}/{mark}/"):
                return f"{key.removeprefix(f'{GHOST}/{mark}/')}: {what}"
    seen = see(objects)
    # A burned slot may be noted as late as anybody likes: there is nothing behind it to resume.
    late = frozenset(map(GenerationId.parse, listed(objects, f"{GHOST}/late")))
    late -= {generation for generation in late if seen.commits[generation].get("burned")}
    if late & seen.candidates:
        return f"{min(late & seen.candidates)}: committed after a takeover, and a candidate"
    return _check_offer(latest(objects), seen) or _check_decisions(seen)


def _check_offer(offer: GenerationId | None, seen: Seen) -> str | None:
    if offer == max(seen.lawful(), default=None):
        return None
    if offer is None:
        return f"nothing is offered, though {max(seen.lawful())} may be"
    for wrong, group in (
        ("not committed", offer not in seen.commits),
        ("fenced", offer not in seen.candidates),
        ("barred", offer in seen.barred),
        ("burned", seen.commits.get(offer, {}).get("burned", False)),
        ("not proven, under quarantine", bool(seen.quarantine) and offer not in seen.proven),
    ):
        if group:
            return f"{offer} is offered: it is {wrong}"
    return f"{offer} is offered, though {max(seen.lawful())} is newer and lawful"


def _check_decisions(seen: Seen) -> str | None:
    for number, resume in seen.resumes.items():
        if number not in seen.claims or seen.claims[number]["nonce"] != resume["nonce"]:
            return f"incarnation {number} is decided by a life that does not own it"
        kept = [g for g in seen.commits if g.step <= resume["keeps"].get(str(g.incarnation), -1)]
        if resume["from_generation"] is None and any(not seen.commits[g].get("burned") for g in kept):
            return f"incarnation {number} starts at step zero beside {max(kept)}"
    return None


def check_state(objects: Objects, facts: Facts) -> str | None:
    """What must hold of a store together with what everybody believes."""
    seen = see(objects)
    for name in listed(objects, f"{GHOST}/acknowledged"):
        nonce = objects[f"{GHOST}/acknowledged/{name}"].decode()
        if problem := _check_acknowledged(objects, seen, GenerationId.parse(name), nonce):
            return problem
    owners: dict[int, str] = {}
    for fact in facts:
        match fact.name, fact.values:
            case "owns", (number, nonce):
                if owners.setdefault(number, nonce) != nonce:
                    return f"two lives own incarnation {number}"
            case "acknowledged", (generation, nonce):
                if problem := _check_acknowledged(objects, seen, generation, nonce):
                    return problem
            case "decided", (number, source, hint):
                if hint is not None and source != hint:
                    return f"incarnation {number} was told to resume {hint} and resumes {source}"
                if any(other.name == "began-superseded" and other.values == (number,) for other in facts):
                    return f"incarnation {number} decides, though a newer one was claimed before it began to"
            case "publish-superseded", (generation, nonce):
                if seen.commits.get(generation, {}).get("nonce") == nonce:
                    return f"{generation} was committed by a publish that began after a newer claim"
            case "offered", (reader, generation):
                if f"{GHOST}/lawful-for-{reader}/{generation}" not in objects:
                    return f"{reader} offers {generation}, which at no moment of its read might be offered"
            case "judged", (generation, tier, outcome, by):
                if problem := _check_judged(objects, seen, generation, tier, outcome, by):
                    return problem
            case "rolled-back", (number, target):
                cut = [g for g in seen.lawful() if g.incarnation < number and g > target]
                if cut and max(seen.decided) == number:
                    return f"{max(cut)} may be offered after the rollback to {target} returned"
            case _:
                pass
    return _check_records(objects, seen)


def _check_acknowledged(objects: Objects, seen: Seen, generation: GenerationId, nonce: str) -> str | None:
    if seen.commits.get(generation, {}).get("nonce") != nonce:
        return f"{generation} was acknowledged, and its COMMIT is another's or absent"
    if f"{GHOST}/superseded/{generation}" in objects:
        return f"{generation} was acknowledged, though a newer claim stood before its COMMIT"
    artifacts = KEYS.artifacts(generation)
    if f"{GHOST}/artifacts/{generation}" in objects and f"{artifacts}/data" not in objects:
        return f"{generation} was acknowledged, and its artifacts are gone"
    rollbacks = [(n, claim["rollback"]) for n, claim in seen.claims.items() if claim.get("rollback")]
    if generation not in seen.candidates and not any(
        n > generation.incarnation and GenerationId.parse(rollback["from_generation"]) < generation
        for n, rollback in rollbacks
    ):
        return f"{generation} was acknowledged, and is no longer a candidate though nobody rolled back"
    return None


def _check_judged(
    objects: Objects, seen: Seen, generation: GenerationId, tier: int, outcome: str, by: str
) -> str | None:
    records = f"{KEYS.records}/{generation}"
    if not any(_document(objects[f"{records}/{n}"])["outcome"] == outcome for n in listed(objects, records)):
        return f"the verdict {outcome} on {generation} is on no record"
    if outcome == "fail" and not any(refusal["by"] == by for refusal in seen.refusals.values()):
        return f"the fail that {by} found in {generation} refuses nothing"
    if outcome == "pass" and tier == 2 and generation not in seen.proven:
        return f"the pass of {generation} proves nothing"
    return None


def _check_records(objects: Objects, seen: Seen) -> str | None:
    passed = set()
    for key, data in objects.items():
        if key.startswith(f"{KEYS.records}/"):
            generation = GenerationId.parse(key.removeprefix(f"{KEYS.records}/").partition("/")[0])
            outcome = _document(data)["outcome"]
            if outcome == "fail" and generation not in seen.barred:
                return f"a fail of {generation} is on record, and nothing bars it"
            if outcome == "pass":
                passed.add(generation)
    for generation in seen.proven - passed:
        return f"{generation} is proven, and no pass is on record"
    return None


def check_finished(objects: Objects, facts: Facts) -> str | None:
    """Where somebody is alone, a few lost replies must not keep it from its goal."""
    if not any(fact.name == "acknowledged" for fact in facts):
        return "a life that nobody disturbed has published nothing"
    return check_caches(objects, facts)


def check_caches(objects: Objects, facts: Facts) -> str | None:
    """What must hold when nobody can go on: the caches tell what the records say."""
    seen = see(objects)
    if KEYS.last_good in objects:
        told = _document(objects[KEYS.last_good])["generation"]
        if told != (str(seen.newest_proven) if seen.newest_proven else None):
            return f"LAST_GOOD says {told}, and the newest proven candidate is {seen.newest_proven}"
    if KEYS.quarantine in objects:
        notice = _document(objects[KEYS.quarantine])
        if set(notice["refusals"]) != seen.quarantine:
            return f"QUARANTINE says {notice['refusals']}, and in force are {sorted(seen.quarantine)}"
    return check_state(objects, facts)
