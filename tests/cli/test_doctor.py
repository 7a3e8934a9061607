"""`doctor` before a store is trusted: one table, one exit code, and no traceback whatever is wrong with the bucket."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lastgood.cli import run
from tests.buckets.servers import JuiceFSGateway, Moto
from tests.cli.conftest import Told

Call = Callable[..., Told]


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    with Moto() as server:
        server.client().create_bucket(Bucket="bucket")
        yield server


@pytest.fixture
def speaking(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    return moto


def keys(server: Moto | JuiceFSGateway) -> list[str]:
    return [item["Key"] for item in server.client().list_objects_v2(Bucket="bucket").get("Contents", ())]


def test_a_bucket_is_graded_and_its_grade_kept(call: Call, speaking: Moto) -> None:
    """A limit is named with what follows from it, beside the probe that did not hold."""
    told = call("doctor", "s3://bucket/runs")
    assert told.code == 0, "it can be published to"
    lines = told.out.splitlines()
    assert lines[0] == "s3://bucket/runs: publish with limits (checksum_rejection, stored_checksums)"
    assert "  checksum_rejection: damage on the way in is found by reading back, never by the service" in lines
    assert "kept: s3://bucket/runs/.lastgood/grade.json" in lines
    assert any(line.split()[:2] == ["limit", "checksum_rejection"] for line in lines)
    assert any(line.split()[:2] == ["ok", "conditional_create"] for line in lines)
    assert keys(speaking) == ["runs/.lastgood/grade.json"]


def test_a_grade_need_not_be_kept(call: Call, speaking: Moto) -> None:
    """Whoever only looks leaves nothing."""
    before = keys(speaking)
    told = call("doctor", "s3://bucket/looked", "--no-keep", "--json")
    report = json.loads(told.out)
    assert (report["grade"], report["limits"], report["kept"]) == (
        "publish_with_limits",
        ["checksum_rejection", "stored_checksums"],
        None,
    )
    failed = {probe["name"]: probe["needed"] for probe in report["probes"] if not probe["held"]}
    assert failed["checksum_rejection"] == "full"
    assert keys(speaking) == before


def test_a_bucket_that_must_not_be_published_to_says_why(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 2 stops the script that was about to publish; its author reads which promise is missing."""
    with JuiceFSGateway() as server:
        server.client().create_bucket(Bucket="bucket")
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        told = call("doctor", "s3://bucket/runs")
        assert told.code == 2
        assert told.out.startswith("s3://bucket/runs: reading only\ndo not publish here")
        assert "FAIL   conditional_create" in told.out
        assert keys(server) == ["runs/.lastgood/grade.json"]


def test_a_bucket_that_is_not_there_is_one_line(call: Call, speaking: Moto) -> None:
    """A spelling mistake is the commonest trouble of all."""
    told = call("doctor", "s3://buckets/runs")
    assert (told.code, told.out) == (2, "")
    assert "bucket not found: s3://buckets" in told.err


def test_no_credentials_is_one_line_and_a_hint(call: Call, speaking: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they may come from is what whoever has none needs to read."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    told = call("doctor", "s3://bucket/runs")
    assert told.code == 2
    assert "no credentials" in told.err
    assert "hint: set AWS_PROFILE" in told.err


def test_an_endpoint_that_nobody_serves_is_one_line(
    call: Call, speaking: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage is no grade: exit 2, and come again."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # botocore's pauses between its attempts
    told = call("doctor", "s3://bucket/runs")
    assert (told.code, told.out) == (2, "")
    assert "127.0.0.1:9" in told.err


def test_an_endpoint_that_is_no_url_is_usage(call: Call, speaking: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with the configuration will not heal by coming again."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "not a url")
    assert call("doctor", "s3://bucket/runs").code == 64
    assert call("doctor", "s3://bucket//runs").code == 64
    assert call("doctor", "gs://bucket/runs").code == 64


def test_without_its_client_the_way_to_install_it_is_told() -> None:
    """Buckets are an extra; whoever left it out must not read an import error."""
    program = (
        "import sys; sys.modules['boto3'] = None\n"
        f"from lastgood.cli import {run.__name__}\n"
        "sys.exit(run(['doctor', 's3://bucket/runs']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 64
    assert "boto3 is not installed" in done.stderr
    assert "pip install 'lastgood[s3]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_root_that_cannot_be_written_to_is_reading_only(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system gets its grade by the same rules, and keeps nothing."""

    def refuse(**_: object) -> str:
        raise PermissionError(13, "permission denied")

    monkeypatch.setattr("lastgood.stores.probing.tempfile.mkdtemp", refuse)
    told = call("doctor", str(tmp_path))
    assert told.code == 2
    assert told.out.startswith(f"{tmp_path}: reading only\n")
    assert "kept:" not in told.out


def test_this_machine_alone_may_be_asked(call: Call) -> None:
    """Tiers 2 and 3 need more of a machine than a store."""
    told = call("doctor")
    assert told.code == 0
    assert "python" in told.out
