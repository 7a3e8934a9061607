"""The readiness page: one HTML file that needs nothing but a browser.

Decides how a report becomes a page: escaping, the content security policy, the file. Leaves what it says to `view`.
Pure in the report, whose `made_at` is the only clock. Rules: every value that a template prints is made printable and
then escaped, whether or not the template thought of it; the page loads nothing and runs nothing but the lines whose
digests its policy names; whoever opens it meets a whole page.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

import lastgood
from lastgood.handover import replace_file
from lastgood.report import words
from lastgood.report.report import Report
from lastgood.report.view import view_of
from lastgood.text import printable

__all__ = ["render_page", "write_page"]

FOLD_OVER = 30
"""More healthy families than these are folded away: nobody scrolls past a hundred green lines to find the red one."""
STALE_HOURS = 3
"""The report is written every hour; after this the page itself says that it is old."""


def render_page(report: Report, *, data_docs: str | None = None) -> str:
    """A report as one HTML document.

    Args:
        report: From `building`.
        data_docs: Where Great Expectations' pages lie, as a link from the page; None: there are none.
    """
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=view_of(report),
            made=words.moment(report.made_at),
            policy=policy,
            style=Markup(style),
            script=Markup(script),
            data_docs=data_docs,
            fold_over=FOLD_OVER,
            stale_hours=STALE_HOURS,
            version=lastgood.__version__,
        )
    )


def write_page(report: Report, path: Path, *, data_docs: str | None = None) -> None:
    """Write the page in the place of the one before; arguments as of `render_page`.

    Raises:
        OSError: Not written; the old page is still there.
    """
    replace_file(path, render_page(report, data_docs=data_docs).encode())


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_asset), autoescape=True, finalize=_shown, undefined=StrictUndefined, trim_blocks=False
    )


def _shown(value: object) -> object:
    """What every `{{ }}` passes through: text of a stranger loses what would act, and autoescape does the rest."""
    return value if isinstance(value, Markup) else printable(str(value))


@cache
def _asset(name: str) -> str:
    return (files("lastgood.report") / "templates" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
