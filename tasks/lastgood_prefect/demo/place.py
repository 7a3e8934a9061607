"""Where the demo's checkpoints lie: in a directory, or in a bucket of a SeaweedFS that runs for as long as the demo.

Decides how each is reached, who announces a commit there, and how a damaged copy gets beside it; the story knows one
root URI and stores behind it. Rule: all of it is under the demo's directory and on loopback, and ends with the context.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from lastgood.errors import LastgoodError
from lastgood.stores import LocalStore, Store, open_store
from lastgood.testing.seaweedfs import SeaweedFS
from lastgood.testing.server import HOST, free_ports
from lastgood_prefect.relay.webhook import PATH, SECRET_VARIABLE

__all__ = ["Place", "StoreKind", "bring", "open_place"]

BUCKET: Final = "demo"
SECRET_BYTES: Final = 32
MAXIMUM_OBJECT_BYTES: Final = 64 * 2**20
"""Of one object of a demo's family; its replica is small."""


class StoreKind(StrEnum):
    """What the demo saves to."""

    FILE = "file"
    S3 = "s3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A root for families, and what it takes to use it.

    Args:
        root: Its URI.
        environ: What a process must be told to reach it.
        announcer: Arguments of `lastgood` that make commits into runs: the watcher, or the relay of a bucket's events.
        announcer_environ: What that needs besides, the relay's secret.
        metrics: Where the relay counts what it was told; None where nobody tells.
        words: What it is, for people.
        outside: A file that makes a shell reach it; None where no shell needs one.
    """

    root: str
    environ: Mapping[str, str] = field(default_factory=dict)
    announcer: tuple[str, ...] = ("watch",)
    announcer_environ: Mapping[str, str] = field(default_factory=dict)
    metrics: Path | None = None
    words: str
    outside: Path | None = None

    @property
    def store(self) -> Store:
        return open_store(self.root)

    @contextlib.contextmanager
    def holding(self, scene: Path, family: str) -> Iterator[Store]:
        """A store like this one that holds a family as it lies in a directory; removed at the end.

        Args:
            scene: A root on this machine; in a directory it is that very store.
            family: Under that root.
        """
        if self.outside is None:
            yield LocalStore(scene)
            return
        beside = open_store(f"{self.root}-{scene.name}")
        bring(LocalStore(scene), beside, family)
        yield beside
        for found in list(beside.walk(family)):
            beside.delete(found.key)

    def announced(self) -> int:
        """How many commits the bucket itself has announced so far."""
        if self.metrics is None or not self.metrics.exists():
            return 0
        found = re.search(r'outcome="hints"\} (\d+)', self.metrics.read_text())
        return int(found[1]) if found else 0


@contextlib.contextmanager
def open_place(kind: StoreKind, directory: Path) -> Iterator[Place]:
    """A place of that kind under a directory; our own process can reach it, too.

    Raises:
        UsageError: The server's program is not installed, or is not the one that we know.
        LastgoodError: The server did not start.
    """
    if kind is StoreKind.FILE:
        (directory / "runs").mkdir()
        yield Place(root=str(directory / "runs"), words="a directory")
        return
    (port,) = free_ports(1)
    secret = secrets.token_hex(SECRET_BYTES)
    webhook = f"http://{HOST}:{port}{PATH}"
    with SeaweedFS(directory / "seaweedfs", webhook=webhook, token=secret) as server, _told(server.environ):
        server.create_bucket(BUCKET)
        metrics = directory / "relay.prom"
        yield Place(
            root=f"s3://{BUCKET}/runs",
            environ=server.environ,
            announcer=("relay", "--source=webhook", f"--port={port}", f"--metrics={metrics}"),
            announcer_environ={SECRET_VARIABLE: secret},
            metrics=metrics,
            words=f"a bucket of SeaweedFS at {server.endpoint}",
            outside=_shell_file(directory / "bucket.sh", server.environ),
        )


def bring(source: Store, target: Store, family: str) -> None:
    """Copy every object of a family as it lies: `lastgood copy` would refuse what was damaged on purpose.

    Raises:
        LastgoodError: An object went away, or the target is not empty.
    """
    for found in list(source.walk(family)):
        data = source.get(found.key, limit_bytes=MAXIMUM_OBJECT_BYTES)
        if data is None or not target.create(found.key, data):
            raise LastgoodError(f"not copied: {found.key}: from {source.uri} to {target.uri}")


@contextlib.contextmanager
def _told(environ: Mapping[str, str]) -> Iterator[None]:
    """Let our own process use a server, whatever accounts its user has; boto3 reads the environment alone."""
    names = {*environ, "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"}
    former = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(environ)
    try:
        yield
    finally:
        for name in environ:
            os.environ.pop(name, None)
        os.environ.update(former)


def _shell_file(path: Path, environ: Mapping[str, str]) -> Path:
    """Assignments for `. FILE`; they hold the server's keys, so nobody else may read them."""
    path.touch(mode=0o600)
    path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in environ.items()))
    return path
