"""The verdict of a family: the six criteria of recovery, over the newest evidence of tiers 1 and 2.

Decides which check answers which criterion, and when one counts as shown. Leaves which record is the newest, and where
it is kept, to whoever asks. Rules: nothing is held by default, a check must have reached a pass; any fail dominates,
and every check of both tiers belongs to one criterion, so that none fails unseen; what a full, passed record says was
left out on purpose (a component absent by the manifest, a check ignored in the configuration) stands in no way and is
named; a weaker rung shows nothing above it. Source: docs/architecture.md, what a restore answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from lastgood.checks import GENERATION_CHECKS
from lastgood.verdict import Outcome, Rung, Verdict

__all__ = ["CRITERION_OF", "CheckLine", "Criterion", "Evidence", "FamilyVerdict", "Held", "Standing", "judge_family"]


class Criterion(StrEnum):
    """What must be so before a family may be called recoverable, in the order in which a restore meets it."""

    ARTIFACTS_VERIFY = "artifacts_verify"
    STRICT_LOAD = "strict_load"
    NEXT_DATA = "next_data"
    COUNTERS = "counters"
    RNG = "rng"
    SMOKE_STEP = "smoke_step"

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES: Mapping[Criterion, str] = {
    Criterion.ARTIFACTS_VERIFY: "every required artifact verifies",
    Criterion.STRICT_LOAD: "strict loading reports no unexplained keys",
    Criterion.NEXT_DATA: "the next data ids are correct",
    Criterion.COUNTERS: "optimizer and scheduler counters match the manifest",
    Criterion.RNG: "random streams continue where determinism is promised",
    Criterion.SMOKE_STEP: "the smoke step completes with finite diagnostics",
}


class Held(StrEnum):
    """Whether a criterion held, failed, or was not shown."""

    HELD = "held"
    FAILED = "failed"
    NOT_SHOWN = "not_shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """One check of a record: its name, what came of it, and what was looked at (of a fail: what was found)."""

    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a record says, as far as criteria ask."""

    outcome: Outcome
    rung: Rung
    checks: tuple[CheckLine, ...]

    @classmethod
    def of(cls, verdict: Verdict) -> Evidence:
        lines = (
            CheckLine(
                name=check.name,
                outcome=check.outcome,
                detail=check.findings[0].message if check.findings else check.detail,
            )
            for check in verdict.checks
        )
        return cls(outcome=verdict.outcome, rung=verdict.rung, checks=tuple(lines))

    @property
    def lifts(self) -> bool:
        """Whether what did not run was not required: of a record that passed what was asked, nothing else is."""
        return self.outcome is Outcome.PASS and self.rung.is_asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one criterion stands.

    Args:
        criterion: Which.
        held: Whether it held.
        check: The check that decides it: the offender of a fail, the one that is missing, or the one that answered.
        detail: What that check says.
    """

    criterion: Criterion
    held: Held
    check: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyVerdict:
    """The six standings, in order, and what follows from them; the refusals by which the family is quarantined."""

    outcome: Outcome
    standings: tuple[Standing, ...]
    quarantine: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """What stands in the way, in one line; empty for a pass."""
        if self.quarantine:
            return f"quarantined by {', '.join(self.quarantine)}"
        for held in (Held.FAILED, Held.NOT_SHOWN):
            for standing in self.standings:
                if standing.held is held:
                    return f"{held.replace('_', ' ')}: {standing.criterion.sentence}: {standing.detail}"
        return ""


# Each group needs one check that passed. `sample_ids` of a source that cannot be peeked is answered by the live trace.
_NEEDS: Mapping[Criterion, tuple[tuple[str, ...], ...]] = {
    Criterion.ARTIFACTS_VERIFY: tuple((name,) for name in GENERATION_CHECKS),
    Criterion.STRICT_LOAD: (("generation_discovered",), ("strict_load",)),
    Criterion.NEXT_DATA: (("sample_ids", "control_sample_ids"),),
    Criterion.COUNTERS: (("completed_step",), ("optimizer_steps",), ("learning_rate_before_step",)),
    Criterion.RNG: (("rng_draws",),),
    Criterion.SMOKE_STEP: (("replica_ended",), ("smoke_steps",), ("loss_finite",), ("optimizer_advanced_once",)),
}

CRITERION_OF: Mapping[str, Criterion] = {
    **{name: criterion for criterion, groups in _NEEDS.items() for group in groups for name in group},
    "model_tensors": Criterion.STRICT_LOAD,
    "optimizer_tensors": Criterion.STRICT_LOAD,
    "moving_average_tensors": Criterion.STRICT_LOAD,
    "data_position": Criterion.NEXT_DATA,
    "gradient_scaler": Criterion.COUNTERS,
    "scheduler_position": Criterion.COUNTERS,
    "learning_rate_after_step": Criterion.COUNTERS,
    "control_optimizer_steps": Criterion.COUNTERS,
    "control_scalars": Criterion.COUNTERS,
    "control_rng_draws": Criterion.RNG,
}
"""Check → its criterion; every other check of tier 1 belongs to the first, and of tier 2 to the last."""


def judge_family(
    verified: Evidence | None, restored: Evidence | None, *, quarantine: tuple[str, ...] = ()
) -> FamilyVerdict:
    """Judge a family; while it is quarantined it fails, whatever its newest evidence says.

    Args:
        verified: The newest record of tier 1, or None.
        restored: The newest record of tier 2, or None.
        quarantine: The refusals by which it is quarantined.
    """
    standings = tuple(_stand(criterion, verified, restored) for criterion in Criterion)
    held = {standing.held for standing in standings}
    outcomes = {evidence.outcome for evidence in (verified, restored) if evidence is not None}
    if quarantine or Held.FAILED in held or Outcome.FAIL in outcomes:
        outcome = Outcome.FAIL
    elif held == {Held.HELD}:
        outcome = Outcome.PASS
    else:
        outcome = Outcome.INCONCLUSIVE if Outcome.INCONCLUSIVE in outcomes else Outcome.NOT_RUN
    return FamilyVerdict(outcome=outcome, standings=standings, quarantine=quarantine)


def _stand(criterion: Criterion, verified: Evidence | None, restored: Evidence | None) -> Standing:
    lines = list(_about(criterion, verified, restored))
    for outcome, held in ((Outcome.FAIL, Held.FAILED), (Outcome.INCONCLUSIVE, Held.NOT_SHOWN)):
        for line in lines:
            if line.outcome is outcome:
                return Standing(criterion=criterion, held=held, check=line.name, detail=line.detail)
    evidence = verified if criterion is Criterion.ARTIFACTS_VERIFY else restored
    if evidence is None:
        tier = "tier 1" if criterion is Criterion.ARTIFACTS_VERIFY else "tier 2"
        return Standing(criterion=criterion, held=Held.NOT_SHOWN, check="", detail=f"no record of {tier}")
    return _shown(criterion, evidence, {line.name: line for line in evidence.checks})


def _about(criterion: Criterion, verified: Evidence | None, restored: Evidence | None) -> Iterable[CheckLine]:
    """Every check that belongs to the criterion: all of tier 1 to the first, each of tier 2 to one of the six."""
    if criterion is Criterion.ARTIFACTS_VERIFY and verified is not None:
        yield from verified.checks
    for line in restored.checks if restored is not None else ():
        if CRITERION_OF.get(line.name, Criterion.SMOKE_STEP) is criterion:
            yield line


def _shown(criterion: Criterion, evidence: Evidence, made: Mapping[str, CheckLine]) -> Standing:
    """The standing of a criterion that nothing speaks against."""
    lifted: list[CheckLine] = []
    for group in _NEEDS[criterion]:
        asked = [made[name] for name in group if name in made]
        if any(line.outcome is Outcome.PASS for line in asked):
            continue
        if not asked or not evidence.lifts:
            detail = asked[0].detail if asked else f"not asked: the newest record's rung is {evidence.rung}"
            return Standing(criterion=criterion, held=Held.NOT_SHOWN, check=group[0], detail=detail)
        lifted.append(asked[0])
    names = [name for group in _NEEDS[criterion] for name in group if name in made]
    answered = lifted[0] if lifted else next(made[name] for name in reversed(names) if _passed(made[name]))
    return Standing(criterion=criterion, held=Held.HELD, check=answered.name, detail=answered.detail)


def _passed(line: CheckLine) -> bool:
    return line.outcome is Outcome.PASS
