"""Exceptions: we could not do our work. (What is wrong with a *checkpoint* is a `verdict.Finding`, never an exception
of its own; the exceptions below that carry findings say that we stopped because of them.).

    LastgoodError                 exit 70
    ├── UsageError                exit 64   the request or the configuration is wrong
    │   └── RegistrationError               training code registered its state wrongly
    ├── FormatError               exit 1    bytes that claim to be one of our documents are not
    │   └── ReadLimitError        exit 2    more than anybody here reads of such a file: nothing is known to be wrong
    ├── StoreError                exit 2    the store did not do what was asked
    │   ├── StoreTransientError             may be repeated: nothing is known to be wrong
    │   └── StorePermanentError             will not heal by repeating (denied, full, read-only)
    │       └── StoreLimitError             the store's grade leaves it out: nothing was sent
    ├── LedgerError               exit 2    the index of all evidence did not answer; storage is the truth
    ├── PublishError              exit 1    the former state is intact; this step was not published
    │   └── Fenced                          a newer incarnation exists; the job must stop
    ├── CopyRefused               exit 1    the destination is no copy of the source; what lies there stays
    ├── SealRefused               exit 1    a foreign checkpoint must not be adopted as it lies there
    └── ResumeRefused             exit 1    nothing may be resumed, or not what was asked for

Messages are a lowercase fact, the place, expected against found; `hint` is one sentence of advice or None. Secrets are
taken out of both as an error is made, for what becomes of it then nobody can know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from lastgood.redaction import redact

if TYPE_CHECKING:
    from lastgood.verdict import Finding, Reason

__all__ = [
    "CopyRefused",
    "Fenced",
    "FormatError",
    "LastgoodError",
    "LedgerError",
    "PublishError",
    "ReadLimitError",
    "RegistrationError",
    "ResumeRefused",
    "SealRefused",
    "StoreError",
    "StoreLimitError",
    "StorePermanentError",
    "StoreTransientError",
    "UsageError",
]


class LastgoodError(Exception):
    """The root of everything that lastgood raises on purpose."""

    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = redact(message)
        self.hint = redact(hint) if hint else hint
        super().__init__(self.message)


class UsageError(LastgoodError):
    """The request, an argument or the configuration is wrong; the message names the place."""

    exit_code = 64


class RegistrationError(UsageError):
    """Training code registered a component wrongly, or left one out that `audit` found."""


class FormatError(LastgoodError):
    """Bytes that claim to be one of our documents are not a lawful one.

    Args:
        message: The fact and the place.
        reason: The finding code that a verifier reports for it.
        where: The key of the document, where it is known.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, reason: Reason | None = None, where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.where = where


class ReadLimitError(FormatError):
    """A file is longer, deeper or larger than anybody here reads of its kind: that is our limit, and no fault of it."""

    exit_code = 2


class StoreError(LastgoodError):
    """The store did not do what was asked; whether it may be repeated is the subclass."""

    exit_code = 2


class StoreTransientError(StoreError):
    """The store may answer when asked again; verdicts that meet it are inconclusive."""


class StorePermanentError(StoreError):
    """Asking again will not help: denied, out of space, read-only, not a regular file."""


class StoreLimitError(StorePermanentError):
    """The store was found unable to do this (`lastgood doctor`), so it was not tried; nothing was sent."""


class LedgerError(LastgoodError):
    """The ledger's database did not answer or is not ours to use; nothing on storage was touched."""

    exit_code = 2


class PublishError(LastgoodError):
    """This step was not published; what was discoverable before still is."""

    exit_code = 1


class Fenced(PublishError):
    """A newer incarnation of the run exists: the save may or may not have been kept, and this job must stop."""


class CopyRefused(LastgoodError):
    """The destination holds what the source does not, under a name that both use; nothing there was replaced."""

    exit_code = 1


class SealRefused(LastgoodError):
    """A foreign checkpoint must not be adopted as it lies there; nothing was written that anybody could resume.

    Args:
        findings: Why; empty where the message says all.
    """

    exit_code = 1

    def __init__(self, message: str, *, findings: tuple[Finding, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.findings = findings


class ResumeRefused(LastgoodError):
    """Nothing may be resumed, or not what was asked for.

    Args:
        findings: Why.
        incarnation: Of the life that was refused, where it had claimed one: its trace may say so.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        findings: tuple[Finding, ...] = (),
        incarnation: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.findings = findings
        self.incarnation = incarnation
