"""Text of a stranger in Markdown: it reads as it was written, and does nothing."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lastgood.text import printable
from lastgood_prefect.escape import MAXIMUM_CHARACTERS, line, markdown

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
ACTIVE = "<>&`*_[]()#+-=.!|~$:/\\@\"' \t\n1a\u202e\x1b\u2028wWhtps"


def shown(text: str) -> str:
    """What a reader sees of the rendered Markdown; it must be one paragraph and hold no other element."""
    rendered = RENDERER.render(text).strip()
    if not rendered:
        return ""
    match = re.fullmatch(r"<p>(.*)</p>", rendered, flags=re.DOTALL)
    assert match is not None, rendered
    assert "<" not in match[1], rendered
    return html.unescape(match[1])


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "[x](javascript:alert(1))",
        "![x](http://example.org/x.png)",
        "**b** _i_ `c` ~~s~~ | cell |",
        "# heading",
        "- item",
        "+ item",
        "1. item",
        "12) item",
        "===",
        "---",
        "> quote",
        "    code",
        "``` fence",
        "~~~ fence",
        "[a]: http://example.org",
        "<http://example.org>",
        "&lt;b&gt; &amp;",
        "line\nbreak\n\n# heading",
        "\x1b[31mred\x1b[0m",
        "evil\u202egnp.exe",
        "\\<b>",
        "model/layer_0.weight: expected 3.5e-1, found `nan`",
    ],
)
def test_what_was_written_is_what_is_shown(text: str) -> None:
    """A name must be readable as it is, and may neither lay out the page nor link out of it."""
    assert shown(markdown(text)) == printable(text).strip()


@given(st.text(alphabet=st.one_of(st.sampled_from(ACTIVE), st.characters()), max_size=80))
def test_no_text_does_anything(text: str) -> None:
    """Of every text, whatever Markdown or HTML would make of it."""
    assert shown(markdown(text)) == line(text)


@given(st.text(max_size=2000), st.integers(min_value=2, max_value=400))
def test_the_length_is_bounded_before_escapes(text: str, limit: int) -> None:
    """A checkpoint may name a thing as long as it likes; a cut must not halve an escape."""
    assert len(line(text, limit=limit)) <= limit
    assert shown(markdown(text, limit=limit)) == line(text, limit=limit)


@pytest.mark.parametrize("text", ["http://example.org", "HTTPS://example.org", "www.example.org", "WWW.x", "a@b.org"])
def test_an_address_is_no_link_of_its_own(text: str) -> None:
    """Prefect's page links bare addresses; of a stranger's, nobody asked it to."""
    assert re.search(r"(?<!\\):\\?//|(?i:www)\.|(?<!\\)@", markdown(text)) is None


def test_a_long_text_ends_with_a_sign_that_it_goes_on() -> None:
    """Whoever reads half a message must know that it is half."""
    assert line("x" * 1000) == "x" * (MAXIMUM_CHARACTERS - 1) + "…"
