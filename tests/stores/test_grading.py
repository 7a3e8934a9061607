"""Grades as a function of outcomes: nothing is granted that was not seen to hold."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from lastgood import documents
from lastgood.errors import FormatError
from lastgood.stores.grading import Grade, Limit, Needed, Probe, StoreGrade, graded, judge_probes, parse_grade

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ORDER = (Grade.REFUSED, Grade.READING_ONLY, Grade.PUBLISH_WITH_LIMITS, Grade.FULL)


def probe(name: str, needed: Needed, *, held: bool = True) -> Probe:
    return Probe(name=name, held=held, needed=needed, detail="seen")


HEALTHY = (
    probe("readable", Needed.READING),
    probe("writable", Needed.PUBLISHING),
    probe("conditional_create", Needed.PUBLISHING),
    *(probe(limit, Needed.FULL) for limit in Limit),
    probe("versioning", Needed.NOTHING),
)


def without(*names: str) -> tuple[Probe, ...]:
    return tuple(msgspec.structs.replace(one, held=one.name not in names) for one in HEALTHY)


@pytest.mark.parametrize(
    ("missing", "grade"),
    [
        ((), Grade.FULL),
        (("versioning",), Grade.FULL),
        (("stored_checksums",), Grade.PUBLISH_WITH_LIMITS),
        (tuple(Limit), Grade.PUBLISH_WITH_LIMITS),
        (("conditional_create",), Grade.READING_ONLY),
        (("writable", "stored_checksums"), Grade.READING_ONLY),
        (("readable",), Grade.REFUSED),
        (tuple(one.name for one in HEALTHY), Grade.REFUSED),
    ],
)
def test_a_grade_follows_from_what_did_not_hold(missing: tuple[str, ...], grade: Grade) -> None:
    """The worst of what is missing decides, and a note decides nothing."""
    assert judge_probes(without(*missing)).grade is grade


@pytest.mark.parametrize("limit", Limit)
def test_a_limit_is_named_and_says_what_follows(limit: Limit) -> None:
    """Whoever publishes with a limit must know which and what it costs."""
    limits = (limit, Limit.STORED_CHECKSUMS) if limit is Limit.CHECKSUM_REJECTION else (limit,)
    found = judge_probes(without(limit))
    assert found == StoreGrade(grade=Grade.PUBLISH_WITH_LIMITS, limits=limits)
    assert found.words == f"publish with limits ({', '.join(limits)})"
    assert limit.follows
    assert "\n" not in limit.follows


def test_a_checksum_that_nobody_checked_counts_for_nothing() -> None:
    """A service that keeps what it was told, right or wrong, must not stand for a reading of the bytes."""
    found = judge_probes(without("checksum_rejection"))
    assert Limit.STORED_CHECKSUMS in found.limits


def test_limits_come_in_one_order() -> None:
    """Two records of one store must say the same, in whatever order it was asked."""
    assert judge_probes(reversed(without(*Limit))).limits == tuple(Limit)


@pytest.mark.parametrize("asked", [(), HEALTHY[1:], HEALTHY[:1]], ids=["nothing", "no reading", "no publishing"])
def test_what_was_not_asked_is_not_granted(asked: tuple[Probe, ...]) -> None:
    """A grade from an empty list of failures would trust a store that nobody asked."""
    assert not judge_probes(asked).grade.may_publish


def test_a_probe_that_held_less_never_makes_a_better_grade() -> None:
    """Otherwise breaking a store could make it fit to publish to."""
    names = [one.name for one in HEALTHY]
    for first in names:
        for second in names:
            fewer, more = judge_probes(without(first)), judge_probes(without(first, second))
            assert ORDER.index(more.grade) <= ORDER.index(fewer.grade)


def test_an_unknown_limit_is_a_defect_of_ours() -> None:
    """A limit that has no name would be dropped in silence, and the store be called full."""
    with pytest.raises(ValueError, match="telepathy"):
        judge_probes((*HEALTHY, probe("telepathy", Needed.FULL, held=False)))


@pytest.mark.parametrize("grade", Grade)
def test_every_grade_says_what_follows_in_one_line(grade: Grade) -> None:
    """A grade without its consequence is a word."""
    assert grade.follows
    assert "\n" not in grade.follows
    assert grade.may_publish == (grade in (Grade.FULL, Grade.PUBLISH_WITH_LIMITS))


def test_a_kept_grade_is_read_back_strictly() -> None:
    """Publishing obeys it, so it is no place for guesses."""
    kept = graded(without("delete"), now=NOW)
    data = documents.canonical_bytes(kept)
    assert parse_grade(data) == kept
    with pytest.raises(FormatError):
        parse_grade(data.replace(b'"grade":', b'"operator":"ann","grade":'))
    with pytest.raises(FormatError):
        parse_grade(data.replace(b"publish_with_limits", b"excellent"))


@pytest.mark.parametrize(
    ("missing", "named"),
    [(("stored_checksums", "conditional_create"), "conditional_create"), (("delete",), None), ((), None)],
)
def test_what_forbids_publishing_is_named(missing: tuple[str, ...], named: str | None) -> None:
    """The refusal must name what to mend, not a limit that stands beside it."""
    forbidding = graded(without(*missing), now=NOW).forbidding
    assert (forbidding.name if forbidding else None) == named


def test_a_grade_for_want_of_rights_is_not_of_the_store() -> None:
    """Kept, the answer to a reader's credentials would stop every publisher."""
    assert not graded(without("writable"), now=NOW).is_of_store
    assert graded(without("conditional_create"), now=NOW).is_of_store
