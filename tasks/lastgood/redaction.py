"""Secrets taken out of text that leaves us: messages, logs, records, reports, answers.

Decides what a secret is and what stands in its place. A secret is a value that this process was given as one (`NAMES`
of its environment, and what `hide` was told), or a string whose surroundings say so: an access key of AWS, a signature,
credential or token in a URL, a header or a configuration, an Authorization header, a password in a URL. Text is cleaned
where it leaves: `errors.LastgoodError` and `text.printable` for what people read, `records.keeping` for what is kept,
`cli.output.emit_json` for scripts, `clean_logs` for log records, `replica.processes` for the logs of replicas.

Laws: nothing but the secret changes; cleaning twice is cleaning once; it raises nothing. Values shorter than
`SHORTEST` are let be: replacing each `admin` in a report would hide more than it protects. Text that somebody acts upon
to the letter, the URI that `lastgood latest` prints, is not cleaned.

Source: AWS Signature Version 4 and 2 (names of parameters and headers); RFC 9110 §11.6 and RFC 3986 §3.2.1.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import traceback
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

__all__ = ["HIDDEN", "NAMES", "SHORTEST", "clean_logs", "hide", "redact", "redact_all", "redact_exception", "spell_out"]

HIDDEN: Final = "<redacted>"
"""Stands for a secret that its surroundings gave away; `<NAME>` for one that was known by name."""
SHORTEST: Final = 8
MAXIMUM_HELD: Final = 64
"""Secrets besides the environment's that are remembered; keys rotate, and the eldest are of no use to anybody."""
NAMES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "LASTGOOD_RELAY_SECRET",
    "PGPASSWORD",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_API_KEY",
    "PREFECT_SERVER_API_AUTH_STRING",
)
"""Variables of the environment whose values are secrets."""

# What may stand between a name and its value: `=` of a query, `: ` of a header, a dictionary's or JSON's quotes.
_BETWEEN = r"""(?:\\?["'])?\s{0,4}(?:=|:|%3[Dd])\s{0,4}(?:b(?=["'\\]))?(?:\\?["'])?"""
_VALUE = r"""[^\s"'<>&,;\\]"""
_NAMED = r"secret_?(?:access_?)?key|access_?key(?:_?id)?|session_?token"
# What text in lower case holds if a pattern may match it, and the pattern: most text holds none and is done with.
_PATTERNS: Final = tuple(
    (telltales, re.compile(pattern))
    for telltales, pattern in (
        (("akia", "asia"), r"(?P<kept>)(?<![A-Za-z0-9])A[KS]IA[A-Z0-9]{16,}"),
        (
            ("secret", "accesskey", "access_key", "sessiontoken", "session_token"),
            rf"(?P<kept>(?<![A-Za-z0-9])(?i:(?:aws_?)?(?:{_NAMED})){_BETWEEN}){_VALUE}+",
        ),
        (("accesskey", "sessiontoken"), rf"(?P<kept><(?:(?:AWS)?AccessKeyId|SecretAccessKey|SessionToken)>){_VALUE}+"),
        (("x-amz-",), rf"(?P<kept>(?i:x-amz-(?:signature|credential|security-token)){_BETWEEN}){_VALUE}+"),
        (("signature=", "credential="), rf"(?P<kept>(?<![A-Za-z0-9_])(?:Signature|Credential)=){_VALUE}+"),
        (("signature:\n",), r"(?P<kept>(?<![A-Za-z0-9_])Signature:\n)[0-9a-f]{64}"),  # as botocore logs it
        (
            ("authorization",),
            rf"(?P<kept>(?i:authorization){_BETWEEN}(?i:aws|basic|bearer|negotiate|token)\s{{1,4}}){_VALUE}+",
        ),
        (("authorization",), rf"(?P<kept>(?i:authorization){_BETWEEN})(?!(?i:aws4-)){_VALUE}{{16,}}"),
        (("bearer",), r"(?P<kept>(?<![A-Za-z0-9])(?i:bearer)\s{1,4})[A-Za-z0-9._~+/=%-]{16,}"),
        (("@",), r"""(?P<kept>://[^\s/@:?#"'<>]*:)(?!\*\*\*@)[^\s/"'<>]+(?=@)"""),
    )
)

# The environment as the interpreter keeps it: looked at for each text, and `os.environ` is ten times slower.
_environment: Mapping[bytes, bytes] = getattr(os.environb, "_data", os.environb)
_KEYS = tuple(os.fsencode(name) for name in NAMES)
_telling = threading.Lock()
_held: tuple[tuple[str, str], ...] = ()
_known: tuple[tuple[object, ...], tuple[tuple[str, str], ...]] = ((), ())


def hide(name: str, value: str | None) -> None:
    """Hold a value to be secret from now on, wherever this process got it: a profile, a role, a file.

    Args:
        name: What stands in its place, between angle brackets.
        value: Too short a one is let be, and so is one that is known already.
    """
    global _held
    if not value or (name, value) in _held:
        return
    with _telling:
        _held = (*_held, (name, value))[-MAXIMUM_HELD:]


def redact(text: str) -> str:
    """The text without secrets."""
    return _clean(text, _secrets())


def redact_all(value: Any) -> Any:
    """A tree of mappings, lists and strings (JSON, `msgspec.to_builtins`) without secrets in any of its strings."""
    return _clean_tree(value, _secrets())


def redact_exception(error: BaseException) -> None:
    """Take secrets out of the arguments of an exception, and of what caused it, before others print it."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.args = tuple(redact(argument) if isinstance(argument, str) else argument for argument in one.args)
        left += [one.__cause__, one.__context__]


def spell_out(error: BaseException) -> str:
    """An exception's traceback as Python prints it, without secrets."""
    return redact("".join(traceback.format_exception(error)))


def clean_logs() -> None:
    """From now on, let no log record of this process carry a secret, whoever writes it and to whatever handler.

    For processes of our own: the command line and the flows. It wraps the factory of records and not the handlers, for
    Prefect and libraries add handlers later, and a filter of a logger does not see what its children log.
    """
    make = logging.getLogRecordFactory()
    if not getattr(make, "is_clean", False):

        def make_clean(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make(*args, **kwargs)
            _clean_record(record)
            return record

        make_clean.is_clean = True  # type: ignore[attr-defined]  # any function may have one
        logging.setLogRecordFactory(make_clean)


def _clean_record(record: logging.LogRecord) -> None:
    try:
        said = record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit; logging would print all of them
        said = f"{record.msg} {record.args!r}"
        record.msg, record.args = said, ()
    clean = redact(said)
    if clean != said:
        record.msg, record.args = clean, ()
    if record.exc_info and record.exc_info[1] is not None:
        told = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        clean = redact(told)
        if clean != told:
            record.exc_info, record.exc_text = None, clean


def _secrets() -> tuple[tuple[str, str], ...]:
    """Values to look for and what stands in their place, the longest first."""
    global _known
    asked = (*map(_environment.get, _KEYS), _held)
    if _known[0] == asked:
        return _known[1]
    named = [*zip(NAMES, (value and os.fsdecode(value) for value in map(_environment.get, _KEYS)), strict=True), *_held]
    # In a URL a value is spelled otherwise. One that is part of what stands in its place would be replaced for ever.
    found = {
        spelled: f"<{name}>"
        for name, value in named
        if value
        for spelled in (value, quote(value, safe="", errors="surrogateescape"))
        if len(spelled) >= SHORTEST and not any(spelled in mark for mark in (HIDDEN, *(f"<{one}>" for one, _ in named)))
    }
    _known = (asked, tuple(sorted(found.items(), key=lambda one: len(one[0]), reverse=True)))
    return _known[1]


def _clean(text: str, secrets: tuple[tuple[str, str], ...]) -> str:
    for value, mark in secrets:
        if value in text:
            text = text.replace(value, mark)
    lowered = text.lower()
    for telltales, pattern in _PATTERNS:
        for telltale in telltales:
            if telltale in lowered:
                text = pattern.sub(rf"\g<kept>{HIDDEN}", text)
                break
    return text


def _clean_tree(value: Any, secrets: tuple[tuple[str, str], ...]) -> Any:
    if isinstance(value, str):
        return _clean(value, secrets)
    if isinstance(value, dict):
        return {_clean_tree(key, secrets): _clean_tree(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_tree(inner, secrets) for inner in value]
    return value
