"""Debian's PostgreSQL for a test: a server in a directory of its own, reached by a socket there, stopped by its pid."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

__all__ = ["PROGRAM", "new_database", "postgresql"]

PROGRAM = "pg_ctlcluster"
"""What Debian puts on the path with any version of the server; the server's own programs lie elsewhere."""
OWNER = "lastgood"


@contextlib.contextmanager
def postgresql() -> Iterator[Path]:
    """Run a server while the block lasts; yields the directory of its socket.

    Its default collation is ICU's English, so that whatever forgets to compare by code points is seen.
    """
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    home = Path(tempfile.mkdtemp(prefix="lastgood-pg-"))
    as_user: dict[str, Any] = {"cwd": home}
    if os.geteuid() == 0:
        # The server refuses to run as root.
        person = pwd.getpwnam("postgres")
        os.chown(home, person.pw_uid, person.pw_gid)
        as_user |= {"user": person.pw_uid, "group": person.pw_gid, "extra_groups": []}
    try:
        subprocess.run(
            [programs / "initdb", "-D", home / "data", "-U", OWNER, "-A", "trust", "--no-sync", "-E", "UTF8",
             "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US"],
            check=True, capture_output=True, timeout=120, **as_user,
        )  # fmt: skip
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", home / "data", "-k", home, "-h", "", "-F"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, **as_user,
            )  # fmt: skip
        try:
            _await(server, home)
            yield home
        finally:
            server.send_signal(signal.SIGINT)  # disconnect whoever is there, and stop
            server.wait(timeout=60)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _await(server: subprocess.Popen[bytes], home: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(host=str(home), user=OWNER, dbname="postgres").close()
            return
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server: {(home / 'log').read_text()}") from error
            time.sleep(0.1)


def new_database(home: Path, name: str) -> str:
    """Make an empty database on a server; returns the ledger's URL for it."""
    with psycopg.connect(host=str(home), user=OWNER, dbname="postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0'.encode())
    return f"postgresql+psycopg://{OWNER}@/{name}?host={home}"
