"""A second copy: what it offers at every moment, what it refuses, and what interrupts it without harm."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lastgood.cli import run as command_line
from lastgood.copying import CopyResult, Selection, Standing, copy_family
from lastgood.errors import CopyRefused, StorePermanentError, UsageError
from lastgood.family import Family
from lastgood.formats.sealing import Wish, seal
from lastgood.identity import GenerationId
from lastgood.location import Location, locate, locate_place
from lastgood.records import keep_verdict, list_records
from lastgood.restore.materialize import make_copy, open_scratch
from lastgood.stores import LocalStore
from lastgood.testing.build import BuiltFamily, Recipe, build_family, build_life
from lastgood.verdict import Check, CheckState, Finding, Outcome, Reason, Rung, Tier, judge
from lastgood.verify import verify_family, verify_generation
from tests.crash.filesystems import Killed, KillingFileSystem
from tests.foreign import toy_known, write_toy

SMALL = Recipe(world_size=1, shard_bytes=64)
ALL = Selection(newest=None)
KILLER = Path(__file__).parent / "killed_copy.py"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody publishes at the copy, so a pointer that lags there need not be given time."""
    monkeypatch.setattr("lastgood.verify.pointers.time.sleep", lambda seconds: None)


@pytest.fixture
def built(tmp_path: Path) -> BuiltFamily:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    return build_family(tmp_path / "here", "llm", recipe=SMALL)


@pytest.fixture
def source(built: BuiltFamily) -> Location:
    return Location(store=built.store, keys=built.keys, generation=None)


@pytest.fixture
def target(built: BuiltFamily, tmp_path: Path) -> Location:
    return Location(store=LocalStore(tmp_path / "there"), keys=built.keys, generation=None)


def content_of(directory: Path) -> dict[str, tuple[str, int]]:
    """Of every file below: its digest and when it was changed."""
    return {
        str(path.relative_to(directory)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def offered(location: Location) -> GenerationId | None:
    return Family(location).latest().generation


def faults(location: Location) -> list[str]:
    """Everything that tier 1 finds in a family and in each of its candidates."""
    verdicts = [verify_family(location.store, location.keys)]
    verdicts += [verify_generation(location.store, location.keys, one) for one in Family(location).survey().candidates]
    told = [
        f"{verdict.subject}: {finding.reason}: {finding.message}"
        for verdict in verdicts
        for finding in verdict.findings
    ]
    return told + [
        f"{verdict.subject}: {verdict.outcome}" for verdict in verdicts if verdict.outcome is not Outcome.PASS
    ]


def standings(result: CopyResult) -> list[Standing]:
    return [one.standing for one in result.generations]


def spoil(built: BuiltFamily, generation: GenerationId, path: str = "data.json") -> None:
    file = built.root / built.family / str(generation) / path
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


def restored(location: Location, generation: GenerationId, scratch: Path) -> bool:
    """Whether tier 2 would take a private copy from there that it may load."""
    with open_scratch(location.of(generation), scratch, keep=False, purpose="test") as place:
        return make_copy(location.of(generation), place).manifest is not None


# What is copied.


def test_the_newest_generation_is_copied_and_the_copy_holds(
    source: Location, target: Location, built: BuiltFamily, tmp_path: Path
) -> None:
    """A remote tier must answer as the source does, pass tier 1 although older generations stayed behind, and be
    restorable; and the source is only read.
    """
    before = content_of(built.root)
    result = copy_family(source, target, Selection())
    assert standings(result) == [Standing.COPIED]
    assert offered(target) == offered(source) == built.newest
    assert Family(target).survey().candidates == (built.newest,)
    assert faults(target) == []
    assert restored(target, built.newest, tmp_path)
    assert content_of(built.root) == before


def test_all_generations_are_copied_byte_for_byte(source: Location, target: Location, built: BuiltFamily) -> None:
    """The bytes, the markers and their chain are the source's own; nothing is written anew."""
    copy_family(source, target, Selection())
    assert standings(copy_family(source, target, ALL)) == [Standing.COPIED, Standing.COPIED, Standing.KEPT]
    here, there = (content_of(one.local_family) for one in (source, target))
    wanted = {path: digest for path, (digest, _) in here.items() if "staging/" not in path and ".tmp-" not in path}
    assert {path: there[path][0] for path in wanted} == wanted
    assert faults(target) == []
    assert target.store.names(target.keys.staging).directories == ()


def test_a_second_copy_writes_nothing_anew(source: Location, target: Location) -> None:
    """A copy from cron costs a look at what is there: files that were written keep their times."""
    copy_family(source, target, ALL)
    before = content_of(target.local_family)
    assert set(standings(copy_family(source, target, ALL))) == {Standing.KEPT}
    assert content_of(target.local_family) == before


def test_a_named_generation_is_copied_whatever_became_of_it(
    source: Location, target: Location, built: BuiltFamily
) -> None:
    """Somebody may want a fenced one for the audit; at the copy it is as fenced as at the source."""
    Family(source).rollback(built.generations[0], reason="loss spiked")
    assert standings(copy_family(source.of(built.newest), target, Selection())) == [Standing.COPIED]
    assert Family(target).survey().fenced == (built.newest,)
    copy_family(source, target, ALL)
    assert offered(target) == offered(source) == built.generations[0]
    with pytest.raises(UsageError, match="not a commit"):
        copy_family(source.of(GenerationId(1, 99)), target, Selection())


def test_lives_and_gaps_keep_the_chain_whole(source: Location, target: Location, built: BuiltFamily) -> None:
    """A run saves more often than it is copied: the markers of what the copy lacks are there to be followed."""
    copy_family(source, target, Selection())
    grown = build_life(built, steps=(48, 60, 72), recipe=SMALL)
    copy_family(source, target, Selection())
    assert Family(target).survey().candidates == (grown.newest, built.newest)
    assert target.store.names(target.keys.omitted).files == ("00000001-0000000000000024", "00000002-0000000000000060")
    assert faults(target) == []
    (target.local_family / ".lastgood" / "omitted" / "00000002-0000000000000060").unlink()
    assert "commit_chain_broken" in faults(target)[0], "a marker that nobody vouches for is not taken on trust"


def test_the_newest_proven_generation_always_comes_along(
    source: Location, target: Location, built: BuiltFamily
) -> None:
    """A copy from which no restore ever passed is a hope; and in quarantine the proven one is all that is offered."""
    _restore(source, built.generations[0], failed=False)
    assert standings(copy_family(source, target, Selection())) == [Standing.COPIED, Standing.COPIED]
    Family(source).quarantine(reason="restores differ")
    copy_family(source, target, Selection())
    assert offered(target) == offered(source) == built.generations[0]
    assert Family(target).survey().newest_proven == built.generations[0]
    assert verify_family(target.store, target.keys).outcome is Outcome.PASS, "caches for people are right, too"


def _restore(location: Location, generation: GenerationId, *, failed: bool) -> None:
    missing = Finding(reason=Reason.KEY_MISSING, message="key missing", offender="model")
    findings = (missing,) if failed else ()
    check = Check(name="strict_load", state=CheckState.RAN, detail="", findings=findings)
    verdict = judge(
        tier=Tier.RESTORE, rung=Rung.FULL, subject=str(generation), checks=(check,), required=("strict_load",)
    )
    keep_verdict(location.store, location.keys, verdict, generation=generation)


# What refuses.


def test_a_barred_generation_is_never_offered_at_the_copy(
    source: Location, target: Location, built: BuiltFamily
) -> None:
    """A fail that became known after the copy reaches it with the next one, and so does what a release lifted."""
    copy_family(source, target, ALL)
    Family(source).quarantine(reason="bad shard", generation=built.newest)
    copy_family(source, target, ALL)
    assert offered(target) is None
    Family(source).release(reason="the others are fine")
    copy_family(source, target, ALL)
    assert offered(target) == offered(source) == built.generations[-2]


def test_a_barred_generation_is_not_copied(source: Location, target: Location, built: BuiltFamily) -> None:
    """It would fill the remote tier with what nobody may resume; the marker stays, for the next one names it."""
    Family(source).quarantine(reason="bad shard", generation=built.generations[1])
    Family(source).release(reason="the others are fine")
    copy_family(source, target, ALL)
    assert Family(target).survey().candidates == (built.generations[2], built.generations[0])
    assert faults(target) == []


def test_a_refusal_of_the_copys_own_stands_beside_the_sources(
    source: Location, target: Location, built: BuiltFamily
) -> None:
    """Two fails may bear one name, and the release of one must not lift the other."""
    copy_family(source, target, ALL)
    for location in (source, target):
        _restore(location, built.newest, failed=True)
    Family(source).release(reason="the driver of that machine")
    copy_family(source, target, ALL)
    copy_family(source, target, ALL)
    survey = Family(target).survey()
    assert len(survey.barred[built.newest]) == 2
    assert survey.quarantine == (f"tier2-0001_{built.newest}",), "the copy's own is still in force"


def test_a_fail_during_the_copy_is_seen_before_its_commit(
    source: Location, target: Location, built: BuiltFamily
) -> None:
    """Terabytes take hours; what was refused meanwhile must be refused at the copy at its first moment."""

    def refuse(stage: str) -> None:
        if stage == str(built.newest):
            Family(source).quarantine(reason="bad shard", generation=built.newest)
            Family(source).release(reason="the others are fine")

    copy_family(source, target, ALL, announce=refuse)
    assert built.newest in Family(target).survey().barred


def test_a_source_that_publishes_meanwhile_leaves_a_former_state(
    source: Location, target: Location, built: BuiltFamily
) -> None:
    """New lives, saves and takeovers during a copy: what is offered there was offered here at some moment."""
    seen = []

    def publish(stage: str) -> None:
        if stage == str(built.generations[1]):
            build_life(built, steps=(48,), recipe=SMALL)
        with contextlib.suppress(UsageError):
            seen.append(offered(target))

    copy_family(source, target, ALL, announce=publish)
    assert seen[1:] == [None, built.generations[0], built.generations[1], built.generations[2]][: len(seen) - 1]
    assert offered(target) == built.newest
    copy_family(source, target, ALL)
    assert offered(target) == offered(source) == GenerationId(2, 48)
    assert faults(target) == []


def test_wrong_bytes_at_the_source_are_never_copied(source: Location, target: Location, built: BuiltFamily) -> None:
    """A copy that carried rot on as if it were good would be worse than none; the other generations are copied."""
    spoil(built, built.generations[1])
    result = copy_family(source, target, ALL)
    assert standings(result) == [Standing.COPIED, Standing.REFUSED, Standing.COPIED]
    (finding,) = result.generations[1].findings
    assert (finding.reason, finding.offender) == (Reason.DIGEST_MISMATCH, "data.json")
    assert result.generations[1].blamed == source.store.uri
    assert Family(target).survey().candidates == (built.generations[2], built.generations[0])
    assert faults(target) == []
    assert not (target.local_family / str(built.generations[1])).exists()


@pytest.mark.parametrize("what", ["manifest", "artifact", "length"])
def test_what_is_missing_at_the_source_is_named(
    what: str, source: Location, target: Location, built: BuiltFamily
) -> None:
    """Nothing of a generation that cannot be resumed here is made visible there."""
    family = source.local_family
    file = family / str(built.newest) / "data.json"
    if what == "manifest":
        (family / ".lastgood" / "manifests" / f"{built.newest}.json").unlink()
    elif what == "artifact":
        file.unlink()
    else:
        file.write_bytes(b"short")
    (one,) = copy_family(source, target, Selection()).generations
    reasons = {"manifest": Reason.MANIFEST_MISSING, "artifact": Reason.ARTIFACT_MISSING, "length": Reason.SIZE_MISMATCH}
    assert [finding.reason for finding in one.findings] == [reasons[what]]
    assert offered(target) is None


# What lies at the destination.


def test_other_bytes_at_the_destination_are_named_and_kept(
    source: Location, target: Location, built: BuiltFamily
) -> None:
    """Nothing there is replaced: whose bytes they are is for a person to find out."""
    directory = target.local_family / str(built.newest)
    shutil.copytree(source.local_family / str(built.newest), directory)
    (directory / "data.json").write_bytes(b"x" * (directory / "data.json").stat().st_size)
    (one,) = copy_family(source, target, Selection()).generations
    assert [(finding.reason, finding.offender) for finding in one.findings] == [(Reason.DIGEST_MISMATCH, "data.json")]
    assert one.blamed == target.store.uri
    assert offered(target) is None


def test_equal_bytes_at_the_destination_are_kept(source: Location, target: Location, built: BuiltFamily) -> None:
    """A tree that rsync brought need not be sent again: it is read, compared, and gets its documents."""
    shutil.copytree(source.local_family / str(built.newest), target.local_family / str(built.newest))
    (one,) = copy_family(source, target, Selection()).generations
    assert (one.standing, one.copied_bytes) == (Standing.COPIED, 0)
    assert faults(target) == []


def test_a_commit_of_another_life_is_refused(source: Location, target: Location, built: BuiltFamily) -> None:
    """A slot that somebody burned or took at the copy is not taken back."""
    key = target.keys.commit(built.newest)
    target.store.create(key, b"other")
    result = copy_family(source, target, ALL)
    assert standings(result) == [Standing.COPIED, Standing.COPIED, Standing.REFUSED]
    assert key in result.generations[2].findings[0].message
    assert target.store.get(key, limit_bytes=99) == b"other"


def test_a_job_that_was_started_on_the_copy_ends_the_copying(
    source: Location, target: Location, built: BuiltFamily
) -> None:
    """From then on the copy is the run: it goes on above everything copied, nothing of the old place slips under it,
    and the way back is the same command with the places exchanged.
    """
    copy_family(source, target, ALL)
    moved = build_life(built.at(target.local_family.parent), steps=(48,), recipe=SMALL)
    assert offered(target) == moved.newest == GenerationId(2, 48)
    with pytest.raises(CopyRefused, match="incarnation 2 of"):
        copy_family(source, target, ALL)
    copy_family(target, source, ALL)
    assert offered(source) == moved.newest
    assert faults(source) == []


def test_two_runs_under_one_number_are_told_apart(source: Location, target: Location, built: BuiltFamily) -> None:
    """Both places went on: nothing is mixed, and the claim that differs is named."""
    copy_family(source, target, ALL)
    build_life(built, steps=(48,), recipe=SMALL)
    build_life(replace(built.at(target.local_family.parent), generations=()), steps=(60,), recipe=SMALL)
    with pytest.raises(CopyRefused, match="incarnations/00000002"):
        copy_family(source, target, ALL)
    assert offered(target) == GenerationId(2, 60)


def test_a_destination_that_is_not_there_is_not_made(source: Location, tmp_path: Path) -> None:
    """A disk that is not mounted must not be replaced by a directory beside it."""
    away = Location(store=LocalStore(tmp_path / "unmounted"), keys=source.keys, generation=None)
    with pytest.raises(StorePermanentError, match="not a directory"):
        copy_family(source, away, Selection())


def test_nothing_is_copied_onto_itself(source: Location, built: BuiltFamily, tmp_path: Path) -> None:
    """Also under another name for the same place, or inside it."""
    (tmp_path / "link").symlink_to(built.root)
    for root in (tmp_path / "link", built.root, built.root / "llm"):
        with pytest.raises(UsageError, match="onto itself"):
            copy_family(source, Location(store=LocalStore(root), keys=built.keys, generation=None), Selection())


# Evidence.


def test_evidence_about_the_content_is_carried_and_that_about_the_medium_is_not(
    source: Location, target: Location, built: BuiltFamily
) -> None:
    """A restore proves the bytes wherever they lie; tier 1 read one disk, and the copy must be read where it is."""
    _restore(source, built.newest, failed=False)
    Family(source).verify(built.newest)
    copy_family(source, target, Selection())
    assert [record.tier for record in list_records(target.store, target.keys)] == [Tier.RESTORE]
    assert Family(target).unjudged() == (built.newest,)
    Family(target).verify(built.newest)
    copy_family(source, target, Selection())
    assert [record.tier for record in list_records(target.store, target.keys)] == [Tier.MANIFEST, Tier.RESTORE]


def test_a_trace_that_grew_is_brought_up_to_date(source: Location, target: Location) -> None:
    """A restore from the copy has the live run as its control."""
    segment = ".lastgood/traces/00000001/rank-00000/00000000.jsonl"
    here, there = (one.local_family / segment for one in (source, target))
    here.parent.mkdir(parents=True)
    for text in ("one\n", "one\ntwo\n"):
        here.write_text(text)
        copy_family(source, target, Selection())
        assert there.read_text() == text


def test_the_trace_of_whoever_sealed_comes_with_what_was_sealed(tmp_path: Path) -> None:
    """A job of another framework has no number; its nonce in the COMMIT leads to its trace, in the copy as well."""
    with toy_known():
        seal(locate_place(str(write_toy(tmp_path / "here/llm", 10))), Wish(life="5ea1" * 8))
    here, there = (locate(f"{tmp_path}/{place}/llm") for place in ("here", "there"))
    for life in ("5ea1" * 8, "0dd5" * 8):
        segment = here.local_family / ".lastgood/traces" / life / "rank-00000/00000000.jsonl"
        segment.parent.mkdir(parents=True)
        segment.write_text("one\n")
    (tmp_path / "there").mkdir()
    copy_family(here, there, Selection())
    assert [one.name for one in (there.local_family / ".lastgood/traces").iterdir()] == ["5ea1" * 8]


# Interruption.


def test_a_copy_that_dies_at_any_call_is_taken_up(
    source: Location, target: Location, built: BuiltFamily, tmp_path: Path, record_property: Callable[[str, int], None]
) -> None:
    """Before every mutating call: what is offered there is whole, and the same command ends as if undisturbed."""
    two = Selection(newest=2)
    lawful = (None, *built.generations[1:])
    kills = 0
    for kill_at in range(1, 1000):
        root = tmp_path / f"killed-{kill_at}"
        root.mkdir()
        files = KillingFileSystem(kill_at)
        with contextlib.suppress(Killed):
            copy_family(source, Location(store=LocalStore(root, files), keys=built.keys, generation=None), two)
        if files.killed_in is None:
            break
        kills += 1
        there = Location(store=LocalStore(root), keys=built.keys, generation=None)
        offer = offered(there)
        assert offer in lawful, files.killed_in
        if offer is not None:
            assert verify_generation(there.store, there.keys, offer).outcome is Outcome.PASS, files.killed_in
        copy_family(source, there, two)
        assert offered(there) == built.newest, files.killed_in
        assert faults(there) == [], files.killed_in
        shutil.rmtree(root)
    assert kills > 50
    record_property("kill points of a copy", kills)


@pytest.mark.parametrize("call", [1, 4, 8, 11, 14, 17])
def test_a_killed_process_is_taken_up(call: int, source: Location, target: Location, built: BuiltFamily) -> None:
    """SIGKILL of a real process at a call of the destination's store, half a fetched artifact among them."""
    done = subprocess.run(
        [sys.executable, str(KILLER), str(call), source.family_uri, target.family_uri], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    copy_family(source, target, ALL)
    assert offered(target) == built.newest
    assert faults(target) == []
    assert target.store.names(target.keys.staging).directories == ()


def test_a_staging_that_a_power_cut_tore_is_filled_again(
    source: Location, target: Location, built: BuiltFamily
) -> None:
    """What lies in a staging of ours is nobody's: wrong bytes of either kind there are fetched once more."""
    payload = target.local_family / ".lastgood" / "staging" / f"copy-{built.newest}" / "payload"
    shutil.copytree(source.local_family / str(built.newest), payload)
    (payload / "config.json").write_bytes(b"")
    (payload / "data.json").write_bytes(bytes((payload / "data.json").stat().st_size))
    (one,) = copy_family(source, target, Selection()).generations
    assert one.standing is Standing.COPIED
    assert faults(target) == []


# Trees that something else copied.


@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        ("{newest}/model/rank-00000.safetensors", Reason.SHARD_MISSING),
        ("{newest}/data.json", Reason.ARTIFACT_MISSING),
        (".lastgood/manifests/{newest}.json", Reason.MANIFEST_MISSING),
        (".lastgood/commits/{newest}", Reason.COMMIT_MISSING),
        (".lastgood/incarnations/00000001", None),
        (".lastgood/incarnations/00000001.resume", Reason.GENERATION_FENCED),
        (".lastgood/commits/00000001-0000000000000024", Reason.COMMIT_CHAIN_BROKEN),
    ],
)
def test_a_tree_that_was_copied_in_the_wrong_order_says_what_is_missing(
    left_out: str, reason: Reason | None, source: Location, target: Location, built: BuiltFamily
) -> None:
    """`aws s3 sync` and rsync copy by name, so markers may be there before what they vouch for: each gap is named, or
    changes no answer.
    """
    shutil.copytree(source.local_family, target.local_family)
    (target.local_family / left_out.format(newest=built.newest)).unlink()
    verdict = verify_generation(target.store, target.keys, built.newest)
    assert [finding.reason for finding in verdict.findings] == ([reason] if reason else [])
    if reason in (Reason.SHARD_MISSING, Reason.ARTIFACT_MISSING):
        assert left_out.format(newest=built.newest).endswith(f"/{verdict.findings[0].offender}")
        assert offered(target) == built.generations[-2]
    copy_family(source, target, ALL)
    if reason not in (Reason.SHARD_MISSING, Reason.ARTIFACT_MISSING):
        assert faults(target) == [], "documents are supplied by the next copy"


def test_a_marker_without_its_directory_is_mended(source: Location, target: Location, built: BuiltFamily) -> None:
    """Documents that were copied before any artifact fail the generation, which names all of it; a copy supplies it."""
    shutil.copytree(source.local_family, target.local_family)
    shutil.rmtree(target.local_family / str(built.newest))
    verdict = verify_generation(target.store, target.keys, built.newest)
    assert [finding.reason for finding in verdict.findings] == [Reason.ARTIFACT_MISSING]
    assert standings(copy_family(source, target, Selection())) == [Standing.COPIED]
    assert faults(target) == []


def test_a_tree_without_its_claims_offers_nothing(source: Location, target: Location) -> None:
    """Without the documents that decide, an orphan's save could be offered: the family is refused instead."""
    shutil.copytree(source.local_family, target.local_family)
    shutil.rmtree(target.local_family / ".lastgood" / "incarnations")
    verdict = verify_family(target.store, target.keys)
    assert [finding.reason for finding in verdict.findings] == [Reason.DECISION_MALFORMED]
    assert command_line(["latest", target.family_uri]) == 2


# The command.


def test_the_command_takes_a_root_or_a_family(
    source: Location, target: Location, built: BuiltFamily, capsys: pytest.CaptureFixture[str]
) -> None:
    """`DST` is where the family goes or the family itself; the answer is one line a generation, or JSON."""
    assert command_line(["copy", source.family_uri, target.store.uri]) == 0
    assert f"{built.newest}  copied" in capsys.readouterr().out
    assert command_line(["copy", source.family_uri, f"{target.family_uri}/", "--all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["standing"] for one in told["generations"]] == ["copied", "copied", "kept"]
    assert told["destination"] == target.family_uri


def test_a_destination_that_is_not_there_is_called_that(
    source: Location, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two paths on one line nobody knows otherwise which of them is not mounted."""
    assert command_line(["copy", source.family_uri, str(tmp_path / "gone")]) == 2
    assert f"destination is not a root: {tmp_path}/gone" in capsys.readouterr().err


def test_the_command_fails_when_something_was_not_copied(
    source: Location, target: Location, built: BuiltFamily, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cron must hear of it, with the artifact and the place."""
    spoil(built, built.newest)
    assert command_line(["copy", source.family_uri, target.store.uri]) == 1
    out = capsys.readouterr().out
    assert "digest mismatch: data.json" in out
    assert f"not copied: 1 finding in {source.store.uri}" in out


def test_the_command_refuses_requests_that_contradict_themselves(
    source: Location, target: Location, built: BuiltFamily, tmp_path: Path
) -> None:
    """Each is a mistake of the caller's, and nothing is written for it."""
    there = target.store.uri
    assert command_line(["copy", source.family_uri, there, "--all", "--newest", "2"]) == 64
    assert command_line(["copy", f"{source.family_uri}/{built.newest}", there, "--all"]) == 64
    assert command_line(["copy", source.family_uri, there, "--newest", "0"]) == 64
    assert command_line(["copy", str(tmp_path / "here" / "none"), there]) == 64
    assert command_line(["copy", source.family_uri, source.store.uri]) == 64
    assert list(Path(there).iterdir()) == []
    assert locate(target.family_uri).family_uri == target.family_uri
