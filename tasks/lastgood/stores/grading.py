"""What a store may be trusted with: probes of what it really does, the grade that follows, and the grade that is kept.

Decides the grade from the outcomes alone (`judge_probes`, pure), so that it never depends on a product's name. Leaves
asking to whoever knows the store (`probing` for file systems, `s3.probing` for buckets). Rules: nothing is granted that
was not seen to hold, so a limit whose probe was not asked applies; the kept grade is a word about the service behind
the root and lies there, where all that use it find it. Source: ADR 0007.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

import lastgood
from lastgood import documents
from lastgood.documents import AwareTime, Document
from lastgood.identity import GRADE

__all__ = [
    "MAXIMUM_GRADE_BYTES",
    "NOT_ASKED",
    "RIGHTS",
    "Grade",
    "KeptGrade",
    "Limit",
    "Needed",
    "Probe",
    "StoreGrade",
    "graded",
    "judge_probes",
    "parse_grade",
]

SCHEMA_VERSION = 1
MAXIMUM_GRADE_BYTES = 2**20
MAXIMUM_PROBES = 100
NOT_ASKED = "not asked"
RIGHTS = frozenset({"readable", "writable"})
"""Probes that whoever has fewer rights fails where others do not."""

Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class Needed(StrEnum):
    """What is lost when a probe does not hold."""

    READING = "reading"
    PUBLISHING = "publishing"
    FULL = "full"
    NOTHING = "nothing"


class Grade(StrEnum):
    """What a store may be used for."""

    FULL = "full"
    PUBLISH_WITH_LIMITS = "publish_with_limits"
    READING_ONLY = "reading_only"
    REFUSED = "refused"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")

    @property
    def may_publish(self) -> bool:
        return self in (Grade.FULL, Grade.PUBLISH_WITH_LIMITS)

    @property
    def follows(self) -> str:
        """What follows from it, in one line for people."""
        return _FOLLOWS[self]


class Limit(StrEnum):
    """A probe that publishing can do without; each has the name of its probe."""

    CONDITIONAL_REPLACE = "conditional_replace"
    CONDITIONAL_MULTIPART = "conditional_multipart"
    CHECKSUM_REJECTION = "checksum_rejection"
    STORED_CHECKSUMS = "stored_checksums"
    DELETE = "delete"

    @property
    def follows(self) -> str:
        """What follows where it is missing, in one line for people."""
        return _LIMITED[self]


_FOLLOWS = {
    Grade.FULL: "publish, verify and restore here",
    Grade.PUBLISH_WITH_LIMITS: "publish, verify and restore here, without what is missing",
    Grade.READING_ONLY: "do not publish here; verify and restore with --no-record",
    Grade.REFUSED: "do not use it: what is read here proves nothing",
}

_LIMITED = {
    Limit.CONDITIONAL_REPLACE: "LAST_GOOD and QUARANTINE are replaced and looked at again; `reconcile` mends them",
    Limit.CONDITIONAL_MULTIPART: "a large artifact is sent where a look shows none; its name is one life's own",
    Limit.CHECKSUM_REJECTION: "damage on the way in is found by reading back, never by the service",
    Limit.STORED_CHECKSUMS: "every verification reads every byte; no checksum of the service stands for one",
    Limit.DELETE: "nothing is swept: what dead publishes left stays and costs",
}


class Probe(Document, frozen=True, kw_only=True):
    """One question to a store or a machine, and its answer.

    Args:
        name: What was asked.
        held: Whether it does what we need.
        needed: What depends on it.
        detail: What was seen.
    """

    name: Text
    held: bool
    needed: Needed
    detail: Text


class StoreGrade(Document, frozen=True, kw_only=True):
    """A grade with its limits, as a record names it.

    Args:
        grade: What the store may be used for.
        limits: What publishing has to do without, in the order of `Limit`.
    """

    grade: Grade
    limits: tuple[Limit, ...] = ()

    @property
    def words(self) -> str:
        return f"{self.grade.words} ({', '.join(self.limits)})" if self.limits else self.grade.words


class KeptGrade(Document, frozen=True, kw_only=True):
    """The grade of a root as it lies there.

    Args:
        schema_version: Of this document.
        grade: What the store may be used for.
        limits: What publishing has to do without.
        probes: What was asked, and what was seen.
        created_at: When, aware.
        host: From where.
        lastgood: The version that asked.
    """

    schema_version: Annotated[int, Meta(ge=1, le=SCHEMA_VERSION)]
    grade: Grade
    limits: tuple[Limit, ...]
    probes: Annotated[tuple[Probe, ...], Meta(max_length=MAXIMUM_PROBES)]
    created_at: AwareTime
    host: Text
    lastgood: Text

    @property
    def summary(self) -> StoreGrade:
        return StoreGrade(grade=self.grade, limits=self.limits)

    @property
    def is_of_store(self) -> bool:
        """Whether it says something of the store, and not merely of what these credentials may do there."""
        return all(probe.held for probe in self.probes if probe.name in RIGHTS)

    @property
    def forbidding(self) -> Probe | None:
        """The first probe that keeps it from being published to."""
        kept_from = (Needed.READING, Needed.PUBLISHING)
        return next((probe for probe in self.probes if probe.needed in kept_from and not probe.held), None)


def judge_probes(probes: Iterable[Probe]) -> StoreGrade:
    """The grade that outcomes amount to.

    Law: a probe that held less never makes a better grade. A checksum that is kept without having been checked is an
    echo of whoever sent it, so where `checksum_rejection` is missing, `stored_checksums` is.
    """
    asked = tuple(probes)
    missing = {
        needed: [probe.name for probe in asked if probe.needed is needed and not probe.held] for needed in Needed
    }
    reads = any(probe.needed is Needed.READING for probe in asked) and not missing[Needed.READING]
    if not reads:
        return StoreGrade(grade=Grade.REFUSED)
    if missing[Needed.PUBLISHING] or not any(probe.needed is Needed.PUBLISHING for probe in asked):
        return StoreGrade(grade=Grade.READING_ONLY)
    lacking = {Limit(name) for name in missing[Needed.FULL]}
    if Limit.CHECKSUM_REJECTION in lacking:
        lacking.add(Limit.STORED_CHECKSUMS)
    limits = tuple(limit for limit in Limit if limit in lacking)
    return StoreGrade(grade=Grade.PUBLISH_WITH_LIMITS if limits else Grade.FULL, limits=limits)


def graded(probes: Iterable[Probe], *, now: datetime) -> KeptGrade:
    """The document to keep of what was asked at an aware moment."""
    asked = tuple(probes)
    found = judge_probes(asked)
    return KeptGrade(
        schema_version=SCHEMA_VERSION,
        grade=found.grade,
        limits=found.limits,
        probes=asked,
        created_at=now,
        host=socket.gethostname(),
        lastgood=lastgood.__version__,
    )


def parse_grade(data: bytes) -> KeptGrade:
    """Read a kept grade strictly.

    Raises:
        FormatError: Not a lawful grade.
    """
    return documents.parse(KeptGrade, data, GRADE, limit_bytes=MAXIMUM_GRADE_BYTES)
