"""Collecting what differs, so that one cause is one finding and names every rank on which it shows.

Decides how a divergence is worded: component, item, ranks, expected against found. Leaves which values are compared to
`after_load`, `smoke` and `control`. Rules: what a promise covers is a finding, what nothing is promised of is a note; a
check that compared nothing did not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from lastgood.manifest import Component
from lastgood.restore.promises import EXACT, Agreement, Promise, agreement
from lastgood.verdict import Check, CheckState, Finding, Note, NoteReason, Reason

__all__ = ["Comparing", "not_run", "span"]

MAXIMUM_FINDINGS = 50
"""Findings of one check; the detail says how many more there were."""
MAXIMUM_SPELLED = 160
SHOWN_VALUES = 8

_MISSING = "nothing"


class _Missing(Enum):
    ABSENT = "absent"


class Comparing:
    """One check in the making.

    Args:
        name: The check's.
        component: The kind of state that its offenders belong to.
        subject: `<family>/<generation>`, for messages.
    """

    def __init__(self, name: str, component: Component | str, subject: str) -> None:
        self.name = name
        self.component = str(component)
        self.compared = 0
        self._subject = subject
        self._broken: dict[tuple[Reason, str, str, str], list[int]] = {}
        self._let_off: dict[str, list[int]] = {}
        self._promise = EXACT

    def expect(
        self, reason: Reason, item: str, expected: object, found: object, *, rank: int, promise: Promise = EXACT
    ) -> None:
        """Compare one value of one rank."""
        self.compared += 1
        agreed = agreement(expected, found, promise)
        if agreed is Agreement.DIVERGED:
            self.refuse(reason, item, *_spelled_apart(expected, found), rank=rank)
        elif agreed is Agreement.UNPROMISED:
            self._promise = promise
            self._let_off.setdefault(item, []).append(rank)

    def expect_all(
        self,
        reason: Reason,
        expected: Mapping[str, object],
        found: Mapping[str, object],
        *,
        rank: int,
        promise: Promise = EXACT,
    ) -> None:
        """Compare every expected key; one that is not there at all diverges too."""
        for item, value in sorted(expected.items()):
            self.expect(reason, item, value, found.get(item, _Missing.ABSENT), rank=rank, promise=promise)

    def refuse(self, reason: Reason, item: str, expected: str, found: str, *, rank: int) -> None:
        """Note that something is wrong on a rank."""
        self._broken.setdefault((reason, item, expected, found), []).append(rank)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What differs where nothing is promised."""
        return tuple(
            Note(
                reason=NoteReason.DETERMINISM_NOT_PROMISED,
                message=f"{self.component} differs: {item} on {span(ranks, 'rank')}: {self._promise}",
                offender=f"{self.component}/{item}",
            )
            for item, ranks in list(self._let_off.items())[:MAXIMUM_FINDINGS]
        )

    def check(self, detail: str, *, missing: str = "") -> Check:
        """The finished check.

        Args:
            detail: What was compared.
            missing: Why part of it could not be; the check then counts as not run, unless what ran found something.
        """
        findings = [self._finding(*key, ranks) for key, ranks in self._broken.items()]
        if len(findings) > MAXIMUM_FINDINGS:
            detail = f"{detail}; {len(findings)} findings, the first {MAXIMUM_FINDINGS} are shown"
        return Check(
            name=self.name,
            state=CheckState.NOT_RUN if missing else CheckState.RAN,
            detail=missing or detail,
            findings=tuple(findings[:MAXIMUM_FINDINGS]),
        )

    def _finding(self, reason: Reason, item: str, expected: str, found: str, ranks: list[int]) -> Finding:
        whose = f"rank-{ranks[0]:05d}/" if len(ranks) == 1 else ""
        return Finding(
            reason=reason,
            message=(
                f"{reason.value.replace('_', ' ')}: {self.component} {item} on {span(ranks, 'rank')} "
                f"in {self._subject}: expected {expected}, found {found}"
            ),
            offender=f"{self.component}/{whose}{item}",
            expected=expected,
            found=found,
        )


def not_run(name: str, why: str) -> Check:
    """A check that was not made, and why."""
    return Check(name=name, state=CheckState.NOT_RUN, detail=why)


def span(numbers: Iterable[int], what: str) -> str:
    """Numbers as people write them: `rank 3`, `ranks 0–15`, `steps 4, 7`."""
    ordered = sorted(set(numbers))
    if not ordered:
        return f"no {what}"
    if len(ordered) == 1:
        return f"{what} {ordered[0]}"
    if ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{what}s {ordered[0]}–{ordered[-1]}"
    shown = ", ".join(map(str, ordered[:20])) + (", …" if len(ordered) > 20 else "")
    return f"{what}s {shown}"


def _spelled_apart(expected: object, found: object) -> tuple[str, str]:
    """Both values, sequences from where they first differ, so that a cut text still shows the difference."""
    if not isinstance(expected, tuple) or not isinstance(found, tuple):
        return _spelled(expected), _spelled(found)
    pairs = zip(expected, found, strict=False)
    first = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(expected), len(found)))
    place = f" from place {first}" if first else ""
    return _spelled(expected[first : first + SHOWN_VALUES]) + place, _spelled(
        found[first : first + SHOWN_VALUES]
    ) + place


def _spelled(value: object) -> str:
    if value is _Missing.ABSENT:
        return _MISSING
    text = repr(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= MAXIMUM_SPELLED else f"{text[:MAXIMUM_SPELLED]}…"
