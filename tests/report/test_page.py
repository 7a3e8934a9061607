"""The readiness page as a document: what it says first, that nothing on it is raw, and that it stays small."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lastgood.report import view
from lastgood.report.page import render_page, write_page
from lastgood.report.view import MAXIMUM_FAILURES, Mood, link_of, view_of
from tests.report.sample import NOW, Rows, family_rows, generation, sample_report

HOSTILE = "".join(
    (
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "\"onmouseover='alert(1)",
        "javascript:alert(1)",
        "[click](javascript:alert(1)) **bold** `code` | cell",
        "\x1b[2J\x1b]0;title\x07",
        "\u202egnp.exe\u2066",
        "{{ 7 * 7 }} {% raw %} ${7*7} $\\frac{1}{0}$",
        "]]><svg/onload=alert(1)>",
        "a\u0000b\ud800c\u2028d",
    )
)


class Parsed(HTMLParser):
    """Tags, attributes and text, as a browser would take them."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plots: a drawing costs a tenth of a second, and most of what a page says is not drawn."""
    monkeypatch.setattr(view, "MAXIMUM_PLOTTED_FAMILIES", 0)


def headline(document: str) -> str:
    found = re.search(r"<h1>(.*?)</h1>", document)
    assert found is not None
    return html.unescape(found[1])


def poisoned(text: str) -> Rows:
    """A family of which every text that a checkpoint or a record spells is the given one."""
    rows = family_rows("llm-7b", days=6, broken=True)
    kept = {"outcome", "state", "rung", "criterion", "held", "verdict", "result", "generation", "latest", "last_good"}
    return {
        frame: [
            {
                name: text if isinstance(value, str) and name not in kept and name != "area" else value
                for name, value in row.items()
            }
            for row in found
        ]
        for frame, found in rows.items()
    }


@pytest.mark.usefixtures("undrawn")
def test_the_first_line_says_how_many_would_resume_and_why_the_others_would_not() -> None:
    """At 3 a.m. nobody reads a second line unless the first one says to."""
    report = sample_report(
        family_rows("llm-7b"), family_rows("llm-13b", broken=True), family_rows("vision", stale=True), family_rows("a")
    )
    page = view_of(report)
    assert page.headline == "3 of 4 families would resume; 1 quarantined"
    assert page.mood is Mood.BAD
    assert [(concern.family, concern.mood) for concern in page.concerns] == [
        ("llm-13b", Mood.BAD),
        ("vision", Mood.DOUBT),
    ]
    assert "is quarantined: restore of 00000001-0000000000082000 failed: sample ids" in page.concerns[0].text
    assert page.concerns[1].text == (
        "misses 1 objective: “The newest passed restore is young enough”: found 4.13 d, limit 2 d"
    )
    document = render_page(report)
    assert headline(document) == page.headline
    assert document.index("is quarantined") < document.index("<table")


def test_all_is_well_is_said_in_one_line() -> None:
    """A page that never looks calm teaches people to ignore it."""
    page = view_of(sample_report(family_rows("a"), family_rows("b", seed=2)))
    assert (page.headline, page.mood, page.concerns) == ("All 2 families would resume", Mood.GOOD, ())


@pytest.mark.usefixtures("undrawn")
def test_what_a_restore_read_and_how_fast_is_shown() -> None:
    """Whoever plans how large a checkpoint may grow looks for the bandwidth of the last restore."""
    rows = family_rows("llm-7b")
    told = {gate.name: gate.read for gate in view_of(sample_report(rows)).families[0].gates}
    assert told == {"verify": "", "restore": "13.0 GiB in 20 s, 667.6 MiB/s", "drill": "13.0 GiB in 20 s, 667.6 MiB/s"}
    assert "read 13.0 GiB in 20 s, 667.6 MiB/s" in render_page(sample_report(rows))
    for row in (*rows["restores"], *rows["drills"]):
        row.pop("read_seconds")
        row.pop("read_bytes_per_second")
    assert {gate.read for gate in view_of(sample_report(rows)).families[0].gates} == {""}, "records of before"


@pytest.mark.usefixtures("undrawn")
def test_one_family_is_named_in_the_headline() -> None:
    """Most teams have one; a count of one says less than its name."""
    assert headline(render_page(sample_report(family_rows("llm-7b")))) == "llm-7b would resume"


def test_an_empty_ledger_says_what_to_do() -> None:
    """A blank page looks like a healthy one."""
    document = render_page(sample_report())
    assert headline(document) == "No family is known yet"
    assert "lastgood.toml" in document
    assert "lastgood report" in document


@pytest.mark.usefixtures("undrawn")
def test_a_family_without_evidence_says_how_to_make_some() -> None:
    """What was never restored is not proven, and the command that would prove it belongs beside that word."""
    bare: Rows = {
        "families": [{"family": "new", "uri": "file:///c/new", "state": "nothing to resume", "verdict": "not_run"}]
    }
    for name in ("candidates", "proven", "publishes_begun", "committed"):
        bare["families"][0][name] = 0
    document = render_page(sample_report(bare, trouble={"new": "root is not a directory: /c"}))
    for gate in ("verify", "restore", "drill"):
        assert f"lastgood {gate} new" in document
    assert "never passed in full" in document
    assert "root is not a directory: /c" in document
    assert document.count("not shown") == 6


def test_nothing_that_a_checkpoint_spells_acts() -> None:
    """A name must not run, restyle, link, reorder or forge anything: a page about hostile input is itself a target."""
    document = render_page(sample_report(poisoned(HOSTILE), family_rows("b", days=6)))
    parsed, calm = (
        Parsed(found) for found in (document, render_page(sample_report(poisoned("calm"), family_rows("b", days=6))))
    )
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", document)
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in calm.tags]
    allowed = re.compile(r"#family-\d+|http://127\.0\.0\.1:4200/[\w/-]+|data:,|#[\w-]+")
    for _, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert "href" not in attributes or allowed.fullmatch(attributes["href"] or "")
    shown = "".join(parsed.text)
    assert shown.count("<script>alert(1)</script>") > 20
    assert "{{ 7 * 7 }}" in shown
    assert "<script>alert" not in document


@pytest.mark.usefixtures("undrawn")
def test_the_policy_allows_the_page_s_own_lines_and_nothing_else() -> None:
    """A strict policy is the second lock: if escaping ever failed, what slipped through would still not run."""
    document = render_page(sample_report(family_rows("llm-7b")))
    policy = next(
        attributes["content"] or ""
        for tag, attributes in Parsed(document).tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; ")
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", document, flags=re.S)
        assert len(blocks) == 1
        digest = base64.b64encode(hashlib.sha256(blocks[0].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert not re.search(r"<[^>]+\sstyle=", document)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//(?!127\.0\.0\.1)", document)


@pytest.mark.parametrize(
    ("origin", "link"),
    [
        ("http://127.0.0.1:4200/runs/flow-run/1", "http://127.0.0.1:4200/runs/flow-run/1"),
        ("https://prefect.example/runs/flow-run/1", "https://prefect.example/runs/flow-run/1"),
        ("javascript:alert(1)", ""),
        ("JaVaScRiPt://x/%0aalert(1)", ""),
        ("data:text/html,<script>", ""),
        ("file:///etc/passwd", ""),
        ("//host/path", ""),
        ("http:", ""),
        ("http://[::1", ""),
        ("6b5f0f0e-7d9a", ""),
        ("", ""),
    ],
)
def test_only_a_web_address_becomes_a_link(origin: str, link: str) -> None:
    """Whoever writes a record chooses its origin; a click must not run it."""
    assert link_of(origin) == link


def test_creation_and_recovery_are_two_figures() -> None:
    """A family that saves well and never resumes must not look half healthy."""
    page = view_of(sample_report(family_rows("a"), family_rows("b", seed=2)))
    assert [plot.title for plot in page.plots] == ["Creation: publishes", "Recovery: restores and drills"]
    assert page.plots[0].figure.startswith("168 committed, 2 not committed")
    family = page.families[0]
    assert (family.creation, family.recovery) == (
        "84 of 85 publishes committed",
        "25 of 25 restores and drills passed",
    )


def test_a_pass_on_a_weaker_rung_is_no_recovery() -> None:
    """Somebody loaded a save without taking a step: the page must not count that as a proof, nor as a failure."""
    rows = family_rows("a")
    rows["restores"][0]["rung"] = rows["drills"][0]["rung"] = "load_only"
    page = view_of(sample_report(rows, family_rows("b", seed=2)))
    assert (
        next(family for family in page.families if family.name == "a").recovery == "23 of 23 restores and drills passed"
    )
    assert page.plots[1].figure.startswith("48 passed")


def test_the_bars_of_a_plot_add_up_to_the_frames() -> None:
    """A number that falls between two bars is a number that the page lost."""
    report = sample_report(family_rows("a"), family_rows("b", seed=2, broken=True))
    creation, recovery = view_of(report).plots
    assert creation.header == ("from", "committed", "not committed")
    assert sum(int(row[1]) for row in creation.rows) == len(report.frames.saves)
    assert sum(int(row[2]) for row in creation.rows) == 2
    both = [*report.frames.restores["outcome"], *report.frames.drills["outcome"]]
    shown = {name: sum(int(row[place]) for row in recovery.rows) for place, name in enumerate(recovery.header) if place}
    assert shown == {"passed": both.count("pass"), "failed": 1, "inconclusive": both.count("inconclusive")}


def test_the_phases_of_a_drill_add_up_to_its_recovery_time() -> None:
    """A bar shorter than the outage would hide the part that nobody has accounted for."""
    report = sample_report(family_rows("llm-7b"))
    phases = next(plot for plot in view_of(report).families[0].plots if plot.title.startswith("RTO"))
    assert phases.header[2:] == tuple(
        f"{name}, s"
        for name in (
            "stop",
            "relaunch",
            "launch",
            "import",
            "join",
            "build",
            "discover",
            "load",
            "first step",
            "unaccounted",
        )
    )
    assert len(phases.rows) == len(report.frames.drills)
    for row in phases.rows:
        assert sum(map(float, row[2:])) == pytest.approx(float(row[1]), abs=0.01)


def test_a_phase_of_an_unknown_name_is_counted_and_not_named() -> None:
    """A record may carry any name; a drawing shows only our own."""
    rows = family_rows("llm-7b")
    for row in rows["phases"]:
        row["phase"] = "text"
    phases = next(plot for plot in view_of(sample_report(rows)).families[0].plots if plot.title.startswith("RTO"))
    assert phases.header == ("drill", "RTO, s", "unaccounted, s")


def test_hundreds_of_families_stay_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is broken stands first, what is well is folded away, and plots are drawn for a few."""
    monkeypatch.setattr(view, "MAXIMUM_PLOTTED_FAMILIES", 2)
    families = [family_rows(f"llm-{number:03d}", days=4, seed=number, broken=number == 60) for number in range(80)]
    report = sample_report(*families)
    page = view_of(report)
    assert page.families[0].name == "llm-060"
    assert sum(bool(family.plots) for family in page.families) == 2
    assert page.unplotted == 78
    document = render_page(report)
    assert len(document) < 2_000_000
    assert document.index("Needs attention") < document.index("79 families are ready")
    assert '<details class="fold more"><summary>79' in document


@pytest.mark.usefixtures("undrawn")
def test_thousands_of_failures_are_counted_not_listed() -> None:
    """The newest few tell what is wrong now; how many more there are tells how bad it is."""
    rows = family_rows("llm-7b")
    failed = {"outcome": "fail", "reasons": "size_mismatch", "message": "size mismatch: a"}
    rows["verifications"] = [
        {**rows["verifications"][0], "generation": generation(step), **failed} for step in range(1, 3001)
    ]
    page = view_of(sample_report(rows, family_rows("b")))
    assert len(page.failures) == MAXIMUM_FAILURES
    assert page.failures_left == 3000 + 2 + 2 - MAXIMUM_FAILURES


@pytest.mark.usefixtures("undrawn")
def test_the_page_is_replaced_whole(tmp_path: Path) -> None:
    """A browser that reloads while the report is written must meet the old page or the new one."""
    path = tmp_path / "index.html"
    path.write_text("of the hour before")
    report = sample_report(family_rows("llm-7b"))
    write_page(report, path, data_docs="data-docs/index.html")
    assert path.read_text(encoding="utf-8") == render_page(report, data_docs="data-docs/index.html")
    assert [found.name for found in tmp_path.iterdir()] == ["index.html"]


@pytest.mark.usefixtures("undrawn")
def test_the_page_depends_on_its_report_alone() -> None:
    """The time of writing is the report's; a page that asked the clock could not be checked."""
    report = sample_report(family_rows("llm-7b"))
    assert render_page(report) == render_page(report)
    assert f'datetime="{NOW.isoformat()}"' in render_page(report)
