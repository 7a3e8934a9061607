"""Text that came from elsewhere, made safe to print.

Control, escape, bidirectional and unpaired characters are shown as escapes, so that a name in a checkpoint can neither
move the cursor nor reorder a line; secrets are not shown at all (`redaction`).
"""

from __future__ import annotations

import unicodedata

from lastgood.redaction import redact

__all__ = ["printable"]

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
