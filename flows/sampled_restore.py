"""`sampled-restore`: tier 2 of one generation a run, in rotation."""

from __future__ import annotations

from typing import Annotated

from prefect import State, flow
from pydantic import Field

from lastgood_prefect.parameters import FamilyName, GenerationName
from lastgood_prefect.replaying import conclude, run_name, show
from lastgood_prefect.restoring import restore_first, restore_turns
from lastgood_prefect.states import told_plainly


@flow(name="sampled-restore", flow_run_name=run_name("sampled-restore"), persist_result=False)
@told_plainly
def sampled_restore(
    family: FamilyName | None = None,
    generation: GenerationName | None = None,
    steps: Annotated[int, Field(ge=4, le=100_000)] | None = None,
    load_only: bool = False,
) -> State[None]:
    """Restore a generation in fresh processes, make it train, and compare it with what was expected of it.

    A fail quarantines the family; a full pass proves the generation. The run is `Inconclusive` when there was no room,
    no device or no storage for a restore, and when it was ended before its time.

    Args:
        family: Name of the family in lastgood.toml; none: the family whose restore was tried longest ago.
        generation: Which generation; none: the one whose turn it is, what was never restored first.
        steps: Optimizer steps after the load, at least 4; none: what lastgood.toml says.
        load_only: Stop after the load: a weaker rung, which never proves a generation.
    """
    turns = restore_turns(family, generation)
    answers = restore_first(turns, steps, load_only)
    show(answers)
    return conclude(turns, answers)
