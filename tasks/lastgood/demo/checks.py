"""What must be true after each step of the demo. Each function names every way in which it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lastgood.identity import GenerationId
from lastgood.verdict import Outcome, Reason, Rung, Verdict

__all__ = ["check_drill", "check_nothing_left", "check_refusals", "check_restore", "check_saves"]


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


def check_restore(verdict: Verdict, *, last_good: GenerationId | None, generation: GenerationId) -> tuple[str, ...]:
    """The restore passed in full, and moved last good to the generation that it restored."""
    problems = []
    if verdict.outcome is not Outcome.PASS or verdict.rung is not Rung.FULL:
        problems.append(f"restore: expected a full pass, found {verdict.outcome} ({verdict.rung})")
    if last_good != generation:
        problems.append(f"last good: expected {generation}, found {last_good}")
    return tuple(problems)


def check_drill(verdict: Verdict, phases: Mapping[str, float], *, rto_seconds: float | None) -> tuple[str, ...]:
    """The drill passed and its phases add up to its recovery time."""
    problems = []
    if verdict.outcome is not Outcome.PASS:
        problems.append(f"drill: expected pass, found {verdict.outcome}")
    if rto_seconds is None:
        problems.append("drill: no recovery time was measured")
    elif abs(sum(phases.values()) - rto_seconds) > 0.001:
        problems.append(f"drill: phases add up to {sum(phases.values()):.3f} s, recovery took {rto_seconds:.3f} s")
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
