"""`relay`: ask for a gate run when storage announces a commit, for as long as the run is left to itself."""

from __future__ import annotations

from prefect import State, flow

from lastgood_prefect.parameters import FamilyName
from lastgood_prefect.relaying import conclude, serve_relay
from lastgood_prefect.settings import configured_families
from lastgood_prefect.states import told_plainly


@flow(name="relay", persist_result=False)
@told_plainly
def relay(
    families: list[FamilyName] = [],  # noqa: B006 - never written to, and the form shows a list
) -> State:
    """Look after families when storage announces commits, until the run is cancelled.

    Who announces is the table [relay] of lastgood.toml. A relay that is away loses no save: the next one lists what is
    due, and so does `reconcile`.

    Args:
        families: Names of families in lastgood.toml; none: every one of them.
    """
    return conclude(serve_relay(configured_families(families)))
