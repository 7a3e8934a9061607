"""Plots: bounded, free of style attributes and foreign ids, and readable by whoever does not see them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from lastgood.report.plots import (
    FEWEST_BARS,
    MAXIMUM_BARS,
    MAXIMUM_POINTS,
    MAXIMUM_STACKS,
    Ink,
    Point,
    draw_bars,
    draw_points,
    draw_stacks,
    time_edges,
)

NOW = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '$\\frac{1}{0}$ <script>alert(1)</script> & "quoted"'


def points(count: int) -> list[Point]:
    return [Point(at=NOW - timedelta(hours=place), value=float(place)) for place in range(count)]


def bars(key: str = "a", title: str = "t", description: str = "d") -> str:
    edges = time_edges(NOW - timedelta(days=9), NOW)
    return draw_bars(edges, {Ink.PASS: [3] * (len(edges) - 1)}, key=key, title=title, description=description)


def dots(count: int = 5, key: str = "b", limit: float | None = 3.0) -> str:
    edges = time_edges(NOW - timedelta(hours=count), NOW)
    return draw_points({Ink.ONE: points(count)}, edges=edges, limit=limit, key=key, title="t", description="d")


def stacks(count: int = 3, key: str = "c") -> str:
    rows = [(f"{place} Nov", {Ink.STOP: 2.0, Ink.LOAD: 4.0}) for place in range(count)]
    return draw_stacks(rows, limit=9.0, key=key, title="t", description="d")


@pytest.mark.parametrize("plot", [bars, dots, stacks])
def test_a_plot_has_no_style_of_its_own(plot: Callable[[], str]) -> None:
    """The page's policy refuses style attributes, and a colour that is spelled out is wrong in the dark."""
    svg = plot()
    root = ElementTree.fromstring(svg)
    assert not [element for element in root.iter() if "style" in element.attrib or element.tag == f"{SVG}style"]
    assert not re.search(r"#0102|#[0-9a-f]{6}\b|url\((?!#)|http(?!://www\.w3\.org/2000/svg)", svg)
    assert {name for element in root.iter() for name in element.get("class", "").split()} <= {
        "plot",
        *(f"{kind}-{ink.replace('_', '-')}" for kind in ("fill", "stroke") for ink in Ink),
    }


def test_ids_of_two_plots_on_a_page_never_meet() -> None:
    """A clip path or a title that another plot defined would cut or name the wrong drawing."""
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (bars("a"), bars("b"), dots(key="c"), stacks(key="d"))]
    assert sum(map(len, ids)) == len(set.union(*ids))
    for svg in (bars("a"), dots(key="c")):
        referred = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
        assert referred
        assert referred <= set(re.findall(r'\bid="([^"]+)"', svg))


def test_a_plot_says_what_it_shows() -> None:
    """Title and description are text of the drawing, escaped, never mathematics and never markup."""
    root = ElementTree.fromstring(bars(title=HOSTILE, description=HOSTILE))
    assert [root.findtext(f"{SVG}{tag}") for tag in ("title", "desc")] == [HOSTILE, HOSTILE]
    assert root.get("role") == "img"
    names = {element.get("id") for element in root.iter()}
    assert set((root.get("aria-labelledby") or "").split()) <= names
    assert "<script" not in bars(title=HOSTILE)


def test_lines_limits_and_grids_are_drawn() -> None:
    """What has a stroke and no fill is easily taken for nothing and dropped."""
    drawn = dots()
    assert drawn.count('class="stroke-one"') >= 1
    assert drawn.count('class="stroke-limit"') == 1
    assert "stroke-faint" in drawn
    assert 'class="stroke-limit"' not in dots(limit=None)


def test_a_limit_that_is_far_off_does_not_flatten_what_was_measured() -> None:
    """A recovery of one second under a limit of an hour must still show where the second went."""
    assert 'class="stroke-limit"' not in dots(limit=3600.0)
    assert dots(limit=3600.0) == dots(limit=None)


def test_a_plot_holds_no_more_than_can_be_seen() -> None:
    """A family with a year of nightly restores must not make the page unreadable, nor slow."""
    assert dots(MAXIMUM_POINTS * 3).count("<use ") <= MAXIMUM_POINTS + 20
    assert stacks(MAXIMUM_STACKS * 3).count('class="fill-load"') == MAXIMUM_STACKS
    assert len(dots(MAXIMUM_POINTS * 3)) < 20_000


def test_the_same_numbers_give_the_same_drawing() -> None:
    """A page that changes with every hour's report, though nothing happened, cannot be compared or cached."""
    assert bars() == bars()
    assert dots() == dots()


@pytest.mark.parametrize("hours", [0, 0.2, 5, 30, 31, 200, 24 * 90, 24 * 365, 24 * 3650])
def test_spans_hold_both_moments_and_are_few(hours: float) -> None:
    """A save at the edge that fell out of every bar would be missing from the sum."""
    first = NOW - timedelta(hours=hours)
    edges = time_edges(first, NOW)
    assert edges[0] <= first < edges[-1]
    assert edges[0] <= NOW < edges[-1]
    assert FEWEST_BARS <= len(edges) - 1 <= MAXIMUM_BARS
    assert len({later - earlier for earlier, later in itertools.pairwise(edges)}) == 1
