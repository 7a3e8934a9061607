"""The demo's assertions, tried on sabotaged outcomes: a demo that cannot fail shows nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lastgood.identity import GenerationId
from lastgood.reasons import Reason
from lastgood.records import Measurements, Record
from lastgood.testing.build import BuiltFamily, build_family
from lastgood.testing.damage import CATALOGUE, Scene
from lastgood.verdict import Check, CheckState, Rung, Tier, Verdict, judge
from lastgood.verify import verify_family, verify_generation
from lastgood_prefect.demo.checks import (
    check_announced,
    check_drill,
    check_nothing_left,
    check_reading,
    check_recovery,
    check_refusals,
    check_report,
    check_restore,
    check_run,
    check_saves,
    check_trainer,
)
from lastgood_prefect.demo.pipeline import FlowRun
from lastgood_prefect.demo.story import DAMAGES

G10, G20 = GenerationId(1, 10), GenerationId(1, 20)


def verdict(state: CheckState = CheckState.RAN, *, tier: Tier = Tier.RESTORE, rung: Rung = Rung.FULL) -> Verdict:
    check = Check(name="held", state=state, detail="made up")
    return judge(tier=tier, rung=rung, subject="demo", checks=[check], required=["held"])


def run(state: str = "Completed", id: str = "run-1") -> FlowRun:  # noqa: A002 - the server's own word
    return FlowRun(id=id, name="brave-otter", state=state, message="", url=f"http://127.0.0.1:1/runs/flow-run/{id}")


def record(judged: Verdict, measurements: Measurements | None = None) -> Record:
    return Record(
        schema_version=1,
        family="demo",
        generation=str(G10),
        manifest=None,
        attempt=1,
        verdict=judged,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        finished_at=datetime(2026, 1, 1, tzinfo=UTC),
        host="here",
        lastgood="0",
        measurements=measurements or Measurements(),
        origin="http://127.0.0.1:1/runs/flow-run/run-1",
    )


@pytest.fixture
def family(tmp_path: Path) -> BuiltFamily:
    return build_family(tmp_path, "demo")


def test_saves_pass_only_when_every_expected_one_was_verified() -> None:
    """A save that never appeared, or was never conclusive, must fail the demo."""
    assert check_saves([10, 20], {G10: verdict(), G20: verdict()}) == ()
    assert check_saves([10, 20], {G10: verdict()})
    assert check_saves([10], {G10: verdict(CheckState.INCONCLUSIVE)})
    assert check_saves([10], {})


def test_the_trainer_may_know_no_server() -> None:
    """A run must start because a COMMIT appeared, not because the trainer asked for it."""
    assert check_trainer([{"HOME": "/x"}, {"RANK": "0"}]) == ()
    assert check_trainer([{"HOME": "/x"}, {"PREFECT_API_URL": "http://127.0.0.1:4200/api"}])
    assert check_trainer([{"HOME": "/x"}]), "nobody looked at the ranks"


def test_a_job_that_was_killed_must_go_on_from_what_it_had_saved() -> None:
    """A job that began anew, was never killed or resumed a stranger's save must fail the demo."""
    saved = (G10, GenerationId(2, 20))
    assert check_recovery({1: None, 2: str(G10)}, saved) == ()
    assert check_recovery({1: None}, saved)
    assert check_recovery({}, saved)
    assert check_recovery({1: None, 2: None}, saved)
    assert check_recovery({1: str(G10), 2: str(G10)}, saved)
    assert check_recovery({1: None, 2: str(GenerationId(2, 20))}, saved)
    assert check_recovery({1: None, 2: str(G20)}, saved)
    assert check_recovery({1: None, 2: str(G10), 3: str(G10)}, saved)


def test_a_bucket_must_announce_every_save() -> None:
    """The slow listing would find every save all the same, and nobody would see that no event ever came."""
    assert check_announced(4, 4) == check_announced(7, 4) == ()
    assert check_announced(3, 4)
    assert check_announced(0, 4)
    assert check_announced(None, 4) == (), "a directory has nobody to announce it"


def test_a_run_must_say_what_its_record_says() -> None:
    """A green run over a failed restore, or a verdict that leads to no run, must fail the demo."""
    passed, unclear = record(verdict()), record(verdict(CheckState.INCONCLUSIVE))
    assert check_run(run(), passed) == ()
    assert check_run(run(state="Inconclusive"), unclear) == ()
    assert check_run(run(state="Failed"), passed)
    assert check_run(run(), unclear)
    assert check_run(run(id="another"), passed)
    assert check_run(run(), None)


def test_a_restore_passes_only_in_full_and_when_it_moved_last_good() -> None:
    """A weaker rung, an inconclusive restore or a pointer that stayed must fail the demo."""
    assert check_restore(record(verdict()), last_good=G10, generation=G10) == ()
    assert check_restore(record(verdict(rung=Rung.LOAD_ONLY)), last_good=G10, generation=G10)
    assert check_restore(record(verdict(CheckState.INCONCLUSIVE)), last_good=G10, generation=G10)
    assert check_restore(record(verdict()), last_good=None, generation=G10)
    assert check_restore(record(verdict()), last_good=G20, generation=G10)
    assert check_restore(None, last_good=G10, generation=G10)


def test_a_drill_passes_only_when_its_phases_add_up() -> None:
    """A recovery time that nobody can account for, or none at all, must fail the demo."""

    def drilled(
        phases: dict[str, float], rto: float | None, lost: int | None = 5, state: CheckState = CheckState.RAN
    ) -> Record:
        measured = Measurements(phases=phases, rto_seconds=rto, rpo_loss_steps=lost)
        return record(verdict(state, tier=Tier.DRILL), measured)

    assert check_drill(drilled({"import": 2.0, "unaccounted": 0.5}, 2.5)) == ()
    assert check_drill(drilled({"import": 2.0}, 2.5))
    assert check_drill(drilled({}, None))
    assert check_drill(drilled({"import": 2.5}, 2.5, None))
    assert check_drill(drilled({"import": 2.5}, 2.5, state=CheckState.NOT_RUN))
    assert check_drill(None)


def test_a_gate_that_read_a_copy_must_say_how_fast() -> None:
    """A report that shows no bandwidth of a restore that passed must fail the demo, whatever it passed."""
    assert check_reading(record(verdict(), Measurements(read_bytes=10, read_seconds=0.1))) == ()
    assert check_reading(record(verdict(), Measurements(read_bytes=10)))
    assert check_reading(record(verdict(tier=Tier.DRILL)))
    assert check_reading(None) == (), "another check asks for a record"


def test_a_report_passes_only_with_a_page_that_links_to_the_runs(tmp_path: Path) -> None:
    """A report that missed an objective, wrote nothing or knows nothing of the drill must fail the demo."""
    page = tmp_path / "index.html"
    assert check_report(run(), page, [])
    page.write_text('<a href="http://127.0.0.1:1/runs/flow-run/run-1">run</a>')
    assert check_report(run(), page, [record(verdict())]) == ()
    assert check_report(run(state="Failed"), page, [record(verdict())])
    page.write_text("<p>nothing was judged</p>")
    assert check_report(run(), page, [record(verdict())])


def test_a_healthy_copy_offered_as_damaged_fails_the_demo(family: BuiltFamily) -> None:
    """If the gate slept, or saw something else than the damage, the demo must say so."""
    healthy = verify_generation(family.store, family.keys, family.newest)
    assert check_refusals({"byte_flipped": Reason.DIGEST_MISMATCH}, {"byte_flipped": healthy})
    assert check_refusals({"byte_flipped": Reason.DIGEST_MISMATCH}, {})
    scene = Scene(root=family.root, family="demo", generation=family.newest, stranger="demo")
    CATALOGUE["shard_deleted"].apply(scene)
    damaged = verify_generation(family.store, family.keys, family.newest)
    assert check_refusals({"shard_deleted": Reason.SHARD_MISSING}, {"shard_deleted": damaged}) == ()
    assert check_refusals({"shard_deleted": Reason.DIGEST_MISMATCH}, {"shard_deleted": damaged})


def test_a_process_left_running_fails_the_demo() -> None:
    """The demo promises to leave nothing running."""
    assert check_nothing_left([]) == ()
    assert check_nothing_left(["4711"]) == ("still running: 4711",)


@pytest.mark.parametrize("name", DAMAGES)
def test_the_demo_s_damages_need_no_stranger(name: str, family: BuiltFamily) -> None:
    """The demo copies one family alone, so its damages must work there and raise what they say."""
    damage = CATALOGUE[name]
    scene = Scene(root=family.root, family="demo", generation=family.newest, stranger="demo")
    damage.apply(scene)
    judged = (
        verify_family(scene.store, scene.keys)
        if damage.judge == "family"
        else verify_generation(scene.store, scene.keys, scene.generation)
    )
    assert {finding.reason for finding in judged.findings} == {damage.reason}
