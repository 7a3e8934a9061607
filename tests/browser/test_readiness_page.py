"""The readiness page in a real browser: nothing asked of anybody, nothing said to the console, readable everywhere."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from lastgood.config import read_configuration
from lastgood.ledger import open_ledger, queries
from lastgood.report.building import update_ledger
from lastgood.report.page import write_page
from lastgood.report.report import Report
from lastgood.report.writing import METRICS, write_report
from lastgood.testing.evidence import Past, fabricate
from tests.browser.conftest import Open
from tests.report.sample import NOW, family_rows, sample_report
from tests.report.test_page import HOSTILE, poisoned

pytestmark = pytest.mark.service("chromium")

WINDOWS = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 375, "height": 800}, "device_scale_factor": 2},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "no script": {"viewport": {"width": 1280, "height": 900}, "java_script_enabled": False},
}


@pytest.fixture(scope="module")
def report() -> Report:
    return sample_report(
        family_rows("llm-7b"),
        family_rows("llm-13b", seed=2, broken=True),
        family_rows("vision", seed=3, stale=True),
        family_rows("speech-encoder-large-multilingual-streaming-int8", seed=4),
    )


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "index.html"
    write_page(report, path)
    return path


def shown_at(page: Path) -> str:
    return page.as_uri()


@pytest.mark.parametrize("window", WINDOWS)
def test_the_page_is_whole_in_every_window(window: str, page: Path, visit: Open, tmp_path: Path) -> None:
    """A desktop, a phone, the dark, a browser without scripts: no error, no request, no scrolling sideways."""
    seen = visit(shown_at(page), **WINDOWS[window])
    assert seen.complaints == []
    assert seen.left == []
    assert set(seen.requests) <= {shown_at(page), "data:,"}
    assert seen.shoot(tmp_path / f"{window}.png").stat().st_size > 50_000
    if window != "no script":
        for folded in seen.page.locator("details").all():
            folded.evaluate("found => { found.open = true }")
        assert seen.overflow_pixels <= 0


def test_the_first_screen_of_a_phone_says_what_is_wrong(page: Path, visit: Open) -> None:
    """The person on call sees the state and the reason before any scrolling."""
    seen = visit(shown_at(page), **WINDOWS["phone"])
    for text in ("3 of 4 families would resume", "sample ids diverged"):
        box = seen.page.get_by_text(text).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 800


def test_colours_follow_the_reader_s_choice(page: Path, visit: Open) -> None:
    """A plot that stays dark on dark is no plot."""
    probe = """() => {
        const style = (selector, property) => getComputedStyle(document.querySelector(selector))[property];
        return [style("body", "backgroundColor"), style(".plot .fill-one", "fill"), style(".plot text", "fill")];
    }"""
    light = visit(shown_at(page), **WINDOWS["desktop"]).page.evaluate(probe)
    dark = visit(shown_at(page), **WINDOWS["dark"]).page.evaluate(probe)
    assert not set(light) & set(dark)
    assert "rgb(0, 0, 0)" not in {*light, *dark}


def test_the_page_prints_whole(page: Path, visit: Open, tmp_path: Path) -> None:
    """On paper nothing can be unfolded: what is folded for the screen is printed open."""
    seen = visit(shown_at(page), **WINDOWS["desktop"])
    seen.page.emulate_media(media="print")
    for name in ("llm-7b", "vision"):
        details = seen.page.locator("details.family", has_text=name).filter(
            has=seen.page.locator(f"bdi:text-is('{name}')")
        )
        box = details.first.locator(".inside").bounding_box()
        assert box is not None
        assert box["height"] > 500
    seen.page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_a_link_to_a_family_unfolds_it(page: Path, visit: Open) -> None:
    """A link that leads to a folded box leads nowhere."""
    seen = visit(shown_at(page), **WINDOWS["desktop"])
    row = seen.page.locator("tr[data-family='vision']")
    row.locator("a").first.click()
    assert seen.page.locator("details.family[open]", has_text="vision").count() == 1


def test_a_page_that_nobody_rewrites_says_how_old_it_is(page: Path, visit: Open) -> None:
    """A report job that died leaves a page on which all is well for ever."""
    for minutes, is_old in ((60, False), (5 * 60, True)):
        seen = visit(shown_at(page), now=NOW + timedelta(minutes=minutes))
        assert seen.page.locator(".old").is_visible() is is_old
    assert "5 hours ago" in seen.page.locator(".old").inner_text()


def test_a_hostile_checkpoint_does_nothing_to_whoever_reads_of_it(visit: Open, tmp_path: Path) -> None:
    """No dialog, no request, no style, no broken policy: escaping is the first lock, and the browser is the judge."""
    path = tmp_path / "index.html"
    write_page(sample_report(poisoned(HOSTILE), family_rows("b", days=6)), path)
    seen = visit(shown_at(path), **WINDOWS["phone"])
    assert seen.complaints == []
    assert seen.left == []
    assert seen.overflow_pixels <= 0
    assert "<script>alert(1)</script>" in seen.page.locator("body").inner_text()
    assert seen.page.locator("script").count() == 1
    assert seen.page.locator("img").count() == 0


def test_the_policy_would_stop_what_escaping_let_through(page: Path, visit: Open, tmp_path: Path) -> None:
    """The second lock is proven by opening the first: an injected script, style and image are refused by name."""
    path = tmp_path / "injected.html"
    injected = "<script>document.title = 'taken'</script><b style='color: red'>x</b><img src='http://192.0.2.1/x.png'>"
    path.write_text(page.read_text(encoding="utf-8").replace("<main>", f"<main>{injected}"), encoding="utf-8")
    seen = visit(shown_at(path))
    refused = " ".join(seen.complaints)
    for directive in ("script-src", "style-src", "img-src"):
        assert directive in refused
    assert seen.left == []
    assert seen.page.title() != "taken"


def test_the_numbers_on_the_page_are_the_ledger_s(visit: Open, tmp_path: Path) -> None:
    """What people decide by must be what the records say, through frames, template and browser."""
    (tmp_path / "runs").mkdir()
    names = ("llm-7b", "quiet")
    fabricate(tmp_path / "runs", "llm-7b", Past(until=NOW - timedelta(minutes=5)))
    fabricate(tmp_path / "runs", "quiet", Past(until=NOW, saves=3, restore_every=0))
    config = tmp_path / "lastgood.toml"
    config.write_text("".join(f'[families.{name}]\nroot = "{tmp_path}/runs"\n' for name in names))
    configuration = read_configuration(config)
    update_ledger(configuration)
    written = write_report(configuration, now=NOW)
    assert "lastgood_family_state" in (written.directory / METRICS).read_text(encoding="utf-8")
    seen = visit(shown_at(written.page), **WINDOWS["desktop"])
    assert seen.complaints == []
    with open_ledger(str(configuration.ledger.url)) as ledger, ledger.reading() as moment:
        families = {row["family"]: row for row in queries.families(moment).mappings()}
        recoveries = [*queries.restores(moment).mappings(), *queries.drills(moment).mappings()]
        drills = queries.drills(moment).mappings()
        publishes = queries.publishes(moment).mappings()
    for name in names:
        row = seen.page.locator(f"tr[data-family='{name}']")
        facts = {key: row.get_attribute(f"data-{key}") for key in ("state", "latest", "last-good", "committed")}
        expected = families[name]
        assert facts == {
            "state": expected["state"],
            "latest": expected["latest"] or "",
            "last-good": expected["last_good"] or "",
            "committed": str(expected["committed"]),
        }
        own = [record["outcome"] for record in recoveries if record["family"] == name]
        assert row.get_attribute("data-recovered") == str(own.count("pass"))
        assert row.get_attribute("data-recoveries") == str(own.count("pass") + own.count("fail"))
        measured = [drill for drill in drills if drill["family"] == name and drill["rto_seconds"] is not None]
        newest = max(measured, key=lambda drill: drill["finished_at"], default=None)
        assert row.get_attribute("data-rto-newest-seconds") == (f"{newest['rto_seconds']:.10g}" if newest else "")
        assert row.get_attribute("data-rpo-newest-steps") == (f"{newest['rpo_loss_steps']:g}" if newest else "")
    counted = seen.page.locator("figure", has_text="Creation: publishes").first.locator("tbody td:nth-child(2)")
    committed = [one for one in publishes if one["outcome"] == "committed"]
    assert sum(map(int, counted.all_text_contents())) == len(committed)
