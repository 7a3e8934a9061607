"""`verify`, `inspect`, `status` and `doctor` as a tired person reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood.manifest import Component
from lastgood.publish import StagedArtifact
from lastgood.run import Run, SoloGroup
from lastgood.testing.build import BuiltFamily, Recipe, build_family, build_job
from tests.cli.conftest import Told

Call = Callable[..., Told]


def test_verify_passes_a_healthy_generation_and_records_it(call: Call, family: BuiltFamily, uri: str) -> None:
    """A pass is evidence, so it is on record afterwards."""
    told = call("verify", f"{uri}/{family.newest}")
    assert told.code == 0
    assert told.out.startswith("PASS")
    assert "tier 1    pass" in call("status", uri).out
    assert "unverified" not in call("latest", uri).err


def test_a_failed_verify_names_the_artifact_and_bars_the_generation(call: Call, family: BuiltFamily, uri: str) -> None:
    """What failed on record is never offered again."""
    (family.root / family.family / str(family.newest) / "optimizer/rank-00000.safetensors").write_bytes(b"")
    told = call("verify", f"{uri}/{family.newest}")
    assert told.code == 1
    assert "size_mismatch" in told.out
    assert "optimizer/rank-00000.safetensors" in told.out
    assert "hint:" in told.out
    assert "generation_barred" in call("latest", uri).err


def test_no_record_changes_nothing(call: Call, family: BuiltFamily, uri: str) -> None:
    """Looking must be possible without consequences."""
    (family.root / family.family / str(family.newest) / "optimizer/rank-00000.safetensors").write_bytes(b"")
    assert call("verify", f"{uri}/{family.newest}", "--no-record").code == 1
    assert not (family.root / family.family / ".lastgood/refusals").exists() or not os.listdir(
        family.root / family.family / ".lastgood/refusals"
    )


def test_a_stale_pointer_is_named_and_repaired(call: Call, family: BuiltFamily, uri: str) -> None:
    """A pointer that lags misleads people; no decision reads it, and `--repair` mends it."""
    pointer = family.root / family.family / ".lastgood/incarnations/00000001.active"
    pointer.unlink()
    told = call("verify", uri, "--no-record")
    assert told.code == 1
    assert "pointer_" in told.out
    assert call("latest", uri).out == f"{uri}/{family.newest}\n"
    assert call("verify", uri, "--repair", "--no-record").code == 0


def test_verify_all_reads_every_generation(call: Call, family: BuiltFamily, uri: str) -> None:
    """The newest may be well while an older one rots."""
    (family.root / family.family / str(family.generations[0]) / "data.json").unlink()
    assert call("verify", uri, "--no-record").code == 0
    told = call("verify", uri, "--all", "--no-record", "--json")
    assert told.code == 1
    assert len(json.loads(told.out)) == 4


def test_inspect_shows_a_generation_on_one_screen(call: Call, family: BuiltFamily, uri: str) -> None:
    """What it is, how far it got, over how many ranks, and what it holds."""
    told = call("inspect", f"{uri}/{family.newest}")
    assert told.code == 0
    assert "36 completed" in told.out
    assert "2 ranks" in told.out
    assert "optimizer" in told.out
    assert len(told.out.splitlines()) <= 40
    assert call("inspect", uri).out.count("committed") == 3


def test_inspect_says_where_a_component_without_a_file_of_its_own_lies(call: Call, tmp_path: Path) -> None:
    """A plain writer keeps everything in one file: "0 artifacts" of an optimizer would read like a loss."""
    run = Run.start(f"{tmp_path}/plain", SoloGroup(), allow_fresh=True)
    staging = run.stage(10)
    (staging.payload / "state.pt").write_bytes(b"everything")
    whole = StagedArtifact(path="state.pt", component=Component.MODEL, rank=0)
    published = run.publish(staging, [whole], job=build_job("plain", 10, Recipe(world_size=1)))
    run.close()
    told = call("inspect", f"{tmp_path}/plain/{published.generation}").out
    lines = {line.split()[0]: line for line in told.splitlines() if line.strip()}
    assert "in another's file" in lines["optimizer"]


def test_names_from_a_checkpoint_cannot_drive_the_terminal(call: Call, tmp_path: Path) -> None:
    """A checkpoint is a stranger's input: escape sequences and bidirectional marks are shown, not obeyed."""
    root = tmp_path / "hostile"
    root.mkdir()
    family = build_family(root, "llm\u202e7b", recipe=Recipe(prefix="\u202eevil"))
    uri = str(root / family.family)
    for command in (("inspect", f"{uri}/{family.newest}"), ("verify", uri), ("status", uri), ("inspect", uri)):
        told = call(*command)
        assert "\u202e" not in told.out + told.err
        assert "\x1b" not in told.out + told.err
        assert "\\u202e" in told.out


def test_a_quiet_status_speaks_only_of_what_is_broken(
    call: Call, family: BuiltFamily, uri: str, tmp_path: Path
) -> None:
    """Cron mails whatever is printed: a word about a healthy family every ten minutes teaches people to look away."""
    config = tmp_path / "lastgood.toml"
    config.write_text(f'[families.llm-7b]\nroot = "{family.root}"\n[families.gone]\nroot = "{family.root}"\n')
    assert call("status", uri, "--quiet") == Told(0, "", "")
    told = call("status", "--quiet", "--config", str(config))
    assert (told.code, told.out.count("COULD NOT TELL"), "READY" in told.out) == (64, 1, False)
    assert "nobody has published there" in told.out, "it is declared: asking for its name again would help nobody"
    assert call("quarantine", uri, "--reason", "the loss bends").code == 0
    told = call("status", uri, "--quiet")
    assert (told.code, "QUARANTINED" in told.out) == (1, True)
    assert [report["state"] for report in json.loads(call("status", uri, "-q", "--json").out)] == ["quarantined"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("verify", "{root}/llm-7b/00000001-0000000000000099"), 64, "no such generation"),
        (("verify", "{root}/unknown"), 64, "not a lastgood family"),
        (("verify", "/nowhere/at/all"), 2, "root is not a directory"),
        (("status", "/nowhere/at/all"), 2, "root is not a directory"),
        (("status",), 64, "no family named"),
        (("inspect", "{root}/unknown"), 64, "not a lastgood family"),
        (("inspect", "ftp://host/x"), 64, "unsupported scheme"),
        (("latest", ""), 64, "not a family"),
        (("verfy", "{root}/llm-7b"), 64, "No such command"),
        (("restore", "{root}/llm-7b", "--config", "{root}/missing.toml"), 64, "configuration not found"),
    ],
)
def test_mistakes_get_one_clear_line_and_the_right_code(
    arguments: tuple[str, ...], code: int, said: str, call: Call, family: BuiltFamily
) -> None:
    """Never a traceback for a user's mistake: the place, what was expected, and the documented exit code."""
    told = call(*(argument.format(root=family.root) for argument in arguments))
    assert told.code == code
    assert said in told.out + told.err
    assert len(told.err.splitlines()) <= 3


def test_a_malformed_manifest_is_a_finding_and_latest_goes_on(call: Call, family: BuiltFamily, uri: str) -> None:
    """One bad document must not hide the good generations behind it."""
    manifest = family.root / family.family / f".lastgood/manifests/{family.newest}.json"
    manifest.write_text('{"format_version": 1, "format_version": 1}')
    assert call("verify", f"{uri}/{family.newest}", "--no-record").code == 1
    assert call("latest", uri).out == f"{uri}/{family.generations[-2]}\n"
    assert call("inspect", uri).code == 0


def test_doctor_grades_a_root(call: Call, tmp_path: Path) -> None:
    """What publishing relies on is tried, not assumed; and the probe leaves nothing behind."""
    told = call("doctor", str(tmp_path), "--json")
    report = json.loads(told.out)
    assert (told.code, report["grade"]) == (0, "full")
    assert {"hard_link", "flush", "exclusive_create"} <= {probe["name"] for probe in report["probes"]}
    assert list(tmp_path.iterdir()) == []
    assert call("doctor", str(tmp_path / "nowhere")).code == 2


def test_the_module_runs_as_the_command() -> None:
    """`python -m lastgood` is `lastgood`, for environments without scripts on PATH."""
    told = subprocess.run([sys.executable, "-m", "lastgood", "--version"], capture_output=True, text=True)
    assert told.stdout.startswith("lastgood, version ")


def test_an_ignored_check_passes_with_its_reason_in_the_verdict(
    call: Call, family: BuiltFamily, uri: str, tmp_path: Path
) -> None:
    """What a family accepts on purpose is written down, and printed each time."""
    (family.root / family.family / str(family.newest) / "notes.safetensors").write_bytes(b"left over")
    config = tmp_path / "lastgood.toml"
    config.write_text(
        f'[families.llm-7b]\nroot = "{family.root}"\n[[families.llm-7b.ignore]]\n'
        'check = "unexpected_files"\nreason = "a sidecar of our data team lies there"\n'
    )
    assert call("verify", uri, "--no-record").code == 1
    told = call("verify", "llm-7b", "--config", str(config), "--no-record")
    assert told.code == 0
    assert "a sidecar of our data team lies there" in told.out
