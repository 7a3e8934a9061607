"""What a flow run shows on its page: a table of checks, a verdict in Markdown, links, and progress on long work.

Decides what of a record people see first; the record on storage holds everything. Rules: an artifact is made from the
very record that was kept; every string goes through `escape`; everything is bounded, because a verdict may hold a
million findings; a page that cannot be written never costs a verdict, so each artifact is tried, and said to be missing
where it is.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.logging import get_logger

from lastgood.config import ReportSettings
from lastgood.digest import Algorithm, hash_bytes
from lastgood.records import Kept, Measurements, Record
from lastgood.text import counted
from lastgood.verdict import WORST_FIRST, Check, Outcome, Verdict
from lastgood_prefect import escape

__all__ = [
    "SIGNS",
    "Progress",
    "checks_table",
    "lawful_key",
    "page_link",
    "show_markdown",
    "show_page",
    "show_phases",
    "show_table",
    "show_unrecorded",
    "show_verdicts",
    "verdicts_markdown",
]

MAXIMUM_ROWS = 500
MAXIMUM_VERDICTS = 20
"""Verdicts of one run that are told in full, the worst first; the others are counted."""
MAXIMUM_FINDINGS = 20
"""Findings of one check that are shown."""
MAXIMUM_MARKDOWN_CHARACTERS = 100_000
MAXIMUM_KEY_CHARACTERS = 80
PATIENCE_SECONDS = 5.0
"""Work that ends sooner shows no progress, and progress is told no more often."""

SIGNS: Mapping[Outcome, str] = {
    Outcome.PASS: "✅",
    Outcome.FAIL: "❌",
    Outcome.INCONCLUSIVE: "❔",
    Outcome.NOT_RUN: "➖",
}
_PAGE = "index.html"


def lawful_key(*parts: str) -> str:
    """An artifact's key: lowercase letters, digits and dashes; two names that would read alike are told apart.

    Law: equal parts give equal keys, and of unequal ones at most those that differ in case or spelling look alike
    before their last eight characters.
    """
    spelled = "-".join(parts)
    plain = unicodedata.normalize("NFKD", spelled).encode("ascii", "ignore").decode().lower()
    key = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if key == spelled and len(key) <= MAXIMUM_KEY_CHARACTERS:
        return key
    mark = hash_bytes(spelled.encode("utf-8", "surrogatepass"), Algorithm.BLAKE3).value[:8]
    return f"{key[: MAXIMUM_KEY_CHARACTERS - 9]}-{mark}".lstrip("-")


def checks_table(verdicts: Iterable[Verdict]) -> list[dict[str, str]]:
    """One row a check, with its findings; the verdicts that did not pass come first."""
    rows: list[dict[str, str]] = []
    for verdict in sorted(verdicts, key=_badness):
        for check in verdict.checks:
            if len(rows) == MAXIMUM_ROWS:
                return [*rows, dict.fromkeys(rows[0], "…")]
            rows.append(_row(verdict, check))
    return rows


def _row(verdict: Verdict, check: Check) -> dict[str, str]:
    reasons = dict.fromkeys(finding.reason.value for finding in check.findings)
    offenders = [escape.markdown(finding.offender, limit=100) for finding in check.findings[:3]]
    if len(check.findings) > len(offenders):
        offenders.append(f"and {len(check.findings) - len(offenders)} more")
    return {
        "subject": escape.markdown(verdict.subject),
        "check": escape.markdown(check.name),
        "outcome": f"{SIGNS[check.outcome]} {check.outcome.value.replace('_', ' ')}",
        "detail": escape.markdown(check.detail),
        "reasons": ", ".join(escape.markdown(reason) for reason in reasons),
        "offenders": ", ".join(offenders),
    }


def verdicts_markdown(records: Sequence[Record], *, where: Mapping[str, str] | None = None, page: str = "") -> str:
    """Verdicts with their reasons, hints and offenders, the worst first.

    Args:
        records: What was kept.
        where: Record's generation and tier as `<generation> <tier>` → where the record lies, as people write it.
        page: A link to the readiness page.
    """
    ordered = sorted(records, key=lambda record: _badness(record.verdict))
    parts = ["\n".join(_told(record, (where or {}).get(_name(record)))) for record in ordered[:MAXIMUM_VERDICTS]]
    if len(ordered) > MAXIMUM_VERDICTS:
        rest = [record.verdict.outcome for record in ordered[MAXIMUM_VERDICTS:]]
        counted = ", ".join(f"{rest.count(outcome)} {outcome.value}" for outcome in WORST_FIRST if outcome in rest)
        parts.append(f"…and {len(rest)} more: {counted.replace('_', ' ')}")
    if page:
        parts.append(f"[Readiness page]({_target(page)})")
    text = "\n\n".join(parts)
    if len(text) <= MAXIMUM_MARKDOWN_CHARACTERS:
        return text
    # Cut between lines: half an escape would mean something.
    return f"{text[:MAXIMUM_MARKDOWN_CHARACTERS].rpartition(chr(10))[0]}\n\n…and more: see the record"


def _told(record: Record, where: str | None) -> Iterator[str]:
    verdict = record.verdict
    outcome = verdict.outcome.value.replace("_", " ").upper()
    yield f"## {SIGNS[verdict.outcome]} {outcome}: {escape.markdown(verdict.subject)}"
    yield ""
    facts = [f"tier {int(record.tier)}", f"{record.rung.value.replace('_', ' ')}", f"attempt {record.attempt}"]
    if record.measurements.seconds is not None:
        facts.append(f"{record.measurements.seconds:.3f} s")
    if record.measurements.read_bytes is not None:
        facts.append(f"{record.measurements.read_bytes} bytes read")
    if record.measurements.read_bytes_per_second is not None:
        rate = f"{record.measurements.read_bytes_per_second / 2**20:.1f} MiB/s"
        facts[-1] += f" in {record.measurements.read_seconds:.3f} s ({rate})"
    yield f"{', '.join(facts)}; on {escape.markdown(record.host)}, {record.finished_at:%Y-%m-%d %H:%M:%S} UTC"
    for check in verdict.checks:
        yield from _findings(check)
    for note in verdict.notes[:MAXIMUM_FINDINGS]:
        yield f"- note **{escape.markdown(note.reason.value)}**: {escape.markdown(note.message)}"
    if where is not None:
        yield ""
        yield f"Record: {escape.markdown(where, limit=1000)}"


def _findings(check: Check) -> Iterator[str]:
    if check.outcome in (Outcome.INCONCLUSIVE, Outcome.NOT_RUN):
        yield f"- {check.outcome.value.replace('_', ' ')} **{escape.markdown(check.name)}**: " + escape.markdown(
            check.detail
        )
    for finding in check.findings[:MAXIMUM_FINDINGS]:
        yield (
            f"- **{escape.markdown(finding.reason.value)}** in {escape.markdown(check.name)}: "
            f"{escape.markdown(finding.message)}; offender: {escape.markdown(finding.offender)}"
        )
    if len(check.findings) > MAXIMUM_FINDINGS:
        yield f"- …and {len(check.findings) - MAXIMUM_FINDINGS} more findings of {escape.markdown(check.name)}"
    for reason in dict.fromkeys(finding.reason for finding in check.findings):
        yield f"  - hint: {escape.markdown(reason.hint)}"


def _name(record: Record) -> str:
    return f"{record.generation} {int(record.tier)}"


def _badness(verdict: Verdict) -> int:
    return WORST_FIRST.index(verdict.outcome)


def page_link(report: ReportSettings) -> str:
    """Where the readiness page can be opened."""
    base = report.link.rstrip("/") if report.link else Path(report.directory).absolute().as_uri()
    return f"{base}/{_PAGE}"


def _target(link: str) -> str:
    """A link's target: from our own configuration, but a space or a parenthesis in it would end it."""
    return re.sub(r"[\s()<>\\]", lambda match: f"%{ord(match[0]):02X}", escape.line(link, limit=2000))


def show_verdicts(name: str, root: str, kept: Sequence[Kept], *, tier: int, report: ReportSettings) -> None:
    """Put verdicts on the page of the run: a table of their checks, and the Markdown.

    Args:
        name: The family's name in the configuration.
        root: URI of the store's root, under which records lie.
        kept: What `Family.keep` returned.
        tier: The gate; a family's verdicts of one gate share a key, so that the page of the artifact is their history.
        report: For the link to the readiness page.
    """
    records = [one.record for one in kept if one.record is not None]
    if not records:
        return
    where = {_name(one.record): f"{root}/{one.key}" for one in kept if one.record is not None and one.key is not None}
    title = f"Tier {tier} of {escape.markdown(name)}"
    checks = checks_table(record.verdict for record in records)
    _try("checks", create_table_artifact, key=lawful_key(f"tier{tier}-checks", name), table=checks, description=title)
    text = verdicts_markdown(records, where=where, page=page_link(report))
    _try(
        "verdict",
        create_markdown_artifact,
        key=lawful_key(f"tier{tier}-verdict", name),
        markdown=text,
        description=title,
    )


def show_unrecorded(name: str, verdict: Verdict) -> None:
    """Put the checks of a verdict that is about no generation, and so on no record, on the page of the run.

    Args:
        name: The family's name in the configuration.
        verdict: Of any tier.
    """
    tier, table = int(verdict.tier), checks_table([verdict])
    title = f"Tier {tier} of {escape.markdown(name)}, not on record"
    _try("checks", create_table_artifact, key=lawful_key(f"tier{tier}-checks", name), table=table, description=title)


def show_phases(name: str, measured: Measurements) -> None:
    """Put a recovery in its phases, which add up to it, on the page of the run.

    Args:
        name: The family's name in the configuration.
        measured: By a drill; nothing is shown of one that measured no recovery.
    """
    if measured.rto_seconds is None:
        return
    whole = measured.rto_seconds
    table = [
        {"phase": escape.markdown(phase), "seconds": f"{spent:.3f}", "share": f"{spent / whole:.1%}" if whole else ""}
        for phase, spent in (*measured.phases.items(), ("recovery", whole))
    ]
    steps = measured.rpo_loss_steps
    title = (
        f"Recovery of {escape.markdown(name)}: RTO {whole:.3f} s from the kill to every rank's first step, "
        f"{counted(steps, 'step') if steps is not None else 'unmeasured steps'} lost"
    )
    _try("phases", create_table_artifact, key=lawful_key("tier3-phases", name), table=table, description=title)


def show_table(key: str, rows: Sequence[Mapping[str, str]], *, description: str) -> None:
    """Put a table whose strings are escaped already on the page of the run; its first rows, if it is long."""
    shown = [dict(row) for row in rows[:MAXIMUM_ROWS]]
    _try("table", create_table_artifact, key=key, table=shown, description=description)


def show_markdown(key: str, markdown: str, *, description: str) -> None:
    """Put Markdown whose strings are escaped already on the page of the run."""
    _try("summary", create_markdown_artifact, key=key, markdown=markdown, description=description)


def show_page(report: ReportSettings) -> None:
    """Put a link to the readiness page on the page of the run."""
    link = _target(page_link(report))
    _try("link", create_link_artifact, key="readiness-page", link=link, link_text="Readiness page")


class Progress:
    """A progress artifact of work that may be long: told of bytes done, it shows a share of the whole.

    Nothing is shown before the work has lasted a while, and nothing that fails here reaches the work.

    Args:
        key: From `lawful_key`.
        description: What is under way, in Markdown that is safe already.
        total_bytes: Answers how many bytes there are; asked only when there is something to show.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        key: str,
        description: str,
        total_bytes: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._description = description
        self._total = total_bytes
        self._clock = clock
        self._told_at = clock()
        self._total_bytes: int | None = None
        self._artifact: UUID | None = None

    def __call__(self, done_bytes: int, /) -> None:
        if self._clock() - self._told_at < PATIENCE_SECONDS:
            return
        if self._total_bytes is None:
            self._total_bytes = max(1, self._total())
        self._tell(min(100.0, 100.0 * done_bytes / self._total_bytes))
        self._told_at = self._clock()

    def reach(self, percent: float) -> None:
        """Show a share at once: a landmark of the work."""
        self._tell(percent)
        self._told_at = self._clock()

    def close(self) -> None:
        """The work is done: if progress was shown at all, it is whole."""
        if self._artifact is not None:
            self._tell(100.0)

    def _tell(self, percent: float) -> None:
        artifact = self._artifact
        if artifact is None:
            self._artifact = _try(
                "progress", create_progress_artifact, progress=percent, key=self._key, description=self._description
            )
        else:
            _try("progress", update_progress_artifact, artifact_id=artifact, progress=percent)


def _try(what: str, create: Callable[..., object], **fields: object) -> UUID | None:
    """Make an artifact; what was judged is on storage already, so a server in trouble costs the page and no more."""
    try:
        made = create(**fields, _sync=True)  # in a coroutine flow too, whose thread is free to wait
    except Exception as error:  # noqa: BLE001 - whatever the client raises when its server is gone
        get_logger("lastgood").warning("artifact not shown: %s: %s", what, escape.line(str(error)))
        return None
    return made if isinstance(made, UUID) else None
