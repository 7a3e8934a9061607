"""Recipes of notifications: what AWS's descriptions and a real SeaweedFS make of them, and whether the relay hears."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import botocore.session
import pytest
import yaml
from botocore.exceptions import ClientError
from botocore.validate import ParamValidator

from lastgood.config import read_configuration
from lastgood.identity import FamilyKeys
from lastgood.testing.seaweedfs import MEMORY_LIMIT, weed_program
from lastgood_prefect.relay.decoding import decode
from lastgood_prefect.relay.webhook import PATH
from tests.buckets.servers import SeaweedFS

INFRA = Path(__file__).resolve().parents[2] / "infra"
COMMITS = f"runs/{FamilyKeys('llm-7b').commits}/"
COMMIT = f"{COMMITS}00000001-0000000000000010"


def shape_errors(service: str, operation: str, request: Mapping[str, Any]) -> str:
    """What AWS's description of a request finds wrong with one."""
    model = botocore.session.get_session().get_service_model(service).operation_model(operation)
    return str(ParamValidator().validate(request, model.input_shape).generate_report())


def test_the_topic_of_ceph_is_a_lawful_request_and_keeps_what_it_cannot_deliver() -> None:
    """Without `persistent` a write succeeds and its event is lost; the secret is no part of the file."""
    topic = json.loads((INFRA / "notifications/ceph/topic.json").read_text())
    assert shape_errors("sns", "CreateTopic", {"Name": "lastgood", "Attributes": topic}) == ""
    assert topic["persistent"] == "true"
    assert topic["push-endpoint"].endswith(f":8787{PATH}")
    assert "OpaqueData" not in topic


def test_the_notification_of_ceph_is_a_lawful_request_for_commits() -> None:
    """Ceph takes AWS's form; a filter that misses the commits would announce nothing, for ever."""
    wanted = json.loads((INFRA / "notifications/ceph/notification.json").read_text())
    request = {"Bucket": "checkpoints", "NotificationConfiguration": {"TopicConfigurations": []}}
    assert shape_errors("s3", "PutBucketNotificationConfiguration", request) == ""
    request["NotificationConfiguration"] = wanted
    assert shape_errors("s3", "PutBucketNotificationConfiguration", request) == ""
    (topic,) = wanted["TopicConfigurations"]
    assert topic["Filter"]["Key"]["FilterRules"] == [{"Name": "prefix", "Value": COMMITS}]
    assert "TopicArn" in shape_errors(
        "s3",
        "PutBucketNotificationConfiguration",
        {**request, "NotificationConfiguration": {"TopicConfigurations": [{"Events": ["s3:ObjectCreated:*"]}]}},
    ), "the description finds what is missing"


def test_minio_announces_commits() -> None:
    """`mc` filters by a prefix; it is spelled as commits are."""
    script = (INFRA / "notifications/minio/minio.sh").read_text()
    assert '--event put --prefix "${PREFIX:?prefix of the root}/$family/.lastgood/commits/"' in script
    assert f"runs/llm-7b/{FamilyKeys('x').commits.partition('/')[2]}/" == COMMITS
    assert f":8787{PATH}" in script


class Composed(SeaweedFS):
    """A SeaweedFS that is told what the compose file and the recipe tell it, but for places.

    Args:
        endpoint: Where its posts go.
        token: What it shows there.
    """

    def __init__(self, endpoint: str, token: str) -> None:
        super().__init__()
        self._told = {
            "WEED_NOTIFICATION_WEBHOOK_BEARER_TOKEN": token,
            "WEED_NOTIFICATION_WEBHOOK_ENDPOINT": endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "GOMEMLIMIT": MEMORY_LIMIT,
        }

    def _launch(self) -> None:
        (self.home / "data").mkdir(exist_ok=True)
        (self.home / "notification.toml").write_text((INFRA / "notifications/seaweedfs/notification.toml").read_text())
        service = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]["seaweedfs"]
        assert set(service["environment"]) == set(self._told) - {"GOMEMLIMIT"}
        here = {"-dir": self.home / "data", "-ip": "127.0.0.1", "-ip.bind": "127.0.0.1", "-s3.port": self.ports[0]}
        names = ("-master.port", "-volume.port", "-filer.port", "-admin.port")
        ports = [f"{name}={port}" for name, port in zip(names, self.ports[1:], strict=True)]
        command = [
            f"{name}={here[name]}" if name in here else option
            for option in service["command"]
            for name in [option.partition("=")[0]]
        ]
        self._run([str(weed_program()), *command, *ports], log="weed.log", environment=self._told)
        self._await(lambda: self._has_volumes() and self._answers())


def test_a_real_seaweedfs_announces_a_commit_as_it_is_told_here() -> None:
    """Endpoint, token and keys come from its environment: no file holds a secret, and the relay takes the post."""
    posts: list[tuple[str, str, bytes]] = []

    class Relay(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.path, str(self.headers["Authorization"]), body))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    thread = Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        with Composed(f"http://127.0.0.1:{listener.server_port}{PATH}", "t0ken-of-the-relay") as server:
            client = server.client()
            client.create_bucket(Bucket="checkpoints")
            client.put_object(Bucket="checkpoints", Key="elsewhere/x", Body=b"x")
            client.put_object(Bucket="checkpoints", Key=COMMIT, Body=b"{}")
            deadline = monotonic() + 30
            while not any(COMMIT.encode() in body for _, _, body in posts) and monotonic() < deadline:
                sleep(0.05)
            server.access_key = "ANOTHERKEY0123456789"
            with pytest.raises(ClientError, match="InvalidAccessKeyId"):
                server.client().list_objects_v2(Bucket="checkpoints")
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
    assert {(path, token) for path, token, _ in posts} == {(PATH, "Bearer t0ken-of-the-relay")}
    events = [event for _, _, body in posts for event in decode(body)]
    assert ("checkpoints", COMMIT) in {(event.bucket, event.key) for event in events}
    assert not [event for event in events if event.key.startswith("elsewhere")]


def test_the_configuration_beside_the_compose_file_is_lawful() -> None:
    """Its bucket is named in the path: `checkpoints.seaweedfs` is no host."""
    settings = read_configuration(INFRA / "lastgood.toml")
    assert list(settings.families) == ["llm-7b"]
    assert settings.stores["s3://checkpoints"].addressing == "path"
