"""Why something is refused, in the words of whoever refused it: an operator's sentence, or what a gate found."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from lastgood import documents
from lastgood.cli.output import age
from lastgood.errors import FormatError
from lastgood.location import Location
from lastgood.markers import Refusal

__all__ = ["refusal_lines"]

SHOWN = 5


def refusal_lines(location: Location, names: Iterable[str]) -> list[str]:
    """The newest few refusals, a line for each cause; one that cannot be read says so."""
    when = dict[str, datetime]()
    for name in names:
        key = f"{location.keys.refusals}/{name}"
        try:
            data = location.store.get(key, limit_bytes=documents.MAXIMUM_DOCUMENT_BYTES)
            refusal = documents.parse(Refusal, data or b"", key)
        except FormatError as error:
            when[error.message] = datetime.max.replace(tzinfo=UTC)
            continue
        of = f"{refusal.generation}: " if refusal.generation else ""
        cause = f"{of}{refusal.reason} (by {refusal.by})"
        when[cause] = max(refusal.created_at, when.get(cause, refusal.created_at))
    newest_first = sorted(when, key=lambda cause: (when[cause], cause), reverse=True)
    lines = [f"{cause}, {age(when[cause])}" for cause in newest_first[:SHOWN]]
    left = len(newest_first) - len(lines)
    return [*lines, f"and {left} more, in {location.keys.refusals}"] if left else lines
