"""Notifications as real programs write them: SeaweedFS, Ceph, a MinIO-format gateway, and emulators of AWS.

Each object is put over S3, and must be heard of under the very family and generation that its key names.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config

from lastgood.identity import GenerationId
from lastgood.testing.seaweedfs import SeaweedFS
from lastgood.testing.server import free_ports
from lastgood_prefect.hints import Hint, HintSource
from lastgood_prefect.relay.reading import CommitKeys, Reader
from lastgood_prefect.relay.spool import Spool
from lastgood_prefect.relay.sqs import SqsHints
from lastgood_prefect.relay.webhook import WebhookHints
from tests.buckets.servers import RADOSGW_PROGRAMS, Radosgw
from tests.relay.posting import SECRET

pytestmark = [pytest.mark.slow, pytest.mark.service]

BUCKET = "checkpoints"
NOTIFICATIONS = Path(__file__).resolve().parents[2] / "infra" / "notifications"
ODD = "grüße a+b %41"
"""A family whose name every encoding treats differently."""
KEYS = CommitKeys({"llm-7b": f"s3://{BUCKET}/runs", ODD: f"s3://{BUCKET}/a b+c"})
COMMITS = {
    f"runs/llm-7b/.lastgood/commits/{GenerationId(incarnation=3, step=48_000)}": Hint(
        "llm-7b", GenerationId(incarnation=3, step=48_000)
    ),
    f"a b+c/{ODD}/.lastgood/commits/{GenerationId(incarnation=1, step=1)}": Hint(
        ODD, GenerationId(incarnation=1, step=1)
    ),
    f"runs/llm-7b/.lastgood/commits/{GenerationId(incarnation=0, step=500, name='checkpoint 500+')}": Hint(
        "llm-7b", GenerationId(incarnation=0, step=500, name="checkpoint 500+")
    ),
}
OTHERS = ("runs/llm-7b/00000003-0000000000048000/model.safetensors", "elsewhere/x")
START_SECONDS = 90.0
HEARD_SECONDS = 60.0
# Ends with whoever started it, even if that is killed.
DIES_WITH_US = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def program(name: str) -> str:
    """The path of a program that a package of this environment brings."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"not installed: {name}")
    return str(path)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@contextmanager
def started(command: list[str], directory: Path, environment: Mapping[str, str], port: int) -> Iterator[None]:
    """A server on a port of this machine, ended at the end."""
    with (
        (directory / "server.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", DIES_WITH_US, str(os.getpid()), *command],
            cwd=directory,
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            deadline = time.monotonic() + START_SECONDS
            while _is_free(port):
                assert process.poll() is None, (directory / "server.log").read_text(errors="replace")[-2000:]
                assert time.monotonic() < deadline, f"{command[0]} does not listen"
                time.sleep(0.1)
            yield
        finally:
            process.kill()


def client(service: str, port: int, access_key: str = "testing", secret_key: str = "testing-secret") -> Any:
    return boto3.client(
        service,
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 10, "mode": "standard"}),
    )


def create_bucket(s3: Any) -> None:
    """Make the bucket, once its server is ready to."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            s3.create_bucket(Bucket=BUCKET)
            return
        except Exception:  # whatever a server that is not ready yet says
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def put_all(s3: Any, commits: Mapping[str, Hint] = COMMITS) -> None:
    for key in (*OTHERS, *commits):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"x")


def hear_all(source: HintSource, heard: Callable[[], set[Hint]], commits: Mapping[str, Hint] = COMMITS) -> None:
    """Wait until every commit was heard of."""
    deadline = time.monotonic() + HEARD_SECONDS
    while heard() != set(commits.values()):
        assert time.monotonic() < deadline, f"heard of {heard()} only"
        source.wait()


@pytest.fixture
def reader() -> Reader:
    return Reader(KEYS)


@pytest.fixture
def webhook(reader: Reader, tmp_path: Path) -> Iterator[WebhookHints]:
    source = WebhookHints(
        reader, Spool(tmp_path / "spool"), secret=SECRET, host="127.0.0.1", port=0, tick=timedelta(seconds=0.1)
    )
    yield source
    source.close()


def test_seaweedfs_is_heard(webhook: WebhookHints, reader: Reader) -> None:
    """Its filer posts every change of every path, with a bearer token."""
    program("weed")
    with SeaweedFS(webhook=f"http://127.0.0.1:{webhook.port}/events", token=SECRET) as server:
        s3 = client("s3", server.s3_port, server.access_key, server.secret_key)
        create_bucket(s3)
        put_all(s3)
        hear_all(webhook, lambda: webhook._returned)
    assert reader.counters.refused == reader.counters.malformed == 0


@pytest.mark.service(*RADOSGW_PROGRAMS)
def test_ceph_is_heard(webhook: WebhookHints, reader: Reader) -> None:
    """Its gateway posts what `infra/notifications/ceph` asks for; the secret is the topic's opaque data."""
    topic = json.loads((NOTIFICATIONS / "ceph" / "topic.json").read_text())
    wanted = json.loads((NOTIFICATIONS / "ceph" / "notification.json").read_text())
    # One for each family, as the script beside it says.
    odd = {"Key": {"FilterRules": [{"Name": "prefix", "Value": f"a b+c/{ODD}/.lastgood/commits/"}]}}
    wanted["TopicConfigurations"] += [{**wanted["TopicConfigurations"][0], "Id": "lastgood-odd", "Filter": odd}]
    told = {**topic, "push-endpoint": f"http://127.0.0.1:{webhook.port}/events", "OpaqueData": SECRET}
    with Radosgw() as server:
        s3 = server.client()
        create_bucket(s3)
        server.client("sns").create_topic(Name="lastgood", Attributes=told)
        s3.put_bucket_notification_configuration(Bucket=BUCKET, NotificationConfiguration=wanted)
        put_all(s3)
        hear_all(webhook, lambda: webhook._returned)
    counted = reader.counters
    assert counted.refused == counted.malformed == counted.other == counted.foreign == 0, "the prefixes filter"


def test_a_minio_gateway_is_heard(webhook: WebhookHints, reader: Reader, tmp_path: Path) -> None:
    """JuiceFS' gateway is MinIO's: its webhook posts with a bearer token, out of a queue on its disk."""
    home = tmp_path / "juicefs"
    home.mkdir()
    port, metrics = free_ports(2)
    meta = f"sqlite3://{home}/meta.db"
    juicefs = program("juicefs")
    subprocess.run(
        [juicefs, "format", "--storage", "file", "--bucket", f"{home}/data/", meta, "jfs"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    environment = {
        "MINIO_ROOT_USER": "testing",
        "MINIO_ROOT_PASSWORD": "testing-secret",
        "MINIO_NOTIFY_WEBHOOK_ENABLE_hook": "on",
        "MINIO_NOTIFY_WEBHOOK_ENDPOINT_hook": f"http://127.0.0.1:{webhook.port}/events",
        "MINIO_NOTIFY_WEBHOOK_AUTH_TOKEN_hook": SECRET,
        "MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_hook": str(home / "queue"),
    }
    options = [
        "--multi-buckets",
        "--keep-etag",
        "--object-meta",
        "--no-usage-report",
        "--cache-dir",
        str(home / "cache"),
    ]
    options += ["--metrics", f"127.0.0.1:{metrics}", "--log", str(home / "gateway.log")]
    with started([juicefs, "gateway", *options, meta, f"127.0.0.1:{port}"], home, environment, port):
        s3 = client("s3", port)
        create_bucket(s3)
        queue = {"QueueArn": "arn:minio:sqs::hook:webhook", "Events": ["s3:ObjectCreated:*"]}
        s3.put_bucket_notification_configuration(
            Bucket=BUCKET, NotificationConfiguration={"QueueConfigurations": [queue]}
        )
        put_all(s3)
        hear_all(webhook, lambda: webhook._returned)
    assert reader.counters.refused == reader.counters.malformed == 0


@contextmanager
def moto_server(directory: Path) -> Iterator[int]:
    (port,) = free_ports(1)
    with started([program("moto_server"), "-H", "127.0.0.1", "-p", str(port)], directory, {}, port):
        yield port


@contextmanager
def ministack_server(directory: Path) -> Iterator[int]:
    (port,) = free_ports(1)
    told = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    with started([program("ministack")], directory, told, port):
        yield port


SERVERS = {"moto": moto_server, "ministack": ministack_server}


def directly(port: int, queue_arn: str) -> dict[str, object]:
    return {"QueueConfigurations": [{"QueueArn": queue_arn, "Events": ["s3:ObjectCreated:*"]}]}


def by_topic(port: int, queue_arn: str) -> dict[str, object]:
    sns = client("sns", port)
    topic = sns.create_topic(Name="saves")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue_arn)
    return {"TopicConfigurations": [{"TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}]}


def by_event_bus(port: int, queue_arn: str) -> dict[str, object]:
    events = client("events", port)
    events.put_rule(Name="saves", EventPattern=json.dumps({"source": ["aws.s3"]}), State="ENABLED")
    events.put_targets(Rule="saves", Targets=[{"Id": "queue", "Arn": queue_arn}])
    return {"EventBridgeConfiguration": {}}


@pytest.mark.parametrize("way", [directly, by_topic, by_event_bus], ids=lambda way: way.__name__)
@pytest.mark.parametrize("server", SERVERS)
def test_an_emulator_of_aws_is_heard(
    server: str, way: Callable[[int, str], dict[str, object]], reader: Reader, tmp_path: Path
) -> None:
    """Their bodies are other people's reading of what AWS writes, the test message at the start among them."""
    with SERVERS[server](tmp_path) as port:
        sqs, s3 = client("sqs", port), client("s3", port)
        create_bucket(s3)
        url = sqs.create_queue(QueueName="saves")["QueueUrl"]
        # Some emulators name a host of their own in it.
        url = f"http://127.0.0.1:{port}{urlsplit(url).path}"
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        s3.put_bucket_notification_configuration(Bucket=BUCKET, NotificationConfiguration=way(port, arn))
        source = SqsHints(reader, sqs, url, threading.Event())
        # ministack 1.4 writes keys as they are into records that AWS URL-encodes: a plus cannot be told from a blank.
        plain = {key: hint for key, hint in COMMITS.items() if "+" not in key}
        commits = plain if server == "ministack" and way is not by_event_bus else COMMITS
        put_all(s3, commits)
        hear_all(source, lambda: {hint for held in source._held.values() for hint in held.hints}, commits)
    assert reader.counters.malformed == 0
