"""The audit: every kind of forgotten state is named with its place, and a healthy run is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lastgood.errors import RegistrationError
from tests.state.small import Small

ROOT = Path(__file__).parents[2]
# The first test waits for all cases, which take a minute on an idle machine.
pytestmark = pytest.mark.timeout(600)
# Case → kind and type of the one thing that must be found.
FORGOTTEN = {
    "optimizer": ("optimizer", "SGD"),
    "scheduler": ("scheduler", "StepLR"),
    "plateau scheduler": ("scheduler", "ReduceLROnPlateau"),
    "scaler": ("scaler", "GradScaler"),
    "torch generator": ("generator", "Generator"),
    "numpy generator": ("generator", "Generator"),
    "numpy legacy generator": ("generator", "RandomState"),
    "python generator": ("generator", "Random"),
    "nested generator": ("generator", "Generator"),
    "model generator": ("generator", "Generator"),
    "module generator": ("generator", "Random"),
    "dataset generator": ("generator", "Random"),
    "hidden torch generator": ("generator", "Generator"),
    "local torch generator": ("generator", "Generator"),
    "local optimizer": ("optimizer", "SGD"),
    "random sampler": ("sampler", "RandomSampler"),
    "distributed sampler": ("sampler", "DistributedSampler"),
    "cursor": ("sampler", "CursorSampler"),
    "shuffling loader": ("sampler", "RandomSampler"),
    "stateful loader": ("stateful loader", "StatefulDataLoader"),
    "average": ("moving average", "AveragedModel"),
    "copied model": ("moving average", "Sequential"),
    "hidden copied model": ("moving average", "Sequential"),
    "shadow weights": ("moving average", "dict"),
    "parameter group": ("parameter group", "AdamW"),
    "left out optimizer": ("optimizer", "AdamW"),
    "left out scheduler": ("scheduler", "CosineAnnealingLR"),
    "left out scaler": ("scaler", "GradScaler"),
}
HEALTHY = ["nothing", "registered kinds", "evaluation loader", "another model", "state dict", "entropy", "iterating"]


@pytest.fixture(scope="module")
def audits() -> dict[str, list[tuple[str, str, str]]]:
    """What the audit found in each case, each in a process of its own."""
    cases = [*FORGOTTEN, *HEALTHY, "left out data", "left out rng"]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.state.audited", *cases],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    told = dict(map(json.loads, finished.stdout.splitlines()))
    assert told.keys() == set(cases)
    return {case: [tuple(one) for one in found] for case, found in told.items()}


@pytest.mark.parametrize("case", FORGOTTEN)
def test_forgotten_state_is_found(audits: dict[str, list[tuple[str, str, str]]], case: str) -> None:
    """Exactly the forgotten object is reported: its kind, its type, and a place."""
    kind, name = FORGOTTEN[case]
    found = audits[case]
    assert [(one[0], one[1].rpartition(".")[2]) for one in found] == [(kind, name)], found
    assert found[0][2]


@pytest.mark.parametrize(
    ("case", "where"),
    [
        ("optimizer", "root Trainer.extra"),
        ("nested generator", "root Trainer.extra.inner['held'][0]"),
        ("module generator", "tests.state.audited.STRAY"),
        ("hidden torch generator", "tests.state.audited.HIDDEN"),
        ("local torch generator", "local only_local of main"),
        ("parameter group", "optimizer group 2"),
    ],
)
def test_the_place_leads_to_the_object(audits: dict[str, list[tuple[str, str, str]]], case: str, where: str) -> None:
    """Who reads the refusal must be able to find the line to mend."""
    place = audits[case][0][2].replace("__main__", "tests.state.audited")
    assert place == where


@pytest.mark.parametrize("case", HEALTHY)
def test_a_healthy_run_is_left_alone(audits: dict[str, list[tuple[str, str, str]]], case: str) -> None:
    """A false alarm stops a training run before its first step."""
    assert audits[case] == []


def test_all_that_was_forgotten_is_named_at_once(audits: dict[str, list[tuple[str, str, str]]]) -> None:
    """Leaving out the data position leaves the sampler and the loader unsaved; leaving out rng, the two generators."""
    assert {(kind, name.rpartition(".")[2]) for kind, name, _ in audits["left out data"]} == {
        ("sampler", "CursorSampler"),
        ("stateful loader", "StatefulDataLoader"),
    }
    assert {name for _, name, _ in audits["left out rng"]} == {"random.Random", "numpy.random._generator.Generator"}


def test_the_audit_refuses_and_names_missing_components() -> None:
    """A component that has no live object, such as the topology, is found by its absence."""
    with pytest.raises(RegistrationError, match="component topology is neither registered nor declared absent"):
        Small.build(1, leave_out="topology").registry.audit()
