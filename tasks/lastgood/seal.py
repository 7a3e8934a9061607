"""What a manifest says beside its artifacts when a checkpoint was adopted where it lies, instead of published.

Decides the shape of that statement; `formats.sealing` makes it. Rules: whoever reads a sealed generation can tell what
its writer stated from what was concluded, and by whom and why it was adopted. Source: docs/format.md, ADR 0011.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from lastgood.documents import AwareTime, Document

__all__ = ["Seal"]

Line = Annotated[str, Meta(min_length=1, max_length=4096)]


class Seal(Document, frozen=True, kw_only=True):
    """How a foreign checkpoint was adopted.

    Args:
        framework: Who wrote it, as recognised.
        version: Of the framework, where it is written there; null where not.
        layout: Which of the framework's layouts.
        step_from: What the step was read from.
        world_size_from: What the world size was read from or concluded from, or that the operator said it.
        listing: Digest of what lay there and when it last changed, as `unsealed.listing_digest` makes it: while it is
            the same, nobody need read the files to know that this is what was sealed.
        unknowable: What nobody can tell from the files.
        reason: The operator's, or null.
        sealed_at: When.
        by: Host or person.
    """

    framework: Line
    version: Line | None
    layout: Line
    step_from: Line
    world_size_from: Line
    listing: Line
    unknowable: tuple[Line, ...] = ()
    reason: Line | None = None
    sealed_at: AwareTime
    by: Line
