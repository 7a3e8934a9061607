"""The vocabulary of checks: permanent, complete, and without a name that nothing asks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lastgood.checks import CHECKS, DRILL_CHECKS, FAMILY_CHECKS, GENERATION_CHECKS, OBSTACLES, RESTORE_CHECKS
from lastgood.config import Objectives
from lastgood.drill.faults import Fault, FaultKind
from lastgood.drill.judgement import Observed, judge_drill
from lastgood.restore.compare import compare
from lastgood.testing.build import build_family
from lastgood.testing.restore_traces import healthy_restore
from lastgood.verify import verify_family, verify_generation
from tests.restore.test_compare import evidence_of, request_for

LIBRARY = Path(__file__).resolve().parent.parent / "tasks" / "lastgood"
GATES = ("verify", "restore", "drill")
# Calls whose first argument, or argument `name`, is the name of a check.
MAKERS = frozenset({"Check", "Comparing", "_not_run", "_ran", "comparing", "not_run"})


def test_names_of_checks_are_permanent(golden: Any) -> None:
    """Configurations, dashboards and old records match them: one may be added, never renamed or dropped in silence."""
    gates = {
        "generation": GENERATION_CHECKS,
        "family": FAMILY_CHECKS,
        "restore": RESTORE_CHECKS,
        "drill": DRILL_CHECKS,
        "obstacles": OBSTACLES,
    }
    lines = [line for gate, names in gates.items() for line in (f"# {gate}", *names)]
    golden("checks.txt", "\n".join([*lines, ""]).encode())
    assert not set(OBSTACLES) & set(CHECKS)


def test_each_gate_asks_what_the_vocabulary_says(tmp_path: Path) -> None:
    """A healthy subject is asked every question of its gate: neither one more nor one less."""
    built = build_family(tmp_path, "llm-7b", steps=(12,))
    restored = healthy_restore()
    verified = verify_generation(built.store, built.keys, built.newest)
    assert {check.name for check in verified.checks} == set(GENERATION_CHECKS)
    assert [check.name for check in verify_family(built.store, built.keys).checks] == list(FAMILY_CHECKS)
    comparison = compare(request_for(restored.manifest), evidence_of(restored))
    assert [check.name for check in comparison.checks] == list(RESTORE_CHECKS)
    drilled = judge_drill(Observed(subject="d", fault=Fault(kind=FaultKind.JOB)), Objectives())
    assert [check.name for check in drilled.checks] == list(DRILL_CHECKS)


def test_no_gate_makes_a_check_of_another_name() -> None:
    """What is made only when something went wrong is found in the sources: a name outside could never be waived."""
    found = {name for gate in GATES for path in (LIBRARY / gate).glob("*.py") for name in names_in(path.read_text())}
    assert len(found) > 20, "the search is broken"
    assert found <= {*CHECKS, *OBSTACLES}
    assert set(OBSTACLES) <= found


def names_in(source: str) -> Iterator[str]:
    """Every name that a source gives to a check as a literal."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
            if called == "undecided":
                named = [keyword.value for keyword in node.keywords if keyword.arg == "check"]
            elif called not in MAKERS:
                continue
            for value in named or node.args[:1]:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def test_the_search_sees_every_spelling() -> None:
    """A search that saw none of them would let any name pass."""
    source = 'Check(name="a", x=1); self._ran("b", 2); undecided(tier=1, check="c"); context.comparing("d"); other("e")'
    assert sorted(names_in(source)) == ["a", "b", "c", "d"]
