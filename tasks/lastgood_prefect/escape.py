"""Text that came from elsewhere, made safe for a run's page: Markdown, HTML, ANSI and bidirectional marks at once.

Decides how a string from a checkpoint reads where Prefect renders Markdown (artifacts, the cells of their tables too).
Rules: control and format characters become visible escapes first (`text.printable`), then whatever Markdown or HTML
would act on is taken its meaning; length is bounded, because a checkpoint may name a thing as long as it likes. What a
reader sees is the printable text, character for character.
"""

from __future__ import annotations

import re

from lastgood.redaction import redact
from lastgood.text import printable

__all__ = ["line", "markdown"]

MAXIMUM_CHARACTERS = 300
"""Of one name or message; the record holds all of it."""
LONGEST_SECRET = 8192
"""Characters that are looked at beyond the limit: half of a secret would not be recognised as one."""

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_INLINE = re.compile(r"[\\`*_\[\]()!|~$]|:(?=//)|@|(?<=www)\.", re.IGNORECASE)
"""Emphasis, code, links, images, cells, strikethrough, mathematics, and what becomes a link by itself."""
_LEADING = re.compile(r"^(?:[#+=-]|\d+(?=[.)]))")
"""What makes a heading, a list or a rule of a line that begins with it."""


def line(text: str, *, limit: int = MAXIMUM_CHARACTERS) -> str:
    """One line of plain text: escapes instead of what a terminal would act on, and at most `limit` characters."""
    shown = printable(redact(text[: limit + LONGEST_SECRET])[: limit + 1]).strip()
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def markdown(text: str, *, limit: int = MAXIMUM_CHARACTERS) -> str:
    """One line of Markdown that shows the text and does nothing else; it may begin a line or stand inside one."""
    shown = _INLINE.sub(r"\\\g<0>", line(text, limit=limit))
    for character, entity in _ENTITIES.items():
        shown = shown.replace(character, entity)
    return _LEADING.sub(_tame, shown)


def _tame(match: re.Match[str]) -> str:
    found = match[0]
    # A number begins a list only by the sign behind it, and a backslash before a digit would be shown.
    return f"{found}\\" if found.isdigit() else f"\\{found}"
