"""The operator's acts: each needs a reason, takes effect at once, and is undone only as documented."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood.testing.build import BuiltFamily
from tests.cli.conftest import Told

Call = Callable[..., Told]


def test_rollback_offers_the_named_generation_and_keeps_the_newer_ones_for_the_audit(
    call: Call, family: BuiltFamily, uri: str
) -> None:
    """Going back is an audited decision: nothing is deleted, and nothing of the cut branch is offered."""
    told = call("rollback", uri, str(family.generations[0]), "--reason", "loss spiked")
    assert told.code == 0
    assert call("latest", uri).out == f"{uri}/{family.generations[0]}\n"
    assert "2 fenced" in call("status", uri).out
    assert (family.root / family.family / str(family.newest)).is_dir()


def test_rollback_refuses_what_is_not_committed_or_failed(call: Call, family: BuiltFamily, uri: str) -> None:
    """Going back to nothing, or to something known to be bad, would be worse than staying."""
    assert call("rollback", uri, "00000001-0000000000000099", "--reason", "x").code == 64
    (family.root / family.family / str(family.generations[0]) / "data.json").unlink()
    assert call("verify", f"{uri}/{family.generations[0]}").code == 1
    told = call("rollback", uri, str(family.generations[0]), "--reason", "x")
    assert told.code == 64
    assert "fail on record" in told.err


def test_a_quarantine_offers_nothing_until_it_is_released(call: Call, family: BuiltFamily, uri: str) -> None:
    """Without a proven generation, a quarantined family offers nothing; a release lifts exactly that."""
    assert call("quarantine", uri, "--reason", "restores differ").code == 0
    assert call("latest", uri).code == 1
    status = call("status", uri)
    assert status.code == 1
    assert "QUARANTINED" in status.out
    assert "restores differ (by " in status.out, "whoever is called at 3 a.m. reads the sentence here, or nowhere"
    assert call("release", uri, "--reason", "driver fixed").code == 0
    assert call("latest", uri).out == f"{uri}/{family.newest}\n"


def test_a_store_that_cannot_tell_hides_no_family_that_failed(
    call: Call, family: BuiltFamily, uri: str, tmp_path: Path
) -> None:
    """1 gets somebody up and 2 asks again later: an unmounted disk must not make the second out of the first."""
    unmounted = str(tmp_path / "unmounted" / "llm")
    assert call("status", unmounted).code == 2
    assert call("status", uri, unmounted).code == 2
    assert call("quarantine", uri, "--reason", "restores differ").code == 0
    assert call("status", uri, unmounted).code == call("status", unmounted, uri).code == 1


def test_a_release_leaves_the_failed_generation_barred(call: Call, family: BuiltFamily, uri: str) -> None:
    """A fail on record dominates for ever; only the family is released."""
    assert call("quarantine", uri, str(family.newest), "--reason", "bad shard").code == 0
    assert call("release", uri, "--reason", "the others are fine").code == 0
    told = call("latest", uri)
    assert told.out == f"{uri}/{family.generations[-2]}\n"
    assert "generation_barred" in told.err
    assert f"{family.newest}: bad shard (by " in call("status", uri).out
    assert "bad shard (by " in call("inspect", f"{uri}/{family.newest}").out


def test_a_name_of_the_configuration_stands_for_the_uri(
    call: Call, family: BuiltFamily, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for a path, the name that every other command knows would act on a family that is not there."""
    config = tmp_path / "lastgood.toml"
    config.write_text(f'[families.llm-7b]\nroot = "{family.root}"\n')
    monkeypatch.setenv("LASTGOOD_CONFIG", str(config))
    assert call("quarantine", "llm-7b", "--reason", "restores differ").code == 0
    assert call("latest", "llm-7b").code == 1
    assert call("release", "llm-7b", "--reason", "driver fixed").code == 0
    assert call("rollback", "llm-7b", str(family.generations[0]), "--reason", "loss spiked").code == 0
    assert call("latest", "llm-7b").out == f"{uri}/{family.generations[0]}\n"
    assert call("inspect", "llm-7b").out.startswith(f"{uri}: ")


def test_a_misspelled_name_is_answered_with_the_nearest(
    call: Call, family: BuiltFamily, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for a path it is a family without a commit, and a launcher may start that at step zero."""
    config = tmp_path / "lastgood.toml"
    config.write_text(f'[families.llm-7b]\nroot = "{family.root}"\n')
    monkeypatch.setenv("LASTGOOD_CONFIG", str(config))
    monkeypatch.setattr(os, "execvp", lambda *_: pytest.fail("started a run"))
    for command in ("restore", "drill", "status", "latest", "inspect", "verify", "seal", "exec"):
        told = call(command, "lml-7b", *(("--allow-fresh", "--", "true") if command == "exec" else ()))
        assert told.code == 64
        assert "did you mean `llm-7b`? write ./lml-7b for a path that is yet to be made" in told.out + told.err
    monkeypatch.chdir(family.root)
    for other in ("./lml-7b", "llm-70b"):
        assert "did you mean" not in call("latest", other).err, "a path, and the next of a series"
    monkeypatch.chdir(uri)
    assert "not a generation of .: other" in call("latest", "other").err


def test_a_uri_needs_no_configuration(
    call: Call, family: BuiltFamily, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose script names the whole path starts, whatever somebody has done to a file that it does not need."""
    monkeypatch.setenv("LASTGOOD_CONFIG", str(tmp_path / "gone.toml"))
    assert call("latest", uri).out == f"{uri}/{family.newest}\n"
    assert call("quarantine", uri, "--reason", "restores differ").code == 0
    assert call("latest", "llm-7b").code == 64


def test_refusals_of_one_cause_are_told_once(call: Call, family: BuiltFamily, uri: str) -> None:
    """A gate on a cadence fails the same generation every hour, and the other causes must stay in sight."""
    (family.root / family.family / str(family.newest) / "data.json").unlink()
    for _ in range(3):
        assert call("verify", f"{uri}/{family.newest}").code == 1
    assert call("status", uri).out.count("  refused  ") == 1


def test_an_act_without_a_reason_or_on_no_family_is_refused(call: Call, uri: str) -> None:
    """An audit without reasons is none, and a mistyped family must not come into being."""
    assert call("rollback", uri, "00000001-0000000000000012").code == 64
    assert call("quarantine", uri, "--reason", "  ").code == 64
    told = call("quarantine", f"{uri}-typo", "--reason", "bad")
    assert told.code == 64
    assert "not a lastgood family" in told.err
