"""Commands over checkpoints that another framework wrote: what they say, and by which code they exit."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lastgood.errors import StorePermanentError
from lastgood.formats import readers
from lastgood.formats.description import Description, Framework
from lastgood.formats.examination import open_place
from lastgood.formats.integrity import check_integrity
from lastgood.formats.readers.deepspeed import DeepSpeedReader
from lastgood.formats.readers.safetensors import SafetensorsReader
from lastgood.formats.readers.torch_save import TorchSaveReader
from lastgood.formats.source import Source
from lastgood.location import locate_place
from lastgood.run import Run, SoloGroup
from lastgood.stores.filesystem import FileSystem
from lastgood.stores.local import LocalStore
from lastgood.testing.build import BuiltFamily
from lastgood.verify import Depth
from tests.foreign import ToyReader, toy_known, write_toy, write_toy_file

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with toy_known():
        yield


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run of three saves, the newest of which its job did not finish."""
    root = tmp_path / "runs" / "llm"
    for step in (100, 200, 300):
        write_toy(root, step)
    (root / "toy-300" / "rank-1.rng").unlink()
    return root


def test_the_same_checkpoint_is_meant_however_its_path_is_spelled(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From within a directory its name alone must not mean an unsealed one, which passes where the sealed one fails."""
    assert call("seal", str(root / "toy-200")).code == 0
    model = root / "toy-200/model.toy"
    model.write_bytes(model.read_bytes().replace(b"m", b"M", 1))
    told = call("verify", "--no-record", str(root / "toy-200"))
    assert told.code == 1
    for directory, path in ((root, "toy-200"), (root, "./toy-200"), (root.parent, "llm/toy-200/")):
        monkeypatch.chdir(directory)
        assert call("verify", "--no-record", path).out == told.out


def test_what_was_saved_and_not_sealed_is_told_beside_what_is_offered(root: Path, call: Call) -> None:
    """Where sealing stopped, a restart would otherwise lose every later save without a word."""
    assert call("seal", str(root / "toy-100")).code == 0
    (root / "events.log").write_text("no checkpoint")
    told = call("latest", str(root))
    assert (told.code, told.out) == (0, f"{root}/toy-100\n")
    assert "unpublished_content" in told.err
    assert "not offered: toy-200, toy-300" in told.err


# inspect


def test_inspect_tells_on_one_screen_what_a_checkpoint_is(root: Path, call: Call) -> None:
    """At 3 a.m.: what it is, whether it can be resumed, from where on, on how many ranks, and what to do next."""
    told = call("inspect", str(root / "toy-200"))
    assert told.code == 0
    assert "RESUMABLE" in told.out
    assert "200 completed" in told.out
    assert "2 ranks, stated: toy.json says so" in told.out
    assert "not saved   data: toys have no data" in told.out
    assert f"next: lastgood seal {root}/toy-200" in told.out
    assert len(told.out.splitlines()) < 30


def test_inspect_names_what_is_missing_and_exits_1(root: Path, call: Call) -> None:
    """A script that asks must not go on with a torn one."""
    told = call("inspect", str(root / "toy-300"))
    assert told.code == 1
    assert "DAMAGED: random state missing: rank-1.rng" in told.out
    assert "shard_missing" in told.out
    document = json.loads(call("inspect", str(root / "toy-300"), "--json").out)
    assert (document["class"], document["findings"][0]["offender"]) == ("damaged", "rank-1.rng")


def test_inspect_of_a_root_says_which_could_be_resumed(root: Path, call: Call) -> None:
    """And that its framework would take the torn one."""
    told = call("inspect", str(root))
    assert told.code == 0
    assert "3 checkpoints: 2 resumable, 1 damaged" in told.out
    assert "its framework would resume: toy-300" in told.out
    assert f"newest that can be resumed: {root}/toy-200, step 200" in told.out


def test_inspect_of_a_single_file_is_the_same_screen(root: Path, call: Call) -> None:
    """Nothing can be listed below a file, and that is no trouble of the store."""
    path = write_toy_file(root, 7)
    told = call("inspect", str(path))
    assert (told.code, told.err) == (0, "")
    assert "RESUMABLE" in told.out
    assert call("verify", str(path)).code == 0


def test_inspect_of_what_could_not_be_read_exits_2(root: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that goes on at 0 would resume from bytes that nobody saw."""
    (root / "toy-100").rename(root.parent / "toy-100")
    integrity = check_integrity(open_place(locate_place(str(root / "toy-200"))), depth=Depth.METADATA)
    unread = msgspec.structs.replace(integrity, unread=("model.toy: timed out",))
    monkeypatch.setattr("lastgood.formats.examination.check_integrity", lambda *_, **__: unread)
    told = call("inspect", str(root / "toy-200"))
    assert told.code == 2
    assert "not read    model.toy: timed out" in told.out
    assert f"next: lastgood inspect {root}/toy-200" in told.out
    many = call("inspect", str(root))
    assert (many.code, "newest that can be resumed" in many.out) == (2, False)
    latest = call("latest", "--policy", "structural", str(root))
    assert (latest.code, latest.out) == (2, "")


def test_inspect_finds_every_checkpoint_of_a_tree(root: Path, call: Call) -> None:
    """Whoever inherits a tree of four thousand directories asks once."""
    write_toy(root.parent / "deep" / "er", 7)
    write_toy_file(root.parent, 8)
    (root.parent / "notes").mkdir()
    (root.parent / "notes" / "readme.txt").write_text("none")
    (root / "toy-400").mkdir()
    told = call("inspect", "--recursive", str(root.parent), "--json")
    found = {entry["uri"].removeprefix(f"{root.parent}/"): entry["class"] for entry in json.loads(told.out)}
    assert found == {
        "deep/er/toy-7": "resumable",
        "llm/toy-100": "resumable",
        "llm/toy-200": "resumable",
        "llm/toy-300": "damaged",
        "llm/toy-400": "unknown",
        "toy-8.safetensors": "resumable",
    }
    assert told.code == 0


def test_an_export_beside_the_checkpoints_of_its_run_hides_none_of_them(root: Path, call: Call) -> None:
    """A trainer leaves its last weights in the very directory that its checkpoints lie in."""
    (root / "toy.json").write_text('{"step": 300}')
    (root / "model.toy").write_bytes(b"weights")
    found = json.loads(call("inspect", str(root), "--json").out)
    assert {entry["uri"].removeprefix(str(root)): entry["class"] for entry in found} == {
        "": "weights_only",
        "/toy-100": "resumable",
        "/toy-200": "resumable",
        "/toy-300": "damaged",
    }
    assert call("latest", "--policy", "structural", str(root)).out == f"{root}/toy-200\n"
    assert "holds checkpoints of its own" in call("seal", str(root)).err


def test_inspect_of_what_nobody_knows_says_so_and_exits_2(tmp_path: Path, call: Call) -> None:
    """Silence about a directory would pass for health; and a program gets one object, as for every other one."""
    (tmp_path / "x" / "stuff").mkdir(parents=True)
    (tmp_path / "x" / "stuff" / "notes.txt").write_text("nothing")
    told = call("inspect", str(tmp_path / "x" / "stuff"))
    assert told.code == 2
    assert "UNKNOWN" in told.out
    assert json.loads(call("inspect", str(tmp_path / "x" / "stuff"), "--json").out)["class"] == "unknown"
    assert isinstance(json.loads(call("inspect", str(tmp_path / "x"), "--recursive", "--json").out), list)
    absent = call("inspect", str(tmp_path / "x" / "nowhere"))
    assert (absent.code, absent.out) == (64, "")
    assert "nothing lies there" in absent.err
    assert call("inspect", str(tmp_path / "gone" / "away" / "x")).code == 2


def test_an_empty_directory_is_called_that(tmp_path: Path, call: Call) -> None:
    """UNKNOWN would send a tired person to look for a reader, and nothing is there to be read."""
    (tmp_path / "runs" / "new").mkdir(parents=True)
    for arguments in (("inspect",), ("inspect", "--recursive")):
        told = call(*arguments, str(tmp_path / "runs" / "new"))
        assert told.code == 2
        assert "what        an empty directory" in told.out
        assert "UNKNOWN" not in told.out
        assert f"next: lastgood inspect {tmp_path}/runs " in told.out
    document = json.loads(call("inspect", str(tmp_path / "runs" / "new"), "--json").out)
    assert (document["class"], document["reasons"]) == ("unknown", ["an empty directory"])
    assert "an empty directory" in call("seal", str(tmp_path / "runs" / "new")).err


def test_checkpoints_of_a_tree_are_listed_by_their_numbers(root: Path, call: Call) -> None:
    """In the order of their text the newest of a long run hides among the oldest."""
    write_toy(root, 1000)
    for arguments in (("--recursive", str(root.parent)), (str(root),)):
        found = json.loads(call("inspect", "--json", *arguments).out)
        assert [Path(entry["uri"]).name for entry in found] == ["toy-100", "toy-200", "toy-300", "toy-1000"]
    assert "seal one of toy-100, toy-200, toy-300, toy-1000\n" in call("seal", str(root)).err


def test_inspect_offers_no_seal_that_would_be_refused(root: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a checkpoint, and what lies in a directory of Accelerate's own, are never sealed by themselves."""
    with monkeypatch.context() as patch:
        patch.setattr("tests.foreign.MODEL", "model.safetensors")
        path = write_toy_file(root, 1).rename(root / "toy-100" / "model.safetensors")
        assert f"next: lastgood inspect {root}/toy-100   # torch_save saved" in call("inspect", str(path)).out
        assert call("seal", str(path)).code == 64
    describe, accelerate = ToyReader.describe, Framework.ACCELERATE
    monkeypatch.setattr(ToyReader, "describe", lambda *of: msgspec.structs.replace(describe(*of), framework=accelerate))
    numbered = write_toy(root.parent / "checkpoints", 8, name="checkpoint_8")
    assert f"next: lastgood latest --policy structural {numbered.parent} " in call("inspect", str(numbered)).out
    assert call("seal", str(numbered)).code == 1


def test_inspect_offers_no_seal_where_a_job_publishes(family: BuiltFamily, uri: str, call: Call) -> None:
    """No decision of a job keeps a seal, so the line that is pasted would be refused."""
    foreign = write_toy(family.root / family.family, 7)
    assert f"next: lastgood latest {uri}   # a job publishes there" in call("inspect", str(foreign)).out
    assert call("seal", str(foreign)).code == 1


def test_inspect_of_a_sealed_one_says_how_it_stands(root: Path, call: Call) -> None:
    """The same screen, before and after."""
    assert call("seal", str(root / "toy-200")).code == 0
    told = call("inspect", str(root / "toy-200"))
    assert "as 00000000-0000000000000200~toy-200, committed" in told.out
    assert f"next: lastgood verify {root}/toy-200" in told.out
    family = call("inspect", str(root)).out
    assert "00000000-0000000000000200~toy-200" in family
    assert "neither published nor sealed: toy-100, toy-300" in family
    assert "DAMAGED" in call("inspect", str(root / "toy-300")).out


def test_what_cannot_be_read_is_a_row_of_its_own(root: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """One unreadable file, a pipe or a strange name among thousands must not take the answer about the others along."""
    write_toy(root.parent / "other", 7)
    os.mkfifo(root.parent / "other" / "newest")
    (root / "toy-4\n00").mkdir()
    get = LocalStore.get

    def denied(store: LocalStore, key: str, *, limit_bytes: int) -> bytes | None:
        if key.endswith("toy-100/toy.json"):
            raise StorePermanentError(f"cannot read {key}: permission denied")
        return get(store, key, limit_bytes=limit_bytes)

    monkeypatch.setattr(LocalStore, "get", denied)
    told = call("inspect", "--recursive", str(root.parent))
    assert (told.code, told.err) == (2, "")
    assert "3 checkpoints: 2 resumable, 1 damaged, 3 could not be told" in told.out
    assert len([line for line in told.out.splitlines() if line.startswith("could not tell ")]) == 3
    document = json.loads(call("inspect", "--recursive", str(root.parent), "--json").out)
    untold = [one for one in document if one["class"] == "could_not_tell"]
    why = {one["uri"].removeprefix(f"{root.parent}/"): one["reasons"][0] for one in untold}
    assert "permission denied" in why["llm/toy-100"]
    assert "not a regular file" in why["other"]
    assert "control character" in why["llm/toy-4\n00"]


def test_a_name_that_nothing_can_be_opened_by_is_a_row_of_its_own(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line break in the name of a single file, as any reader of contents meets it."""
    monkeypatch.setattr(readers, "READERS", (TorchSaveReader(), SafetensorsReader()))
    write_toy_file(tmp_path / "runs", 7)
    (tmp_path / "runs" / "toy-7.safetensors").rename(tmp_path / "runs" / "a\nb.safetensors")
    write_toy_file(tmp_path / "runs", 8)
    told = call("inspect", "--recursive", str(tmp_path / "runs"))
    assert told.code == 2
    assert "1 checkpoint: " in told.out
    assert "1 could not be told" in told.out


def test_a_directory_that_cannot_be_listed_is_a_row_of_its_own(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's directory below the tree, or a part of a checkpoint, of which nobody knows then what it holds."""
    (root / "toy-100" / "part").mkdir()
    write_toy(root.parent / "theirs", 7)
    scandir = os.scandir

    def denied(path: Path) -> Any:
        if path in (root / "toy-100" / "part", root.parent / "theirs"):
            raise PermissionError(errno.EACCES, "permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    document = json.loads(call("inspect", "--recursive", str(root.parent), "--json").out)
    assert {one["uri"].removeprefix(f"{root.parent}/"): one["class"] for one in document} == {
        "llm/toy-100": "could_not_tell",
        "llm/toy-200": "resumable",
        "llm/toy-300": "damaged",
        "theirs": "could_not_tell",
    }


def test_a_checkpoint_that_vanishes_meanwhile_is_a_row_of_its_own(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention goes on while somebody looks."""
    describe = ToyReader.describe

    def removed(reader: ToyReader, source: Source) -> Description:
        shutil.rmtree(root / "toy-100", ignore_errors=True)
        return describe(reader, source)

    monkeypatch.setattr(ToyReader, "describe", removed)
    told = call("inspect", "--recursive", str(root.parent))
    assert told.code == 2
    assert "2 checkpoints: 1 resumable, 1 damaged, 1 could not be told" in told.out
    assert "file vanished: toy.json" in told.out


def test_inspect_says_first_that_a_checkpoint_is_refused(root: Path, call: Call) -> None:
    """By its files it is whole: a script that asked must not resume what a gate, a rollback or an operator refused."""
    for step in (100, 200):
        assert call("seal", str(root / f"toy-{step}")).code == 0
    model = root / "toy-200" / "model.toy"
    model.write_bytes(model.read_bytes().replace(b"2", b"3"))
    assert call("verify", str(root / "toy-200")).code == 1
    told = call("inspect", str(root / "toy-200"))
    assert told.code == 1
    assert told.out.splitlines()[1].startswith("  REFUSED     barred: ")
    assert "RESUMABLE by its files" in told.out
    assert f"next: lastgood latest {root} " in told.out
    many = call("inspect", "--recursive", str(root))
    assert "3 checkpoints: 1 resumable, 1 damaged, 1 barred" in many.out
    assert f"newest that can be resumed: {root}/toy-100, step 100" in many.out
    assert call("inspect", str(root / "toy-100")).code == 0


def test_inspect_of_a_cut_checkpoint_says_so(root: Path, call: Call) -> None:
    """After a rollback the later ones are whole, and nothing resumes them."""
    for step in (100, 200):
        call("seal", str(root / f"toy-{step}"))
    assert call("rollback", f"{root}/toy-100", "--reason", "the loss diverged").code == 0
    told = call("inspect", str(root / "toy-200"))
    assert told.code == 1
    assert "REFUSED     fenced: incarnation 1 does not keep it" in told.out
    assert "1 fenced" in call("inspect", "--recursive", str(root)).out


def test_inspect_refuses_what_lay_unsealed_at_a_rollback(root: Path, call: Call) -> None:
    """The rollback gave it up, older or newer, so neither a seal nor `latest` takes it; a tree must not offer it."""
    call("seal", str(root / "toy-200"))
    assert "what lies there unsealed is given up" in call("rollback", f"{root}/toy-200", "--reason", "diverged").out
    told = call("inspect", str(root / "toy-100"))
    assert told.code == 1
    assert "REFUSED     fenced: incarnation 1 does not keep it" in told.out
    assert f"next: lastgood latest {root} " in told.out
    many = call("inspect", "--recursive", str(root)).out
    assert "1 fenced" in many
    assert f"newest that can be resumed: {root}/toy-200, step 200" in many


def test_inspect_takes_a_name_that_was_written_anew_for_a_new_checkpoint(root: Path, call: Call) -> None:
    """Training that goes on after a rollback comes to the same names again: the cut seal is of other files."""
    for step in (100, 200):
        call("seal", str(root / f"toy-{step}"))
    assert call("rollback", f"{root}/toy-100", "--reason", "the loss diverged").code == 0
    shutil.rmtree(root / "toy-200")
    write_toy(root, 200, ranks=3)
    offered = call("latest", "--policy", "structural", str(root)).out
    assert offered == f"{root}/toy-200\n"
    told = call("inspect", str(root / "toy-200"))
    assert told.code == 0, told.out
    assert f"next: lastgood seal {root}/toy-200" in told.out


def test_inspect_says_that_a_family_is_quarantined(root: Path, call: Call) -> None:
    """Of the family, and of each in it that was not proven."""
    call("seal", str(root / "toy-200"))
    call("quarantine", str(root), "--reason", "look at it first")
    family = call("inspect", str(root))
    assert "QUARANTINED  " in family.out.splitlines()[1]
    assert "look at it first" in family.out
    assert "quarantined: look at it first" in call("inspect", str(root), "--json").err
    one = call("inspect", str(root / "toy-200"))
    assert (one.code, "REFUSED     family quarantined" in one.out) == (1, True)
    assert "1 damaged, 2 quarantined" in call("inspect", "--recursive", str(root)).out


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_where_one_stands_is_a_place_as_any(
    root: Path, call: Call, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever went to the directory asks about `.` or `..`, sealed or not."""
    monkeypatch.chdir(root / "toy-200")
    for _ in range(2):
        for short, long in ((".", root / "toy-200"), ("..", root), ("./", root / "toy-200"), ("../../llm/.", root)):
            told, expected = call(command, short), call(command, str(long))
            assert (told.code, told.err) == (expected.code, "")
            assert told.out.splitlines()[0] == expected.out.splitlines()[0]
        assert call("seal", ".").code == 0


def test_a_look_says_whether_it_read_payload(root: Path, call: Call) -> None:
    """Of files without a checksum both looks would otherwise read alike, and one of them proved less."""
    shallow, deep = call("inspect", str(root / "toy-200")).out, call("inspect", "--deep", str(root / "toy-200")).out
    assert "integrity   by structure alone, payload was not read" in shallow
    assert "integrity   payload was read" in deep


def test_the_next_step_asks_for_what_the_files_do_not_tell(root: Path, call: Call) -> None:
    """A line that is pasted and then refused for a missing option costs a person's patience."""
    write_toy(root, 400, ranks=None)
    assert f"next: lastgood seal --world-size N {root}/toy-400 " in call("inspect", str(root / "toy-400")).out
    assert f"next: lastgood seal {root}/toy-200 " in call("inspect", str(root / "toy-200")).out


def test_a_printed_generation_can_be_pasted(root: Path, call: Call) -> None:
    """Verdicts and lists spell a sealed one by its id, and every command takes that for the checkpoint."""
    assert call("seal", str(root / "toy-200")).code == 0
    pasted = f"{root}/00000000-0000000000000200~toy-200"
    for command in ("inspect", "verify", "seal"):
        assert call(command, pasted).code == 0
    assert call("quarantine", str(root), "00000000-0000000000000200~toy-200", "--reason", "loss").code == 0


def test_a_link_is_taken_for_what_it_leads_to(root: Path, call: Call) -> None:
    """`latest -> step-200` is how people point at a save; it is no second checkpoint and hides none."""
    (root / "latest").symlink_to("toy-200")
    told = call("inspect", str(root / "latest"))
    assert (told.code, told.out.splitlines()[0]) == (0, f"{root}/toy-200")
    assert f"a link: {root}/latest: {root}/toy-200 is what it leads to" in told.err
    assert call("seal", str(root / "latest")).out.startswith(f"sealed {root}/toy-200 as ")
    assert call("verify", str(root / "latest")).out == call("verify", str(root / "toy-200")).out
    told = call("inspect", "--recursive", str(root))
    assert told.code == 0
    assert "3 checkpoints: 2 resumable, 1 damaged" in told.out
    assert "link: latest leads to toy-200: looked at under that name" in told.out
    told = call("latest", "--policy", "structural", str(root))
    assert (told.code, told.out) == (0, f"{root}/toy-200\n")
    assert "link" not in told.err
    (root / "gone").symlink_to("gone")
    assert call("inspect", str(root / "gone")).code in (2, 64)


def test_a_checkpoint_that_was_moved_away_behind_a_link_is_named(root: Path, call: Call) -> None:
    """Its framework follows the link and may load it, so an older one is not offered without a word."""
    (root / "toy-200").rename(root.parent / "moved")
    (root / "toy-200").symlink_to(root.parent / "moved")
    (root / "data").symlink_to(root.parent)
    (root / "latest").symlink_to(root / "toy-100")
    told = call("latest", "--policy", "structural", str(root))
    assert told.out == f"{root}/toy-100\n"
    assert f"a link that is not followed: toy-200: leads to {root.parent}/moved" in told.err
    assert told.err.count("a link that is not followed") == 1
    assert "link: toy-200 leads to" in call("inspect", str(root)).out
    assert "link: latest leads to toy-100: looked at under that name" in call("inspect", str(root)).out
    assert call("inspect", str(root / "toy-200")).code == 0


def test_a_hard_link_is_a_file_as_any(root: Path, call: Call) -> None:
    """Trainers that keep snapshots by links share bytes, and each snapshot is whole all the same."""
    (root / "toy-150").mkdir()
    for path in (root / "toy-100").iterdir():
        os.link(path, root / "toy-150" / path.name)
    assert "RESUMABLE" in call("inspect", str(root / "toy-150")).out
    assert call("seal", str(root / "toy-100")).code == 0
    assert call("verify", str(root / "toy-100")).code == 0


@pytest.mark.parametrize("kind", ["pipe", "socket", "directory", "link"])
def test_what_is_no_file_is_no_pointer(tmp_path: Path, call: Call, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed asks whether `latest` is a file and trains from step zero; nobody may wait for a pipe's writer."""
    monkeypatch.setattr(readers, "READERS", (DeepSpeedReader(), TorchSaveReader()))
    run = tmp_path / "run"
    (run / "global_step5").mkdir(parents=True)
    (run / "global_step5" / "mp_rank_00_model_states.pt").write_bytes(b"")
    if kind == "pipe":
        os.mkfifo(run / "latest")
    elif kind == "socket":
        monkeypatch.chdir(run)
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("latest")
    elif kind == "directory":
        (run / "latest").mkdir()
    else:
        (run / "latest").symlink_to("global_step5")
    for command in (("verify", str(run)), ("latest", "--policy", "structural", str(run))):
        told = call(*command)
        assert told.code == 1
        assert "pointer_malformed" in told.out + told.err
        assert f"expected the name of a directory beside it, found a {kind}" in (told.out + told.err).replace(
            "a pipe, a socket or a device", f"a {kind}"
        )


# seal


def test_seal_says_what_it_recorded_and_the_same_again_that_it_is(root: Path, call: Call) -> None:
    """An operator sees the step and the ranks that every tier will go by."""
    told = call("seal", str(root / "toy-200"), "--reason", "taken over")
    assert told.code == 0
    assert f"sealed {root}/toy-200 as 00000000-0000000000000200~toy-200" in told.out
    assert "step 200; 2 ranks" in told.out
    again = call("seal", str(root / "toy-200"), "--json")
    assert json.loads(again.out)["is_new"] is False


def test_seal_refuses_a_torn_one_and_names_why(root: Path, call: Call) -> None:
    """Exit 1 and the finding, so that a callback can tell it from a store that did not answer."""
    told = call("seal", str(root / "toy-300"))
    assert (told.code, told.out) == (1, "")
    assert "shard_missing" in told.err
    assert call("seal", str(root / "toy-999")).code == 64


def test_seal_of_a_directory_of_checkpoints_names_them(root: Path, call: Call) -> None:
    """In one line: what is found of each of them is not found against a checkpoint."""
    told = call("seal", str(root))
    assert told.code == 64
    assert told.err == f"lastgood: this is a directory of checkpoints: {root}: seal one of toy-100, toy-200, toy-300\n"
    assert not (root.parent / ".lastgood").exists()


@pytest.mark.parametrize("part", ["model.toy", "model.safetensors", "global_step8"])
def test_seal_of_a_part_of_a_checkpoint_is_refused(
    root: Path, call: Call, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write into the checkpoint, which is only read."""
    path = root / "toy-100" / part
    if part != "model.toy":
        (root / "toy-100" / "model.toy").unlink()
        monkeypatch.setattr("tests.foreign.MODEL", part if "." in part else f"{part}/toy.json")
    if part == "model.safetensors":
        write_toy_file(root, 1).rename(path)
    if part == "global_step8":
        write_toy(root / "toy-100", 8, name=part)
    told = call("seal", str(path))
    assert told.code == 64
    assert f"a part of a checkpoint: {path}" in told.err
    assert f"lastgood seal {root}/toy-100" in told.err
    assert not (root / "toy-100" / ".lastgood").exists()


def test_seal_of_a_file_beside_an_export_is_no_part_of_it(root: Path, call: Call) -> None:
    """What the export does not hold is a checkpoint of its own, and so is a directory beside it."""
    family = root.parent / "beside"
    write_toy(root.parent, 9, name="beside")
    for checkpoint in (write_toy_file(family, 7), write_toy(family, 8)):
        assert call("seal", str(checkpoint)).code == 0


@pytest.mark.parametrize("moment", ["yesterday", "2026-01-31T12:00:00"])
def test_seal_takes_no_time_that_could_mean_two(root: Path, call: Call, moment: str) -> None:
    """A local time is another one on another machine."""
    told = call("seal", str(root / "toy-200"), "--as-of", moment)
    assert told.code == 64


def test_every_command_of_a_family_works_on_a_sealed_one(root: Path, call: Call) -> None:
    """Number 0 belongs to no life, and no command stumbles over it."""
    call("seal", str(root / "toy-100"))
    call("seal", str(root / "toy-200"))
    assert call("verify", str(root / "toy-200")).code == 0
    assert call("verify", "--all", str(root)).code == 0
    assert call("latest", str(root)).out == f"{root}/toy-200\n"
    status = call("status", str(root))
    assert (status.code, "toy-200" in status.out) == (0, True)
    assert call("reconcile", str(root)).code == 0
    target = root.parent.parent / "copies"
    target.mkdir()
    assert call("copy", "--all", str(root), str(target)).code == 0
    assert call("latest", str(target / "llm")).out == f"{target}/llm/toy-200\n"
    assert call("verify", "--all", str(target / "llm")).code == 0
    assert call("rollback", f"{root}/toy-100", "--reason", "the loss diverged").code == 0
    assert call("latest", str(root)).out == f"{root}/toy-100\n"
    assert call("verify", str(root)).code == 0


def test_a_single_file_is_copied_as_one(root: Path, call: Call) -> None:
    """Its directory is the family's, in which the copy's other files must not be taken for its own."""
    for step in (7, 8):
        assert call("seal", str(write_toy_file(root, step))).code == 0
    target = root.parent.parent / "copies"
    target.mkdir()
    for _ in range(2):
        assert call("copy", "--all", str(root), str(target)).code == 0
    assert (target / "llm/toy-8.safetensors").read_bytes() == (root / "toy-8.safetensors").read_bytes()
    assert call("verify", "--all", str(target / "llm")).code == 0
    assert call("latest", str(target / "llm")).out == f"{target}/llm/toy-8.safetensors\n"


# verify without a seal


def test_verify_without_a_manifest_says_that_there_is_none(root: Path, call: Call) -> None:
    """A pass without a manifest shows less than one with it, and leaves no record."""
    told = call("verify", str(root / "toy-200"))
    assert told.code == 0
    assert "PASS: llm/toy-200, tier 1 (structural)" in told.out
    assert "nobody sealed it" in told.out
    assert not (root / ".lastgood").exists()


def test_verify_of_a_torn_one_fails_where_it_is_torn(root: Path, call: Call) -> None:
    """By the same names of checks as any generation."""
    verdict = json.loads(call("verify", str(root / "toy-300"), "--json").out)[0]
    assert verdict["outcome"] == "fail"
    assert [check["name"] for check in verdict["checks"] if check["findings"]] == ["completeness"]


def test_verify_of_a_root_judges_the_newest_and_the_pointer(root: Path, call: Call) -> None:
    """As of a family: its pointers, and the newest, which is the torn one."""
    (root / "newest").write_text("toy-999")
    verdicts = json.loads(call("verify", str(root), "--json").out)
    assert [verdict["subject"] for verdict in verdicts] == ["runs/llm", "runs/llm/toy-300"]
    assert [verdict["outcome"] for verdict in verdicts] == ["fail", "fail"]
    assert len(json.loads(call("verify", str(root), "--all", "--json").out)) == 4


def test_a_step_that_the_files_do_not_tell_is_told_as_that(root: Path, call: Call) -> None:
    """`None` is a word of our own."""
    path = write_toy_file(root, 7)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"step": "7"', b'"spet": "7"'))
    told = call("verify", str(path)).out
    assert "step not told; 0 fingerprints" in told
    assert "1 file;" in told
    assert "None" not in told


def test_verify_cannot_tell_what_nobody_knows(tmp_path: Path, call: Call) -> None:
    """Neither a pass nor a fail."""
    (tmp_path / "x" / "stuff").mkdir(parents=True)
    (tmp_path / "x" / "stuff" / "notes.txt").write_text("nothing")
    assert call("verify", str(tmp_path / "x" / "stuff")).code == 2


# latest and exec


def test_latest_offers_the_newest_whole_one_and_says_what_its_framework_would_do(root: Path, call: Call) -> None:
    """The framework takes the largest number, and dies of it."""
    told = call("latest", "--policy", "structural", str(root))
    assert (told.code, told.out) == (0, f"{root}/toy-200\n")
    assert "passed over: toy-300: shard_missing" in told.err
    assert "choices_differ: the framework would load toy-300" in told.err


def test_latest_says_when_a_pointer_leads_nowhere(root: Path, call: Call) -> None:
    """A framework that begins anew without a word loses the run."""
    (root / "newest").write_text("toy-999")
    told = call("latest", "--policy", "structural", str(root))
    assert told.out == f"{root}/toy-200\n"
    assert "pointer dangling" in told.err
    assert "trains from step zero without an error" in told.err


def test_latest_passes_over_an_empty_newer_directory(root: Path, call: Call) -> None:
    """A trainer makes it first and writes into it later."""
    (root / "toy-400").mkdir()
    told = call("latest", "--policy", "structural", str(root))
    assert told.out == f"{root}/toy-200\n"
    assert "passed over: toy-400: save_unfinished" in told.err


def test_latest_never_offers_nothing_in_silence(root: Path, call: Call) -> None:
    """Every one is torn: exit 1, an empty stdout, and each named."""
    for step in (100, 200):
        (root / f"toy-{step}" / "rank-0.rng").unlink()
    told = call("latest", "--policy", "structural", str(root))
    assert (told.code, told.out) == (1, "")
    assert "of 3 checkpoints none can be" in told.err
    assert "`lastgood inspect --recursive` of that directory" in told.err
    assert "lastgood status" not in told.err


def test_latest_offers_by_no_door_what_was_refused(root: Path, call: Call) -> None:
    """A fail on record, an operator's word and a rollback hold whatever the policy."""
    call("seal", str(root / "toy-100"))
    call("seal", str(root / "toy-200"))
    model = root / "toy-200" / "model.toy"
    model.write_bytes(model.read_bytes().replace(b"2", b"3"))
    assert call("verify", str(root / "toy-200")).code == 1
    told = call("latest", "--policy", "structural", str(root))
    assert told.out == f"{root}/toy-100\n"
    assert "generation_barred" in told.err
    write_toy(root, 350)
    call("rollback", f"{root}/toy-100", "--reason", "the loss diverged")
    told = call("latest", "--policy", "structural", str(root))
    assert told.out == f"{root}/toy-100\n"
    assert "toy-350: generation_fenced" in told.err
    call("quarantine", str(root), "--reason", "look at it first")
    told = call("latest", "--policy", "structural", str(root))
    assert (told.code, told.out) == (1, "")
    assert "family_quarantined" in told.err


def test_deep_judges_a_sealed_one_by_its_digests(root: Path, call: Call) -> None:
    """No checksum inside covers these bytes, and the seal has one of every file."""
    assert call("seal", str(root / "toy-200")).code == 0
    model = root / "toy-200" / "model.toy"
    model.write_bytes(model.read_bytes().replace(b"2", b"3"))
    assert call("latest", "--policy", "structural", str(root)).out == f"{root}/toy-200\n"
    told = call("latest", "--policy", "structural", "--deep", str(root))
    assert told.out == f"{root}/toy-100\n"
    assert "passed over: toy-200: digest_mismatch" in told.err


def test_a_bar_stays_and_says_how_the_right_bytes_are_offered_again(root: Path, call: Call) -> None:
    """A fail on record dominates, and whoever brought the bytes back must not wait for a pass to lift it."""
    call("seal", str(root / "toy-200"))
    model = root / "toy-200" / "model.toy"
    right = model.read_bytes()
    model.write_bytes(right.replace(b"2", b"3"))
    assert call("verify", str(root / "toy-200")).code == 1
    model.write_bytes(right)
    told = call("verify", str(root / "toy-200"))
    assert (told.code, "digest_mismatch" in told.out) == (1, False)
    assert "seal a copy of them under another name" in told.out
    shutil.copytree(root / "toy-200", root / "toy-201")
    assert call("seal", str(root / "toy-201")).code == 0
    assert call("latest", str(root)).out == f"{root}/toy-201\n"


def test_a_question_one_level_too_high_is_answered_with_the_real_names(root: Path, call: Call) -> None:
    """`/runs` in the place of `/runs/llm` is the commonest first command, and an empty answer would be believed."""
    (root.parent / "notes").mkdir()
    deeper = f"look one level deeper: {root}\n"
    assert deeper in call("verify", str(root.parent)).err
    for policy in ("verified", "structural"):
        told = call("latest", "--policy", policy, str(root.parent))
        assert (told.code, told.out) == (1, "")
        assert deeper in told.err
    assert "look one level deeper" not in call("latest", "--policy", "structural", str(root)).err


def test_what_nobody_sealed_is_pointed_at_by_the_policy_that_knows_it(root: Path, call: Call) -> None:
    """Parts of a checkpoint look like checkpoints: whoever is led to them asks a file of weights what to resume."""
    write_toy_file(root / "toy-200", 1).rename(root / "toy-200" / "model.safetensors")
    told = call("latest", str(root))
    assert (told.code, told.out) == (1, "")
    assert f"checkpoints that nobody sealed lie here: `lastgood latest --policy structural {root}`" in told.err
    assert "look one level deeper" not in told.err
    assert "lastgood status" not in told.err
    one = call("latest", str(root / "toy-200"))
    assert f"this is a checkpoint that nobody sealed: `lastgood latest --policy structural {root}` asks" in one.err


@pytest.mark.parametrize("command", ["status", "restore", "copy", "reconcile"])
def test_no_family_is_told_with_what_lies_there(root: Path, call: Call, command: str) -> None:
    """Commands that need a family of ours are asked one level too high as often as any other."""
    others = [str(root.parent.parent)] if command == "copy" else []
    told = call(command, str(root.parent), *others)
    assert told.code == 64
    assert f"look one level deeper: {root}\n" in told.out + told.err
    told = call(command, str(root), *others)
    assert told.code == 64
    assert "checkpoints that nobody sealed lie here" in told.out + told.err


def test_seal_of_a_directory_above_says_where_checkpoints_lie(root: Path, call: Call, tmp_path: Path) -> None:
    """What is found of the files of a whole tree would be told as if it were one damaged checkpoint."""
    for above in (root.parent, tmp_path):
        told = call("seal", str(above))
        assert (told.code, told.out) == (64, "")
        assert told.err == (
            f"lastgood: not a checkpoint, nor the directory of any: {above}: checkpoints lie deeper, e.g. in {root}\n"
            f"hint: `lastgood inspect --recursive {above}` lists them; seal them one by one\n"
        )
    assert not list(tmp_path.rglob(".lastgood"))


def test_a_file_in_the_place_of_a_family_is_told_by_the_path_that_was_given(root: Path, call: Call) -> None:
    """Nobody knows what `.lastgood/proven` below a file of weights is to mean."""
    path = write_toy_file(root, 7)
    for command in (("status",), ("latest",), ("latest", "--policy=structural"), ("quarantine", "--reason=look at it")):
        told = call(*command, str(path))
        assert told.code == 64
        assert str(path) in told.out + told.err
        assert ".lastgood" not in told.out + told.err
    below = call("latest", f"{path}/llm")
    assert below.code == 2
    assert f"root is not a directory: {path}" in below.err


def test_a_family_behind_a_link_of_its_name_is_that_family(root: Path, call: Call, tmp_path: Path) -> None:
    """A disk that filled up: what was sealed must not look as if nobody had, for an unsealed one passes with less."""
    assert call("seal", str(root / "toy-200")).code == 0
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "llm").symlink_to(root)
    told = call("verify", "--no-record", str(tmp_path / "links" / "llm"))
    assert told.code == 0
    assert "00000000-0000000000000200~toy-200, tier 1 (full)" in told.out
    assert "1 generation\n" in call("inspect", str(tmp_path / "links" / "llm")).out


@pytest.mark.parametrize("uri", ["S3://bucket/llm", "FILE:///runs/llm", "gs://bucket"])
def test_a_scheme_that_nobody_knows_is_no_directory_here(
    uri: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for a relative path it would be looked for in whatever directory the command is run."""
    monkeypatch.chdir(tmp_path)
    for command in (("latest", "--policy=structural"), ("seal",), ("inspect",)):
        told = call(*command, uri)
        assert told.code == 64
        assert f"unsupported scheme '{uri.partition(':')[0]}'" in told.err


def test_latest_asks_a_directory_of_checkpoints(root: Path, call: Call, tmp_path: Path) -> None:
    """Naming one of them is a mistake of the caller; a root that is not mounted is no empty one."""
    assert call("latest", "--policy", "structural", str(root / "toy-200")).code == 64
    assert call("latest", "--policy", "structural", str(tmp_path / "gone" / "away" / "x")).code == 2
    assert call("latest", str(root)).code == 1  # nobody sealed one: the other policies never guess


def test_a_fresh_start_beside_checkpoints_that_nobody_sealed_names_the_policy_for_them(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other policies ask commits alone: that nothing was finished there would be untrue, and cost the run."""
    monkeypatch.setattr(os, "execvp", lambda program, arguments: None)
    told = call("exec", "--allow-fresh", str(root), "--", "train", "{generation}")
    assert "starts at step zero: nothing was ever committed here" in told.err
    assert f"`lastgood latest --policy structural {root}` names the newest that is whole" in told.err
    assert "finished here" not in told.err


def test_verify_of_a_directory_without_checkpoints_says_what_to_ask(root: Path, call: Call) -> None:
    """An inconclusive verdict without a finding explains nothing: the path may be one too high, two, or wrong."""
    assert f"look one level deeper: {root}" in call("verify", str(root.parent)).err
    told = call("verify", str(root.parent.parent))
    assert told.code == 2
    assert f"`lastgood inspect --recursive {root.parent.parent}` says what lies there" in told.err


def test_a_seal_in_a_tree_that_may_only_be_read_names_the_setting_for_it(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is refused by a mount does not know that evidence can lie elsewhere."""

    def refuse(self: FileSystem, path: Path) -> bool:
        if path.exists():
            return False  # the kernel says so first
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(FileSystem, "make_directory", refuse)
    told = call("seal", str(root / "toy-200"))
    assert told.code == 2
    assert "read-only file system" in told.err
    assert "`evidence` in lastgood.toml" in told.err


def test_a_seal_where_a_job_claimed_is_not_sent_to_a_rollback_to_nothing(root: Path, call: Call) -> None:
    """No generation lies there to go back to, so the way on is another directory."""
    Run.start(str(root), SoloGroup(), allow_fresh=True)
    told = call("seal", str(root / "toy-200"))
    assert told.code == 1
    assert "hint: copy the checkpoint to a directory to which no job publishes, and seal it there" in told.err


def test_exec_fills_in_the_path_of_the_chosen_one(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The launch script starts its trainer with what is whole, or starts nothing."""
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execvp", lambda program, arguments: started.append(arguments))
    call("exec", "--policy", "structural", str(root), "--", "train", "--resume={generation}")
    assert started == [["train", f"--resume={root}/toy-200"]]
    (empty := tmp_path / "runs" / "new").mkdir()
    told = call("exec", "--policy", "structural", str(empty), "--", "train", "{generation}")
    assert told.code == 1
    call("exec", "--policy", "structural", "--allow-fresh", str(empty), "--", "train", "x{generation}")
    assert started[1:] == [["train", "x"]]
    for step in (100, 200):
        (root / f"toy-{step}" / "rank-0.rng").unlink()
    refused = call("exec", "--policy", "structural", "--allow-fresh", str(root), "--", "train", "x{generation}")
    assert (refused.code, len(started)) == (1, 2)
    assert "move away what is no checkpoint" in refused.err
    assert "holds commits" not in refused.err
    (empty / "weights.npz").write_bytes(b"of a framework that nobody knows here")
    unknown = call("exec", "--policy", "structural", "--allow-fresh", str(empty), "--", "train", "x{generation}")
    assert (unknown.code, len(started)) == (1, 2)
    assert "a save may have been finished: weights.npz" in unknown.err
    assert "move away what is no checkpoint" in unknown.err
