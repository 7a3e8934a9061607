"""`verify`, `inspect`, `status` and `doctor` as a tired person reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood import documents
from lastgood.identity import FamilyKeys, GenerationId
from lastgood.manifest import Component
from lastgood.markers import ResumeRecord
from lastgood.protocol import burn, claim, decide, perform
from lastgood.publish import StagedArtifact
from lastgood.run import Run, SoloGroup
from lastgood.stores import LocalStore
from lastgood.testing.build import BuiltFamily, Recipe, build_family, build_job, build_life
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


def test_a_slot_that_was_given_up_is_not_judged(call: Call, family: BuiltFamily, uri: str) -> None:
    """It holds nothing, so a fail of it would be put on record against a publish that was abandoned on purpose."""
    perform(family.store, burn(family.keys, GenerationId(1, 48), "2" * 32))
    for every in ((), ("--all",)):
        told = call("verify", uri, *every)
        assert (told.code, "generation_burned" in told.out) == (0, False)
    assert family.store.names(family.keys.refusals).files == ()
    assert call("inspect", uri).out.splitlines()[2].split()[:3] == ["00000001-0000000000000048", "48", "burned"]


def test_a_family_in_which_nothing_was_finished_is_never_passed(call: Call, tmp_path: Path) -> None:
    """A gate that asks by exit code must not go on because nothing was there to be wrong."""
    store, keys = LocalStore(tmp_path), FamilyKeys("llm-7b")
    older = perform(store, claim(keys, nonce="1" * 32, host="test"))
    perform(store, decide(keys, older, nonce="1" * 32, allow_fresh=True))
    told = call("verify", str(tmp_path / "llm-7b"))
    assert (told.code, told.out.splitlines()[0]) == (2, "NOT RUN: llm-7b, tier 1 (full)")
    assert "nothing was ever committed" in call("status", str(tmp_path / "llm-7b")).out


def test_status_says_why_nothing_may_be_resumed_and_what_to_do(call: Call, family: BuiltFamily, uri: str) -> None:
    """`latest` sends people here, so it must know no less: what was passed over, and the way on."""
    for generation in family.generations:
        (family.root / family.keys.manifest(generation)).unlink()
    told = call("status", uri)
    assert (told.code, told.out.count("passed over manifest_missing: ")) == (1, 3)
    number = perform(family.store, claim(family.keys, nonce="2" * 32, host="test"))
    decision = ResumeRecord(nonce="2" * 32, from_generation=None, from_commit=None, keeps={})
    (family.root / family.keys.resume(number)).write_bytes(documents.canonical_bytes(decision))
    for command in ("latest", "status"):
        told = call(command, uri)
        text = told.out + told.err
        assert told.code == 1
        assert text.count("not kept by the takeover of incarnation 2") == 4
        assert "`lastgood rollback FAMILY GENERATION --reason ...` goes back to it" in text


def test_inspect_shows_a_generation_on_one_screen(call: Call, family: BuiltFamily, uri: str) -> None:
    """What it is, how far it got, over how many ranks, and what it holds."""
    told = call("inspect", f"{uri}/{family.newest}")
    assert told.code == 0
    assert "36 completed" in told.out
    assert "2 ranks" in told.out
    assert "optimizer" in told.out
    assert len(told.out.splitlines()) <= 40
    assert call("inspect", uri).out.count("committed") == 3


def test_inspect_of_a_tree_tells_generations_of_our_own_as_their_family_does(family: BuiltFamily, call: Call) -> None:
    """Of two lives the newer counts, whatever its step; what is not committed is no checkpoint yet."""
    later = build_life(family, steps=(13, 14))
    (family.root / family.keys.commit(later.newest)).unlink()
    latest = call("latest", str(family.root / family.family)).out.strip()
    told = call("inspect", "--recursive", str(family.root))
    assert told.code == 0
    assert "5 checkpoints: 4 resumable, 1 in_progress" in told.out
    assert f"newest that can be resumed: {latest}, step 13" in told.out
    document = json.loads(call("inspect", "--recursive", str(family.root), "--json").out)
    assert document[-2]["sealed"] == f"as {later.generations[-2]}, committed"
    assert document[-1]["sealed"] is None
    one = call("inspect", "--recursive", f"{family.root}/{family.family}/{later.newest}")
    assert (one.code, "COMMIT is written when everything is durable" in one.out) == (1, True)
    refused = call("latest", "--policy", "structural", str(family.root / family.family))
    assert (refused.code, refused.out) == (64, "")
    assert "leave out --policy structural" in refused.err


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
        (("verify", "{root}/unknown"), 64, "no family and no checkpoint"),
        (("verify", "/nowhere/at/all"), 2, "root is not a directory"),
        (("status", "/nowhere/at/all"), 2, "root is not a directory"),
        (("status",), 64, "no family named"),
        (("inspect", "{root}/unknown"), 64, "no family and no checkpoint"),
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


def test_verify_reads_a_slice_where_the_file_says_so_and_all_when_asked(
    call: Call, family: BuiltFamily, uri: str, tmp_path: Path
) -> None:
    """What costs an hour on every save must be said, and a person can have the whole."""
    file = tmp_path / "rotating.toml"
    file.write_text(f'[stores."{family.root}"]\nverify = {{ mode = "rotating", rotation = 4 }}\n')
    told = call("verify", f"{uri}/{family.newest}", "--config", str(file))
    assert told.code == 0
    assert "tier 1 (rotating)" in told.out
    assert "slice 1 of 4 (1 read in succession)" in told.out
    assert "partly_read" in call("latest", uri).err
    told = call("verify", f"{uri}/{family.newest}", "--read-all", "--config", str(file))
    assert "tier 1 (full)" in told.out
    assert "partly_read" not in call("latest", uri).err
    told = call("reconcile", uri, "--config", str(file))
    assert told.code == 0
    assert str(family.newest) not in told.out, "nothing of it is owed"
    assert str(family.generations[0]) in told.out
