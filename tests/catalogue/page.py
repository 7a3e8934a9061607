"""The answers as a page for people: counts first, by whose checkpoint and by family of faults, then every entry.

Pure: the page is a function of the answers, and a test holds them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from lastgood.testing.damage import CATALOGUE
from lastgood.testing.foreign import FOREIGN
from tests.catalogue.cases import OWN, Case, Origin
from tests.catalogue.judging import Answer
from tests.catalogue.reports import REPORTS, Family

INTRODUCTION = """\
# The damage catalogue, counted

Written by `make catalogue`; do not edit. The command fails when a damage is missed or a healthy checkpoint is accused.

Each entry of `lastgood.testing.damage` (generations of our own) and `lastgood.testing.foreign` (of other frameworks)
damages one thing of a copy. It is **caught** if its reason is raised, no other is, and the offender is named. Foreign
checkpoints are those that the framework wrote here, and those that were built file by file from its layout, because it
cannot run here or to be fast; where there are both, an entry is tried on both. Tier 1 alone looks, and at foreign ones
without a manifest. What only a restore sees is in `lastgood.testing.restore_damage`, hostile files are in
`lastgood.testing.hostile`; neither is counted here.

**Healthy** are all these checkpoints as they were written, and entries that change what harms nobody: whatever refuses
one of them is a false alarm.
"""


def page_of(answers: Mapping[Case, Answer]) -> str:
    """The whole page."""
    parts = (INTRODUCTION, _counts(answers), _families(answers), *_wrong(answers), _entries(answers))
    return "\n".join(parts)


def counts_of(answers: Mapping[Case, Answer]) -> str:
    """One line for a terminal."""
    damaged, healthy = _split(answers.items())
    found = Counter(answer for _, answer in damaged)
    alarms = sum(answer is not Answer.QUIET for _, answer in healthy)
    return (
        f"{len(damaged)} damages: {found[Answer.CAUGHT]} caught under the right reason and offender, "
        f"{found[Answer.MISNAMED]} misnamed, {found[Answer.MISSED]} missed; "
        f"{len(healthy)} healthy: {alarms} false alarms"
    )


def _counts(answers: Mapping[Case, Answer]) -> str:
    lines = [
        "## Counts\n",
        "| whose checkpoint | entries | damaged | caught | misnamed | missed | healthy | false alarms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for whose in dict.fromkeys(_whose(case) for case in answers):
        lines.append(_count_row(whose, [(case, told) for case, told in answers.items() if _whose(case) == whose]))
    for origin, words in ((Origin.WRITTEN, "written by lastgood or the framework"), (Origin.BUILT, "built")):
        lines.append(
            _count_row(f"*{words}*", [(case, told) for case, told in answers.items() if case.origin is origin])
        )
    lines.append(_count_row("**all**", answers.items()))
    return "\n".join(lines) + "\n"


def _count_row(name: str, answers: Iterable[tuple[Case, Answer]]) -> str:
    answers = list(answers)
    entries = {case.entry for case, _ in answers if not case.entry.startswith("undamaged.")}
    damaged, healthy = _split(answers)
    found = Counter(answer for _, answer in damaged)
    alarms = sum(answer is not Answer.QUIET for _, answer in healthy)
    figures = (len(entries), len(damaged), found[Answer.CAUGHT], found[Answer.MISNAMED], found[Answer.MISSED])
    return f"| {name} | {' | '.join(map(str, (*figures, len(healthy), alarms)))} |"


def _families(answers: Mapping[Case, Answer]) -> str:
    lines = [
        "## Reported from the field\n",
        "Public reports of faults that lie in the files themselves. A report of a false alarm is met by silence.\n",
        "| family of faults | report | what was seen | tried | as it must be |",
        "|---|---|---|---|---|",
    ]
    total = Counter[str]()
    for family in Family:
        for report, (kind, seen) in REPORTS.items():
            if kind is family:
                told = [answer for case, answer in answers.items() if _source(case) == report]
                right = sum(answer.is_right for answer in told)
                total.update(tried=len(told), right=right)
                lines.append(f"| {family} | {report} | {seen} | {len(told)} | {right} |")
    lines.append(f"| **all** | {len(REPORTS)} reports | | {total['tried']} | {total['right']} |")
    return "\n".join(lines) + "\n"


def _wrong(answers: Mapping[Case, Answer]) -> Iterator[str]:
    wrong = [
        f"| {case.entry} | {case.specimen}, {case.origin} | {_expected(case)} | {answer} |"
        for case, answer in answers.items()
        if not answer.is_right
    ]
    if wrong:
        yield "\n".join(["## Wrong\n", "| entry | of | expected | answer |", "|---|---|---|---|", *wrong]) + "\n"


def _entries(answers: Mapping[Case, Answer]) -> str:
    lines = ["## Entries\n", "| entry | must raise | what happened | tried on | right |", "|---|---|---|---|---|"]
    for entry in dict.fromkeys(case.entry for case in answers):
        of = {case: answer for case, answer in answers.items() if case.entry == entry}
        if not entry.startswith("undamaged."):
            tried = ", ".join(dict.fromkeys(case.specimen for case in of))
            right = sum(answer.is_right for answer in of.values())
            expected = _expected(next(iter(of)))
            lines.append(f"| {entry} | {expected} | {_explanation(entry)} | {tried} | {right} of {len(of)} |")
    return "\n".join(lines) + "\n"


def _split(answers: Iterable[tuple[Case, Answer]]) -> tuple[list[tuple[Case, Answer]], list[tuple[Case, Answer]]]:
    """The damaged, and the healthy."""
    answers = list(answers)
    return [one for one in answers if not one[0].is_healthy], [one for one in answers if one[0].is_healthy]


def _whose(case: Case) -> str:
    return "lastgood" if case.specimen == OWN else case.specimen


def _expected(case: Case) -> str:
    return "nothing" if case.expected is None else f"`{case.expected}`"


def _source(case: Case) -> str | None:
    damage = FOREIGN.get(case.entry)
    return damage.source if damage is not None else None


def _explanation(entry: str) -> str:
    kind, _, name = entry.partition(".")
    return CATALOGUE[name].explanation if kind == OWN else FOREIGN[entry].explanation
