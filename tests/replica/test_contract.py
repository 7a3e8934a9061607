from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.errors import UsageError
from lastgood.replica.contract import TRACKERS_OFF, ReplicaEnvironment, render_command, replica_environ

TOLD = ReplicaEnvironment(is_replica=True, family="/r/f", resume="00000001-0000000000000004", stop_step=8)


@pytest.mark.parametrize("told", [ReplicaEnvironment(), TOLD, ReplicaEnvironment(family="s3://b/r/f", trace=False)])
def test_environment_comes_back_as_it_was_told(told: ReplicaEnvironment) -> None:
    """What a supervisor writes a replica must read, or the two would speak of different runs."""
    assert ReplicaEnvironment.from_environ(told.to_environ()) == told


def test_unset_variables_mean_an_ordinary_job() -> None:
    """Production code calls the same function, and must not become a replica by it."""
    assert ReplicaEnvironment.from_environ({}) == ReplicaEnvironment()


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"LASTGOOD_REPLICA": "yes", "LASTGOOD_FAMILY": "/f"}, "LASTGOOD_REPLICA"),
        ({"LASTGOOD_REPLICA": "1"}, "LASTGOOD_FAMILY"),
        ({"LASTGOOD_TRACE": "true"}, "LASTGOOD_TRACE"),
        ({"LASTGOOD_STOP_STEP": "-1"}, "LASTGOOD_STOP_STEP"),
        ({"LASTGOOD_STOP_STEP": "٣"}, "LASTGOOD_STOP_STEP"),
        ({"LASTGOOD_STOP_STEP": "1e3"}, "LASTGOOD_STOP_STEP"),
        ({"LASTGOOD_STOP_STEP": "9" * 17}, "LASTGOOD_STOP_STEP"),
    ],
)
def test_unlawful_variable_is_refused_by_name(environ: dict[str, str], named: str) -> None:
    """A misread variable would make a replica publish or stop elsewhere than its supervisor believes."""
    with pytest.raises(UsageError, match=named):
        ReplicaEnvironment.from_environ(environ)


def test_placeholders_fill_arguments_one_to_one() -> None:
    """An empty hint stays one empty argument, and braces that are meant survive."""
    command = (
        "torchrun",
        "--nproc-per-node={world_size}",
        "t.py",
        "--resume",
        "{resume}",
        "--json={{}}",
        "{stop_step}",
    )
    fresh = ReplicaEnvironment(family="/r/f")
    assert render_command(command, fresh, world_size=2) == (
        *("torchrun", "--nproc-per-node=2", "t.py", "--resume", "", "--json={}", ""),
    )
    assert render_command(command, TOLD, world_size=4)[4] == "00000001-0000000000000004"


@pytest.mark.parametrize(
    "argument", ["{famliy}", "{family!r}", "{family:>9}", "{}", "{0}", "{family", "a}b", "{family.x}"]
)
def test_unknown_placeholder_is_refused(argument: str) -> None:
    """A typing error in a command must not reach a trainer as literal braces."""
    with pytest.raises(UsageError, match="replica command"):
        render_command(("run", argument), TOLD, world_size=1)


def test_values_are_not_read_again_for_placeholders() -> None:
    """A family whose name holds braces is text, not a template."""
    told = ReplicaEnvironment(family="/r/{resume}", resume="x")
    assert render_command(("{family}",), told, world_size=1) == ("/r/{resume}",)


def test_replica_inherits_no_secret_and_no_tracker(tmp_path: Path) -> None:
    """A disposable run must neither reach the supervisor's services nor report beside production."""
    base = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s", "WANDB_API_KEY": "s", "WANDB_MODE": "online", "HOME": "/root"}
    environ = replica_environ(TOLD, base=base, home=tmp_path, declared={"DATA": "/d", "OMP_NUM_THREADS": "2"})
    assert "s" not in environ.values()
    assert environ["PATH"] == "/bin"
    assert environ["HOME"] == str(tmp_path)
    assert environ["OMP_NUM_THREADS"] == "2"
    assert TRACKERS_OFF.items() <= environ.items()
    assert ReplicaEnvironment.from_environ(environ) == TOLD


def test_declared_environment_cannot_redirect_a_replica(tmp_path: Path) -> None:
    """A declared LASTGOOD_FAMILY would send a replica's saves into production."""
    with pytest.raises(UsageError, match="LASTGOOD_FAMILY"):
        replica_environ(TOLD, base={}, home=tmp_path, declared={"LASTGOOD_FAMILY": "/production"})
