"""Metrics: what the official parser reads is what the report says, whatever families are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lastgood.report.metrics import render_metrics, write_metrics
from lastgood.report.report import Report
from tests.report.sample import NOW, Rows, family_rows, sample_report

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
HOSTILE = 'a"b\\c\nd\u202ee{f="g"} 1\n# TYPE h gauge'


def samples(report: Report) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in text_string_to_metric_families(render_metrics(report))
        for sample in metric.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_the_official_parser_reads_what_the_report_says() -> None:
    """An alarm is only as good as the figure under its name."""
    report = sample_report(family_rows("llm-7b"), family_rows("llm-13b", seed=2, broken=True))
    found = samples(report)
    indicators = report.indicators.set_index("family")
    for family in ("llm-7b", "llm-13b"):
        figures = indicators.loc[family]
        for name, column in (("rto_seconds", "rto_p95_seconds"), ("rpo_loss_steps", "rpo_p95_steps")):
            assert value(found, f"lastgood_{name}", family=family, quantile="0.95") == figures[column]
            assert value(found, f"lastgood_{name}", family=family, quantile="0.5") <= figures[column]
        for tier, gate in (("2", "restore"), ("3", "drill")):
            age = value(found, "lastgood_evidence_age_seconds", family=family, tier=tier)
            assert age == pytest.approx(figures[f"{gate}_age_seconds"])
            at = value(found, "lastgood_evidence_timestamp_seconds", family=family, tier=tier)
            assert at == pytest.approx(NOW.timestamp() - age)
            assert value(found, "lastgood_read_bytes_per_second", family=family, tier=tier) == 7e8
        assert ("lastgood_read_bytes_per_second", frozenset({("family", family), ("tier", "1")})) not in found
        assert value(found, "lastgood_creation_ratio", family=family) == figures["creation_ratio"]
        assert value(found, "lastgood_newest_save_age_seconds", family=family) == figures["save_age_seconds"]
    assert value(found, "lastgood_report_timestamp_seconds") == NOW.timestamp()
    assert value(found, "lastgood_resume_step", family="llm-7b") == 84_000
    assert value(found, "lastgood_last_good_step", family="llm-13b") == 78_000
    assert ("lastgood_resume_step", frozenset({("family", "llm-13b")})) not in found
    assert value(found, "lastgood_publishes_committed_total", family="llm-7b") == 84
    assert value(found, "lastgood_verdicts_total", family="llm-13b", tier="2", outcome="fail") == 1


def test_a_state_has_a_sample_for_every_value() -> None:
    """An alarm on `state="quarantined" == 1` must see a zero while all is well, or it never knows that it works."""
    found = samples(sample_report(family_rows("llm-13b", broken=True)))
    states = {
        state: value(found, "lastgood_family_state", family="llm-13b", state=state)
        for state in ("ready", "quarantined", "nothing to resume", "could not tell")
    }
    assert states == {"ready": 0, "quarantined": 1, "nothing to resume": 0, "could not tell": 0}
    verdicts = {
        outcome: value(found, "lastgood_last_verdict", family="llm-13b", tier="2", outcome=outcome)
        for outcome in ("pass", "fail", "inconclusive", "not_run")
    }
    assert verdicts == {"pass": 0, "fail": 1, "inconclusive": 0, "not_run": 0}


def test_what_was_not_measured_has_no_sample() -> None:
    """Zero seconds of recovery would be the best figure of all."""
    rows: Rows = {
        "families": [
            {
                "family": "new",
                "state": "nothing to resume",
                "verdict": "not_run",
                "candidates": 0,
                "proven": 0,
                "publishes_begun": 0,
                "committed": 0,
            }
        ]
    }
    names = {name for name, _ in samples(sample_report(rows))}
    assert "lastgood_family_state" in names
    assert not names & {
        "lastgood_rto_seconds",
        "lastgood_rpo_loss_steps",
        "lastgood_creation_ratio",
        "lastgood_evidence_age_seconds",
        "lastgood_last_good_step",
    }
    assert samples(sample_report())["lastgood_report_timestamp_seconds", frozenset()] == NOW.timestamp()


def test_a_hostile_name_is_one_label_and_forges_no_sample() -> None:
    """A family's name comes from a directory; it must not add a line to what an alarm reads."""
    rows = family_rows(HOSTILE, days=4)
    found, calm = samples(sample_report(rows)), samples(sample_report(family_rows("calm", days=4)))
    assert {name for name, _ in found} == {name for name, _ in calm}
    families = {dict(labels)["family"] for name, labels in found if "report" not in name}
    assert families == {'a"b\\c\\nd\\u202ee{f="g"} 1\\n# TYPE h gauge'}


def test_every_metric_says_what_it_is() -> None:
    """Whoever writes an alarm reads the help text, not this repository."""
    report = sample_report(family_rows("llm-7b"))
    for metric in text_string_to_metric_families(render_metrics(report)):
        assert metric.name.startswith("lastgood_")
        assert metric.documentation
        assert metric.type in ("gauge", "counter")
        assert metric.samples


def test_the_file_is_replaced_whole_and_readable_by_the_collector(tmp_path: Path) -> None:
    """A scraper reads at any moment, as another user, every `*.prom` that lies there."""
    path = tmp_path / "lastgood.prom"
    path.write_text("old")
    report = sample_report(family_rows("llm-7b"))
    write_metrics(report, path)
    assert path.read_text(encoding="utf-8") == render_metrics(report)
    assert path.stat().st_mode & 0o444 == 0o444
    assert [found.name for found in tmp_path.iterdir()] == ["lastgood.prom"]
