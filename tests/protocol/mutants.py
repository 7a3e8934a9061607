"""The protocol with one rule taken out: each mutant is an edit of one function, and names the rule that it removes.

The edit is applied to the source and the compiled code is put into the living function, so every caller meets it and a
rule that moved makes its mutant fail to apply instead of passing in silence.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest

from lastgood.protocol import claims, commits, evidence, requests, survey
from tests.protocol import actors, scenarios
from tests.protocol.engine import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One rule less.

    Args:
        name: What the mutant does.
        rule: Number of the rule in docs/protocol.md.
        function: Where.
        edits: (old, new) pieces of its source; each old one occurs exactly once.
        space: Where the model must notice.
    """

    name: str
    rule: int
    function: Callable[..., Any]
    edits: tuple[tuple[str, str], ...]
    space: Space

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(self.function, FunctionType)
        source = textwrap.dedent(inspect.getsource(self.function))
        source = source[source.index("def ") :]
        for old, new in self.edits:
            assert source.count(old) == 1, f"{self.name}: {source.count(old)} times in {self.function.__name__}: {old}"
            source = source.replace(old, new)
        made: dict[str, Any] = {}
        flags = __future__.annotations.compiler_flag
        exec(compile(source, f"<{self.name}>", "exec", flags=flags), self.function.__globals__, made)  # noqa: S102 - our own source, edited above
        monkeypatch.setattr(self.function, "__code__", made[self.function.__name__].__code__)


def mutant(
    name: str, rule: int, function: Callable[..., Any] | property, space: Space, *edits: tuple[str, str]
) -> Mutant:
    plain = function.fget if isinstance(function, property) else function
    assert plain is not None
    return Mutant(name=name, rule=rule, function=plain, edits=edits, space=space)


_DECIDE_FIRST = """
    from lastgood.markers import ResumeRecord
    from lastgood.protocol.requests import create_ours
    source = choice.generation
    record = ResumeRecord(nonce=nonce, from_generation=str(source), from_commit=None, keeps=claims._kept(choice.survey))
    yield from create_ours(KEYS.resume(number), documents.canonical_bytes(record))
    return Then(_publish, (nonce, number, (source.step + 1,), asks_first))
"""
_TWO_OBJECTS = """
            from lastgood.protocol.requests import Create
            resume = ResumeRecord(
                nonce=nonce, from_generation=str(target), from_commit=commit_digest(data), keeps=keeps
            )
            yield Create(keys.resume(number), documents.canonical_bytes(resume))
            return number
"""

MUTANTS = (
    # Starting.
    mutant(
        "commits are listed before the claim",
        1,
        actors._claim,
        scenarios.ORPHAN_RESTART,
        ("    try:\n", "    choice = yield from survey.choose(KEYS)\n    try:\n"),
        ("    return Then(_decide, (nonce, number, saves, hint, allow_fresh, asks_first))", _DECIDE_FIRST),
    ),
    mutant(
        "a taken number counts as ours",
        2,
        requests.create_ours,
        scenarios.FIRST_STARTS,
        ("return stored == data", "return True"),
    ),
    mutant(
        "a lost reply counts as another's",
        2,
        requests.create_ours,
        scenarios.LONE,
        ("return stored == data", "return False"),
    ),
    mutant(
        "a lost reply counts as done",
        2,
        requests.create_ours,
        scenarios.ORPHAN_RESTART,
        ("if reply is Created.CREATED", "if reply is not Created.EXISTS"),
    ),
    mutant(
        "a claim overwrites",
        2,
        claims.claim,
        scenarios.FIRST_STARTS,
        (
            "if (yield from create_ours(keys.claim(number), data)):",
            "from lastgood.protocol.requests import Replace\n        if not (yield Replace(keys.claim(number), data)):",
        ),
    ),
    mutant(
        "keeps is only what was loaded",
        3,
        claims.decide,
        scenarios.UNDER_QUARANTINE,
        (
            "keeps=_kept(choice.survey)",
            "keeps={str(choice.generation.incarnation): choice.generation.step} if choice.generation else {}",
        ),
    ),
    mutant(
        "keeps leaves out what is barred",
        3,
        claims._kept,
        scenarios.UNDER_QUARANTINE,
        ("in survey.candidates:", "in survey.candidates:\n        if generation in survey.barred: continue"),
    ),
    mutant(
        "keeps is not flattened",
        3,
        claims._kept,
        scenarios.THIRD_LIFE,
        ("in survey.candidates:", "in survey.candidates[:1]:"),
    ),
    mutant(
        "a start goes on under a newer claim",
        4,
        claims.decide,
        scenarios.SUPERSEDED,
        ("if choice.survey.claims.newest > incarnation:", "if False:"),
    ),
    mutant(
        "a stale hint is believed",
        5,
        claims._check_hint,
        scenarios.HINTED,
        ("if hint is None or hint == choice.generation:", "if True:"),
    ),
    mutant(
        "step zero beside barred commits",
        6,
        claims._check_fresh,
        scenarios.FRESH_BARRED,
        ("if choice.survey.candidates and not choice.all_burned:", "if False:"),
    ),
    mutant(
        "a bare claim cuts",
        7,
        survey.find_cut,
        scenarios.ORPHAN_RESTART,
        (
            "        claim = documents.parse(",
            "        return Cut(decided_by=number, keeps={number: None}, rollback=False)\n"
            "        claim = documents.parse(",
        ),
    ),
    mutant(
        "the oldest decision cuts",
        7,
        survey.find_cut,
        scenarios.THIRD_LIFE,
        ("reversed(claims.claims)", "claims.claims"),
    ),
    # Publishing.
    mutant(
        "no look at the claims before COMMIT",
        8,
        commits.commit,
        scenarios.SUPERSEDED,
        ("if before.newest > generation.incarnation:", "if False:"),
    ),
    mutant(
        "no look at the claims after COMMIT",
        8,
        commits.commit,
        scenarios.ORPHAN_RESTART,
        ("if after.newest > generation.incarnation:", "if False:"),
    ),
    mutant(
        "an unknown COMMIT is left behind",
        9,
        actors._publish,
        scenarios.ZOMBIE,
        (
            "return Then(_publish, (nonce, number, steps, asks_first))",
            "return Then(_publish, (nonce, number, steps[1:], asks_first))",
        ),
    ),
    mutant(
        "COMMIT overwrites",
        10,
        commits.commit,
        scenarios.SWEPT,
        (
            "if not (yield from create_ours(keys.commit(generation), data)):",
            "if (yield Replace(keys.commit(generation), data)):",
        ),
    ),
    mutant(
        "one active pointer for all lives",
        11,
        commits.commit,
        scenarios.ORPHAN_RESTARTS,
        ("keys.active(generation.incarnation)", 'f"{keys.ours}/ACTIVE"'),
    ),
    # Rolling back.
    mutant(
        "a rollback keeps what it should cut",
        12,
        claims.rollback,
        scenarios.ROLLBACK,
        ("keeps = yield from _lineage(keys, names, target)", "keeps = _kept(survey)"),
    ),
    mutant(
        "a rollback forgets the lives before its target",
        12,
        claims._lineage,
        scenarios.ROLLBACK_LIFE,
        ("if cut.decided_by == target.incarnation:", "if False:"),
    ),
    mutant(
        "a rollback in two objects",
        13,
        claims.rollback,
        scenarios.ROLLBACK,
        (
            'Claim(kind="rollback", nonce=nonce, host=host, rollback=record)',
            'Claim(kind="start", nonce=nonce, host=host)',
        ),
        ("            return number\n", _TWO_OBJECTS),
    ),
    # Verdicts.
    mutant(
        "a verdict that lost its name is dropped",
        14,
        evidence.record,
        scenarios.DISAGREE,
        ("if stored is not None and agrees(stored):", "if True:"),
    ),
    mutant(
        "a fail is recorded before it refuses",
        15,
        evidence.conclude,
        scenarios.DISAGREE,
        ("    if refusal is not None:\n        yield from refuse(keys, *refusal)\n", ""),
        (
            "    if passed is not None:\n",
            "    if refusal is not None:\n        yield from refuse(keys, *refusal)\n    if passed is not None:\n",
        ),
    ),
    mutant(
        "a pass proves before it is recorded",
        15,
        evidence.conclude,
        scenarios.DISAGREE,
        ("    if passed is not None:\n        yield from prove(keys, *passed)\n", ""),
        (
            "    if refusal is not None:\n",
            "    if passed is not None:\n        yield from prove(keys, *passed)\n    if refusal is not None:\n",
        ),
    ),
    mutant(
        "another's refusal counts as ours",
        16,
        evidence.refuse,
        scenarios.SAME_NAME,
        ("    own = replace(", "    return name\n    own = replace("),
    ),
    mutant(
        "a fail bars nothing",
        17,
        survey._barred,
        scenarios.DISAGREE,
        ("if generation in survey.barred:", "if False:"),
    ),
    mutant(
        "a pass outweighs a fail",
        17,
        survey.Survey.newest_proven,
        scenarios.DISAGREE,
        ("if g in self.proven and g not in self.barred", "if g in self.proven"),
    ),
    mutant(
        "a failed restore does not quarantine",
        18,
        survey.RefusalName.quarantines,
        scenarios.DISAGREE,
        ('self.source != "tier1"', 'self.source == "operator"'),
    ),
    mutant(
        "quarantine is read from its cache",
        18,
        survey.take_survey,
        scenarios.DISAGREE,
        (
            "quarantine=_quarantine(refused, released)",
            "quarantine=documents.parse(\n"
            "    __import__('lastgood.markers', fromlist=['QuarantineNotice']).QuarantineNotice,\n"
            '    (yield Get(keys.quarantine)) or b\'{"quarantined": false, "refusals": [], "revision": 0}\', ""\n'
            ").refusals",
        ),
    ),
    mutant(
        "a release lifts whatever there is",
        19,
        survey._quarantine,
        scenarios.RELEASED,
        ("str(refusal) not in released", "not released"),
    ),
    mutant(
        "a release deletes the refusals",
        19,
        evidence.release,
        scenarios.RELEASED,
        (
            'yield from create_ours(f"{keys.releases}/{name}", documents.canonical_bytes(release))',
            'yield __import__("tests.protocol.engine", fromlist=["Delete"]).Delete(f"{keys.refusals}/{name}")',
        ),
    ),
    mutant(
        "the pointers are read after the records",
        20,
        evidence._swap_caches,
        scenarios.DISAGREE,
        ("        current = yield Get(keys.last_good)\n        notice = yield Get(keys.quarantine)\n", ""),
        (
            "        survey = yield from take_survey(keys)\n",
            "        survey = yield from take_survey(keys)\n"
            "        current, notice = (yield Get(keys.last_good)), (yield Get(keys.quarantine))\n",
        ),
    ),
    mutant(
        "LAST_GOOD is not written when unchanged",
        20,
        evidence._swap_caches,
        scenarios.DISAGREE,
        (
            "if (yield Swap(keys.last_good, documents.canonical_bytes(pointer), current)) and (",
            "same = current and documents.parse(GenerationPointer, current, '').generation == pointer.generation\n"
            "        if (same or (yield Swap(keys.last_good, documents.canonical_bytes(pointer), current))) and (",
        ),
    ),
    # Reading.
    mutant(
        "commits are listed after the incarnations",
        21,
        survey.take_survey,
        scenarios.ORPHAN_READER,
        ('    commits = _generations((yield List(keys.commits)), "commits", malformed)\n', ""),
        (
            "    refused = _refusals(",
            '    commits = _generations((yield List(keys.commits)), "commits", malformed)\n    refused = _refusals(',
        ),
        # It relies on this very order, and would stop the reader before it offers what it should not.
        ("    check_claimed(keys, commits, claims.newest)\n", ""),
    ),
    mutant(
        "releases are listed after the incarnations",
        21,
        survey.take_survey,
        scenarios.RELEASED_LATE,
        ("    released = frozenset((yield List(keys.releases)))\n", ""),
        ("    refused = _refusals(", "    released = frozenset((yield List(keys.releases)))\n    refused = _refusals("),
    ),
    mutant(
        "passes are listed after the refusals",
        21,
        survey.take_survey,
        scenarios.DISAGREE_READER,
        ('    proven = frozenset(_generations((yield List(keys.proven)), "proven", malformed))\n', ""),
        (
            "    barred: dict[",
            '    proven = frozenset(_generations((yield List(keys.proven)), "proven", malformed))\n    barred: dict[',
        ),
    ),
    mutant(
        "a burned slot is offered",
        22,
        survey.choose,
        scenarios.SWEPT_BETWEEN,
        ("if marker.burned:", "if False:"),
    ),
    # Cleaning.
    mutant(
        "a sweeper deletes without burning",
        23,
        actors.sweep,
        scenarios.SWEPT,
        ('if not (yield from commits.abandon(KEYS, target, life("5"))):', "if False:"),
    ),
    mutant(
        "a slot of a life that nobody cut is burned",
        23,
        commits.abandon,
        scenarios.SWEPT_LATE,
        ("if generation.incarnation >= cut.decided_by:", "if False:"),
    ),
)
