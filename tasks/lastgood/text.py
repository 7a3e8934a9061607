"""Text that came from elsewhere, made safe to print; lengths, counts and an order of names as people read them.

Control, escape, bidirectional and unpaired characters are shown as escapes, so that a name in a checkpoint can neither
move the cursor nor reorder a line; secrets are not shown at all (`redaction`).
"""

from __future__ import annotations

import re
import unicodedata

from lastgood.redaction import redact

__all__ = ["counted", "natural_order", "printable", "size"]

_NUMBERS = re.compile(r"([0-9]{1,1000})")
# Cc: control (ANSI begins with one); Cf: format (bidi overrides, zero width); Cs: surrogates; Co, Cn: nothing to show.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str, *, keep_newlines: bool = False) -> str:
    """Escape what a terminal would act on, and leave secrets out.

    Args:
        text: Anything.
        keep_newlines: Leave line feeds as they are (for text that we laid out ourselves).
    """
    text = redact(text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if (character == "\n" and keep_newlines) or unicodedata.category(character) not in _UNPRINTABLE
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def counted(count: int, what: str, many: str | None = None) -> str:
    """How many of something: `1 rank`, `2 ranks`.

    Args:
        count: How many.
        what: As one of them is called.
        many: As several are, where that is not with an s at the end.
    """
    return f"{count} {what if count == 1 else many or f'{what}s'}"


def natural_order(name: str) -> tuple[str | int, ...]:
    """A key to sort names by, in which `checkpoint-200` comes before `checkpoint-1000`."""
    # Split at numbers, so text and numbers alternate and are never compared with each other.
    return tuple(int(part) if place % 2 else part for place, part in enumerate(_NUMBERS.split(name)))


def size(count: float) -> str:
    """Bytes as people read them, binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit returns")
