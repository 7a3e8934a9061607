"""`lastgood.toml`: every mistake is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.config import RelaySettings, RelaySource, read_configuration
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


def test_a_directory_in_the_place_of_the_file_is_told_in_words(tmp_path: Path) -> None:
    """Whoever names the directory means the file in it."""
    with pytest.raises(UsageError, match=r"configuration cannot be read: .*: is a directory$") as caught:
        read_configuration(tmp_path)
    assert caught.value.hint == f"name the file in it, e.g. --config {tmp_path}/lastgood.toml"


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


def test_the_relay_is_told_by_a_table_whose_paths_start_where_the_file_lies(tmp_path: Path) -> None:
    """A flow has no command line: what it needs stands in the file, and its form cannot point it elsewhere."""
    path = tmp_path / "lastgood.toml"
    path.write_text("")
    assert read_configuration(path).relay == RelaySettings(spool=str(tmp_path / "lastgood-relay"))
    path.write_text('[relay]\nsource = "webhook"\nport = 9000\nspool = "/var/spool/relay"\nmetrics = "relay.prom"\n')
    told = read_configuration(path).relay
    assert (told.source, told.port, told.spool) == (RelaySource.WEBHOOK, 9000, "/var/spool/relay")
    assert told.metrics == str(tmp_path / "relay.prom")
    for wrong in ('source = "kafka"', "port = 70000", "listing_seconds = 0.0", 'secret = "0123456789abcdef"'):
        path.write_text(f"[relay]\n{wrong}\n")
        with pytest.raises(UsageError, match=r"configuration is wrong: .*relay"):
            read_configuration(path)


def test_a_password_in_the_ledger_s_url_is_refused(tmp_path: Path) -> None:
    """The file is copied and committed; the message must not repeat the secret either."""
    (tmp_path / "lastgood.toml").write_text('[ledger]\nurl = "postgresql+psycopg://me:hunter2@127.0.0.1/lg"\n')
    with pytest.raises(UsageError, match=r"secret in a configuration file: .*ledger\.url") as caught:
        read_configuration(tmp_path / "lastgood.toml")
    assert "hunter2" not in caught.value.message


def test_how_much_is_read_is_said_of_a_bucket_and_of_a_directory(tmp_path: Path) -> None:
    """A file system of terabytes may be read in rotation, too; the longest root decides, wherever the file lies."""
    (tmp_path / "lastgood.toml").write_text(
        '[stores."s3://bucket"]\nconcurrency = 4\n'
        '[stores."s3://bucket/big".verify]\nmode = "rotating"\nread_all_below_gib = 0.5\n'
        '[stores.checkpoints]\nverify = { mode = "rotating", rotation = 8 }\n'
    )
    configuration = read_configuration(tmp_path / "lastgood.toml")
    assert configuration.stores["s3://bucket/big"].verify.read_all_below_bytes == 2**29
    assert configuration.locate(str(tmp_path / "checkpoints" / "llm-7b")).verify.rotation == 8
    assert configuration.locate(f"file://{tmp_path}/checkpoints/llm-7b").verify.mode == "rotating"
    assert configuration.locate(str(tmp_path / "elsewhere" / "llm-7b")).verify.mode == "read_all"


@pytest.mark.parametrize("table", ["concurrency = 4", 'endpoint = "http://127.0.0.1"'])
def test_a_file_system_is_told_nothing_else(table: str, tmp_path: Path) -> None:
    """An option that nothing reads looks as if it held."""
    (tmp_path / "lastgood.toml").write_text(f'[stores."/checkpoints"]\n{table}\n')
    with pytest.raises(UsageError, match="a path with only `verify` and `evidence`"):
        read_configuration(tmp_path / "lastgood.toml")


def test_evidence_lies_where_the_file_says(tmp_path: Path) -> None:
    """Paths start where the file lies, however they are spelled, and a longer root does not bring evidence back."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "mnt" / "big").mkdir(parents=True)
    (tmp_path / "evidence").mkdir()
    (tmp_path / "conf" / "lastgood.toml").write_text(
        f'[stores."../mnt"]\nevidence = "file://{tmp_path}/evidence/"\n'
        '[stores."../mnt/big".verify]\nmode = "rotating"\n'
    )
    configuration = read_configuration(tmp_path / "conf" / "lastgood.toml")
    assert configuration.stores[str(tmp_path / "mnt")].evidence == str(tmp_path / "evidence")
    location = configuration.locate(str(tmp_path / "mnt" / "big" / "llm"))
    assert location.verify.mode == "rotating"
    ours = location.store.local_directory(location.keys.ours)
    assert ours == tmp_path / "evidence/big/llm/.lastgood"


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ('[stores."/a"]\nevidence = "/a/own"\n', "/a/own and /a overlap"),
        ('[stores."/a"]\nevidence = "/e"\n[stores."/b"]\nevidence = "/e/b"\n', "/e and /e/b overlap"),
        ('[stores."/a"]\nevidence = "/b/e"\n[stores."/b"]\nevidence = "/f"\n', "/b/e and /b overlap"),
        ('[stores."/a"]\nevidence = "//a/own"\n', "/a/own and /a overlap"),
        ('[stores."/a"]\nevidence = "gs://bucket"\n', "unsupported scheme 'gs'"),
        ('[stores."/a"]\nevidence = "s3://"\n', "not a bucket"),
        ('[stores."/a"]\nevidence = "\\u0000"\n', "null character"),
        ('[stores."s3://a"]\nevidence = ""\n', "evidence"),
    ],
)
def test_evidence_of_two_roots_lies_in_two_places(tables: str, told: str, tmp_path: Path) -> None:
    """Families of one name would share their bars, and a tree that is only read would be written into."""
    (tmp_path / "lastgood.toml").write_text(tables)
    with pytest.raises(UsageError) as caught:
        read_configuration(tmp_path / "lastgood.toml")
    assert told in caught.value.message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("/mnt/a", "/mnt/a/"),
        ("/mnt/a/.", "/mnt//a"),
        ("file:///mnt/a", "/mnt/b/../a"),
        ("a", "./a"),
        ("s3://bucket/runs", "s3://bucket/runs/"),
    ],
)
def test_two_tables_of_one_root_are_refused(first: str, second: str, tmp_path: Path) -> None:
    """The last of them would decide alone, and what the other says of evidence would be lost in silence."""
    (tmp_path / "lastgood.toml").write_text(f'[stores."{first}"]\nevidence = "/e"\n[stores."{second}"]\n')
    with pytest.raises(UsageError) as caught:
        read_configuration(tmp_path / "lastgood.toml")
    assert f'stores."{second}": the same root as stores."{first}"' in caught.value.message
    assert "lastgood.toml" in caught.value.message


@pytest.mark.parametrize(
    "spelled", ["file://{base}/mnt/a%20b/", "file:{base}/mnt/a b", "mnt/a b/.", "./mnt/../mnt/a b"]
)
def test_a_root_may_be_spelled_as_everywhere_else(spelled: str, tmp_path: Path) -> None:
    """A table that nothing is looked up in would let a seal be written into a tree that is only read."""
    root = spelled.format(base=tmp_path)
    (tmp_path / "evidence").mkdir()
    (tmp_path / "mnt" / "a b").mkdir(parents=True)
    (tmp_path / "lastgood.toml").write_text(
        f'[stores."{root}"]\nevidence = "evidence"\n[families.llm]\nroot = "{root}"\n'
    )
    configuration = read_configuration(tmp_path / "lastgood.toml")
    assert list(configuration.stores) == [configuration.settings("llm").root] == [f"{tmp_path}/mnt/a b"]
    location = configuration.locate(configuration.settings("llm").uri("llm"))
    assert location.store.local_directory(location.keys.ours) == tmp_path / "evidence/llm/.lastgood"


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ('[stores."FILE:///a"]\n', "stores.\"FILE:///a\": unsupported scheme 'FILE'"),
        ('[stores."file:a"]\n', 'stores."file:a": not an absolute file URI'),
        ('[stores."/a"]\nevidence = "file://["\n', 'stores."/a".evidence: not an absolute file URI'),
        ('[ledger]\nurl = "postgresql://["\n', "ledger.url: not a URL"),
        ('[stores."S3://bucket"]\n', "stores.\"S3://bucket\": unsupported scheme 'S3'"),
        ('[stores."s3://bucket//a"]\n', 'stores."s3://bucket//a": not a prefix'),
        ('[stores."s3://bucket/a/../b"]\n', 'stores."s3://bucket/a/../b": not a prefix'),
        ('[stores.""]\n', 'stores."": empty root'),
        ('[stores."~/a"]\n', 'stores."~/a": only a shell replaces `~`: ~/a'),
        ('[stores."/a"]\nevidence = "~me/e"\n', 'stores."/a".evidence: only a shell replaces `~`: ~me/e'),
        ('[families.llm]\nroot = "s3://"\n', "families.llm.root: not a bucket"),
        ('[families.llm]\nroot = "~/runs"\n', "families.llm.root: only a shell replaces `~`"),
        (
            '[families.llm]\nroot = "a"\nreplica = { command = ["a"], directory = "~" }\n',
            "families.llm.replica.directory",
        ),
        ('[ledger]\nurl = "sqlite:///~/l.sqlite"\n', "ledger.url: only a shell replaces `~`"),
        ('[report]\ndirectory = "~/report"\n', "report.directory: only a shell replaces `~`"),
        ('[relay]\nspool = "~/spool"\n', "relay.spool: only a shell replaces `~`"),
        ('[relay]\nmetrics = "~/relay.prom"\n', "relay.metrics: only a shell replaces `~`"),
    ],
)
def test_a_root_or_path_that_would_mean_something_else_is_refused(tables: str, told: str, tmp_path: Path) -> None:
    """A directory called `~`, or `s3:`, would be made beside the file, or a root never be found by any URI."""
    (tmp_path / "lastgood.toml").write_text(tables)
    with pytest.raises(UsageError) as caught:
        read_configuration(tmp_path / "lastgood.toml")
    assert f"{tmp_path}/lastgood.toml: {told}" in caught.value.message


def test_two_names_of_one_tree_have_no_two_places_for_evidence(tmp_path: Path) -> None:
    """Whoever asks by one of them would not see what is barred under the other."""
    (tmp_path / "mnt").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mnt")
    (tmp_path / "lastgood.toml").write_text('[stores.mnt]\nevidence = "/e"\n[stores.link]\nevidence = "/f"\n')
    with pytest.raises(UsageError, match=rf'stores\."link": leads to {tmp_path}/mnt, as stores\."mnt" does'):
        read_configuration(tmp_path / "lastgood.toml")
