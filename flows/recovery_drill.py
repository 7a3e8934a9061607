"""`recovery-drill`: tier 3, a disposable replica killed and recovered through its own launcher."""

from __future__ import annotations

from typing import Annotated

from prefect import State, flow
from pydantic import Field

from lastgood.drill import FaultKind
from lastgood_prefect.drilling import Aim, drill_first, drill_turns
from lastgood_prefect.parameters import FamilyName, GenerationName
from lastgood_prefect.replaying import conclude, run_name, show
from lastgood_prefect.states import told_plainly


@flow(name="recovery-drill", flow_run_name=run_name("recovery-drill"), persist_result=False)
@told_plainly
def recovery_drill(
    family: FamilyName | None = None,
    generation: GenerationName | None = None,
    kill: FaultKind | None = None,
    inside_publish: bool | None = None,
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None,
    fresh: bool = False,
) -> State[None]:
    """Start a disposable replica, kill it with SIGKILL, and recover it through its own launcher.

    The replica begins with a private copy of a generation and never writes to production. The run fails when the job
    did not come back as it must; it is `Inconclusive` when no kill landed, when there was no room, and when it was
    ended before its time.

    Args:
        family: Name of the family in lastgood.toml; none: the family whose drill was tried longest ago.
        generation: What the replica begins with; none: the newest generation that may be resumed.
        kill: `rank` kills one rank, `job` the launcher and all that it started; none: drawn from the seed.
        inside_publish: Whether the kill lands inside a publish; none: drawn from the seed.
        seed: Draws the fault; the same seed draws the same one. None: a new one, which the log tells.
        fresh: Begin at step zero instead; such a drill is about no generation and leaves no record.
    """
    turns = drill_turns(family, generation, fresh)
    answers = drill_first(turns, Aim.of(kill, inside_publish, seed))
    show(answers)
    return conclude(turns, answers)
