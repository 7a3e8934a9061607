"""Optimizers of many kinds: each makes state of its own at its first step, and all of it comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood.errors import UsageError
from lastgood.manifest import Component
from lastgood.state import LoadReport, RankIdentity
from lastgood.state.modules import ModulePart, OptimizerPart
from lastgood.state.ranks import Ranks
from lastgood.state.restoring import restore
from lastgood.state.storage import capture_tensors

ALONE = RankIdentity(rank=0, world_size=1)

Maker = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


class Job:
    """A small model and its optimizer, without anything random.

    Args:
        maker: Makes the optimizer from one group a trained parameter.
        seed: Of the weights.
        trained: Names of parameters.
    """

    def __init__(self, maker: Maker, seed: int, *, trained: tuple[str, ...] = ("weight", "bias")) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(4, 3)
        groups = [{"params": [getattr(self.model, name)], "name": name} for name in trained]
        self.optimizer = maker(groups)
        self.parts = (
            ModulePart(self.model, Component.MODEL, "model"),
            OptimizerPart(self.optimizer, self.model),
        )

    def train(self, steps: int) -> None:
        for step in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.arange(4.0) + step).square().sum().backward()
            self.optimizer.step()

    def save(self, payload: Path) -> Path:
        for part in self.parts:
            capture = capture_tensors(
                part.tensors(),
                part.objects(),
                component=part.component,
                directory=part.name,
                step=2,
                identity=ALONE,
                ranks=Ranks(ALONE),
            )
            capture.write(payload)
        return payload

    def load(self, payload: Path) -> LoadReport:
        return restore(
            payload,
            self.parts,
            (),
            streams={},
            identity=ALONE,
            ranks=Ranks(ALONE),
            explained={},
            allow_topology_change=False,
        )


def together(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"params": [parameter for group in groups for parameter in group["params"]]}]


MAKERS: dict[str, Maker] = {
    "SGD": lambda groups: torch.optim.SGD(together(groups), lr=0.01),
    "SGD with momentum": lambda groups: torch.optim.SGD(together(groups), lr=0.01, momentum=0.9),
    "AdamW, amsgrad": lambda groups: torch.optim.AdamW(together(groups), lr=0.01, amsgrad=True),
    "AdamW, foreach": lambda groups: torch.optim.AdamW(together(groups), lr=0.01, foreach=True),
    "AdamW, fused": lambda groups: torch.optim.AdamW(together(groups), lr=0.01, fused=True),
    "AdamW, a tensor for a rate": lambda groups: torch.optim.AdamW(together(groups), lr=torch.tensor(0.01)),
    "Adafactor": lambda groups: torch.optim.Adafactor(together(groups), lr=0.01),
    "Adagrad": lambda groups: torch.optim.Adagrad(together(groups), lr=0.01),
    "Adamax": lambda groups: torch.optim.Adamax(together(groups), lr=0.01),
    "ASGD": lambda groups: torch.optim.ASGD(together(groups), lr=0.01),
    "NAdam": lambda groups: torch.optim.NAdam(together(groups), lr=0.01),
    "RAdam": lambda groups: torch.optim.RAdam(together(groups), lr=0.01),
    "RMSprop": lambda groups: torch.optim.RMSprop(together(groups), lr=0.01, momentum=0.9, centered=True),
    "Rprop": lambda groups: torch.optim.Rprop(together(groups), lr=0.01),
}


@pytest.mark.parametrize("name", MAKERS)
def test_an_optimizer_of_any_kind_goes_on_as_if_it_had_never_stopped(name: str, tmp_path: Path) -> None:
    """Whatever an optimizer makes lazily changes its next update; refusing what is healthy would be an outage."""
    control, resumed = Job(MAKERS[name], 1), Job(MAKERS[name], 2)
    control.train(2)
    report = resumed.load(control.save(tmp_path))
    assert report.findings == ()
    control.train(3)
    resumed.train(3)
    for expected, found in zip(control.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_a_moment_that_one_matrix_lost_is_named_also_where_vectors_have_none() -> None:
    """Adafactor keeps other state of matrices than of vectors; only among its like does a lost moment show."""
    twin = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    optimizer = torch.optim.Adafactor(twin.parameters(), lr=0.01)
    twin(torch.ones(4)).sum().backward()
    optimizer.step()
    part = OptimizerPart(optimizer, twin)
    keys = part.tensors().keys() - {"row_var/1.weight"}
    (finding,) = part.validate({0: part.objects()}, keys, {})
    assert finding.offender == "optimizer.row_var/1.weight"


def test_a_group_that_the_run_does_not_train_is_refused_before_it_has_state(tmp_path: Path) -> None:
    """A group added late has nothing but its settings at first; a run without it would go on with weights that rest."""

    def maker(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=0.01)

    report = Job(maker, 2, trained=("weight",)).load(Job(maker, 1).save(tmp_path))
    assert [finding.offender for finding in report.findings] == ["optimizer.group"]
    assert "bias" in report.findings[0].message


def test_a_group_of_foreign_parameters_added_late_refuses_the_save(tmp_path: Path) -> None:
    """An adapter that is grown in the middle of a run has no name to be saved under; the save must say so."""
    job = Job(MAKERS["SGD"], 1)
    job.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    with pytest.raises(UsageError, match="group 1 was added after the registration"):
        job.save(tmp_path)
