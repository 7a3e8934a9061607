from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from lastgood.errors import LastgoodError, StorePermanentError, UsageError
from lastgood.replica import keeper
from lastgood.replica.processes import ProcessIdentity, ReplicaProcess, replica_home

SOON = timedelta(seconds=20)

# Like torchrun: workers in sessions of their own, each with a child in yet another, none of them minding its parent.
AGENT = """
import os, subprocess, sys, time
worker = (
    "import os, subprocess, sys, time\\n"
    "subprocess.Popen(['sleep', '1000'], start_new_session=True)\\n"
    "open(f'{os.getpid()}.worker', 'w').close()\\n"
    "time.sleep(1000)\\n"
)
for _ in range(2):
    subprocess.Popen([sys.executable, "-S", "-c", worker], start_new_session=True)
time.sleep(1000)
"""


def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def alive(process: ProcessIdentity) -> bool:
    return keeper.send_signal(process, 0)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def start(tmp_path: Path, program: str, **options: int) -> ReplicaProcess:
    command = [sys.executable, "-S", "-c", textwrap.dedent(program)]
    return ReplicaProcess.start(command, {"PATH": os.environ["PATH"]}, tmp_path, tmp_path / "replica.log", **options)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ReplicaProcess]:
    with start(tmp_path, AGENT) as replica:
        until(lambda: len(list(tmp_path.glob("*.worker"))) == 2 and len(replica.descendants()) == 5)
        yield replica


def test_the_status_of_the_command_is_told(tmp_path: Path) -> None:
    """A supervisor decides on exit codes and signals, so they must arrive as they were."""
    with start(tmp_path, "raise SystemExit(7)") as replica:
        assert replica.wait(SOON) == 7
        assert replica.poll() == 7
    with start(tmp_path, "import time; time.sleep(1000)") as replica:
        assert replica.poll() is None
        assert replica.wait(timedelta(milliseconds=50)) is None
        assert replica.signal(replica.identity, signal.SIGKILL)
        assert replica.wait(SOON) == -signal.SIGKILL


def test_environment_and_directory_are_exactly_those_given(tmp_path: Path) -> None:
    """A replica must not inherit a credential of its supervisor, and must write where it was told."""
    program = "import os; open('seen', 'w').write(' '.join(sorted(os.environ)))"
    with start(tmp_path, program) as replica:
        assert replica.wait(SOON) == 0
    seen = set((tmp_path / "seen").read_text().split())
    assert seen - {"LC_CTYPE"} == {"PATH", keeper.MARK}


def test_everything_is_gone_when_the_context_ends(agent: ReplicaProcess) -> None:
    """Workers lead sessions of their own, so killing the agent's process group would leave them training."""
    mine = agent.descendants()
    assert agent.identity in mine
    agent.kill_tree()
    assert [process for process in mine if alive(process)] == []
    assert agent.descendants() == ()
    assert agent.poll() == -signal.SIGKILL
    agent.kill_tree()


def test_orphans_of_a_killed_agent_stay_in_hand(agent: ReplicaProcess) -> None:
    """Orphans of a killed agent go on training and publishing (measured), so they must stay nameable and be killed."""
    agent.signal(agent.identity, signal.SIGKILL)
    assert agent.wait(SOON) == -signal.SIGKILL
    orphans = agent.descendants()
    assert len(orphans) == 4
    agent.kill_tree()
    assert [process for process in orphans if alive(process)] == []


def test_a_tree_that_forks_all_the_time_is_killed(tmp_path: Path) -> None:
    """Chains of processes that fork and exit at once are seen by hardly any look at /proc, and still must all end."""
    program = """
    import os, time
    end = time.monotonic() + 60
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            while time.monotonic() < end:
                os.utime("beat")
                if os.fork():
                    os._exit(0)
    time.sleep(1000)
    """
    (tmp_path / "beat").touch()
    with start(tmp_path, program) as replica:
        beat = (tmp_path / "beat").stat().st_mtime_ns
        until(lambda: (tmp_path / "beat").stat().st_mtime_ns > beat)
        replica.kill_tree()
    beat = (tmp_path / "beat").stat().st_mtime_ns
    time.sleep(0.5)
    assert (tmp_path / "beat").stat().st_mtime_ns == beat


def test_processes_beside_with_the_same_command_line_are_not_touched(tmp_path: Path) -> None:
    """Killing by name would take other people's training with it."""
    command = [sys.executable, "-S", "-c", textwrap.dedent(AGENT)]
    (tmp_path / "decoy").mkdir()
    with (
        ReplicaProcess.start(command, {}, tmp_path / "decoy", tmp_path / "decoy.log") as decoy,
        subprocess.Popen(["sleep", "1000"]) as sleeper,
        start(tmp_path, AGENT) as replica,
    ):
        until(lambda: len(decoy.descendants()) == 5 and len(replica.descendants()) == 5)
        with pytest.raises(UsageError, match="not of this replica"):
            replica.signal(decoy.identity, signal.SIGKILL)
        before = decoy.descendants()
        replica.kill_tree()
        assert decoy.descendants() == before
        assert sleeper.poll() is None
        sleeper.kill()


def test_a_recycled_pid_is_never_hit() -> None:
    """Between two looks a pid may belong to somebody else; the time of creation tells them apart."""
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        (mine,) = (process for process in keeper.descendants(os.getpid()) if process.pid == sleeper.pid)
        stale = ProcessIdentity(mine.pid, mine.created_ticks - 1)
        assert not keeper.send_signal(stale, signal.SIGKILL)
        assert sleeper.poll() is None
        assert keeper.send_signal(mine, signal.SIGKILL)
        # Dead but not reaped: the kernel would still take a signal for it.
        until(lambda: _is_zombie(mine.pid))
        assert not keeper.send_signal(mine, signal.SIGKILL)
        assert sleeper.wait(20) == -signal.SIGKILL
        assert not keeper.send_signal(mine, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_supervisor(tmp_path: Path, number: int) -> None:
    """A supervisor that is killed runs no clean-up of its own, and a replica must still not train on for ever."""
    program = f"""
    import pathlib, sys, time
    from lastgood.replica.processes import ReplicaProcess
    command = [sys.executable, "-S", "-c", {AGENT!r}]
    replica = ReplicaProcess.start(command, {{}}, pathlib.Path("."), pathlib.Path("log"))
    while len(replica.descendants()) < 5:
        time.sleep(0.01)
    print(*(f"{{p.pid}}:{{p.created_ticks}}" for p in replica.descendants()), flush=True)
    time.sleep(1000)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pairs = (pair.split(":") for pair in supervisor.stdout.readline().split())
        mine = [ProcessIdentity(int(pid), int(ticks)) for pid, ticks in pairs]
        assert len(mine) == 5
        assert all(alive(process) for process in mine)
        supervisor.send_signal(number)
    until(lambda: not any(alive(process) for process in mine), seconds=5.0)


def test_nothing_outlives_a_killed_keeper(agent: ReplicaProcess) -> None:
    """Without its keeper a replica is nobody's child; the mark that it inherited still tells that it is ours."""
    mine = agent.descendants()
    (kept,) = (one for one in keeper.descendants(os.getpid()) if agent.identity in keeper.descendants(one.pid))
    assert keeper.send_signal(kept, signal.SIGKILL)
    with pytest.raises(LastgoodError, match="keeper of the replica is gone"):
        until(lambda: agent.poll() is not None)
    assert set(agent.descendants()) == set(mine)
    agent.kill_tree()
    assert [process for process in mine if alive(process)] == []


def test_what_it_prints_is_kept_up_to_a_limit(tmp_path: Path) -> None:
    """A replica that prints without end must not fill the disk, and its last words are those worth keeping."""
    program = """
    import os, subprocess, sys
    for number in range(20000):
        print("line", number, flush=number % 100 == 0)
    print("last words", flush=True)
    subprocess.run(["sh", "-c", "echo dying >&2; kill -9 $$"])
    raise SystemExit("the end")
    """
    with start(tmp_path, program, log_bytes=65536) as replica:
        assert replica.wait(SOON) == 1
    kept = sum(path.stat().st_size for path in tmp_path.glob("replica.log*"))
    assert 30_000 < kept <= 65536
    assert replica.log_tail(lines=3).splitlines() == ["last words", "dying", "the end"]


def test_no_secret_stays_in_what_it_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept log outlives everything; a secret may lie across its two halves, and all other bytes stay as they are."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary/of+the/log")
    program = (
        "import sys, time; out = sys.stdout.buffer\n"
        "out.write(b'\\xff' * 30000 + b'first canary/of+'); out.flush(); time.sleep(0.5)\n"
        "out.write(b'the/log last' + b'\\xfe' * 20000); out.flush()"
    )
    with start(tmp_path, program, log_bytes=65536) as replica:
        assert replica.wait(SOON) == 0
    kept = b"".join(path.read_bytes() for path in sorted(tmp_path.glob("*.log*")))
    assert kept == b"\xff" * 30000 + b"first <AWS_SECRET_ACCESS_KEY> last" + b"\xfe" * 20000
    assert replica.log_tail() != ""


def test_signals_to_its_process_group_do_not_reach_the_keeper(tmp_path: Path) -> None:
    """Launchers kill their process group when they fail; the keeper must live to tell how they ended."""
    with start(tmp_path, "import os; os.killpg(0, 15)") as replica:
        assert replica.wait(SOON) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("command", "directory", "message"),
    [
        (["no-such-torchrun"], ".", "program of the replica not found: no-such-torchrun: looked in PATH"),
        (["./train"], ".", "program of the replica not found: ./train"),
        (["true"], "absent", "replica directory not found"),
        ([""], ".", "replica command is empty"),
        ([], ".", "replica command is empty"),
        (["./not-a-program"], ".", "cannot start replica: .*not-a-program.*: exec format error"),
    ],
)
def test_what_cannot_be_started_is_named(tmp_path: Path, command: list[str], directory: str, message: str) -> None:
    """A missing torchrun is the reader's mistake, not the checkpoint's: one clear line, and nothing is left running."""
    (tmp_path / "not-a-program").write_bytes(b"\x00\x01")
    (tmp_path / "not-a-program").chmod(0o755)
    environment = {"PATH": os.environ["PATH"]}
    others = keeper.descendants(os.getpid())  # servers of other tests
    with pytest.raises(UsageError, match=f"(?i){message}"):
        ReplicaProcess.start(command, environment, tmp_path / directory, tmp_path / "log")
    assert set(keeper.descendants(os.getpid())) <= set(others)


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Without its log a crashed replica could not be explained, so it is not started."""
    with pytest.raises(StorePermanentError, match="log cannot be written"):
        ReplicaProcess.start(["true"], {"PATH": os.environ["PATH"]}, tmp_path, tmp_path / "absent" / "log")


@pytest.mark.parametrize("depth", [0, 8])
def test_the_home_of_a_replica_has_room_for_a_socket(tmp_path: Path, depth: int) -> None:
    """Data loaders put sockets into TMPDIR, and under a deep scratch every replica would die of a path too long."""
    with tempfile.TemporaryDirectory() as shallow:
        scratch = Path(shallow, *["deep-directory"] * depth)
        scratch.mkdir(parents=True, exist_ok=True)
        with replica_home(scratch) as home, socket.socket(socket.AF_UNIX) as listener:
            (home / "pymp-12345678").mkdir()
            listener.bind(str(home / "pymp-12345678" / "listener-12345678"))
            assert home.is_relative_to(scratch) == (depth == 0)
