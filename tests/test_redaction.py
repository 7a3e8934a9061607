"""Secrets taken out of text: all of the secret, and nothing but the secret."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood import redaction
from lastgood.errors import LastgoodError, UsageError
from lastgood.redaction import HIDDEN, NAMES, clean_logs, hide, redact, redact_all, redact_exception, spell_out
from lastgood.text import printable

ROOT = Path(__file__).resolve().parent.parent

OURS = {
    "AWS_ACCESS_KEY_ID": "weed-access-key",
    "AWS_SECRET_ACCESS_KEY": "wJalr/XUtn+FEMI=K7MDENG",
    "AWS_SESSION_TOKEN": "FwoGZXIvYXdzEBYaD//////////=",
    "LASTGOOD_RELAY_SECRET": "wJalr/XUtn+FEMI=K7MDENG-and-more",
}

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [
        *("://", "@", ":", "=", "'", '"', "\\", "\n", "b'", "%3D", "<", ">", "AKIA", "Authorization: ", "Basic "),
        *("Signature=", "secret_key", "x-amz-signature", HIDDEN, "<AWS_SECRET_ACCESS_KEY>", "?", "&", " "),
    ]
)
ANYTHING = st.lists(WORDS, max_size=12).map("".join)
# Between secrets stands what is no part of one and gives none away.
PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="@:=<>"), max_size=40).filter(
    lambda text: redact(text) == text
)
TOKEN = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/%-_.~", min_size=16, max_size=80)
KEY = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", min_size=16, max_size=16)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The four secrets that this process was given."""
    for name, value in OURS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `hide` is told in this test is forgotten after it."""
    monkeypatch.setattr(redaction, "_held", ())


@pytest.fixture
def clean() -> Iterator[io.StringIO]:
    """What a handler that was there before writes once the logs of the process are cleaned."""
    written, factory, root = io.StringIO(), logging.getLogRecordFactory(), logging.getLogger()
    handler, level = logging.StreamHandler(written), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    clean_logs()
    yield written
    root.removeHandler(handler)
    root.setLevel(level)
    logging.setLogRecordFactory(factory)


@pytest.mark.usefixtures("environment")
@given(ANYTHING)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    """A message is cleaned where it is made, kept and shown: the second time must find nothing left to do."""
    assert redact(redact(text)) == redact(text)


@pytest.mark.usefixtures("environment")
@given(st.lists(st.tuples(PLAIN, st.sampled_from(sorted(OURS))), max_size=4), PLAIN)
def test_of_a_known_secret_nothing_is_left_and_nothing_else_changes(parts: list[tuple[str, str]], end: str) -> None:
    """A secret may stand anywhere, glued to anything; of two that begin alike the longer one is taken whole."""
    text = "".join(f"{plain} {OURS[name]} " for plain, name in parts) + end
    assert redact(text) == "".join(f"{plain} <{name}> " for plain, name in parts) + end


@pytest.mark.parametrize(
    "shape",
    [
        "https://b.example/k?X-Amz-Credential={}&X-Amz-Date=20260101T000000Z&X-Amz-Expires=60&x-id=GetObject",
        "https://b.example/k?X-Amz-Security-Token={}&X-Amz-SignedHeaders=host",
        "https://b.example/k?X-Amz-SignedHeaders=host&X-Amz-Signature={}",
        "https://b.example/k?AWSAccessKeyId={}&Expires=1",
        "https://b.example/k?Expires=1&Signature={}",
        "see https%3A%2F%2Fb.example%2Fk%3FX-Amz-Signature%3D{} ",
        "Authorization: AWS4-HMAC-SHA256 Credential={}, SignedHeaders=host;x-amz-date, Signature=<redacted>",
        "Authorization: AWS4-HMAC-SHA256 Credential=<redacted>, SignedHeaders=host;x-amz-date, Signature={}\r\nHost: b",
        "Authorization: AWS {}\r\nDate: now",
        "authorization: Bearer {}\nhost: b",
        "{{'Authorization': b'Basic {}', 'Host': 'b'}}",
        'Proxy-Authorization="Basic {}"',
        "said Bearer {} to it",
        "x-amz-security-token:{}\nhost:b",
        "{{'X-Amz-Security-Token': '{}', 'Host': 'b'}}",
        '{{"SessionToken": "{}", "Expiration": "2026"}}',
        '{{\\"SecretAccessKey\\": \\"{}\\"}}',
        "<Credentials><AccessKeyId><redacted></AccessKeyId><SecretAccessKey>{}</SecretAccessKey><Expiration>2026</Expiration></Credentials>",
        "[default]\naws_secret_access_key = {}\nregion = x",
        "AWS_SESSION_TOKEN={} python train.py",
        '{{"accessKey":"{}","actions":["Admin"]}}',
        "postgresql+psycopg://ann:{}@db.example/lastgood",
    ],
)
@given(secret=TOKEN)
def test_a_secret_is_known_by_what_stands_around_it(shape: str, secret: str) -> None:
    """Presigned URLs, headers, botocore's debug log, answers of STS, profiles: all but the secret stays readable."""
    if "://ann:" in shape:
        secret = secret.replace("/", "")
    assert redact(shape.format(secret)) == shape.format(HIDDEN)


def test_a_signature_is_known_in_the_log_of_botocore() -> None:
    """Who has it can send the same request again for a quarter of an hour."""
    assert redact(f"Signature:\n{'0a' * 32}") == f"Signature:\n{HIDDEN}"


@given(PLAIN, st.sampled_from(["AKIA", "ASIA"]), KEY, PLAIN)
def test_an_access_key_is_known_by_its_form(before: str, kind: str, rest: str, after: str) -> None:
    """Whoever's it is: a checkpoint's names, a replica's log and a server's answer may hold another's."""
    assert redact(f"{before} {kind}{rest} {after}") == f"{before} {HIDDEN} {after}"


@pytest.mark.parametrize(
    "text",
    [
        "cannot read a/b in s3://bucket: AccessDenied (403)",
        "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role",
        "Partial credentials found in env, missing: AWS_SECRET_ACCESS_KEY",
        "tokens: expected 4096, found 2048",
        "sessions of 16 tokens=20480 were read",
        "no authorization: expected a bearer, found none",
        "ASIAPACIFIC and AKIA-7",
        "s3://bucket/llm@home/00000001-0000000000000010",
        "postgresql+psycopg://lastgood@db.example/lastgood",
        "https://reports.example:8080/a@b",
        "manifest digest sha256:" + "ab" * 32,
        "git+ssh://git@github.example/org/repo.git",
    ],
)
def test_what_only_looks_like_a_secret_is_let_be(text: str) -> None:
    """A message that hides what happened helps nobody at three in the morning."""
    assert redact(text) == text


def test_a_value_that_is_short_or_part_of_the_mark_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """`admin` as a key would take every `admin` out of a report, and `redacted` would be replaced for ever."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "admin")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "redacted")
    assert redact("admin of <redacted>") == "admin of <redacted>"


@pytest.mark.usefixtures("held")
def test_a_secret_from_elsewhere_is_hidden_once_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile's or a role's keys stand in no environment, and keys rotate: the newest are remembered."""
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    assert redact("is rotating-token-1") == "is rotating-token-1"
    for number in range(200):
        hide("AWS_SESSION_TOKEN", f"rotating-token-{number}")
    assert redact("is rotating-token-199 now") == "is <AWS_SESSION_TOKEN> now"
    assert len(redaction._held) == redaction.MAXIMUM_HELD


@pytest.mark.usefixtures("environment")
def test_the_environment_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that renews its token in `os.environ` must not print the new one."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another-session-token")
    assert redact("another-session-token") == "<AWS_SESSION_TOKEN>"


@pytest.mark.usefixtures("environment")
def test_errors_and_whatever_is_printed_hold_no_secret() -> None:
    """An error's words end in logs, findings, states and answers: they are clean before anybody has them."""
    secret = OURS["AWS_SECRET_ACCESS_KEY"]
    error = UsageError(f"no such key: {secret}", hint=f"is it {secret}?")
    assert secret not in f"{error} {error!r} {error.message} {error.hint}"
    assert LastgoodError("nothing", hint=None).hint is None
    assert printable(f"\x1b{secret}") == "\\x1b<AWS_SECRET_ACCESS_KEY>"


@pytest.mark.usefixtures("environment")
def test_a_document_is_cleaned_in_every_string() -> None:
    """Keys too; numbers, truth and nothing stay what they are."""
    token = OURS["AWS_SESSION_TOKEN"]
    document = {"a": [token, 1, None, True, ("x", f"{token}!")], token: {"b": 0.5}}
    told = json.dumps(redact_all(document))
    assert json.loads(told) == {
        "a": ["<AWS_SESSION_TOKEN>", 1, None, True, ["x", "<AWS_SESSION_TOKEN>!"]],
        "<AWS_SESSION_TOKEN>": {"b": 0.5},
    }


@pytest.mark.usefixtures("environment")
def test_a_traceback_holds_no_secret_and_still_all_frames() -> None:
    """A defect is reported by its traceback, causes included, to people who have no business with our keys."""
    secret = OURS["AWS_SECRET_ACCESS_KEY"]
    error = RuntimeError(f"while {secret}")
    error.__cause__ = ValueError(secret, 7)
    with pytest.raises(RuntimeError) as raised:
        raise error
    told = spell_out(raised.value)
    assert secret not in told
    assert "ValueError" in told
    assert "test_redaction.py" in told
    redact_exception(error)
    assert error.args == ("while <AWS_SECRET_ACCESS_KEY>",)
    assert error.__cause__.args == ("<AWS_SECRET_ACCESS_KEY>", 7)


@pytest.mark.usefixtures("environment")
def test_log_records_are_clean_for_every_logger_and_handler(clean: io.StringIO) -> None:
    """Botocore logs access key and session token for debugging; a handler that Prefect adds later gets records, too."""
    token = OURS["AWS_SESSION_TOKEN"]
    logging.getLogger("botocore.auth").debug("CanonicalRequest:\nx-amz-security-token:%s\n\nhost", token)
    try:
        raise ValueError(token)
    except ValueError:
        logging.getLogger("lastgood.any").exception("broken: %s", {"key": token})
    logging.getLogger("lastgood.any").warning("misfit %d %d", token)
    logging.getLogger("lastgood.any").warning("left as it is: %s of %d", "llm", 3)
    told = clean.getvalue()
    assert token not in told
    assert told.count("<AWS_SESSION_TOKEN>") == 4
    assert "Traceback" in told
    assert "left as it is: llm of 3" in told


def test_cleaning_logs_twice_wraps_once(clean: io.StringIO) -> None:
    """Each flow of a process asks for it."""
    factory = logging.getLogRecordFactory()
    clean_logs()
    assert logging.getLogRecordFactory() is factory


def test_every_secret_variable_of_ours_is_named() -> None:
    """A variable that is added for a secret and not named here would be printed like any other."""
    spelled = {
        node.value
        for path in [*(ROOT / "tasks").rglob("*.py"), *(ROOT / "flows").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    secret = re.compile(r"(?:LASTGOOD|PREFECT|AWS)_[A-Z_]*(?:SECRET|TOKEN|PASSWORD|AUTH_STRING|API_KEY)[A-Z_]*")
    assert {name for name in spelled if secret.fullmatch(name)} <= set(NAMES)
    assert secret.fullmatch("LASTGOOD_RELAY_SECRET")
