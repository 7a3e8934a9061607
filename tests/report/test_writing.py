"""A report in its directory: whole or not at all, and the same figures wherever they are told."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from lastgood.config import Configuration
from lastgood.errors import UsageError
from lastgood.report.building import update_ledger
from lastgood.report.writing import DATA_DOCS, document_of, write_report
from lastgood.testing.evidence import HOSTILE, Past
from lastgood.verdict import Outcome
from tests.report.conftest import HEALTHY, Configured
from tests.report.healthy import NOW


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """What a full disk is to a writer: the kernel takes some bytes of a file, and then no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def report(configuration: Configuration, **later: float) -> Path:
    return write_report(configuration, now=NOW + timedelta(**later)).directory


def test_a_report_is_a_page_and_what_it_links_to(configured: Configured) -> None:
    """The page's link to the Data Docs must lead to those of this very report, and back."""
    configuration = configured(llm=HEALTHY)
    update_ledger(configuration)
    written = write_report(configuration, now=NOW)
    directory = written.directory
    assert directory == Path(configuration.report.directory)
    (linked,) = set(re.findall(r'href="(data-docs-[^"]+)"', written.page.read_text()))
    assert (directory / linked).is_file()
    assert written.report.outcome is Outcome.PASS
    assert json.loads((directory / "report.json").read_text()) == document_of(written.report)
    for path in directory.iterdir():
        assert path.stat().st_mode & 0o044 == 0o044, f"{path.name}: a web server reads it as another user"


def test_the_page_before_keeps_its_data_docs(configured: Configured) -> None:
    """Whoever has the last report open may still follow its links; older ones must not fill the disk."""
    configuration = configured(llm=HEALTHY)
    update_ledger(configuration)
    for hour in range(3):
        directory = report(configuration, hours=hour)
        killed = directory / ".unfinished-of-a-killed-report"
        killed.mkdir(exist_ok=True)
    kept = sorted(path.name for path in directory.glob(f"{DATA_DOCS}*"))
    assert kept == [f"{DATA_DOCS}20260301T130000.000000Z", f"{DATA_DOCS}20260301T140000.000000Z"]
    assert killed.exists(), "it is young: it may be under way in another process"


@pytest.mark.parametrize("size_bytes", [33_000, 60_000], ids=["in the data docs", "in the page"])
def test_a_full_disk_keeps_the_former_report(configured: Configured, size_bytes: int) -> None:
    """An outage of the report's disk must leave the last report readable, not half of a new one."""
    configuration = configured(llm=HEALTHY)
    update_ledger(configuration)
    before = contents(report(configuration))
    with files_of_at_most(size_bytes), pytest.raises(OSError, match="too large"):
        report(configuration, hours=1)
    assert contents(Path(configuration.report.directory)) == before


def test_only_families_of_the_configuration_are_reported(configured: Configured) -> None:
    """A ledger may be shared; a report about nothing, or about a name that nobody configured, is a mistake."""
    configuration = configured(llm=HEALTHY, other=Past(until=NOW, saves=3))
    update_ledger(configuration)
    written = write_report(configuration, ["llm"], now=NOW)
    assert written.report.indicators["family"].tolist() == ["llm"]
    for wrong, families in ((configuration, ["missing"]), (Configuration(), None)):
        with pytest.raises(UsageError):
            update_ledger(wrong, families)


def test_hostile_text_is_raw_nowhere(configured: Configured) -> None:
    """Whatever a job calls itself, its run, its tensors or its host, no file of a report obeys it."""
    past = Past(until=NOW, saves=20, failed_verifications=1, failed_restores=1, inconclusive=2, words=HOSTILE)
    configuration = configured(llm=past)
    update_ledger(configuration)
    for name, data in contents(report(configuration)).items():
        text = data.decode()
        assert "<script>alert" not in text, name
        assert not set(text) & {"\x1b", "\u202e", "\x00"}, name
