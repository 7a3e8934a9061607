"""What a verdict looks like on the page of a run: whole where it is small, bounded where it is not, never raw."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lastgood.config import ReportSettings
from lastgood.records import Measurements, Record
from lastgood.verdict import Check, CheckState, Finding, Note, NoteReason, Reason, Rung, Tier, judge
from lastgood_prefect.artifacts import (
    MAXIMUM_KEY_CHARACTERS,
    MAXIMUM_MARKDOWN_CHARACTERS,
    MAXIMUM_ROWS,
    Progress,
    checks_table,
    lawful_key,
    page_link,
    verdicts_markdown,
)

HOSTILE = "<script>alert(1)</script>[x](javascript:alert(1))![i](http://e/i.png)\u202e\x1b[31m|`**\n# h\n- l"
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def record(text: str, *, findings: int = 1, checks: int = 1, step: int = 12) -> Record:
    found = tuple(
        Finding(reason=Reason.SHARD_MISSING, message=text, offender=f"{text}{number}") for number in range(findings)
    )
    made = [
        Check(name=f"{text}{number}", state=CheckState.RAN, detail=text, findings=found) for number in range(checks)
    ]
    generation = f"00000001-{step:016d}"
    return Record(
        schema_version=1,
        family="llm",
        generation=generation,
        manifest=None,
        attempt=1,
        verdict=judge(
            tier=Tier.MANIFEST,
            rung=Rung.FULL,
            subject=f"{text}/{generation}",
            checks=made,
            notes=[Note(reason=NoteReason.STRAY_FILE, message=text, offender=text)],
            required=[],
        ),
        started_at=MOMENT,
        finished_at=MOMENT,
        host=text[:60],
        lastgood="1",
        measurements=Measurements(seconds=0.5, read_bytes=10 * 2**20, read_seconds=0.25),
    )


def test_hostile_names_are_neither_laid_out_nor_obeyed() -> None:
    """Run, tensor and file names are a stranger's; rendered, the page holds our own elements and no other."""
    text = verdicts_markdown(
        [record(HOSTILE)], where={f"00000001-{12:016d} 1": f"/store/{HOSTILE}"}, page="http://page/"
    )
    assert "\u202e" not in text
    assert "\x1b" not in text
    rendered = MarkdownIt("commonmark", {"html": True}).render(text)
    assert set(re.findall(r"<(\w+)", rendered)) == {"h2", "p", "ul", "li", "strong", "a"}
    assert re.findall(r'href="([^"]*)"', rendered) == ["http://page/"]
    for row in checks_table([record(HOSTILE).verdict]):
        for cell in row.values():
            assert not re.search(r"\u202e|\x1b|<script|\]\(javascript", cell)
            assert "<" not in MarkdownIt("commonmark", {"html": True}).renderInline(cell)


def test_a_verdict_tells_reason_hint_offender_and_place() -> None:
    """Whoever opens the page at night must not have to open anything else."""
    text = verdicts_markdown([record("disk")], where={f"00000001-{12:016d} 1": "/store/record.json"})
    for said in (
        "FAIL",
        "shard\\_missing",
        "offender: disk0",
        "hint:",
        "Record: /store/record.json",
        "0.500 s",
        "in 0.250 s (40.0 MiB/s)",
    ):
        assert said in text


def test_the_worst_comes_first_and_the_rest_is_counted() -> None:
    """One fail among a hundred passes is the reason why somebody reads."""
    many = [*(record("fine", findings=0, step=step) for step in range(100)), record("broken", step=500)]
    text = verdicts_markdown(many)
    assert text.startswith("## ❌ FAIL: broken")
    assert "…and 81 more: 81 pass" in text
    assert checks_table([one.verdict for one in many])[0]["subject"].startswith("broken")


def test_a_million_findings_make_a_page_that_opens() -> None:
    """A browser must show it, and the server must store it."""
    huge = record("x" * 300, findings=20_000, checks=30)
    text = verdicts_markdown([huge] * 20)
    assert len(text) <= MAXIMUM_MARKDOWN_CHARACTERS + 100
    assert "more findings" in text
    assert text.endswith("…and more: see the record")
    rows = checks_table([record("x", checks=400).verdict] * 3)
    assert len(rows) == MAXIMUM_ROWS + 1
    assert set(rows[-1].values()) == {"…"}
    assert "and 19997 more" in checks_table([huge.verdict])[0]["offenders"]


@given(st.text(max_size=300), st.text(max_size=300))
def test_every_key_is_lawful(first: str, second: str) -> None:
    """Prefect refuses any other key, and with it the whole artifact."""
    key = lawful_key("tier1-verdict", first, second)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key)
    assert len(key) <= MAXIMUM_KEY_CHARACTERS


def test_names_that_read_alike_have_keys_of_their_own() -> None:
    """Two families under one key would show each other's verdicts as their history."""
    names = [
        "llm-7b",
        "LLM-7b",
        "llm_7b",
        "llm 7b",
        "llm-7b\u202e",
        "größe",
        "grosse",
        "名",
        "字",
        "-",
        "x" * 200,
        "x" * 199,
    ]
    assert lawful_key("a", "llm-7b") == "a-llm-7b"
    assert len({lawful_key("a", name) for name in names}) == len(names)


def test_the_link_to_the_page_opens_where_the_configuration_says(tmp_path: Path) -> None:
    """By the browser's address where there is one, else as a file."""
    assert (
        page_link(ReportSettings(directory=str(tmp_path), link="https://ops/lastgood/"))
        == "https://ops/lastgood/index.html"
    )
    assert page_link(ReportSettings(directory=str(tmp_path))) == f"{tmp_path.as_uri()}/index.html"


def test_a_link_with_a_space_or_parenthesis_stays_one_link() -> None:
    """A report's directory may be called anything."""
    text = verdicts_markdown([record("x")], page="https://ops/a b/(c)/index.html")
    rendered = MarkdownIt("commonmark").render(text)
    assert 'href="https://ops/a%20b/%28c%29/index.html"' in rendered


def test_short_work_shows_no_progress() -> None:
    """A page that flickers tells nothing, and each word costs a request."""
    asked: list[int] = []

    def total() -> int:
        asked.append(1)
        return 10

    progress = Progress("key", "reading", total, clock=iter(range(0, 5)).__next__)
    for done in range(3):
        progress(done)
    progress.close()
    assert asked == []


@pytest.mark.parametrize("tier", list(Tier))
def test_each_tier_has_its_own_history(tier: Tier) -> None:
    """The page of an artifact shows its versions: of one family and one gate."""
    assert lawful_key(f"tier{int(tier)}-verdict", "llm") == f"tier{int(tier)}-verdict-llm"
