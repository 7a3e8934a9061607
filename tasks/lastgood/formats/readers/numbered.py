"""Files of one kind that a framework numbers: the first often without a number, the next ones from 1 on.

Decides which of them are missing. Rules: numbers have no gap; the last ones can only be missed where another checkpoint
of the run holds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lastgood.formats.readers.draft import Draft
from lastgood.formats.readers.wording import component_missing, file_missing
from lastgood.manifest import Component

__all__ = ["Numbered", "numbers_in"]

_MAXIMUM_NUMBER = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """One kind of file.

    Args:
        component: What the files hold.
        first: Name of number 0.
        further: Name of the others, `{}` in the place of the number.
    """

    component: Component
    first: str
    further: str

    def spell(self, number: int) -> str:
        """The name of one."""
        return self.first if number == 0 else self.further.format(number)

    def number(self, name: str) -> int | None:
        """The number of a name; None where it is of another kind."""
        if name == self.first:
            return 0
        before, _, after = self.further.partition("{}")
        if not name.startswith(before):
            return None  # most names, of which a tree has millions
        match = re.fullmatch(rf"{re.escape(before)}(\d{{1,5}}){re.escape(after)}", name)
        number = int(match[1]) if match else 0
        return number if 0 < number < _MAXIMUM_NUMBER and self.spell(number) == name else None

    def found(self, names: Iterable[str]) -> bool:
        """Whether any of the names is of this kind."""
        return any(self.number(name) is not None for name in names)

    def check(self, draft: Draft, beside: Iterable[str]) -> None:
        """Find what is missing.

        Args:
            draft: Gets the findings.
            beside: Names of the files in another checkpoint of the run.
        """
        here, there = numbers_in(self, draft.source.matching()), numbers_in(self, beside)
        if not here:
            if there:
                draft.findings.append(component_missing(self.first, "the checkpoint beside it holds one"))
            return
        for number in range(max((*here, *there), default=-1) + 1):
            if number not in here:
                why = (
                    f"{self.spell(max(here))} is numbered after it" if number < max(here) else "the one beside holds it"
                )
                draft.findings.append(file_missing(self.spell(number), why))


def numbers_in(kind: Numbered, names: Iterable[str]) -> set[int]:
    """Numbers of the files of a kind."""
    return {number for name in names if (number := kind.number(name)) is not None}
