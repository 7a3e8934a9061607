"""A verdict that cannot be put on record is printed all the same, and its exit code says what others may rely on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lastgood.stores.filesystem import FileSystem
from lastgood.testing.build import BuiltFamily
from tests.cli.conftest import Told

Call = Callable[..., Told]


@pytest.fixture
def read_only(family: BuiltFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """The family on a mount that can be read only, as a person at 3 a.m. often has it."""

    def refused(*_: object) -> None:
        raise OSError(30, "read-only file system")

    monkeypatch.setattr(FileSystem, "write_new", refused)
    monkeypatch.setattr(FileSystem, "make_directory", refused)


@pytest.mark.usefixtures("read_only")
def test_a_fail_is_printed_and_stays_a_fail_where_nothing_can_be_written(
    call: Call, family: BuiltFamily, uri: str
) -> None:
    """What is broken is what the person came for; that it could not be recorded is worth a line."""
    (family.root / family.family / str(family.newest) / "data.json").unlink()
    told = call("verify", f"{uri}/{family.newest}")
    assert told.code == 1
    assert "artifact_missing" in told.out
    assert "evidence not kept" in told.err
    assert "read-only" in told.err


@pytest.mark.usefixtures("read_only")
def test_a_pass_that_is_not_on_record_is_printed_and_tells_nothing_to_scripts(call: Call, uri: str) -> None:
    """A script that waits for evidence must not take this run for it; a look without a record is its own answer."""
    told = call("verify", uri)
    assert told.code == 2
    assert told.out.count("PASS") == 2
    assert "hint: --no-record only looks" in told.err
    assert call("verify", uri, "--no-record").code == 0


def test_a_family_answers_with_a_list_and_a_generation_with_one_verdict(
    call: Call, family: BuiltFamily, uri: str
) -> None:
    """A script that asks about a family must not have to guess from the answer how many generations it has."""
    whole = json.loads(call("verify", uri, "--json").out)
    assert [verdict["subject"] for verdict in whole] == ["llm-7b", f"llm-7b/{family.newest}"]
    for path in (family.root / family.family / ".lastgood/commits").iterdir():
        path.unlink()
    assert [verdict["subject"] for verdict in json.loads(call("verify", uri, "--json").out)] == ["llm-7b"]
    assert json.loads(call("verify", f"{uri}/{family.newest}", "--json").out)["subject"] == f"llm-7b/{family.newest}"


def test_a_decision_that_cannot_be_read_is_the_family_s_finding(call: Call, family: BuiltFamily, uri: str) -> None:
    """Which generations the family keeps is then unknown; the verdict that says so must be printed."""
    decision = family.root / family.family / ".lastgood/incarnations/00000001.resume"
    decision.write_bytes(decision.read_bytes()[:20])
    told = call("verify", uri)
    assert told.code == 1
    assert "decision_malformed" in told.out


def test_a_verdict_is_also_a_junit_file(call: Call, family: BuiltFamily, uri: str, tmp_path: Path) -> None:
    """A build shows test results of every tool alike, if they lie where it was told to look; the old ones give way."""
    file = tmp_path / "lastgood.xml"
    file.write_text("of the build before")
    assert call("verify", uri, "--junit", str(file)).code == 0
    assert ElementTree.parse(file).getroot().attrib["failures"] == "0"
    (family.root / family.family / str(family.newest) / "data.json").unlink()
    told = call("verify", f"{uri}/{family.newest}", "--junit", str(file), "--json")
    assert told.code == 1
    assert json.loads(told.out)["outcome"] == "fail"
    assert ElementTree.parse(file).getroot().attrib["failures"] != "0"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lastgood.xml", "runs"]


def test_a_junit_file_that_cannot_be_written_is_said_and_never_a_pass(call: Call, uri: str, tmp_path: Path) -> None:
    """A build that finds no file would say that nothing failed; the verdict is recorded all the same."""
    told = call("verify", uri, "--junit", str(tmp_path / "nowhere" / "lastgood.xml"))
    assert told.code == 2
    assert told.out.count("PASS") == 2
    assert "JUnit file not written" in told.err
    assert "tier 1    pass" in call("status", uri).out


def test_a_drill_writes_its_junit_file_too(call: Call, tmp_path: Path) -> None:
    """What a build asks of one gate it asks of all; a drill from nothing needs no checkpoint."""
    job = Path(__file__).parents[1] / "drill" / "fake_job.py"
    (tmp_path / "runs").mkdir()
    config, file = tmp_path / "lastgood.toml", tmp_path / "drill.xml"
    command = f'["{sys.executable}", "{job}"]'
    config.write_text(f'[families.d]\nroot = "{tmp_path}/runs"\n[families.d.replica]\ncommand = {command}\n')
    asked = ("drill", "d", "--fresh", "--kill", "rank", "--between-publishes", "--seed", "1", "--config", str(config))
    told = call(*asked, "--junit", str(file), "--json")
    root = ElementTree.parse(file).getroot()
    assert (told.code, root.attrib["failures"], root.attrib["errors"]) == (0, "0", "0")
    assert {case.attrib["name"] for case in root.iter("testcase")} >= {"recovered (full)", "no_orphans (full)"}
