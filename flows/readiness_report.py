"""`readiness-report`: what the evidence of every family says, against what is demanded of it."""

from __future__ import annotations

from prefect import State, flow

from lastgood_prefect.parameters import FamilyName
from lastgood_prefect.reporting import conclude, show, update_ledger, write_report
from lastgood_prefect.states import told_plainly


@flow(name="readiness-report", persist_result=False)
@told_plainly
def readiness_report(
    families: list[FamilyName] = [],  # noqa: B006 - never written to, and the form shows a list
) -> State:
    """Bring the ledger up to date, judge every objective, and write the readiness page.

    The run fails when an objective is missed; it is `Inconclusive` when a family's store could not tell.

    Args:
        families: Names of families in lastgood.toml; none: each of them.
    """
    trouble = update_ledger(families)
    written = write_report(families, trouble)
    show(written)
    return conclude(written)
