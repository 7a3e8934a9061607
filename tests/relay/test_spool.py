"""What the spool promises whoever was told "accepted"."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from lastgood.errors import UsageError
from lastgood.identity import GenerationId
from lastgood_prefect.hints import Hint
from lastgood_prefect.relay import spool as spool_module
from lastgood_prefect.relay.spool import Spool, SpoolError


def hint(step: int, family: str = "llm-7b") -> Hint:
    return Hint(family, GenerationId(incarnation=1, step=step))


def test_what_was_added_is_there_for_the_next_one(tmp_path: Path) -> None:
    """A relay that is started again must know what the last one accepted."""
    spool = Spool(tmp_path / "new" / "spool")
    spool.add([hint(1), hint(2)])
    spool.add([hint(2)])
    spool.remove([hint(1), hint(9)])
    spool.close()
    assert Spool(tmp_path / "new" / "spool").hints() == {hint(2)}


def test_a_sealed_generation_keeps_its_name(tmp_path: Path) -> None:
    """Its id carries the name of a directory, in any script."""
    sealed = Hint("grüße", GenerationId(incarnation=0, step=500, name="checkpoint-日本"))
    spool = Spool(tmp_path)
    spool.add([sealed])
    assert Spool(tmp_path).hints() == {sealed}


KILLED = """
import os, signal, sys
from pathlib import Path
from lastgood.identity import GenerationId
from lastgood_prefect.hints import Hint
from lastgood_prefect.relay.spool import Spool
spool = Spool(Path(sys.argv[1]))
for step in range(1, 1000):
    spool.add([Hint("llm-7b", GenerationId(incarnation=1, step=step))])
    os.write(1, b"%d\\n" % step)
"""


def test_nothing_that_was_acknowledged_is_lost_by_a_kill(tmp_path: Path) -> None:
    """A sender forgets what it was told is accepted."""
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 50:
                os.kill(process.pid, signal.SIGKILL)
                break
        told = [50, *(int(line) for line in process.stdout if line.endswith(b"\n"))]
    assert Spool(tmp_path).hints() >= {hint(step) for step in range(1, max(told) + 1)}


def test_each_addition_is_flushed(tmp_path: Path) -> None:
    """A power loss, unlike a kill, takes what the operating system still holds."""
    database = Spool(tmp_path)._database
    assert database.execute("PRAGMA synchronous").fetchone() == (2,), "2 is FULL"
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_full_spool_refuses_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knows the secret may name any number of generations; the disk is not theirs."""
    monkeypatch.setattr(spool_module, "MAXIMUM_HINTS", 2)
    spool = Spool(tmp_path)
    spool.add([hint(1), hint(2)])
    with pytest.raises(SpoolError, match="spool is full: 2 hints are waiting"):
        spool.add([hint(3)])
    assert spool.hints() == {hint(1), hint(2)}
    spool.remove([hint(1)])
    spool.add([hint(3)])


def test_two_relays_may_share_one(tmp_path: Path) -> None:
    """Nobody should, but a service manager may overlap the old one and the new one."""
    first, second = Spool(tmp_path), Spool(tmp_path)
    first.add([hint(1)])
    second.add([hint(2)])
    first.remove([hint(2)])
    assert first.hints() == second.hints() == {hint(1)}


@pytest.mark.parametrize("what", ["a file", "no database"])
def test_where_none_can_be_kept_is_said_at_once(tmp_path: Path, what: str) -> None:
    """A relay that found out with the first event would have been set up wrongly for days."""
    directory = tmp_path / "spool"
    if what == "a file":
        directory.write_text("")
    else:
        directory.mkdir()
        (directory / "hints.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(UsageError, match="no spool can be kept"):
        Spool(directory)


def test_a_foreign_row_is_passed_over(tmp_path: Path) -> None:
    """A file that somebody edited must not keep the relay from starting."""
    spool = Spool(tmp_path)
    spool.add([hint(1)])
    with sqlite3.connect(tmp_path / "hints.sqlite") as database:
        database.execute("INSERT INTO hints VALUES ('llm-7b', '../../etc/passwd')")
    database.close()
    assert spool.hints() == {hint(1)}
