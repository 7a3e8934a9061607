"""What a checkpoint is called must follow from what is held and found, and from nothing else."""

from __future__ import annotations

import pytest

from lastgood.formats.classify import classify
from lastgood.formats.description import Certainty, Description, Framework, HeldComponent, Layout, Restorability
from lastgood.manifest import Component
from lastgood.reasons import Reason
from lastgood.verdict import Finding

WHOLE = (Component.MODEL, Component.OPTIMIZER, Component.SCHEDULER, Component.RNG)


def described(
    *held: Component, framework: Framework = Framework.TRANSFORMERS, findings: tuple[Finding, ...] = ()
) -> Description:
    return Description(
        framework=framework,
        layout_name="plain",
        step=8,
        layout=Layout(world_size=1, certainty=Certainty.INFERRED, why="one rng_state.pth"),
        components=tuple(HeldComponent(component=component, paths=(f"{component}.pt",)) for component in held),
        findings=findings,
    )


def finding(reason: Reason) -> Finding:
    return Finding(reason=reason, message=f"it is {reason}", offender="optimizer.pt")


def test_a_whole_checkpoint_is_resumable() -> None:
    """What holds a model and an optimizer, and has nothing against it, may be resumed."""
    assert classify(described(*WHOLE)).restorability is Restorability.RESUMABLE


@pytest.mark.parametrize(
    ("held", "reasons", "expected"),
    [
        ((Component.MODEL, Component.CONFIG), (), Restorability.WEIGHTS_ONLY),
        (WHOLE, (Reason.PURPOSE_NOT_RESUMABLE,), Restorability.WEIGHTS_ONLY),
        (WHOLE, (Reason.COMPONENT_MISSING,), Restorability.PARTIAL),
        ((Component.OPTIMIZER,), (), Restorability.PARTIAL),
        ((), (), Restorability.PARTIAL),
        (WHOLE, (Reason.RECORD_CORRUPT,), Restorability.DAMAGED),
        (WHOLE, (Reason.SHARD_MISSING, Reason.COMPONENT_MISSING), Restorability.DAMAGED),
        (WHOLE, (Reason.SHARD_MISSING, Reason.SAVE_UNFINISHED), Restorability.IN_PROGRESS),
    ],
)
def test_the_class_names_what_stands_against_it(
    held: tuple[Component, ...], reasons: tuple[Reason, ...], expected: Restorability
) -> None:
    """Every class is reached by its own facts, and says which they were."""
    found = classify(described(*held), [finding(reason) for reason in reasons])
    assert found.restorability is expected
    assert found.reasons
    if reasons and expected is not Restorability.PARTIAL:
        assert any(str(reason) in text for reason in reasons for text in found.reasons)


def test_findings_of_the_description_count_too() -> None:
    """A reader's own finding must not be lost between the two places that findings come from."""
    found = classify(described(*WHOLE, findings=(finding(Reason.INDEX_MISMATCH),)))
    assert found.restorability is Restorability.DAMAGED


def test_what_is_only_recognised_is_never_called_whole() -> None:
    """A name is no judgement."""
    assert classify(described(*WHOLE, framework=Framework.ORBAX)).restorability is Restorability.UNKNOWN
