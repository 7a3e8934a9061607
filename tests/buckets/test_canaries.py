"""Credentials as canaries: commands and their children speak to a bucket, and no output of theirs may hold one.

Every command runs as a process of its own with every logger at its most talkative, for botocore's debug log prints the
access key and the session token. Looked through is all that leaves: both streams, JUnit, the page, kept logs of
replicas, and every object that lies in the bucket at the end.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from lastgood.run import Run, SoloGroup
from lastgood.testing.server import free_ports
from tests.buckets.faults import EXPIRED_TOKEN, FORBIDDEN
from tests.buckets.proxy import FaultProxy
from tests.buckets.servers import SeaweedFS
from tests.buckets.test_run import save

TALKATIVE = "import logging, sys\nlogging.basicConfig(level=logging.DEBUG, stream=sys.stderr)\n"
UNCLEAN = "import lastgood.redaction\nlastgood.redaction._clean = lambda text, secrets: text\n"
DEFECT = """
import os
import lastgood.cli.verify as command
def broken(*arguments, **options):
    raise RuntimeError("sent " + os.environ["AWS_SECRET_ACCESS_KEY"])
command.Family = broken
"""
MAIN = "from lastgood.cli import main\nmain()\n"
REPLICA = "import os, sys; print(dict(os.environ)); print(sys.argv, file=sys.stderr); raise SystemExit(3)"
SIGNED = re.compile(rb"Signature=[0-9a-f]{64}|Signature:\n[0-9a-f]{64}")
"""What whoever reads it may send once more."""


@dataclass(slots=True)
class Cage:
    """Canaries, and everything that was seen of processes that know them.

    Args:
        environ: Of those processes; the canaries among it.
        names: Variables that are canaries.
        seen: Where → what was seen there.
    """

    environ: dict[str, str]
    names: tuple[str, ...]
    seen: dict[str, bytes] = field(default_factory=dict)

    def run(self, *arguments: str, prologue: str = "", expect: int | None = 0) -> bytes:
        """Run the command, keep its streams, and return what it answered."""
        done = subprocess.run(
            [sys.executable, "-c", TALKATIVE + prologue + MAIN, *arguments],
            env=self.environ,
            capture_output=True,
            timeout=120,
            check=False,
        )
        where = f"{len(self.seen)}: {' '.join(arguments[:1])}"
        self.seen[f"{where}: stdout"] = done.stdout
        self.seen[f"{where}: stderr"] = done.stderr
        assert expect is None or done.returncode == expect, done.stderr[-4000:].decode()
        return done.stdout

    def look_into(self, directory: Path) -> int:
        """Keep every file of a directory; returns how many there are."""
        files = [path for path in directory.rglob("*") if path.is_file()]
        for path in files:
            self.seen[str(path.relative_to(directory))] = path.read_bytes()
        return len(files)

    def look_into_bucket(self, server: SeaweedFS, bucket: str) -> list[str]:
        """Keep every object of a bucket; returns the keys."""
        client = server.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
        for key in keys:
            self.seen[f"s3://{bucket}/{key}"] = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return keys

    def escaped(self) -> list[str]:
        """Which canary, or signature, was seen where."""
        found = []
        for where, seen in self.seen.items():
            for name in self.names:
                value = self.environ[name]
                spelled = {value, quote(value, safe=""), json.dumps(value)[1:-1]}
                found += [f"{name} in {where}" for one in spelled if one.encode() in seen][:1]
            found += [f"signature in {where}"] if SIGNED.search(seen) else []
        return found


def cage(environ: Mapping[str, str], **canaries: str) -> Cage:
    """A process's environment in which canaries take the place of what is there."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", *canaries)
    return Cage(environ={**kept, **environ, **canaries}, names=tuple(dict.fromkeys(names)))


@pytest.fixture
def family(bucket: str, s3_environ: None) -> str:
    """The URI of a family of two saves in a bucket."""
    uri = f"s3://{bucket}/runs/llm"
    run = Run.start(uri, SoloGroup(), allow_fresh=True)
    save(run, 10)
    save(run, 20, b"newer")
    run.close()
    return uri


@pytest.fixture
def configuration(family: str, tmp_path: Path) -> Path:
    """`llm`, whose replica is handed the credentials and prints all that it knows."""
    path = tmp_path / "lastgood.toml"
    path.write_text(
        f"""
[families.llm]
root = "{family.rpartition("/")[0]}"
[families.llm.replica]
command = ["{sys.executable}", "-c", "{REPLICA}"]
directory = "{tmp_path}"
world_size = 1
pass_environment = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
[report]
directory = "{tmp_path / "page"}"
""",
        encoding="utf-8",
    )
    return path


@pytest.mark.slow
def test_no_output_of_a_command_holds_the_credentials_in_use(
    family: str, configuration: Path, bucket: str, seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    """Good life and bad: a pass, damage, a replica that prints its environment, an operator who pastes a key."""
    canaries = cage(seaweedfs.environ)
    config = ("--config", str(configuration))
    for as_json in ((), ("--json",)):
        canaries.run("verify", family, *as_json)
        canaries.run("latest", family, *as_json)
        canaries.run("inspect", family, *as_json)
        canaries.run("status", "llm", *config, *as_json)
    seaweedfs.client().put_object(
        Bucket=bucket, Key="runs/llm/00000001-0000000000000020/state/model.bin", Body=b"nEwer"
    )
    canaries.run("verify", family, "--json", "--junit", str(tmp_path / "tier-1.xml"), expect=1)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    canaries.run(
        "restore", f"{family}/00000001-0000000000000010", *config,
        "--keep", "--scratch", str(scratch), "--junit", str(tmp_path / "tier-2.xml"), expect=None,
    )  # fmt: skip
    reason = f"{seaweedfs.secret_key} leaked, says {seaweedfs.access_key}"
    canaries.run("quarantine", family, "--reason", reason)
    canaries.run("reconcile", "llm", *config, "--json", expect=None)
    canaries.run("report", *config, expect=None)
    keys = canaries.look_into_bucket(seaweedfs, bucket)
    assert [key for key in keys if "/.lastgood/records/" in key], "verdicts were kept"
    assert canaries.look_into(tmp_path / "page") > 3, "a page was written"
    assert canaries.look_into(scratch) > 0, "the replica's log was kept"
    canaries.look_into(tmp_path)
    assert canaries.escaped() == []
    everything = b"".join(canaries.seen.values())
    assert b"<AWS_SECRET_ACCESS_KEY>" in everything, "the replica printed it and the operator wrote it"
    assert b"x-amz-content-sha256" in everything, "botocore was as talkative as it can be"


@pytest.mark.parametrize("wrong", ["secret", "key", "token", "denied", "expired", "defect"])
def test_no_output_holds_credentials_that_are_refused(wrong: str, family: str, fault_proxy: FaultProxy) -> None:
    """What goes wrong is what people paste into tickets: refusals, expiry and defects with their tracebacks."""
    token = {"AWS_SESSION_TOKEN": f"FwoG/{secrets.token_hex(60)}+/=="}
    canaries = {
        "secret": {"AWS_SECRET_ACCESS_KEY": f"wrong/{secrets.token_hex(16)}+"},
        "key": {"AWS_ACCESS_KEY_ID": f"AKIA{secrets.token_hex(8).upper()}"},
        "token": token,
        "expired": token,
    }
    caught = cage(fault_proxy.environ, LASTGOOD_TRACEBACK="1", **canaries.get(wrong, {}))
    caught.names = tuple(name for name in caught.names if name.startswith("AWS_"))
    if wrong in ("denied", "expired"):
        fault_proxy.inject(EXPIRED_TOKEN if wrong == "expired" else FORBIDDEN, times=None)
    prologue = DEFECT if wrong == "defect" else ""
    for as_json in ((), ("--json",)):
        caught.run("verify", family, *as_json, prologue=prologue, expect=70 if wrong == "defect" else 2)
    caught.run("latest", family, expect=2 if wrong != "defect" else 0)
    assert caught.escaped() == []
    if wrong == "defect":
        assert b"Traceback" in caught.seen["0: verify: stderr"]


def test_no_output_of_the_relay_holds_a_secret(configuration: Path, seaweedfs: SeaweedFS) -> None:
    """It runs for months, logs each refusal of its queue, and its log goes to a collector that everybody reads."""
    caught = cage({**seaweedfs.environ, "AWS_ENDPOINT_URL_SQS": seaweedfs.endpoint}, LASTGOOD_RELAY_SECRET="x" * 40)
    caught.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{free_ports(1)[0]}/api"
    caught.environ["PREFECT_HOME"] = str(configuration.parent / "prefect")
    url = f"{seaweedfs.endpoint}/000000000000/saves"
    relay = subprocess.Popen(
        [sys.executable, "-c", TALKATIVE + MAIN, "relay", "--source", "sqs", "--queue-url", url,
         "--config", str(configuration)],
        env=caught.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said = bytearray()
    assert relay.stdout is not None
    deadline = time.monotonic() + 90
    for line in relay.stdout:
        said += line
        if b"no answer from the queue" in line or time.monotonic() > deadline:
            relay.send_signal(signal.SIGTERM)
            break
    said += relay.stdout.read()
    relay.wait(30)
    relay.stdout.close()
    caught.seen["relay"] = bytes(said)
    assert b"no answer from the queue" in said
    assert b"Credential=" in said, "botocore was as talkative as it can be"
    assert caught.escaped() == []


def names(found: Iterable[str]) -> set[str]:
    return {one.partition(" in ")[0] for one in found}


def test_a_canary_that_escapes_is_seen(family: str, configuration: Path, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    """Without redaction the same search finds credentials in the log, the kept log of the replica and the traceback."""
    canaries = cage(seaweedfs.environ, LASTGOOD_TRACEBACK="1")
    canaries.names = canaries.names[:2]
    canaries.run("verify", family, prologue=UNCLEAN)
    assert names(canaries.escaped()) == {"AWS_ACCESS_KEY_ID", "signature"}
    canaries.seen.clear()
    canaries.run("verify", family, prologue=UNCLEAN + DEFECT, expect=70)
    assert "AWS_SECRET_ACCESS_KEY" in names(canaries.escaped())
    canaries.seen.clear()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    config = ("--config", str(configuration))
    canaries.run("restore", family, *config, "--keep", "--scratch", str(scratch), prologue=UNCLEAN, expect=None)
    canaries.seen.clear()
    canaries.look_into(scratch)
    assert names(canaries.escaped()) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
