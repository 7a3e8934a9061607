"""A real browser that goes nowhere: Debian's Chromium, headless, with every request and complaint on record.

`visit(url)` opens a page as a person would. What the page asks of another machine is recorded and refused, so that a
test can say that nobody is asked, and a page that needs somebody shows it here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route, sync_playwright

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
AT_HOME = frozenset({"file", "data", "blob", "about"})

Open = Callable[..., "Visit"]


@dataclass(frozen=True)
class Visit:
    """A page that is open, what it said to its console, and whom it asked.

    Args:
        page: Playwright's.
        complaints: Errors and warnings of the console, exceptions and dialogs.
        requests: Every address that it asked for.
        left: Those on other machines; they were refused.
    """

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def shoot(self, path: Path) -> Path:
        """A picture of the whole page."""
        self.page.screenshot(path=path, full_page=True)
        assert path.read_bytes().startswith(b"\x89PNG")
        return path

    @property
    def overflow_pixels(self) -> int:
        """How far the page is wider than the window: what a reader on a phone would have to scroll sideways."""
        overflow: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return overflow


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all; each visit has a context of its own."""
    program = shutil.which("chromium")
    assert program is not None, "the marker of the test names it"
    # Chromium refuses its own sandbox to root, as in a container of CI.
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=alone)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Open]:
    """Open an address in a window of a given kind; arguments are those of Playwright's `new_context`."""
    with contextlib.ExitStack() as held:

        def opened(url: str, *, now: datetime | None = None, **window: object) -> Visit:
            context: BrowserContext = chromium.new_context(**window)  # type: ignore[arg-type]  # Playwright checks them
            held.callback(context.close)
            visited = Visit(context.new_page())
            page = visited.page
            page.on("console", lambda said: _complain(visited, said))
            page.on("pageerror", lambda error: visited.complaints.append(f"exception: {error}"))
            page.on("request", lambda request: visited.requests.append(request.url))
            page.on("websocket", lambda socket: _ask(visited, socket.url))
            page.on("dialog", lambda dialog: (visited.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            context.route("**/*", lambda route: _pass(visited, route))
            if now is not None:
                page.clock.set_fixed_time(now)
            page.goto(url)
            return visited

        yield opened


def _complain(visited: Visit, said: ConsoleMessage) -> None:
    if said.type in ("error", "warning"):
        visited.complaints.append(f"{said.type}: {said.text} ({said.location['url']})")


def _ask(visited: Visit, url: str) -> bool:
    """Note a request; whether it stays on this machine."""
    visited.requests.append(url)
    parts = urlsplit(url)
    stays = parts.scheme in AT_HOME or parts.hostname in LOOPBACK
    if not stays:
        visited.left.append(url)
    return stays


def _pass(visited: Visit, route: Route) -> None:
    if _ask(visited, route.request.url):
        route.continue_()
    else:
        route.abort()
