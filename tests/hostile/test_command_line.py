"""The command line under bad input: one clear line, the right exit code, and nothing lost. Each test was a defect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lastgood.cli import run
from lastgood.errors import StorePermanentError, UsageError
from lastgood.family import Family
from lastgood.location import locate
from lastgood.stores import local_path
from lastgood.testing.build import BuiltFamily, build_family

CLI = [sys.executable, "-m", "lastgood"]
FULL = "/dev/full"


@pytest.fixture
def family(tmp_path: Path) -> BuiltFamily:
    return build_family(tmp_path, "llm")


@pytest.fixture
def uri(family: BuiltFamily) -> str:
    return f"{family.root}/{family.family}"


def documents_of(family: BuiltFamily) -> Mapping[str, bytes]:
    """Everything that decides."""
    ours = family.root / family.family / ".lastgood"
    return {str(p.relative_to(ours)): p.read_bytes() for p in ours.rglob("*") if p.is_file() and ".tmp-" not in p.name}


@pytest.mark.parametrize("reason", ["y" * 4097, "\udcff not UTF-8"], ids=["too long", "not UTF-8"])
@pytest.mark.parametrize("command", ["rollback", "quarantine", "release"])
def test_a_reason_that_no_reader_accepts_is_refused_before_it_is_stored(
    command: str, reason: str, family: BuiltFamily, uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rollback with a long reason was stored, refused by every reader after it and never deleted: a lost family."""
    before = documents_of(family)
    target = [str(family.generations[0])] if command == "rollback" else []
    assert run([command, uri, *target, "--reason", reason]) == 64
    assert "not a reason" in capfd.readouterr().err
    assert documents_of(family) == before
    assert Family(locate(uri)).latest().generation == family.newest


def test_a_rollback_to_a_generation_that_is_not_whole_is_refused(
    family: BuiltFamily, uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was obeyed: the newer generations were fenced, and nothing was left to resume."""
    family.store.delete(family.keys.manifest(family.generations[0]))
    assert run(["rollback", uri, str(family.generations[0]), "--reason", "loss spiked"]) == 64
    assert "manifest_missing" in capfd.readouterr().err
    assert Family(locate(uri)).latest().generation == family.newest


@pytest.mark.parametrize("act", ["rollback", "quarantine", "release"])
def test_an_act_whose_cache_could_not_be_written_says_that_it_stands(
    act: str, uri: str, family: BuiltFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk it said only that a cache could not be replaced, as if nothing had happened."""

    def full(*_: object) -> object:
        raise StorePermanentError("cannot replace LAST_GOOD: no space left on device")

    asked = Family(locate(uri))
    acts: Mapping[str, Callable[[], object]] = {
        "rollback": lambda: asked.rollback(family.generations[0], reason="loss spiked"),
        "quarantine": lambda: asked.quarantine(reason="restores differ"),
        "release": lambda: asked.release(reason="driver fixed"),
    }
    monkeypatch.setattr("lastgood.family.refresh_caches", full)
    with pytest.raises(StorePermanentError, match="but a cache for people could not be written") as raised:
        acts[act]()
    assert raised.value.hint is not None
    assert "it stands" in raised.value.hint


@pytest.mark.parametrize("arguments", [["latest"], ["latest", "--json"], ["status"], ["verify"]], ids=" ".join)
def test_an_answer_that_cannot_be_written_is_neither_success_nor_our_own_error(arguments: list[str], uri: str) -> None:
    """A full disk behind stdout was reported as a defect of ours, exit 70."""
    with open(FULL, "w") as full:
        told = subprocess.run([*CLI, *arguments, uri], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert told.returncode == 2
    assert "cannot write the answer" in told.stderr
    assert "internal error" not in told.stderr


def test_a_log_on_a_full_disk_does_not_turn_could_not_tell_into_nothing(tmp_path: Path) -> None:
    """The complaint failed inside the error handler and the process ended with 1: "nothing may be resumed"."""
    with open(FULL, "w") as full:
        told = subprocess.run([*CLI, "latest", f"{tmp_path}/nowhere/llm"], stdout=subprocess.PIPE, stderr=full)
    assert (told.returncode, told.stdout) == (2, b"")


@pytest.mark.parametrize(("damaged", "code"), [(False, 0), (True, 1)], ids=["whole", "damaged"])
def test_a_reader_that_goes_away_does_not_change_the_verdict(
    damaged: bool, code: int, family: BuiltFamily, uri: str
) -> None:
    """`lastgood verify … | head -1` ended with 1, whatever the verdict was."""
    if damaged:
        (family.root / family.family / str(family.newest) / "data.json").unlink()
    reading, writing = os.pipe()
    os.close(reading)
    told = subprocess.run([*CLI, "verify", uri], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (told.returncode, told.stderr) == (code, "")


def test_an_empty_command_is_the_users_mistake(uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    """`lastgood exec … -- ""` was an internal error: execv refuses an empty name with a ValueError."""
    assert run(["exec", uri, "--", ""]) == 64
    assert "cannot start ''" in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [["latest"], ["exec"]], ids=" ".join)
def test_a_decision_that_cannot_be_read_is_could_not_tell(
    arguments: list[str], family: BuiltFamily, uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ended with 1, which a launch script reads as "there is nothing here"."""
    family.store.replace(family.keys.resume(1), b"{}")
    assert run([*arguments, uri, *(["--", "true"] if arguments == ["exec"] else [])]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert "could not tell" in told.err


@pytest.mark.parametrize("command", ["restore", "drill"])
def test_a_family_with_nothing_whole_is_no_usage_error(
    command: str, family: BuiltFamily, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An alert must tell a torn family (1) from a mistyped command (64)."""
    for generation in family.generations:
        family.store.delete(family.keys.manifest(generation))
    file = tmp_path / "lastgood.toml"
    file.write_text(f'[families.llm]\nroot = "{tmp_path}"\n[families.llm.replica]\ncommand = ["false"]\n')
    assert run([command, uri, "--config", str(file)]) == 1
    assert "nothing to" in capfd.readouterr().err


def test_no_command_shows_the_help_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """It was printed as one escaped line."""
    assert run([]) == 64
    told = capfd.readouterr()
    assert told.err.startswith("Usage: lastgood")
    assert "\\n" not in told.err


def test_an_endless_configuration_is_refused(uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    """`--config /dev/zero` was read until memory ended."""
    assert run(["verify", uri, "--config", "/dev/zero"]) == 64
    assert "configuration too large" in capfd.readouterr().err


def test_a_file_uri_is_decoded_once_and_whole(tmp_path: Path) -> None:
    """The root was decoded and the family was not, so `a%20b` named another family than `a b`."""
    built = build_family(tmp_path, "a b", steps=(12,))
    location = locate(f"file://{tmp_path}/a%20b/{built.newest}")
    assert (location.keys.family, location.generation) == ("a b", built.newest)
    assert locate(f"file://{tmp_path}/a%20b").family_uri == f"{tmp_path}/a b"


@pytest.mark.parametrize("root", ["/data/\udcff", "file:///data/%ff"])
def test_a_root_that_is_not_text_is_refused_and_never_another_one(root: str) -> None:
    """`%ff` was read as U+FFFD, which is another directory; other such roots failed where a record is encoded."""
    with pytest.raises(UsageError, match="not UTF-8"):
        local_path(root)
