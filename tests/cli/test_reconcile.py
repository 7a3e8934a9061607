"""`lastgood reconcile`: what cron runs, and what its exit code says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood.records import list_records
from lastgood.testing.build import BuiltFamily, build_life
from lastgood.verdict import Outcome
from tests.cli.conftest import Told

Call = Callable[..., Told]


@pytest.fixture
def config(family: BuiltFamily, tmp_path: Path) -> str:
    file = tmp_path / "lastgood.toml"
    file.write_text(f'[families.{family.family}]\nroot = "{family.root}"\n', encoding="utf-8")
    return str(file)


def test_what_nobody_judged_is_judged_and_kept_once(call: Call, family: BuiltFamily, config: str) -> None:
    """The second round finds nothing to do."""
    told = call("reconcile", "--config", config)
    assert told.code == 0
    assert told.out.count(": pass") == 3
    assert [one.verdict.outcome for one in list_records(family.store, family.keys)] == [Outcome.PASS] * 3
    again = call("reconcile", family.family, "--config", config, "--json")
    assert again.code == 0
    (report,) = json.loads(again.out)
    assert report == {
        "family": f"{family.root}/{family.family}",
        "exit": 0,
        "verified": {},
        "stale": [],
        "repaired": [],
        "burned": [],
        "removed": [],
        "errors": [],
    }


def test_a_fail_is_the_exit_code_and_the_rest_is_done(call: Call, family: BuiltFamily, uri: str) -> None:
    """Cron reads nothing else."""
    (family.root / family.family / str(family.newest) / "data.json").unlink()
    (family.root / family.keys.active(1)).unlink()
    told = call("reconcile", uri)
    assert told.code == 1
    assert f"verified    {family.newest}: fail" in told.out
    assert f"repaired    {family.keys.active(1)}" in told.out


def test_stale_evidence_is_an_alarm(call: Call, family: BuiltFamily, config: str) -> None:
    """The gate that stopped running is the fault that nobody else reports."""
    objectives = f"[families.{family.family}.objectives]\nrestore_age_seconds = 1e-6\n"
    with Path(config).open("a") as file:
        file.write(objectives)
    told = call("reconcile", "--config", config)
    assert told.code == 1
    assert "stale       restore evidence stale" in told.out
    assert "drill evidence" not in told.out


def test_leftovers_of_a_cut_life_go_when_they_are_old(call: Call, family: BuiltFamily, uri: str) -> None:
    """An hour given by hand sweeps what a day would not; each slot is burned first."""
    build_life(family, steps=[60])
    dead = family.root / family.keys.staging / "00000001-0000000000000048~0123abcd"
    dead.mkdir(parents=True)
    assert "gave up" not in call("reconcile", uri).out
    assert dead.exists()
    told = call("reconcile", uri, "--sweep-after", "0")
    assert "gave up     00000001-0000000000000048" in told.out
    assert not dead.exists()


def test_trouble_of_one_family_is_said_beside_the_others(call: Call, family: BuiltFamily, config: str) -> None:
    """An unmounted disk is "could not tell", and keeps nobody from the next family."""
    with Path(config).open("a") as file:
        file.write('[families.away]\nroot = "/nowhere/at/all"\n')
    told = call("reconcile", "--config", config)
    assert told.code == 2
    assert "root is not a directory: /nowhere/at/all" in told.out
    assert told.out.count(": pass") == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("reconcile",), "no family named"),
        (("reconcile", "--sweep-after", "-1"), "sweep-after"),
        (("reconcile", "--config", "/nowhere.toml"), "configuration not found"),
    ],
)
def test_a_mistake_is_a_usage_error(
    call: Call, arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One clear line, and nothing was touched."""
    monkeypatch.chdir(tmp_path)
    told = call(*arguments)
    assert told.code == 64
    assert said in told.err
