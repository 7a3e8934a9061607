"""What must be true after each step of the demo. Each function names every way in which it is not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from lastgood.identity import GenerationId
from lastgood.records import Record
from lastgood.verdict import Outcome, Reason, Rung, Verdict
from lastgood_prefect.demo.pipeline import FlowRun

__all__ = [
    "check_announced",
    "check_drill",
    "check_nothing_left",
    "check_reading",
    "check_recovery",
    "check_refusals",
    "check_report",
    "check_restore",
    "check_run",
    "check_saves",
    "check_trainer",
]


def check_saves(expected_steps: Sequence[int], verdicts: Mapping[GenerationId, Verdict]) -> tuple[str, ...]:
    """Every expected step was committed, verified on its own save, and passed."""
    problems = []
    steps = [generation.step for generation in verdicts]
    missing = [step for step in expected_steps if step not in steps]
    if missing:
        problems.append(f"steps never verified: {missing}; verified {steps}")
    for generation, verdict in verdicts.items():
        if verdict.outcome is not Outcome.PASS:
            problems.append(f"{generation}: expected pass, found {verdict.outcome}")
    return tuple(problems)


def check_recovery(
    resumed: Mapping[int, str | None], saved: Collection[GenerationId], *, first: int = 1
) -> tuple[str, ...]:
    """The job began at step zero, was killed once, and went on from a save of its first life."""
    if list(resumed) != [first, first + 1]:
        return (f"training: expected two starts, found {len(resumed)}: {dict(resumed)}",)
    problems = []
    if resumed[first] is not None:
        problems.append(f"training: expected a first start at step zero, found {resumed[first]}")
    if resumed[first + 1] not in {str(generation) for generation in saved if generation.incarnation == first}:
        problems.append(f"training: expected to resume a save of the life that was killed, found {resumed[first + 1]}")
    return tuple(problems)


def check_announced(announced: int | None, saves: int) -> tuple[str, ...]:
    """A bucket that announces its commits announced every one; a directory (None) has nobody who would."""
    if announced is not None and announced < saves:
        return (f"events: expected the bucket to announce {saves} commits, found {announced}",)
    return ()


def check_trainer(environments: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """No process of the trainer was told of Prefect or of a server: its runs start because COMMIT appeared."""
    told = sorted({name for environment in environments for name in environment if name.startswith("PREFECT_")})
    if len(environments) < 2:
        return (f"trainer: expected the environments of its processes, found {len(environments)}",)
    return tuple(f"trainer was told of Prefect: {name}" for name in told)


def check_run(run: FlowRun, record: Record | None) -> tuple[str, ...]:
    """A flow run's state says what the verdict on record says, and the record links to the run."""
    if record is None:
        return (f"run {run.name}: no record, and it ended {run.state}: {run.message}",)
    problems = []
    expected = "Completed" if record.verdict.outcome is Outcome.PASS else "another state than Completed"
    if (run.state == "Completed") != (record.verdict.outcome is Outcome.PASS):
        problems.append(f"run {run.name}: expected {expected} for {record.verdict.outcome}, found {run.state}")
    if run.id not in (record.origin or ""):
        problems.append(f"run {run.name}: its record links to {record.origin}")
    return tuple(problems)


def check_restore(
    record: Record | None, *, last_good: GenerationId | None, generation: GenerationId
) -> tuple[str, ...]:
    """The restore passed in full, and moved last good to the generation that it restored."""
    if record is None:
        return ("restore: no record",)
    problems = []
    if record.verdict.outcome is not Outcome.PASS or record.rung is not Rung.FULL:
        problems.append(f"restore: expected a full pass, found {record.verdict.outcome} ({record.rung})")
    if last_good != generation:
        problems.append(f"last good: expected {generation}, found {last_good}")
    return tuple(problems)


def check_drill(record: Record | None) -> tuple[str, ...]:
    """The drill passed and its phases add up to its recovery time."""
    if record is None:
        return ("drill: no record",)
    problems = []
    if record.verdict.outcome is not Outcome.PASS:
        problems.append(f"drill: expected pass, found {record.verdict.outcome}")
    phases, rto_seconds = record.measurements.phases, record.measurements.rto_seconds
    if rto_seconds is None or record.measurements.rpo_loss_steps is None:
        problems.append("drill: no recovery time or no RPO loss was measured")
    elif abs(sum(phases.values()) - rto_seconds) > 0.001:
        problems.append(f"drill: phases add up to {sum(phases.values()):.3f} s, recovery took {rto_seconds:.3f} s")
    return tuple(problems)


def check_reading(record: Record | None) -> tuple[str, ...]:
    """A gate that copied a generation says how many bytes it read of the store, and how fast."""
    if record is not None and not record.measurements.read_bytes_per_second:
        return (f"tier {int(record.tier)}: no bandwidth was measured: {record.measurements}",)
    return ()


def check_report(run: FlowRun, page: Path, records: Sequence[Record]) -> tuple[str, ...]:
    """Every objective held, and the page shows the runs that restored and drilled."""
    problems = []
    if run.state != "Completed":
        problems.append(f"report: expected every objective met, found {run.state}: {run.message}")
    if not page.is_file():
        return (*problems, f"report: no page at {page}")
    text = page.read_text()
    problems += [
        f"report: the page does not link to {record.origin}"
        for record in records
        if not record.origin or record.origin not in text
    ]
    return tuple(problems)


def check_refusals(expected: Mapping[str, Reason], found: Mapping[str, Verdict]) -> tuple[str, ...]:
    """Every damaged copy was refused, for exactly the reason of its damage."""
    problems = []
    for name, reason in expected.items():
        verdict = found.get(name)
        if verdict is None:
            problems.append(f"{name}: never judged")
            continue
        reasons = sorted({finding.reason for finding in verdict.findings})
        if verdict.outcome is not Outcome.FAIL or reasons != [reason]:
            problems.append(f"{name}: expected fail for {reason}, found {verdict.outcome} for {reasons}")
    return tuple(problems)


def check_nothing_left(leftover: Sequence[str]) -> tuple[str, ...]:
    """No process of ours is alive."""
    return tuple(f"still running: {process}" for process in leftover)
