"""The comparison of a restore with what was promised: every fault raises its one reason, a healthy restore none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastgood import restore
from lastgood.manifest import AbsentComponent, Component, ComponentPromise, Determinism, Manifest, SampleIds
from lastgood.replica.trace import Loaded, NotFinite, Saved, Started, Step, Stopped, StopReason, TraceRecord
from lastgood.restore.compare import Comparison, compare
from lastgood.restore.control import CONTROL_CHECKS
from lastgood.restore.evidence import Control, Evidence, ReplicaEnd, Request, read_rank
from lastgood.testing.restore_damage import RESTORE_DAMAGE, RestoreDamage
from lastgood.testing.restore_traces import RestoreTraces, healthy_restore
from lastgood.verdict import CheckState, Note, NoteReason, Outcome, Reason, Rung, Tier, Verdict, judge
from tests.restore.test_materialize import SEAL


def request_for(manifest: Manifest, *, steps: int = 4, rung: Rung = Rung.FULL, world_size: int = 2) -> Request:
    return Request(manifest=manifest, steps=steps, rung=rung, world_size=world_size)


def evidence_of(traces: RestoreTraces) -> Evidence:
    return Evidence(
        end=ReplicaEnd(exit_status=traces.exit_status, seconds=3.0, deadline_seconds=60.0, log_tail=traces.log_tail),
        ranks={rank: read_rank(rank, records) for rank, records in traces.ranks.items()},
        lives=traces.lives,
        control=Control(steps=traces.control),
        saved=traces.saved,
    )


def compared(traces: RestoreTraces, **options: object) -> Comparison:
    return compare(request_for(traces.manifest, **options), evidence_of(traces))  # type: ignore[arg-type]


def verdict_of(comparison: Comparison, rung: Rung = Rung.FULL) -> Verdict:
    return judge(
        tier=Tier.RESTORE,
        rung=rung,
        subject="llm-7b",
        checks=comparison.checks,
        notes=comparison.notes,
        required=comparison.required,
    )


def states(comparison: Comparison) -> dict[str, CheckState]:
    return {check.name: check.state for check in comparison.checks}


def promising(traces: RestoreTraces, determinism: Determinism, *components: Component) -> RestoreTraces:
    """The same restore under a weaker promise for some components."""
    promises = tuple(
        ComponentPromise(
            component=promise.component,
            determinism=determinism,
            tolerance=0.01 if determinism is Determinism.TOLERANCE else None,
            reason="a test says so",
        )
        if promise.component in components
        else promise
        for promise in traces.manifest.job.promises
    )
    job = msgspec.structs.replace(traces.manifest.job, promises=promises)
    return replace(traces, manifest=msgspec.structs.replace(traces.manifest, job=job))


def with_losses(traces: RestoreTraces, factor: float) -> RestoreTraces:
    ranks = {
        rank: tuple(
            msgspec.structs.replace(record, loss=record.loss * factor) if isinstance(record, Step) else record
            for record in records
        )
        for rank, records in traces.ranks.items()
    }
    return replace(traces, ranks=ranks)


@pytest.mark.parametrize("damage", RESTORE_DAMAGE, ids=lambda damage: damage.name)
def test_every_fault_raises_its_reason_and_no_other(damage: RestoreDamage) -> None:
    """A check that cannot fail proves nothing, and one that blames the wrong thing sends people to the wrong place."""
    verdict = verdict_of(compared(damage.apply(healthy_restore())))
    assert verdict.outcome is Outcome.FAIL
    assert {finding.reason for finding in verdict.findings} == {damage.reason}
    assert damage.offender in [finding.offender for finding in verdict.findings]


def test_every_reason_that_a_restore_gives_is_in_the_catalogue() -> None:
    """A new check without its fault would be one that nobody has ever seen fail."""
    source = "".join(path.read_text(encoding="utf-8") for path in Path(restore.__file__).parent.glob("*.py"))
    given_by_code = {Reason[name] for name in re.findall(r"(?<![A-Za-z])Reason\.([A-Z_]+)\b", source)}
    # What a save lacks is told as a save that failed.
    assert given_by_code - {Reason.COMMIT_MISSING} <= {damage.reason for damage in RESTORE_DAMAGE}


def test_a_healthy_restore_passes_every_check() -> None:
    """A verifier that rejects good checkpoints is an outage too, so nothing healthy may raise or leave out anything."""
    comparison = compared(healthy_restore())
    verdict = verdict_of(comparison)
    assert verdict.outcome is Outcome.PASS
    assert verdict.notes == ()
    not_run = {name for name, state in states(comparison).items() if state is not CheckState.RAN}
    assert not_run == {"moving_average_tensors"}


def test_every_row_of_the_validation_table_is_a_check_of_the_record() -> None:
    """Whoever reads a record must find each question that a restore must answer, answered by name."""
    names = states(compared(healthy_restore()))
    table = {
        "strict_load",
        "model_tensors",
        "optimizer_tensors",
        "optimizer_steps",
        "gradient_scaler",
        "learning_rate_before_step",
        "learning_rate_after_step",
        "scheduler_position",
        "rng_draws",
        "sample_ids",
        "data_position",
        "accumulation_window",
        "loss_finite",
        "gradient_norm_finite",
        "optimizer_advanced_once",
        "control_loss",
        "control_digests",
        "save_after_resume",
    }
    assert table <= names.keys()


def test_a_finding_names_component_ranks_expected_and_found() -> None:
    """At 3 a.m. the line itself must say what differs, where, and by how much."""
    damage = next(one for one in RESTORE_DAMAGE if one.name == "a rank draws as another")
    (finding,) = verdict_of(compared(damage.apply(healthy_restore()))).findings
    assert finding.message == (
        "rng diverged: rng python on rank 1 in llm-7b/00000003-0000000000048000: expected [12, 13], found [11, 12]"
    )
    assert (finding.expected, finding.found) == ("[12, 13]", "[11, 12]")


def test_one_cause_on_every_rank_is_one_finding() -> None:
    """A thousand ranks that all lost the schedule must not bury the one line that matters."""
    damage = next(one for one in RESTORE_DAMAGE if one.name == "the schedule restarted")
    (finding,) = verdict_of(compared(damage.apply(healthy_restore()))).findings
    assert "on ranks 0–1" in finding.message


def test_the_first_step_on_which_runs_part_is_named_once() -> None:
    """After the first difference everything differs; only the first one says where to look."""
    findings = verdict_of(compared(with_losses(healthy_restore(), 1.5))).findings
    assert [finding.offender for finding in findings] == [
        "loss/rank-00000/value of step 48001",
        "loss/rank-00001/value of step 48001",
    ]


def test_without_a_live_trace_the_comparison_is_not_run_and_named() -> None:
    """The newest generation has no control yet; its restore is still decided, and says what was not compared."""
    comparison = compared(replace(healthy_restore(), control={}))
    verdict = verdict_of(comparison)
    assert verdict.outcome is Outcome.PASS
    assert all(states(comparison)[name] is CheckState.NOT_RUN for name in CONTROL_CHECKS)
    (note,) = [note for note in verdict.notes if note.reason is NoteReason.CONTROL_NOT_AVAILABLE]
    assert "steps 48001–48004" in note.message


def test_a_live_trace_that_ends_early_is_used_as_far_as_it_goes() -> None:
    """Two steps of control are better than none, and the note says which two are missing."""
    traces = healthy_restore()
    short = {
        rank: {step: one for step, one in steps.items() if step <= 48_002} for rank, steps in traces.control.items()
    }
    comparison = compared(replace(traces, control=short))
    loss = next(check for check in comparison.checks if check.name == "control_loss")
    assert loss.state is CheckState.RAN
    assert "steps 48001–48002" in loss.detail
    assert any("steps 48003–48004" in note.message for note in comparison.notes)


def test_a_replica_that_came_through_and_told_no_step_leaves_the_checkpoint_undecided_and_says_why() -> None:
    """A job whose framework shows no loss has nothing to be compared by, which is not for its user to guess."""
    traces = healthy_restore()
    untold = {
        rank: tuple(one for one in records if not isinstance(one, Step)) for rank, records in traces.ranks.items()
    }
    comparison = compared(replace(traces, ranks=untold, control={}))
    assert verdict_of(comparison).outcome is Outcome.NOT_RUN
    steps = next(check for check in comparison.checks if check.name == "smoke_steps")
    assert "ranks 0–1 reached step 48004 without telling each step: its framework shows no loss" in steps.detail


@settings(deadline=None)
@given(
    dropped=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 8)), max_size=18),
    copied=st.dictionaries(st.integers(0, 9), st.integers(0, 1), max_size=3),
    control=st.sets(st.integers(48_001, 48_004)),
    status=st.sampled_from([0, 1, 2, 64, 70, -9, None]),
    saved=st.booleans(),
)
def test_whatever_a_replica_leaves_behind_is_judged_and_passes_only_when_whole(
    dropped: set[tuple[int, int]], copied: dict[int, int], control: set[int], status: int | None, saved: bool
) -> None:
    """A supervisor that trips over a torn trace judges nothing, and one that passes it judges wrongly."""
    traces = healthy_restore()
    kept = {
        rank: tuple(record for place, record in enumerate(records) if (rank, place) not in dropped)
        for rank, records in traces.ranks.items()
    }
    left = replace(
        traces,
        ranks={**{rank: traces.ranks[source] for rank, source in copied.items() if rank > 1}, **kept},
        control={rank: {one: steps[one] for one in control} for rank, steps in traces.control.items()},
        exit_status=status,
        saved=traces.saved if saved else None,
    )
    outcome = verdict_of(compared(left)).outcome
    last_word = {(0, 8), (1, 8)}
    ended = status == 0 or (status is not None and not dropped & last_word)
    whole = not dropped - last_word and ended and saved
    assert (outcome is Outcome.PASS) == whole


def in_environment(traces: RestoreTraces, **settings: str) -> Evidence:
    """The restore as a replica makes it that states these settings, beside a live run with two threads on a CPU."""
    ranks = {
        rank: tuple(
            msgspec.structs.replace(record, settings=settings) if isinstance(record, Started) else record
            for record in records
        )
        for rank, records in traces.ranks.items()
    }
    control = Control(steps=traces.control, settings={"threads": "2", "device": "cpu", "torch": "2.13.0"})
    return replace(evidence_of(replace(traces, ranks=ranks)), control=control)


def test_settings_that_differ_from_the_live_run_s_are_noted() -> None:
    """Another number of threads orders sums otherwise; whoever reads of a divergence must see that first."""
    traces = healthy_restore()
    (note,) = compare(request_for(traces.manifest), in_environment(traces, threads="1", device="cpu")).notes
    assert note.message == "threads changed: the live run had 2, the replica 1"


COMPUTED = ("the loss parts from the live run", "the weights part from the live run")


@pytest.mark.parametrize("settings", [{"threads": "1"}, {"device": "another"}, {"torch": "9.9.9"}, {"python": "4.0"}])
def test_what_kernels_computed_in_another_environment_is_noted_and_refuses_nothing(settings: dict[str, str]) -> None:
    """A new release of torch rounds otherwise; a family quarantined for that could not be resumed anywhere."""
    traces = healthy_restore()
    for name in COMPUTED:
        traces = next(one for one in RESTORE_DAMAGE if one.name == name).apply(traces)
    verdict = verdict_of(compare(request_for(traces.manifest), in_environment(traces, **settings)))
    assert verdict.outcome is Outcome.PASS
    reasons = {note.reason for note in verdict.notes}
    assert reasons == {NoteReason.ENVIRONMENT_CHANGED, NoteReason.DETERMINISM_NOT_PROMISED}


def test_a_replica_s_own_word_counts_where_its_settings_do_not_say_it() -> None:
    """A loop may compare the manifest's environment with its own and trace no settings at all; another lastgood alone
    computes nothing.
    """
    traces = next(one for one in RESTORE_DAMAGE if one.name == COMPUTED[0]).apply(healthy_restore())
    for offender, outcome in (("environment.image_digest", Outcome.PASS), ("environment.lastgood", Outcome.FAIL)):
        note = Note(reason=NoteReason.ENVIRONMENT_CHANGED, message="changed", offender=offender)
        ranks = {
            rank: tuple(
                msgspec.structs.replace(record, notes=(note,)) if isinstance(record, Loaded) else record
                for record in records
            )
            for rank, records in traces.ranks.items()
        }
        assert verdict_of(compared(replace(traces, ranks=ranks))).outcome is outcome


@pytest.mark.parametrize(
    "damage", [one for one in RESTORE_DAMAGE if one.name not in COMPUTED], ids=lambda damage: damage.name
)
def test_another_environment_excuses_nothing_else(damage: RestoreDamage) -> None:
    """Ids, draws, rates, counters and what was just loaded are the same everywhere; a fault of theirs stays one."""
    traces = damage.apply(healthy_restore())
    verdict = verdict_of(compare(request_for(traces.manifest), in_environment(traces, threads="1")))
    assert {finding.reason for finding in verdict.findings} == {damage.reason}


@pytest.mark.parametrize(("factor", "outcome"), [(1.005, Outcome.PASS), (1.05, Outcome.FAIL)])
def test_a_tolerance_is_the_one_that_the_manifest_promised(factor: float, outcome: Outcome) -> None:
    """A tolerance chosen after a mismatch would pass anything; the promise was written at the save."""
    traces = promising(healthy_restore(), Determinism.TOLERANCE, Component.MODEL)
    assert verdict_of(compared(with_losses(traces, factor))).outcome is outcome


def test_under_a_tolerance_digests_of_later_steps_are_noted_only() -> None:
    """Nearly equal weights have wholly different digests, so a digest cannot judge what was promised to be near."""
    damage = next(one for one in RESTORE_DAMAGE if one.name == "the weights part from the live run")
    traces = promising(damage.apply(healthy_restore()), Determinism.TOLERANCE, Component.MODEL)
    verdict = verdict_of(compared(traces))
    assert verdict.outcome is Outcome.PASS
    assert [note.reason for note in verdict.notes] == [NoteReason.DETERMINISM_NOT_PROMISED]


def test_under_a_tolerance_a_loaded_tensor_must_still_be_the_saved_one() -> None:
    """Reordered sums excuse what the next steps compute, never what the load itself put in place."""
    damage = next(one for one in RESTORE_DAMAGE if one.name == "a model tensor is another")
    traces = promising(damage.apply(healthy_restore()), Determinism.TOLERANCE, Component.MODEL)
    assert verdict_of(compared(traces)).outcome is Outcome.FAIL


def test_a_replica_that_samples_other_tensors_is_undecided_and_not_refused() -> None:
    """Another version of lastgood may sample others; that says nothing against the checkpoint, and nothing for it."""
    traces = healthy_restore()
    manifest = traces.manifest
    assert manifest.expectations is not None
    ranks = tuple(
        msgspec.structs.replace(entry, tensor_digests={"model.other": f"blake3:{5:064x}"})
        for entry in manifest.expectations.ranks
    )
    expectations = msgspec.structs.replace(manifest.expectations, ranks=ranks)
    changed = replace(traces, manifest=msgspec.structs.replace(manifest, expectations=expectations))
    assert verdict_of(compared(changed)).outcome is Outcome.NOT_RUN


def test_random_streams_that_promise_nothing_are_noted() -> None:
    """The seed asks for RNG validation where determinism is promised; elsewhere a difference is worth a line only."""
    damage = next(one for one in RESTORE_DAMAGE if one.name == "a rank draws as another")
    verdict = verdict_of(compared(promising(damage.apply(healthy_restore()), Determinism.NONE, Component.RNG)))
    assert verdict.outcome is Outcome.PASS
    assert [note.reason for note in verdict.notes] == [NoteReason.DETERMINISM_NOT_PROMISED]


def test_a_component_absent_on_purpose_is_not_asked_for() -> None:
    """What the training code declared absent with a reason cannot be missing, and the check says why it did not run."""
    traces = healthy_restore()
    manifest = traces.manifest
    assert manifest.expectations is not None
    job = msgspec.structs.replace(
        manifest.job,
        promises=tuple(one for one in manifest.job.promises if one.component is not Component.SCALER),
        absent=(AbsentComponent(component=Component.SCALER, reason="training in bfloat16"),),
    )
    scalars = {key: value for key, value in manifest.expectations.scalars.items() if key != "scaler.scale"}
    expectations = msgspec.structs.replace(manifest.expectations, scalars=scalars)
    artifacts = tuple(one for one in manifest.artifacts if one.component is not Component.SCALER)
    changed = msgspec.structs.replace(manifest, job=job, expectations=expectations, artifacts=artifacts)
    comparison = compared(replace(traces, manifest=changed))
    check = next(check for check in comparison.checks if check.name == "gradient_scaler")
    assert check.state is CheckState.NOT_RUN
    assert "training in bfloat16" in check.detail
    assert verdict_of(comparison).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("the update used another rate than the one restored", set()),
        ("the rate leaves the schedule after one step", {Reason.LEARNING_RATE_DIVERGED}),
    ],
)
def test_a_loop_that_sets_its_rates_itself_is_held_to_the_live_run_alone(name: str, reasons: set[Reason]) -> None:
    """Many loops have no scheduler and compute the rate at the head of each step: what the groups held at the save was
    the last step's, and a restore that demanded it of the next would refuse them all.
    """
    traces = next(one for one in RESTORE_DAMAGE if one.name == name).apply(healthy_restore())
    reason = "the loop computes its rate from the step"
    job = msgspec.structs.replace(
        traces.manifest.job,
        promises=tuple(one for one in traces.manifest.job.promises if one.component is not Component.SCHEDULER),
        absent=(AbsentComponent(component=Component.SCHEDULER, reason=reason),),
    )
    manual = replace(traces, manifest=msgspec.structs.replace(traces.manifest, job=job))
    assert {finding.reason for finding in verdict_of(compared(manual)).findings} == reasons


def unpeekable(traces: RestoreTraces) -> RestoreTraces:
    manifest = traces.manifest
    assert manifest.expectations is not None
    ranks = tuple(
        msgspec.structs.replace(entry, sample_ids=SampleIds(from_trace="a socket has no next"))
        for entry in manifest.expectations.ranks
    )
    expectations = msgspec.structs.replace(manifest.expectations, ranks=ranks)
    return replace(traces, manifest=msgspec.structs.replace(manifest, expectations=expectations))


def test_a_source_that_cannot_be_peeked_is_decided_by_the_live_trace() -> None:
    """Next data ids must be right for a pass; where nobody could state them, only what really came next can tell."""
    with_control = verdict_of(compared(unpeekable(healthy_restore())))
    assert with_control.outcome is Outcome.PASS
    assert NoteReason.EXPECTATION_FROM_TRACE in [note.reason for note in with_control.notes]
    without = verdict_of(compared(replace(unpeekable(healthy_restore()), control={})))
    assert without.outcome is Outcome.NOT_RUN


def skipping(traces: RestoreTraces, *steps: int) -> RestoreTraces:
    """A scaler that skips some updates: the counter stands still and the gradient overflows in those."""

    def skip(step: Step) -> Step:
        lost = sum(1 for number in steps if number <= step.step)
        counted = {group: count - lost for group, count in step.optimizer_steps.items()}
        if step.step not in steps:
            return msgspec.structs.replace(step, optimizer_steps=counted)
        return msgspec.structs.replace(
            step,
            optimizer_steps=counted,
            grad_norm=NotFinite.INFINITY,
            scalars={**step.scalars, "skipped": 1},
        )

    ranks = {
        rank: tuple(skip(record) if isinstance(record, Step) else record for record in records)
        for rank, records in traces.ranks.items()
    }
    return replace(traces, ranks=ranks)


def test_an_update_that_the_scaler_skips_is_lawful_when_a_later_one_counts() -> None:
    """A scale that has just grown must overflow once; refusing that would quarantine good families."""
    traces = replace(skipping(healthy_restore(), 48_001), control={})
    assert verdict_of(compared(traces)).outcome is Outcome.PASS


def test_a_scaler_that_skips_every_update_is_refused() -> None:
    """Non-finite restored state makes every gradient overflow; the skips must not hide that nothing is ever updated."""
    traces = replace(skipping(healthy_restore(), 48_001, 48_002, 48_003, 48_004), control={})
    assert {finding.reason for finding in verdict_of(compared(traces)).findings} == {Reason.OPTIMIZER_NOT_STEPPED}


def test_a_skip_that_the_live_run_did_not_make_is_refused() -> None:
    """The live run is the control: where it updated, the restored state must be able to update too."""
    reasons = {finding.reason for finding in verdict_of(compared(skipping(healthy_restore(), 48_001))).findings}
    assert Reason.OPTIMIZER_NOT_STEPPED in reasons


def in_turn(traces: RestoreTraces) -> RestoreTraces:
    """A loop that updates one group in odd steps and the other in even ones."""

    def count(step: Step) -> Step:
        counted = {"decay": 48_000 + (step.step - 47_999) // 2, "no_decay": 48_000 + (step.step - 48_000) // 2}
        return msgspec.structs.replace(step, optimizer_steps=counted)

    ranks = {
        rank: tuple(count(record) if isinstance(record, Step) else record for record in records)
        for rank, records in traces.ranks.items()
    }
    control = {rank: {number: count(step) for number, step in steps.items()} for rank, steps in traces.control.items()}
    return replace(traces, ranks=ranks, control=control)


def advanced(comparison: Comparison) -> set[Reason]:
    (check,) = (check for check in comparison.checks if check.name == "optimizer_advanced_once")
    return {finding.reason for finding in check.findings}


def test_optimizers_that_are_stepped_in_turn_are_healthy_where_the_live_run_s_were() -> None:
    """Two networks that train against each other are updated in turn; to refuse that would quarantine good families."""
    comparison = compared(in_turn(healthy_restore()))
    assert verdict_of(comparison).outcome is Outcome.PASS, comparison.checks
    assert advanced(compared(replace(in_turn(healthy_restore()), control={}))) == {Reason.OPTIMIZER_NOT_STEPPED}
    assert advanced(compared(replace(in_turn(healthy_restore()), control=healthy_restore().control))) != set()


def test_of_a_loop_that_nobody_knows_any_optimizer_must_be_stepped() -> None:
    """Without a live trace nobody can say at which pace, but a resume after which nothing is updated is no resume."""
    traces = replace(in_turn(healthy_restore()), control={})
    sealed = msgspec.structs.replace(traces.manifest, seal=SEAL)
    assert advanced(compared(replace(traces, manifest=sealed))) == set()
    still = replace(skipping(healthy_restore(), *range(48_001, 48_005)), control={}, manifest=sealed)
    assert advanced(compared(still)) == {Reason.OPTIMIZER_NOT_STEPPED}


def gone_back(records: tuple[TraceRecord, ...]) -> tuple[TraceRecord, ...]:
    """A rank that made every step, and then ended itself in the place of saving."""
    said = "replica goes back: step 1 comes after step 48004"
    return tuple(
        msgspec.structs.replace(one, reason=StopReason.FAILED, message=said) if isinstance(one, Stopped) else one
        for one in records
        if not isinstance(one, Saved)
    )


@pytest.mark.parametrize("end", [(64, ""), (1, "  exitcode  : 64 (pid: 18341)\n")])
@pytest.mark.parametrize("lives", [1, 3])
def test_a_script_that_trains_twice_blames_no_sealed_checkpoint(end: tuple[int, str], lives: int) -> None:
    """A launcher starts it again and again, to the same end; a fail would quarantine a healthy family."""
    traces = healthy_restore()
    ranks = {rank: gone_back(records) for rank, records in traces.ranks.items()}
    told = replace(traces, ranks=ranks, lives=lives, exit_status=end[0], log_tail=end[1], saved=None)
    sealed = replace(told, manifest=msgspec.structs.replace(traces.manifest, seal=SEAL))
    verdict = verdict_of(compared(sealed))
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())
    assert verdict_of(compared(told)).outcome is Outcome.FAIL, "a job of ours says itself which training it is"


@pytest.mark.parametrize("status", [1, -6, 70])
def test_what_a_script_does_once_its_ranks_have_finished_is_no_part_of_the_restore(status: int) -> None:
    """Libraries abort now and then while an interpreter ends, and evaluations fail: neither blames the checkpoint, as a
    rank does that never said that it had finished.
    """
    aborted = replace(healthy_restore(), exit_status=status, log_tail="terminate called without an active exception")
    verdict = verdict_of(compared(aborted))
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())
    ended = next(check for check in verdict.checks if check.name == "replica_ended")
    assert ended.detail.startswith("every rank had finished what was asked for; exit status")
    assert ended.detail.endswith("terminate called without an active exception")
    silent = {**aborted.ranks, 1: tuple(one for one in aborted.ranks[1] if not isinstance(one, Stopped))}
    assert verdict_of(compared(replace(aborted, ranks=silent))).outcome is not Outcome.PASS
    assert verdict_of(compared(replace(aborted, lives=2))).outcome is not Outcome.PASS


def test_a_run_that_is_over_leaves_the_smoke_step_undecided() -> None:
    """The last generation of a finished run has no next step to make; that is neither a pass nor its fault."""
    damage = next(one for one in RESTORE_DAMAGE if one.name == "the replica ends well and trained nothing")
    verdict = verdict_of(compared(replace(damage.apply(healthy_restore()), control={})))
    assert verdict.outcome is Outcome.NOT_RUN


@pytest.mark.parametrize(
    ("status", "log"),
    [
        (64, "replica: no such option"),
        (2, "replica: store failed"),
        (127, "sh: torchrun: not found"),
        (1, "Root Cause:\n  rank      : 0\n  exitcode  : 64 (pid: 12)\n"),
    ],
)
def test_a_replica_that_blames_its_command_or_store_leaves_the_checkpoint_undecided(status: int, log: str) -> None:
    """A typo in a command line must not quarantine a family."""
    traces = replace(healthy_restore(), ranks={}, exit_status=status, log_tail=log, saved=None)
    assert verdict_of(compared(traces)).outcome is Outcome.INCONCLUSIVE


def test_a_crash_before_any_trace_is_a_crash_and_shows_the_log() -> None:
    """Once they were asked for, a crash on verified bytes counts against them, and the replica's last words say why."""
    traces = replace(healthy_restore(), ranks={}, exit_status=1, log_tail="loading\nRuntimeError: no", saved=None)
    verdict = verdict_of(compared(traces))
    (finding,) = verdict.findings
    assert finding.reason is Reason.RESTORE_CRASHED
    assert "RuntimeError: no" in finding.message
    ended = next(check for check in verdict.checks if check.name == "replica_ended")
    assert ended.detail.endswith("; its log ends:\nloading\nRuntimeError: no")


@pytest.mark.parametrize("status", [1, None])
def test_a_replica_that_never_asked_for_a_checkpoint_says_nothing_about_it(status: int | None) -> None:
    """A broken virtual environment ends every replica at its imports; that must not quarantine every family."""
    traces = replace(healthy_restore(), ranks={}, exit_status=status, log_tail="No module named 'x'", saved=None)
    evidence = replace(evidence_of(traces), has_asked=False)
    verdict = verdict_of(compare(request_for(traces.manifest), evidence))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    ended = next(check for check in verdict.checks if check.name == "replica_ended")
    assert "never asked" in ended.detail
    assert "No module named 'x'" in ended.detail


def test_a_full_scratch_disk_is_not_the_checkpoint_s_fault() -> None:
    """Our own disk was too small; the family must not be quarantined for it."""
    damage = next(one for one in RESTORE_DAMAGE if one.name == "the publish after the resume fails")
    traces = damage.apply(healthy_restore())
    evidence = replace(evidence_of(traces), starved="scratch is full")
    assert verdict_of(compare(request_for(traces.manifest), evidence)).outcome is Outcome.INCONCLUSIVE


def test_a_replica_of_another_size_than_asked_for_is_undecided() -> None:
    """A command that ignores the world size proves nothing about the topology that it was asked to restore."""
    traces = healthy_restore()
    comparison = compare(request_for(traces.manifest, world_size=4), evidence_of(traces))
    check = next(check for check in comparison.checks if check.name == "traces_written")
    assert check.state is CheckState.INCONCLUSIVE


def test_load_only_asks_nothing_of_steps_and_says_which_rung() -> None:
    """A weaker rung is honest about what it left out; only the full one may prove a generation."""
    traces = healthy_restore()
    short = replace(traces, ranks={rank: records[:3] for rank, records in traces.ranks.items()}, saved=None)
    comparison = compared(short, steps=0, rung=Rung.LOAD_ONLY)
    assert "smoke_steps" not in states(comparison)
    assert verdict_of(comparison, Rung.LOAD_ONLY).outcome is Outcome.PASS


def test_another_world_size_compares_what_belongs_to_no_rank() -> None:
    """Tensors are cut and samples spread differently, but no sample may be lost and no whole tensor may change."""
    traces = healthy_restore()
    merged: dict[int, tuple[object, ...]] = {0: tuple(_merged(traces))}
    single = replace(traces, ranks=merged)  # type: ignore[arg-type]
    comparison = compared(single, rung=Rung.TOPOLOGY_CHANGE, world_size=1)
    found = {check.name: check for check in comparison.checks}
    assert verdict_of(comparison, Rung.TOPOLOGY_CHANGE).outcome is Outcome.PASS
    assert found["rng_draws"].state is CheckState.NOT_RUN
    assert found["sample_ids"].state is CheckState.RAN
    assert "16 samples" in found["sample_ids"].detail
    assert NoteReason.TOPOLOGY_CHANGED in [note.reason for note in comparison.notes]


def _merged(traces: RestoreTraces) -> list[object]:
    """What one rank would have reported, consuming both ranks' samples."""
    records: list[object] = []
    for own, other in zip(traces.ranks[0], traces.ranks[1], strict=True):
        if isinstance(own, Step) and isinstance(other, Step):
            ids = tuple(mine + theirs for mine, theirs in zip(own.sample_ids, other.sample_ids, strict=True))
            records.append(msgspec.structs.replace(own, sample_ids=ids))
        elif hasattr(own, "world_size"):
            records.append(msgspec.structs.replace(own, world_size=1))
        else:
            records.append(own)
    return records
