"""The expectations: what is demanded of every family, one class each, for Great Expectations to judge.

Decides which figure stands against which limit, in which service indicator it counts, and the sentence that people
read; leaves computing the figures to `indicators`. Rules: each looks at one row a family; where no limit is set, or
nothing was measured yet, a comparison says nothing, and another expectation demands that there be something to measure;
an empty table is a failure of its own; quantiles come computed, because Great Expectations cannot store what its own
quantile expectation answers.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import great_expectations.expectations as gxe

from lastgood.report.report import Area
from lastgood.verdict import FamilyState, Outcome

__all__ = ["EXPECTATIONS", "EXPECT_FAMILIES", "Expected"]

ANSWERS = (FamilyState.READY.value, FamilyState.QUARANTINED.value)
"""The states in which a family says what may be resumed; a quarantine is an objective of its own."""


class _Objective:
    """What every expectation says of itself; `asked` makes the question of it.

    Args:
        objective: Its permanent name.
        area: The service indicator that it counts in.
        measured: The indicator that it is about.
        limit: The indicator that holds the limit, or the limit itself.
        unit: What both are counted in: `seconds`, `steps`, `ratio`, or empty.
    """

    objective: ClassVar[str]
    area: ClassVar[Area]
    measured: ClassVar[str]
    limit: ClassVar[str]
    unit: ClassVar[str] = ""


class _AtMost(_Objective, gxe.ExpectColumnPairValuesAToBeGreaterThanB):
    """What was measured does not exceed its limit."""

    or_equal: bool = True
    ignore_row_if: Literal["either_value_is_missing"] = "either_value_is_missing"

    @classmethod
    def asked(cls) -> Self:
        return cls(column_A=cls.limit, column_B=cls.measured)


class _AtLeast(_Objective, gxe.ExpectColumnPairValuesAToBeGreaterThanB):
    """What was measured reaches its limit."""

    or_equal: bool = True
    ignore_row_if: Literal["either_value_is_missing"] = "either_value_is_missing"

    @classmethod
    def asked(cls) -> Self:
        return cls(column_A=cls.measured, column_B=cls.limit)


class _Never(_Objective, gxe.ExpectColumnValuesToBeBetween):
    """A count that is always zero."""

    limit: ClassVar[str] = "0"

    @classmethod
    def asked(cls) -> Self:
        return cls(column=cls.measured, min_value=0, max_value=0)


class _Once(_Objective, gxe.ExpectColumnValuesToBeBetween):
    """A count that is at least one."""

    limit: ClassVar[str] = "1"

    @classmethod
    def asked(cls) -> Self:
        return cls(column=cls.measured, min_value=1)


class _OneOf(_Objective, gxe.ExpectColumnValuesToBeInSet):
    """A word out of a few; no word at all means that there was nothing to say it of."""

    words: ClassVar[tuple[str, ...]]

    @classmethod
    def asked(cls) -> Self:
        return cls(column=cls.measured, value_set=list(cls.words))


class ExpectFamilies(gxe.ExpectTableRowCountToBeBetween):
    """A report about nothing must not look like a good one."""

    description: str = "The ledger knows at least one family"

    @classmethod
    def asked(cls) -> Self:
        return cls(min_value=1)


class ExpectGenerationCommitted(_Once):
    """Without a commit there is nothing to come back to."""

    objective: ClassVar[str] = "generation_committed"
    area: ClassVar[Area] = Area.CREATION
    measured: ClassVar[str] = "candidates"
    description: str = "At least one committed generation counts"


class ExpectPublishesCommitted(_AtLeast):
    """Creation success: what was begun was also committed."""

    objective: ClassVar[str] = "creation_ratio"
    area: ClassVar[Area] = Area.CREATION
    measured: ClassVar[str] = "creation_ratio"
    limit: ClassVar[str] = "creation_ratio_limit"
    unit: ClassVar[str] = "ratio"
    description: str = "Publishes that began were committed, at least in the demanded ratio"


class ExpectSaveRecent(_AtMost):
    """A job that stopped saving loses more with every hour."""

    objective: ClassVar[str] = "save_age"
    area: ClassVar[Area] = Area.CREATION
    measured: ClassVar[str] = "save_age_seconds"
    limit: ClassVar[str] = "save_age_seconds_limit"
    unit: ClassVar[str] = "seconds"
    description: str = "The newest committed generation is young enough"


class ExpectGenerationsJudged(_Never):
    """Tier 1 is due on every save; the verdict of a save that nobody looked at is not pass."""

    objective: ClassVar[str] = "generations_judged"
    area: ClassVar[Area] = Area.CREATION
    measured: ClassVar[str] = "overdue_generations"
    description: str = "Every committed generation got a verdict of tier 1 in time"


class ExpectStateTold(_OneOf):
    """A family whose store did not answer, or that offers nothing, cannot be resumed."""

    objective: ClassVar[str] = "state_told"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "state"
    limit: ClassVar[str] = "something to resume"
    words: ClassVar[tuple[str, ...]] = ANSWERS
    description: str = "The family says which generation may be resumed"


class ExpectDocumentsLawful(_Never):
    """A record that cannot be read may have been a fail."""

    objective: ClassVar[str] = "documents_lawful"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "malformed"
    description: str = "Every document of the family can be read"


class ExpectNoQuarantine(_Never):
    """A quarantine stands until somebody has found its cause and released it."""

    objective: ClassVar[str] = "not_quarantined"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "quarantines"
    description: str = "The family is not quarantined"


class ExpectNoBarredOffer(_Never):
    """What failed on record is never offered, whatever a pointer says."""

    objective: ClassVar[str] = "barred_not_offered"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "barred_offers"
    description: str = "No generation is offered that failed a gate on record"


class ExpectFamilyVerdict(_OneOf):
    """The six criteria of recovery, over the newest evidence."""

    objective: ClassVar[str] = "family_verdict"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "verdict"
    limit: ClassVar[str] = str(Outcome.PASS)
    words: ClassVar[tuple[str, ...]] = (str(Outcome.PASS),)
    description: str = "The six criteria of recovery hold over the newest evidence"


class ExpectRestorePassed(_Once):
    """No restore ever passed: then nothing is known of recovery."""

    objective: ClassVar[str] = "restore_passed"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "restores_passed"
    description: str = "At least one full restore has passed"


class ExpectNewestRestorePassed(_OneOf):
    """A release lifts a quarantine and proves nothing: only the next restore does."""

    objective: ClassVar[str] = "newest_restore_passed"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "newest_restore"
    limit: ClassVar[str] = str(Outcome.PASS)
    words: ClassVar[tuple[str, ...]] = ("", str(Outcome.PASS))
    description: str = "The newest restore that came to a conclusion passed"


class ExpectRestoreRecent(_AtMost):
    """Evidence ages: code, images and machines go on without it."""

    objective: ClassVar[str] = "restore_age"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "restore_age_seconds"
    limit: ClassVar[str] = "restore_age_seconds_limit"
    unit: ClassVar[str] = "seconds"
    description: str = "The newest passed restore is young enough"


class ExpectGenerationsProven(_AtLeast):
    """One proven generation is one disk error away from none."""

    objective: ClassVar[str] = "proven_generations"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "proven_generations"
    limit: ClassVar[str] = "proven_generations_limit"
    description: str = "Enough generations are proven by a full restore"


class ExpectDrillPassed(_Once):
    """No drill ever passed: then nobody knows whether the orchestrator brings the job back."""

    objective: ClassVar[str] = "drill_passed"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "drills_passed"
    description: str = "At least one recovery drill has passed"


class ExpectNewestDrillPassed(_OneOf):
    """A drill that did not recover is the drill objective missed."""

    objective: ClassVar[str] = "newest_drill_passed"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "newest_drill"
    limit: ClassVar[str] = str(Outcome.PASS)
    words: ClassVar[tuple[str, ...]] = ("", str(Outcome.PASS))
    description: str = "The newest recovery drill that came to a conclusion passed"


class ExpectDrillRecent(_AtMost):
    """Drills are due on a cadence and before major upgrades."""

    objective: ClassVar[str] = "drill_age"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "drill_age_seconds"
    limit: ClassVar[str] = "drill_age_seconds_limit"
    unit: ClassVar[str] = "seconds"
    description: str = "The newest passed drill is young enough"


class ExpectNewestLossWithinBudget(_AtMost):
    """Recovery point: the optimizer steps that the newest drill lost."""

    objective: ClassVar[str] = "rpo_newest"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "rpo_newest_steps"
    limit: ClassVar[str] = "rpo_steps_limit"
    unit: ClassVar[str] = "steps"
    description: str = "The newest drill lost no more steps than the RPO allows"


class ExpectUsualLossWithinBudget(_AtMost):
    """Recovery point: 95 of 100 drills."""

    objective: ClassVar[str] = "rpo_p95"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "rpo_p95_steps"
    limit: ClassVar[str] = "rpo_steps_limit"
    unit: ClassVar[str] = "steps"
    description: str = "95 of 100 drills lost no more steps than the RPO allows"


class ExpectNewestRecoveryWithinBudget(_AtMost):
    """Recovery time: from the kill to the first step done, in the newest drill."""

    objective: ClassVar[str] = "rto_newest"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "rto_newest_seconds"
    limit: ClassVar[str] = "rto_seconds_limit"
    unit: ClassVar[str] = "seconds"
    description: str = "The newest drill recovered within the RTO"


class ExpectUsualRecoveryWithinBudget(_AtMost):
    """Recovery time: 95 of 100 drills."""

    objective: ClassVar[str] = "rto_p95"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "rto_p95_seconds"
    limit: ClassVar[str] = "rto_seconds_limit"
    unit: ClassVar[str] = "seconds"
    description: str = "95 of 100 drills recovered within the RTO"


class ExpectGatesToConclude(_AtMost):
    """A gate that never answers is a gate that does not run."""

    objective: ClassVar[str] = "gates_conclude"
    area: ClassVar[Area] = Area.RECOVERY
    measured: ClassVar[str] = "inconclusive_seconds"
    limit: ClassVar[str] = "inconclusive_seconds_limit"
    unit: ClassVar[str] = "seconds"
    description: str = "No gate has been inconclusive for too long"


Expected = _AtMost | _AtLeast | _Never | _Once | _OneOf

EXPECT_FAMILIES = ExpectFamilies

EXPECTATIONS: tuple[type[Expected], ...] = (
    ExpectGenerationCommitted,
    ExpectPublishesCommitted,
    ExpectSaveRecent,
    ExpectGenerationsJudged,
    ExpectStateTold,
    ExpectDocumentsLawful,
    ExpectNoQuarantine,
    ExpectNoBarredOffer,
    ExpectFamilyVerdict,
    ExpectRestorePassed,
    ExpectNewestRestorePassed,
    ExpectRestoreRecent,
    ExpectGenerationsProven,
    ExpectDrillPassed,
    ExpectNewestDrillPassed,
    ExpectDrillRecent,
    ExpectNewestLossWithinBudget,
    ExpectUsualLossWithinBudget,
    ExpectNewestRecoveryWithinBudget,
    ExpectUsualRecoveryWithinBudget,
    ExpectGatesToConclude,
)
"""In the order of the report."""
