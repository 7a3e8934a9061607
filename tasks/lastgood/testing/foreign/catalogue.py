"""The form of the catalogue of foreign damage: what an entry is, and how one is entered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from lastgood.formats.description import Framework
from lastgood.reasons import NoteReason, Reason
from lastgood.testing.foreign.scene import ForeignScene

__all__ = ["FOREIGN", "Apply", "ForeignDamage", "ForeignJudge", "enter"]

Apply: TypeAlias = Callable[[ForeignScene], str]
"""Changes the scene and returns the offender that the finding must name."""


class ForeignJudge(StrEnum):
    """Who must see it, the cheapest first."""

    DESCRIPTION = "description"
    """The reader, from names, small texts and the structure of containers."""
    INTEGRITY = "integrity"
    """Whoever reads the files through: checksums that the writer left in them."""
    ROOT = "root"
    """The framework's own rule over the directory that the checkpoints lie in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignDamage:
    """One thing that happened to a checkpoint of one framework.

    Args:
        name: `<framework>.<what>`, stable.
        framework: Whose checkpoint it happens to.
        judge: Who must see it.
        reason: The reason code that must be raised, and no other; a note's where nobody can do more than say it; None
            where the checkpoint is as healthy as before, so that whatever is raised is a false alarm.
        explanation: What happened, in a sentence.
        specimens: Names of the kinds of checkpoint that it can happen to, as the tests' corpus calls them.
        source: The public report of the same kind, e.g. `huggingface/transformers#35782`; None where it was thought of.
        apply: Changes a scene and returns the offender that the finding must name.
    """

    name: str
    framework: Framework
    judge: ForeignJudge
    reason: Reason | NoteReason | None
    explanation: str
    specimens: tuple[str, ...]
    source: str | None
    apply: Apply


FOREIGN: dict[str, ForeignDamage] = {}
"""Name → damage."""


def enter(
    framework: Framework,
    reason: Reason | NoteReason | None,
    *specimens: str,
    judge: ForeignJudge = ForeignJudge.DESCRIPTION,
    source: str | None = None,
) -> Callable[[Apply], Apply]:
    """Enter a function under its own name; its docstring is the explanation. The arguments are `ForeignDamage`'s."""

    def register(apply: Apply) -> Apply:
        explanation = " ".join((apply.__doc__ or "").split())
        name = f"{framework}.{apply.__name__}"
        if name in FOREIGN or not explanation or not specimens:
            raise AssertionError(f"entered twice, without an explanation, or for no specimen: {name}")
        FOREIGN[name] = ForeignDamage(
            name=name,
            framework=framework,
            judge=judge,
            reason=reason,
            explanation=explanation,
            specimens=specimens,
            source=source,
            apply=apply,
        )
        return apply

    return register
