"""`lastgood report`: what it says, what it writes, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lastgood.testing.evidence import HOSTILE, Past, fabricate
from tests.cli.conftest import Told

Reported = Callable[..., Told]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path


@pytest.fixture
def reported(home: Path, call: Callable[..., Told]) -> Reported:
    """Call `lastgood report` with a configuration of the named families."""

    def report(*arguments: str, **families: Past) -> Told:
        lines = []
        for name, past in families.items():
            if not (home / "runs" / name).exists():
                fabricate(home / "runs", name, past)
            lines += [f"[families.{name}]", f'root = "{home / "runs"}"']
        (home / "lastgood.toml").write_text("\n".join(lines), encoding="utf-8")
        return call("report", "--config", str(home / "lastgood.toml"), *arguments)

    return report


def test_met_objectives_exit_0_and_say_where_the_page_lies(reported: Reported, home: Path) -> None:
    """A cron job acts on the code, and its owner opens what the last line names."""
    told = reported(good=Past(until=datetime.now(UTC)))
    assert (told.code, told.err) == (0, "")
    assert " ".join(told.out.splitlines()[1].split()) == "good pass 0 of 4 missed 0 of 17 missed ready"
    assert told.out.splitlines()[-1] == f"  page    {home / 'lastgood-report' / 'index.html'}"
    assert (home / "lastgood-report" / "index.html").is_file()


def test_missed_objectives_exit_1_and_are_named(reported: Reported) -> None:
    """Whoever reads only the terminal must learn what is missed, and by how much; nothing there is obeyed."""
    past = Past(until=datetime.now(UTC), saves=40, failed_restores=1, quarantined=True, abandoned=3, words=HOSTILE)
    told = reported(bad=past)
    assert told.code == 1
    missed = [line.split()[2].rstrip(":") for line in told.out.splitlines() if line.startswith("  missed")]
    assert missed == ["creation_ratio", "not_quarantined", "family_verdict"]
    assert "found 92.5 %, expected 99 %" in told.out
    assert not set(told.out) & {"\x1b", "\u202e", "\x00"}


def test_a_family_that_was_never_saved_fails(reported: Reported, home: Path) -> None:
    """A job that was configured and never published is the worst case, not an empty one."""
    (home / "lastgood.toml").touch()
    told = reported(new=Past(until=datetime.now(UTC), saves=1, restore_every=0, drill_every=0))
    assert told.code == 1
    assert "restore_passed" in told.out
    assert "drill_passed" in told.out


def test_a_store_that_cannot_tell_exits_2_and_leaves_the_rest_as_it_was_known(reported: Reported, home: Path) -> None:
    """Trouble of a store is neither good news nor bad; what was proven before stays proven until it is too old."""
    past = Past(until=datetime.now(UTC))
    assert reported(good=past).code == 0
    decision = next((home / "runs" / "good" / ".lastgood" / "incarnations").iterdir())
    decision.with_name("00000001.resume").write_bytes(b"torn")
    told = reported("--json", good=past)
    assert told.code == 2
    (family,) = json.loads(told.out)["families"]
    assert "00000001.resume" in family["trouble"]
    missed = [one["objective"] for one in family["objectives"] if one["result"] == "missed"]
    assert missed == ["state_told"]
    assert family["indicators"]["proven_generations"] > 1


def test_json_is_the_document_on_disk(reported: Reported, home: Path) -> None:
    """A script that reads one and a dashboard that reads the other must not disagree."""
    told = reported("--json", good=Past(until=datetime.now(UTC)))
    assert told.code == 0
    assert json.loads(told.out) == json.loads((home / "lastgood-report" / "report.json").read_text())


def test_a_mistake_exits_64(reported: Reported, call: Callable[..., Told], home: Path) -> None:
    """A report about nothing, or about a name that nobody configured, must not look like one about health."""
    assert reported("missing", good=Past(until=datetime.now(UTC), saves=1)).code == 64
    (home / "lastgood.toml").write_text("", encoding="utf-8")
    told = call("report", "--config", str(home / "lastgood.toml"))
    assert (told.code, told.out) == (64, "")
    assert "no family to report on" in told.err
