"""Figures as people read them: one unit, no more digits than were measured. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from lastgood import text

__all__ = ["count", "duration", "moment", "percent", "plain", "rate", "size", "steps"]

NOT_MEASURED = "not measured"


def count(number: float) -> str:
    """A whole number, in groups of three."""
    return f"{number:,.0f}"


def duration(seconds: float | None) -> str:
    """A span of time in one unit; None and NaN: nobody measured it."""
    if seconds is None or math.isnan(seconds):
        return NOT_MEASURED
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    if abs(seconds) >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if abs(seconds) >= 1 else f"{seconds * 1000:.0f} ms"


def moment(at: datetime) -> str:
    """A time to the minute, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def percent(part: int, whole: int) -> str:
    """A share, never rounded up to all nor down to none."""
    if whole == 0:
        return "none yet"
    share = 100 * part / whole
    told = f"{share:.1f}".rstrip("0").rstrip(".")
    if part < whole and told == "100":
        return "> 99.9 %"
    return "< 0.1 %" if part and told == "0" else f"{told} %"


def rate(bytes_per_second: float) -> str:
    """A bandwidth; NaN: nobody measured it."""
    return NOT_MEASURED if math.isnan(bytes_per_second) else f"{size(bytes_per_second)}/s"


def size(number: float) -> str:
    """Bytes, binary units; NaN: nobody measured it."""
    return NOT_MEASURED if math.isnan(number) else text.size(number)


def steps(number: float) -> str:
    """Completed optimizer steps; NaN: nobody measured it."""
    if math.isnan(number):
        return NOT_MEASURED
    return f"{count(number)} step{'' if number == 1 else 's'}"


def plain(value: float) -> str:
    """A number as a program reads it; NaN is empty."""
    return "" if math.isnan(value) else f"{value:.10g}"
