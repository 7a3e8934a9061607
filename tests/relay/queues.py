"""An SQS queue behind a real port: `moto_server` in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3

START_SECONDS = 60.0
# In a child: ends with whoever started it, even if that is killed.
SERVER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit(1)
from moto.server import main
main(sys.argv[1:])
"""


@dataclass(frozen=True)
class Sqs:
    """A server of queues.

    Args:
        client: boto3's.
    """

    client: Any

    def queue(self, name: str, *, maximum_receives: int | None = None) -> Queue:
        """A new queue, with a dead-letter queue if it is said how often a message is received at most."""
        dead = None
        attributes = {}
        if maximum_receives is not None:
            dead = Queue(self.client, self.client.create_queue(QueueName=f"{name}-dead")["QueueUrl"], None)
            policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": maximum_receives}
            attributes["RedrivePolicy"] = json.dumps(policy)
        return Queue(self.client, self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"], dead)


@dataclass(frozen=True)
class Queue:
    """A queue as its owner sees it."""

    client: Any
    url: str
    dead: Queue | None

    @property
    def arn(self) -> str:
        return str(self._attribute("QueueArn"))

    def send(self, *bodies: bytes) -> None:
        for begin in range(0, len(bodies), 10):
            entries = [
                {"Id": str(number), "MessageBody": body.decode()}
                for number, body in enumerate(bodies[begin : begin + 10])
            ]
            assert not self.client.send_message_batch(QueueUrl=self.url, Entries=entries).get("Failed")

    def counts(self) -> tuple[int, int]:
        """Messages that wait, and messages that somebody holds."""
        return (
            int(self._attribute("ApproximateNumberOfMessages")),
            int(self._attribute("ApproximateNumberOfMessagesNotVisible")),
        )

    def _attribute(self, name: str) -> Any:
        return self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=[name])["Attributes"][name]


def environment(port: int) -> dict[str, str]:
    """Where boto3 finds the server, and credentials that are none."""
    return {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL_SQS": f"http://127.0.0.1:{port}",
    }


@contextmanager
def running_sqs() -> Iterator[tuple[Sqs, dict[str, str]]]:
    """A server, and the environment in which boto3 speaks to it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = environment(port)
    command = [sys.executable, "-c", SERVER, str(os.getpid()), "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, env={**os.environ, **told}, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(port):
                assert process.poll() is None, "moto_server ended"
                assert time.monotonic() < deadline, "moto_server does not answer"
                time.sleep(0.05)
            client = boto3.client(
                "sqs",
                endpoint_url=told["AWS_ENDPOINT_URL_SQS"],
                region_name=told["AWS_DEFAULT_REGION"],
                aws_access_key_id="testing",
                aws_secret_access_key="testing",
            )
            yield Sqs(client), told
        finally:
            process.kill()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
