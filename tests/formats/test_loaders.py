"""A finding is told together with what the framework's own loader was seen to do with it."""

from __future__ import annotations

import pytest

from lastgood.formats import oracle
from lastgood.formats.description import Framework
from lastgood.formats.loaders import loader_says
from lastgood.formats.oracle import Cell, Consequence, Effect, Fault, Reaction, measured, reactions
from lastgood.reasons import Reason
from lastgood.verdict import Finding


def finding(reason: Reason, offender: str) -> Finding:
    return Finding(reason=reason, message="what was found", offender=offender)


def test_a_loader_that_does_not_notice_is_said_not_to() -> None:
    """Trainer without its scheduler: the sentence that makes somebody get up."""
    said = loader_says(Framework.TRANSFORMERS, finding(Reason.ARTIFACT_MISSING, "scheduler.pt"))
    assert said is not None
    assert said.startswith("it will not notice: ")
    assert "the learning rate" in said
    assert said.endswith(f"(measured with transformers {measured().versions['transformers']})")


def test_a_loader_that_refuses_is_said_to_refuse() -> None:
    """Whoever reads it must be able to trust both."""
    said = loader_says(Framework.TRANSFORMERS, finding(Reason.ARTIFACT_MISSING, "trainer_state.json"))
    assert said is not None
    assert said.startswith("it refuses: FileNotFoundError")


def test_a_rank_that_was_not_measured_counts_as_its_sibling() -> None:
    """The table was made on two ranks; runs have hundreds."""
    few = loader_says(Framework.TRANSFORMERS, finding(Reason.SHARD_MISSING, "rng_state_1.pth"))
    assert few is not None
    assert few == loader_says(Framework.TRANSFORMERS, finding(Reason.SHARD_MISSING, "rng_state_117.pth"))


@pytest.mark.parametrize(
    ("framework", "reason", "offender"),
    [
        (Framework.MEGATRON, Reason.ARTIFACT_MISSING, "metadata.json"),
        (Framework.TRANSFORMERS, Reason.GLOBAL_NOT_ALLOWED, "optimizer.pt"),
        (Framework.TRANSFORMERS, Reason.ARTIFACT_MISSING, "a file that nobody ever damaged"),
    ],
)
def test_what_nobody_measured_is_not_told(framework: Framework, reason: Reason, offender: str) -> None:
    """Silence here must not read as a loader that would notice."""
    assert loader_says(framework, finding(reason, offender)) is None


def test_every_measured_framework_can_be_told() -> None:
    """A name that the table spells otherwise would silence all of it."""
    named = {cell.framework for cell in measured().cells}
    told = {"hf_trainer", "accelerate", "lightning", "deepspeed", "torch_dcp", "torch_save", "safetensors"}
    assert told <= named
    assert reactions("deepspeed", Fault.POINTER_DANGLING)


@pytest.mark.parametrize("consequence", Consequence)
def test_every_consequence_has_words(consequence: Consequence, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without them took the whole screen of a damaged checkpoint down with it."""
    effects = (Effect(consequence=consequence),)
    cell = Cell(specimen="", framework="", fault=Fault.FILE_DELETED, reaction=Reaction.SILENT, effects=effects)
    monkeypatch.setattr(oracle, "reactions", lambda *_, **__: (cell,))
    said = loader_says(Framework.TRANSFORMERS, finding(Reason.ARTIFACT_MISSING, "scheduler.pt"))
    assert said is not None
    assert said.startswith("it will not notice: ")


@pytest.mark.parametrize("reason", [Reason.ARTIFACT_MISSING, Reason.SHARD_MISSING, Reason.CONTAINER_MALFORMED])
def test_what_accelerate_makes_of_lost_random_states_is_told(reason: Reason) -> None:
    """Missing, torn or empty: the loader goes on, with another counter of its own."""
    assert loader_says(Framework.ACCELERATE, finding(reason, "random_states_0.pkl")) is not None
