"""The catalogue's form: what an entry is, and how one is entered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from lastgood.reasons import Reason
from lastgood.testing.damage.scene import Scene

__all__ = ["CATALOGUE", "Apply", "Damage", "Judge", "enter"]

Apply: TypeAlias = Callable[[Scene], str]
"""Damages the scene and returns the offender that the finding must name."""


class Judge(StrEnum):
    """Who must raise the reason: tier 1 of the generation, or the verification of the family."""

    GENERATION = "generation"
    FAMILY = "family"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One fault.

    Args:
        name: snake_case, stable.
        judge: Who must raise it.
        reason: The reason code that must be raised, and no other.
        explanation: What happened, in a sentence.
        apply: Damages a scene and returns the offender that the finding must name.
    """

    name: str
    judge: Judge
    reason: Reason
    explanation: str
    apply: Apply


CATALOGUE: dict[str, Damage] = {}
"""Name → damage."""


def enter(reason: Reason, judge: Judge = Judge.GENERATION) -> Callable[[Apply], Apply]:
    """Enter a function into the catalogue under its own name; its docstring is the explanation."""

    def register(apply: Apply) -> Apply:
        explanation = " ".join((apply.__doc__ or "").split())
        if apply.__name__ in CATALOGUE or not explanation:
            raise AssertionError(f"entered twice or without an explanation: {apply.__name__}")
        damage = Damage(name=apply.__name__, judge=judge, reason=reason, explanation=explanation, apply=apply)
        CATALOGUE[damage.name] = damage
        return apply

    return register
