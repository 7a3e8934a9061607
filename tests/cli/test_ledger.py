"""`lastgood ledger`: what it read, what it could not, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lastgood.testing.evidence import HOSTILE, Past, fabricate
from tests.cli.conftest import Told

Call = Callable[..., Told]
PAST = Past(until=datetime(2026, 3, 1, tzinfo=UTC), saves=6, restore_every=3, drill_every=0)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of two families; the store of one is not there."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        fabricate(tmp_path / name, f"run-{name}", PAST)
    path = tmp_path / "lastgood.toml"
    path.write_text('[families.run-a]\nroot = "a"\n[families.run-b]\nroot = "b"\n')
    return path


def test_update_reads_what_is_new_of_every_configured_family(call: Call, config: Path) -> None:
    """A cron line needs no list of families, and the second call costs next to nothing."""
    told = call("ledger", "update", "--config", str(config), "--json")
    document = json.loads(told.out)
    assert told.code == 0
    assert [(one["family"], one["new_saves"], one["new_records"]) for one in document["families"]] == [
        ("run-a", 6, 8),
        ("run-b", 6, 8),
    ]
    assert (config.parent / "lastgood-ledger.sqlite").is_file()
    again = json.loads(call("ledger", "update", "--config", str(config), "--json").out)
    assert [one["new_records"] for one in again["families"]] == [0, 0]


def test_a_store_that_cannot_tell_is_two_and_stops_no_other_family(call: Call, config: Path) -> None:
    """Half of a fleet may be unreachable; what can be read is read, and the exit code says that it is not all."""
    (config.parent / "a").rename(config.parent / "away")
    told = call("ledger", "update", "--config", str(config))
    assert told.code == 2
    assert "root is not a directory" in told.out
    assert "is the file system mounted" in told.out
    status = call("ledger", "status", "--config", str(config), "--json")
    assert status.code == 2
    assert [(one["family"], one["state"]) for one in json.loads(status.out)["families"]] == [
        ("run-a", "could not tell"),
        ("run-b", "ready"),
    ]


def test_a_malformed_record_is_one_and_is_named(call: Call, config: Path) -> None:
    """Evidence that cannot be read is a fact about the store that somebody must look at."""
    path = next((config.parent / "a" / "run-a" / ".lastgood" / "records").glob("*/*.json"))
    path.write_bytes(b"{")
    told = call("ledger", "update", "run-a", "--config", str(config))
    assert told.code == 1
    assert f"malformed  run-a: document is not lawful JSON: run-a/.lastgood/records/{path.parent.name}" in told.out
    assert call("ledger", "status", "--config", str(config)).code == 1


def test_rebuild_of_everything_drops_what_is_not_configured(call: Call, config: Path) -> None:
    """A family leaves the file when nobody answers for it; an update must not forget it by accident."""
    call("ledger", "update", "--config", str(config))
    config.write_text('[families.run-b]\nroot = "b"\n')
    call("ledger", "update", "--config", str(config))
    call("ledger", "rebuild", "run-b", "--config", str(config))
    known = json.loads(call("ledger", "status", "--config", str(config), "--json").out)["families"]
    assert [one["family"] for one in known] == ["run-a", "run-b"]
    told = call("ledger", "rebuild", "--config", str(config), "--json")
    assert json.loads(told.out)["dropped"] == ["run-a"]
    known = json.loads(call("ledger", "status", "--config", str(config), "--json").out)["families"]
    assert [one["family"] for one in known] == ["run-b"]


def test_a_family_is_named_by_its_uri_too(
    call: Call, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything takes one URI form; without a configuration the ledger lies where the command runs."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    told = call("ledger", "update", f"{config.parent}/a/run-a")
    assert told.code == 0
    assert (tmp_path / "elsewhere" / "lastgood-ledger.sqlite").is_file()


@pytest.mark.parametrize("argument", ["nosuch/family", "00000001-0000000000000100"])
def test_what_names_no_family_is_refused(call: Call, config: Path, argument: str) -> None:
    """A mistyped name must not become an empty family that looks healthy."""
    uri = f"{config.parent}/a/run-a/{argument}" if argument[0].isdigit() else f"{config.parent}/a/{argument}"
    told = call("ledger", "update", uri, "--config", str(config))
    assert told.code in (2, 64)
    assert told.out == ""


def test_nothing_to_read_is_said(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cron line in the wrong directory must not end well for months."""
    monkeypatch.chdir(tmp_path)
    told = call("ledger", "update")
    assert told.code == 64
    assert "no family named" in told.err


def test_nothing_from_a_checkpoint_reaches_the_terminal_raw(call: Call, config: Path) -> None:
    """A family of a stranger may carry escapes in every text; `--json` is ASCII, text is escaped."""
    path = next((config.parent / "a" / "run-a" / ".lastgood" / "records").glob("*/*.json"))
    path.write_text(f'{{"{HOSTILE[:60]}'.replace("\0", ""))
    for arguments in (("update",), ("status",), ("status", "--json")):
        told = call("ledger", *arguments, "--config", str(config))
        assert "\x1b" not in told.out
        assert "\u202e" not in told.out
