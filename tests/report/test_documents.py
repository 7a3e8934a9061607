"""Great Expectations' pages as we leave them: nothing loaded, nothing run, nothing of a stranger's raw."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from lastgood.report.documents import finish_documents, offline
from lastgood.report.indicators import measure
from lastgood.report.report import Area
from lastgood.report.suite import escaped, judge_indicators
from lastgood.testing.evidence import HOSTILE
from tests.report.healthy import NOW, healthy, settings

LOADING = {"script", "link", "img", "iframe", "object", "embed", "source", "video", "audio", "base", "form", "svg"}


class Loads(HTMLParser):
    """Collects every element and attribute of a page that makes a browser load, run or leave."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag in LOADING and told.get("href") != "data:,":
            self.found.append(tag)
        self.found += [name for name in told if name.startswith("on")]
        self.found += [
            f"{name}={value}" for name, value in attrs if name in ("href", "src", "action") and "//" in str(value)
        ]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of one family that misses objectives and bears a hostile name."""
    directory = tmp_path_factory.mktemp("documents")
    rows = healthy(HOSTILE)
    rows.families[0].update(proven=0, state=HOSTILE, verdict=HOSTILE, publishes_begun=9)
    indicators = measure(rows.frames(), settings(HOSTILE), NOW)
    judged = judge_indicators(indicators, NOW, documents=directory)
    finish_documents(directory, judged.pages, dict.fromkeys(Area, False), NOW)
    return directory


def pages(directory: Path) -> list[Path]:
    found = sorted(directory.rglob("*.html"))
    assert len(found) == 5, "the index, and of each suite its demands and its results"
    return found


def test_no_page_loads_or_runs_anything(documents: Path) -> None:
    """The report must open on a machine without a way out, and tell no other host that somebody reads it."""
    assert {str(page.relative_to(documents)): Loads(page.read_text()).found for page in pages(documents)} == {
        str(page.relative_to(documents)): [] for page in pages(documents)
    }
    for page in pages(documents):
        assert "default-src 'none'" in page.read_text().replace("&#x27;", "'")


def test_the_pages_of_great_expectations_would_load_from_elsewhere() -> None:
    """The check above must see what there is to see."""
    page = '<link href="https://x/y.css"><script src="//x/z.js"></script><a onclick="f()" href="http://x">n</a>'
    assert Loads(page).found == ["link", "href=https://x/y.css", "script", "src=//x/z.js", "onclick", "href=http://x"]
    assert Loads(offline(f"<html><head></head><body>{page}</body></html>")).found == []


def test_only_pages_are_left(documents: Path) -> None:
    """Fonts and pictures that no page uses any more would be carried to every web server."""
    assert {path.suffix for path in documents.rglob("*") if path.is_file()} == {".html"}


def test_every_link_leads_to_a_page(documents: Path) -> None:
    """A dead link in a report is where a reader's trust ends."""
    targets = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            href = dict(attrs).get("href")
            if tag == "a" and href and not href.startswith("#"):
                targets.append((self.page, href))  # type: ignore[attr-defined]

    for page in pages(documents):
        links = Links()
        links.page = page  # type: ignore[attr-defined]
        links.feed(page.read_text())
    outside = {href for page, href in targets if not (page.parent / href).exists()}
    assert outside == {"../index.html"}, "only the readiness page, which lies above"
    assert len(targets) >= 8


def test_hostile_text_is_shown_and_not_obeyed(documents: Path) -> None:
    """A name in a checkpoint is text: as HTML, a template, a terminal's escape or a reversal it would be obeyed."""
    whole = "".join(page.read_text() for page in pages(documents))
    assert "<script>alert" not in whole
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in whole
    assert not set(whole) & {"\x1b", "\u202e", "\x00"}


@pytest.mark.parametrize(
    "text", ["<b>", "$name", "${name}", "{{ 7 * 7 }}", "{% x %}", '"', "'", "a\u202eb", "\x1b[31m"]
)
def test_escaped_text_means_nothing_to_any_template(text: str) -> None:
    """Great Expectations puts strings through two kinds of templates and into HTML, as they are."""
    assert not set(escaped(text)) & set("<>${}\"'\u202e\x1b")


def test_words_and_marks_of_a_page_stay() -> None:
    """What goes is what loads; a table without its words would be no report."""
    page = (
        "<!DOCTYPE html><html><head><title>t</title></head><body><table class='x' onclick='y'><tr><td colspan=2>"
        "a &lt; b<br/><i class='fas fa-times'></i></td></tr></table><footer>buy<p>now</footer><p>end</p></body></html>"
    )
    kept = offline(page).partition("<body>")[2]
    assert kept == (
        '<table class="x"><tr><td colspan="2">a &lt; b<br><i class="fas fa-times"></i></td></tr></table>'
        "<p>end</p></body></html>"
    )
