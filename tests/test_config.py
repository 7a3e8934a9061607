"""`lastgood.toml`: every mistake is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.config import read_configuration
from lastgood.errors import UsageError

GOOD = """
[families.llm-7b]
root = "checkpoints"
[families.llm-7b.replica]
command = ["torchrun", "train.py"]
environment = { OMP_NUM_THREADS = "1", TOKENIZERS_PARALLELISM = "false" }
[families.llm-7b.objectives]
rpo_steps = 100
[[families.llm-7b.ignore]]
check = "chain"
reason = "copied from an archive without its first generation"
"""


def test_paths_start_where_the_file_lies(tmp_path: Path) -> None:
    """A configuration means the same from every working directory."""
    (tmp_path / "lastgood.toml").write_text(GOOD)
    settings = read_configuration(tmp_path / "lastgood.toml").settings("llm-7b")
    assert settings.root == str(tmp_path / "checkpoints")
    assert settings.replica is not None
    assert settings.replica.directory == str(tmp_path)
    assert settings.objectives.rpo_steps == 100


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[families.llm-7b.replica]", "[families.llm-7b.replcia]"), "families.llm-7b: Object contains unknown field"),
        (("rpo_steps = 100", 'rpo_steps = "many"'), "objectives.rpo_steps"),
        (("rpo_steps = 100", "rpo_steps = -1"), "objectives.rpo_steps"),
        (("reason = ", "why = "), "ignore[0]"),
        (('reason = "copied from an archive without its first generation"', 'reason = "ok"'), "ignore[0].reason"),
        (('check = "chain"', 'check = "chian"'), "families.llm-7b.ignore[0].check: no gate asks chian"),
        (('check = "chain"', 'check = "cancelled"'), "ignore[0].check: no gate asks cancelled"),
        (("families.llm-7b", 'families."../x"'), "families: key escapes"),
        (("[families.llm-7b]", "[families.llm-7b"), "cannot be read"),
        (('command = ["torchrun", "train.py"]', "command = []"), "replica.command"),
        (("OMP_NUM_THREADS", "HF_TOKEN"), "replica.environment.HF_TOKEN"),
        (('OMP_NUM_THREADS = "1"', 'AWS_SECRET_ACCESS_KEY = "x"'), "replica.environment.AWS_SECRET_ACCESS_KEY"),
        (("[families.llm-7b.objectives]", "[family.llm-7b.objectives]"), "unknown field `family`"),
    ],
)
def test_mistakes_name_the_place(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    """Unknown keys are errors: a typo must not silently drop an objective."""
    (tmp_path / "lastgood.toml").write_text(GOOD.replace(*change))
    with pytest.raises(UsageError) as caught:
        read_configuration(tmp_path / "lastgood.toml")
    assert said in caught.value.message
    assert "lastgood.toml" in caught.value.message


@pytest.mark.parametrize(
    ("wrote", "meant"), [(("rpo_steps", "rpo_step"), "rpo_steps"), (('"chain"', '"chian"'), "chain")]
)
def test_a_typing_error_is_answered_with_a_suggestion(wrote: tuple[str, str], meant: str, tmp_path: Path) -> None:
    """The hint names the key, or the check, that was probably meant."""
    (tmp_path / "lastgood.toml").write_text(GOOD.replace(*wrote))
    with pytest.raises(UsageError) as caught:
        read_configuration(tmp_path / "lastgood.toml")
    assert caught.value.hint == f"did you mean `{meant}`?"


def test_a_missing_file_and_an_unknown_family_are_named(tmp_path: Path) -> None:
    """The two commonest mistakes get the two plainest lines."""
    with pytest.raises(UsageError, match="configuration not found"):
        read_configuration(tmp_path / "lastgood.toml")
    (tmp_path / "lastgood.toml").write_text(GOOD)
    with pytest.raises(UsageError, match="family not configured: other"):
        read_configuration(tmp_path / "lastgood.toml").settings("other")


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        ("", "sqlite:///{base}/lastgood-ledger.sqlite"),
        ('[ledger]\nurl = "sqlite:///evidence/ledger.sqlite"\n', "sqlite:///{base}/evidence/ledger.sqlite"),
        ('[ledger]\nurl = "sqlite:////srv/ledger.sqlite"\n', "sqlite:////srv/ledger.sqlite"),
        ('[ledger]\nurl = "postgresql+psycopg://me@127.0.0.1/lg"\n', "postgresql+psycopg://me@127.0.0.1/lg"),
    ],
)
def test_the_ledger_and_the_report_start_where_the_file_lies(ledger: str, expected: str, tmp_path: Path) -> None:
    """A worker and a person at a shell must read and write one index, whatever their working directories."""
    (tmp_path / "lastgood.toml").write_text(ledger + GOOD)
    configuration = read_configuration(tmp_path / "lastgood.toml")
    assert configuration.ledger.url == expected.format(base=tmp_path)
    assert configuration.report.directory == str(tmp_path / "lastgood-report")


def test_a_password_in_the_ledger_s_url_is_refused(tmp_path: Path) -> None:
    """The file is copied and committed; the message must not repeat the secret either."""
    (tmp_path / "lastgood.toml").write_text('[ledger]\nurl = "postgresql+psycopg://me:hunter2@127.0.0.1/lg"\n')
    with pytest.raises(UsageError, match=r"secret in a configuration file: .*ledger\.url") as caught:
        read_configuration(tmp_path / "lastgood.toml")
    assert "hunter2" not in caught.value.message
