"""Plots as inline SVG: what was measured, drawn so that a browser needs nothing else to show it.

Decides how a plot looks and that it is bounded; leaves what is drawn to `view`. Rules:

- matplotlib draws, without pyplot and its global state; what it wrote is then taken apart: every colour becomes a class
  of the page's style sheet, so that light, dark and print choose it, and no style attribute is left for a content
  security policy to refuse.
- Text stays text, under a title and a description that say the same to whoever cannot see it.
- Nothing that a checkpoint could have spelled is drawn: names stand in HTML, beside the plot.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import date2num
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

__all__ = [
    "MAXIMUM_BARS",
    "MAXIMUM_POINTS",
    "MAXIMUM_STACKS",
    "Ink",
    "Point",
    "draw_bars",
    "draw_points",
    "draw_stacks",
    "time_edges",
]

MAXIMUM_BARS = 30
MAXIMUM_POINTS = 100
MAXIMUM_STACKS = 12
MAXIMUM_DATES = 6
FARTHEST_LIMIT = 4
"""A limit farther off than so many times what was measured would leave nothing of that to see; the text says it."""
WIDTH, HEIGHT, POINTS_AN_INCH = 340, 150, 72
"""As wide as a phone, so that the text of a plot can be read on one; a wide screen sets plots side by side."""
LEFT, RIGHT, TOP, BOTTOM = 44, 20, 8, 22
FONT_POINTS = 10.0


class Ink(StrEnum):
    """What a colour means; the style sheet has a class of each name (`ink-pass`)."""

    TEXT = "text"
    FAINT = "faint"
    LIMIT = "limit"
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not_run"
    ONE = "one"
    TWO = "two"
    THREE = "three"
    STOP = "stop"
    RELAUNCH = "relaunch"
    LAUNCH = "launch"
    IMPORT = "import"
    JOIN = "join"
    BUILD = "build"
    DISCOVER = "discover"
    LOAD = "load"
    FIRST_STEP = "first_step"
    OTHER = "other"


# Colours that nobody will see: each stands for an ink until the page's style sheet takes over.
_COLOUR: Mapping[Ink, str] = {ink: f"#0102{number:02x}" for number, ink in enumerate(Ink)}
_INK: Mapping[str, Ink] = {colour: ink for ink, colour in _COLOUR.items()}

_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lastgood",
    "text.parse_math": False,
    "font.size": FONT_POINTS,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": _COLOUR[Ink.FAINT],
    "axes.labelcolor": _COLOUR[Ink.TEXT],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _COLOUR[Ink.FAINT],
    "grid.linewidth": 0.5,
    "xtick.color": _COLOUR[Ink.FAINT],
    "xtick.labelcolor": _COLOUR[Ink.TEXT],
    "ytick.color": _COLOUR[Ink.FAINT],
    "ytick.labelcolor": _COLOUR[Ink.TEXT],
    "ytick.major.size": 0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


_MARKERS = "os^D"
"""Series differ in shape too: some people see no colours, and some print in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Something measured at a moment."""

    at: datetime
    value: float


def draw_bars(
    edges: Sequence[datetime], counts: Mapping[Ink, Sequence[int]], *, key: str, title: str, description: str
) -> str:
    """How many of each kind in each span of time, stacked.

    Args:
        edges: Where the spans begin, and the end of the last; at most `MAXIMUM_BARS` spans.
        counts: Of each ink, one number a span.
        key: Makes the plot's ids unique on the page; letters, digits and dashes.
        title: Its name.
        description: What it shows, in a sentence, for whoever does not see it.
    """
    lefts = [float(date2num(edge)) for edge in edges]
    widths = [right - left for left, right in itertools.pairwise(lefts)]
    with _axes(HEIGHT) as (figure, axes):
        bottoms = [0] * len(widths)
        for ink, numbers in counts.items():
            axes.bar(lefts[:-1], numbers, [width * 0.82 for width in widths], bottoms, align="edge", color=_COLOUR[ink])
            bottoms = [below + number for below, number in zip(bottoms, numbers, strict=True)]
        axes.set_xlim(lefts[0], lefts[-1])
        axes.set_ylim(0, max(*bottoms, 1) * 1.05)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        _dates(axes, edges)
        return _svg(figure, key, title, description)


def draw_points(
    series: Mapping[Ink, Sequence[Point]],
    *,
    edges: Sequence[datetime],
    limit: float | None,
    key: str,
    title: str,
    description: str,
) -> str:
    """What was measured, when; a line marks the limit.

    Args:
        series: Of each of at most four inks its points; of more than `MAXIMUM_POINTS`, the newest are drawn.
        edges: The time to show, from the first to the last; from `time_edges`.
        limit: What is demanded, in the unit of the values.
        key: As of `draw_bars`.
        title: As of `draw_bars`.
        description: As of `draw_bars`.
    """
    with _axes(HEIGHT) as (figure, axes):
        highest = 0.0
        for marker, (ink, points) in zip(_MARKERS, series.items(), strict=False):
            shown = sorted(points, key=lambda point: point.at)[-MAXIMUM_POINTS:]
            moments, values = [float(date2num(point.at)) for point in shown], [point.value for point in shown]
            axes.plot(moments, values, color=_COLOUR[ink], linewidth=1, marker=marker, markersize=4)
            highest = max([highest, *values])
        if limit is not None and limit <= FARTHEST_LIMIT * highest:
            axes.axhline(limit, color=_COLOUR[Ink.LIMIT], linewidth=1, dashes=(4, 3))
            highest = max(limit, highest)
        axes.set_xlim(float(date2num(edges[0])), float(date2num(edges[-1])))
        axes.set_ylim(0, (highest or 1) * 1.08)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        _dates(axes, edges)
        return _svg(figure, key, title, description)


def draw_stacks(
    rows: Sequence[tuple[str, Mapping[Ink, float]]],
    *,
    limit: float | None,
    key: str,
    title: str,
    description: str,
) -> str:
    """Where the time of each recovery went, in seconds: one bar a recovery, newest on top.

    Args:
        rows: Label and seconds of each part; at most `MAXIMUM_STACKS` are drawn, the newest, which come first.
        limit: What the whole may take, in seconds.
        key: As of `draw_bars`.
        title: As of `draw_bars`.
        description: As of `draw_bars`.
    """
    shown = list(rows[:MAXIMUM_STACKS])
    with _axes(TOP + BOTTOM + 18 * max(len(shown), 2)) as (figure, axes):
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        for place, (_, parts) in enumerate(shown):
            left = 0.0
            for ink, seconds in parts.items():
                axes.barh(place, seconds, 0.68, left, color=_COLOUR[ink])
                left += seconds
        longest = max((sum(parts.values()) for _, parts in shown), default=0.0)
        if limit is not None and limit <= FARTHEST_LIMIT * longest:
            axes.axvline(limit, color=_COLOUR[Ink.LIMIT], linewidth=1, dashes=(4, 3))
            longest = max(limit, longest)
        axes.set_yticks(range(len(shown)), [label for label, _ in shown])
        axes.set_ylim(max(len(shown), 2) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.set_xlim(0, (longest or 1.0) * 1.04)
        return _svg(figure, key, title, description)


@contextmanager
def _axes(height: float) -> Iterator[tuple[Figure, Axes]]:
    # The context lasts until the figure is written: text is laid out then.
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(WIDTH / POINTS_AN_INCH, height / POINTS_AN_INCH))
        FigureCanvasSVG(figure)
        figure.subplots_adjust(left=LEFT / WIDTH, right=1 - RIGHT / WIDTH, bottom=BOTTOM / height, top=1 - TOP / height)
        yield figure, figure.add_subplot()


def _dates(axes: Axes, edges: Sequence[datetime]) -> None:
    """Name a few of the edges: what a bar begins with is what its label says."""
    shown = edges[:: math.ceil(len(edges) / MAXIMUM_DATES)]
    days = (edges[-1] - edges[0]) / timedelta(days=1)
    form = "%H:%M" if days < 2 else "%-d %b" if days < 300 else "%b %Y"
    axes.set_xticks([float(date2num(edge)) for edge in shown], [f"{edge.astimezone(UTC):{form}}" for edge in shown])


# --- From matplotlib's SVG to the page's.

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_SPOKEN = frozenset(f"{{{_SVG}}}{name}" for name in ("title", "desc", "text", "tspan"))
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_DROPPED = frozenset({"font", "font-family", "stroke-linejoin", "stroke-linecap", "font-size"})
ElementTree.register_namespace("", _SVG)


def _svg(figure: Figure, key: str, title: str, description: str) -> str:
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(written.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    used = {name for element in root.iter() for name in _references(element)}
    for element in root.iter():
        _restyle(element)
        _rename(element, used, key)
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib.clear()
    root.attrib.update(
        {
            "class": "plot",
            "viewBox": f"0 0 {width} {height}",
            "role": "img",
            "aria-labelledby": f"{key}-title {key}-description",
        }
    )
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = Element(f"{{{_SVG}}}{tag}", id=f"{key}-{'title' if tag == 'title' else 'description'}")
        element.text = text
        root.insert(place, element)
    _prune(root)
    return ElementTree.tostring(root, encoding="unicode")


def _references(element: Element) -> Iterator[str]:
    target = element.get(f"{{{_XLINK}}}href", "")
    if target.startswith("#"):
        yield target[1:]
    for value in element.attrib.values():
        yield from _REFERENCE.findall(value)


def _restyle(element: Element) -> None:
    """Turn a style attribute into classes for colours and presentation attributes for the rest."""
    classes = []
    for declaration in element.attrib.pop("style", "").split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name in ("fill", "stroke") and value in _INK:
            classes.append(f"{name}-{_INK[value].replace('_', '-')}")
        elif name and name not in _DROPPED:
            element.set(name, value)
    if classes:
        element.set("class", " ".join(classes))
    for name in ("d", "transform", "x", "y", "width", "height"):
        if name in element.attrib:
            rounded = _NUMBER.sub(lambda match: f"{float(match[0]):.2f}", element.attrib[name])
            element.set(name, " ".join(rounded.split()))
    if element.get("transform", "").startswith("rotate(-0"):
        del element.attrib["transform"]


def _rename(element: Element, used: set[str], key: str) -> None:
    name = element.attrib.pop("id", None)
    if name in used:
        element.set("id", f"{key}-{name}")
    target = element.attrib.pop(f"{{{_XLINK}}}href", None)
    if target is not None:
        element.set("href", f"#{key}-{target[1:]}")
    for attribute, value in element.attrib.items():
        element.set(attribute, _REFERENCE.sub(rf"url(#{key}-\1)", value))


def _prune(root: Element) -> None:
    """Drop the transparent backgrounds, the groups that hold nothing, and the white space between."""
    for parent in reversed(list(root.iter())):
        parent.tail = None
        if parent.tag not in _SPOKEN:
            parent.text = None
        for child in list(parent):
            inked = child.get("class") or child.get("stroke", "none") != "none" or child.get("fill") != "none"
            shapeless = child.tag == f"{{{_SVG}}}path" and not inked
            empty = child.tag in (f"{{{_SVG}}}g", f"{{{_SVG}}}defs") and len(child) == 0
            if shapeless or empty:
                parent.remove(child)


def time_edges(first: datetime, last: datetime, *, maximum: int = MAXIMUM_BARS) -> list[datetime]:
    """Edges of at most `maximum` equal spans that hold both moments, each of a length that people think in.

    There are at least `FEWEST_BARS`, so that a first save does not look like a wall.
    """
    begin = datetime.min.replace(tzinfo=UTC)
    for length in _LENGTHS:
        lowest, highest = (first - begin) // length, (last - begin) // length + 1
        if highest - lowest <= maximum:
            return [begin + length * place for place in range(min(lowest, highest - FEWEST_BARS), highest + 1)]
    length = (last - first) / (maximum - 1)
    return [first + length * place for place in range(maximum + 1)]


FEWEST_BARS = 7
_LENGTHS = tuple(timedelta(hours=hours) for hours in (1, 3, 6, 12, 24, 48, 168, 336, 672))
