"""Data Docs without the internet: Great Expectations' own pages, made to open anywhere.

Decides what of a page stays. Great Expectations writes pages that load styles, scripts, fonts and a logo from seven
other hosts, and an index that is empty without them. Rules: words, tables and marks stay; scripts, styles, images,
buttons and links to elsewhere go; a small style of our own is put into each page, whose own policy then forbids the
browser to load anything at all; the index is ours.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from shutil import rmtree

from lastgood.report.report import Area

__all__ = ["finish_documents", "offline"]

# fmt: off
_DROPPED = frozenset({
    "script", "style", "link", "footer", "button", "img", "input", "label", "base", "iframe", "object", "svg",
})
_VOID = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr",
})
# fmt: on
_KEPT_ATTRIBUTES = frozenset({"id", "class", "href", "colspan", "rowspan", "charset", "name", "content", "hidden"})

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #f6f8fa; --bad: #b42318; --good: #1a7f37; --link: #0b57d0 }
@media (prefers-color-scheme: dark) {
  :root { --line: #3d444d; --soft: #1c2128; --bad: #ff7b72; --good: #56d364; --link: #8ab4f8 }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1.5rem }
a { color: var(--link) }
h1, h4, h5, h6 { margin: 1.2em 0 .4em; font-size: 1.1rem }
h1 { font-size: 1.4rem }
ol { list-style: none; padding: 0; display: flex; gap: 1rem; flex-wrap: wrap }
table { border-collapse: collapse; margin: .5rem 0; max-width: 100%; display: block; overflow-x: auto }
th, td { border: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top }
th { background: var(--soft) }
code { background: var(--soft) }
.sticky { display: none }
.text-danger, .missed { color: var(--bad) }
.text-success, .met { color: var(--good) }
.fa-times::before { content: "\\2717  missed" }
.fa-check-circle::before { content: "\\2713  met" }
.fa-exclamation-triangle::before { content: "\\26a0" }
i { font-style: normal; white-space: nowrap }
"""
_HEAD = (
    f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">'
    f'<link rel="icon" href="data:,"><style>{_STYLE}</style>'
)


def finish_documents(directory: Path, pages: Mapping[Area, str], met: Mapping[Area, bool], now: datetime) -> None:
    """Rewrite every page under a directory, write the index, and remove what no page needs any more.

    Args:
        directory: Where `suite.judge_indicators` built them.
        pages: Area → its validation page.
        met: Area → whether all of its objectives are met.
        now: When they were judged, aware.
    """
    for path in sorted(directory.rglob("*.html")):
        path.write_text(offline(path.read_text(encoding="utf-8")), encoding="utf-8")
    for assets in (directory / "static", directory / "data_docs_custom_styles"):
        rmtree(assets, ignore_errors=True)
    (directory / "index.html").write_text(_index(pages, met, now), encoding="utf-8")


def offline(page: str) -> str:
    """One page that loads nothing, from nowhere."""
    rewriter = _Rewriter()
    rewriter.feed(page)
    rewriter.close()
    return "".join(rewriter.parts).replace("</head>", f"{_HEAD}</head>", 1)


def _index(pages: Mapping[Area, str], met: Mapping[Area, bool], now: datetime) -> str:
    said = {True: "met", False: "missed"}
    rows = "".join(
        f'<tr><td>{area}</td><td class="{said[met[area]]}">{said[met[area]]}</td>'
        f'<td><a href="{html.escape(page)}">results</a></td>'
        f'<td><a href="expectations/{area}.html">demands</a></td></tr>'
        for area, page in pages.items()
    )
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>lastgood: Data Docs</title>{_HEAD}'
        f"</head><body><h1>Data Docs</h1><p>Written by Great Expectations at {now:%Y-%m-%d %H:%M:%S} UTC. "
        f"Creation and recovery are judged apart and never averaged.</p>"
        f"<table><thead><tr><th>Indicator</th><th>Objectives</th><th>Of each family</th><th>What is demanded</th></tr>"
        f'</thead><tbody>{rows}</tbody></table><p><a href="../index.html">Readiness page</a></p>'
        f"</body></html>\n"
    )


class _Rewriter(HTMLParser):
    """Copies a page without what it may not contain."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self._dropping: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if self._dropping or tag in _DROPPED or ("data-toggle", "collapse") in attrs:
            if tag not in _VOID:
                self._dropping.append(tag)
            return
        kept = "".join(f' {name}="{html.escape(value or "")}"' for name, value in attrs if _is_kept(name, value))
        self.parts.append(f"<{tag}{kept}>")

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if not self._dropping and tag not in _DROPPED:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self._dropping:
            if tag not in _VOID:
                self.parts.append(f"</{tag}>")
        elif tag in self._dropping:
            # An element that was left open inside ends with the one around it.
            while self._dropping.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not self._dropping:
            self.parts.append(data)

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")

    def handle_decl(self, decl: str) -> None:
        self.parts.append(f"<!{decl}>")


def _is_kept(name: str, value: str | None) -> bool:
    """Attributes that lay out a page or lead inside it; nothing that runs, and nothing that leaves."""
    if name == "href":
        return value is not None and "//" not in value and ":" not in value
    return name in _KEPT_ATTRIBUTES
