"""`save-gate`: tier 1 of every save, one run for a batch of them."""

from __future__ import annotations

from prefect import State, flow

from lastgood.identity import GenerationId
from lastgood.verify import Depth
from lastgood_prefect.parameters import FamilyName, GenerationName
from lastgood_prefect.settings import configured_family
from lastgood_prefect.sharding import task_runner
from lastgood_prefect.states import ended_at_once, told_plainly
from lastgood_prefect.verifying import conclude, due, show, verify_each


@flow(name="save-gate", flow_run_name="save-gate {family}", task_runner=task_runner(), persist_result=False)
@ended_at_once
@told_plainly
def save_gate(
    family: FamilyName,
    generations: list[GenerationName] = [],  # noqa: B006 - never written to, and the form shows a list
    depth: Depth = Depth.FULL,
) -> State:
    """Verify saves against their manifests and put the verdicts on record.

    A generation with conclusive evidence is skipped. The run fails when one of them does; it is `Inconclusive` when
    the store could not tell.

    Args:
        family: Name of the family in lastgood.toml.
        generations: Which saves; none: each that has no conclusive verdict yet, those that appear meanwhile included.
            Where saves are read in rotation, older ones that owe a slice come after them.
        depth: `full` reads every byte, or the slice that lastgood.toml asks for. `metadata` compares existence and
            sizes only and proves no save.
    """
    gate = configured_family(family)
    named = [GenerationId.parse(generation) for generation in dict.fromkeys(generations)]
    answers = verify_each(gate, due(gate, named), depth)
    show(gate, answers)
    return conclude(answers)
