from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lastgood.checks import DRILL_CHECKS
from lastgood.config import Objectives, ReplicaSettings
from lastgood.drill import DrillResult, Fault, FaultKind, Stage, drill
from lastgood.errors import UsageError
from lastgood.identity import GenerationId
from lastgood.location import Location, locate
from lastgood.replica import keeper
from lastgood.replica.processes import ProcessIdentity, ReplicaProcess
from lastgood.replica.trace import Saved, TraceReader
from lastgood.verdict import Outcome, Reason

JOB = str(Path(__file__).with_name("fake_job.py"))


def settings(*arguments: str, seconds: float = 90.0) -> ReplicaSettings:
    return ReplicaSettings(command=(sys.executable, JOB, *arguments), drill_timeout_seconds=seconds)


def fault(kind: FaultKind = FaultKind.RANK, *, steps: int = 3, inside: bool = False, rank: int = 1) -> Fault:
    return Fault(kind=kind, rank=rank, steps_after_save=steps, inside_publish=inside, publish_ratio=0.3)


def outcomes(result: DrillResult) -> dict[str, Outcome]:
    return {check.name: check.outcome for check in result.verdict.checks}


def detail(result: DrillResult, name: str) -> str:
    return next(check.detail for check in result.verdict.checks if check.name == name)


def reasons(result: DrillResult) -> set[Reason]:
    return {finding.reason for finding in result.verdict.findings}


def own_processes() -> set[ProcessIdentity]:
    return set(keeper.descendants(os.getpid()))


def is_alive(process: ProcessIdentity) -> bool:
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return stat[0] != "Z" and int(stat[19]) == process.created_ticks


@pytest.mark.parametrize("inside", [False, True], ids=["between publishes", "inside a publish"])
@pytest.mark.parametrize("kind", FaultKind)
def test_a_job_that_comes_back_passes(tmp_path: Path, kind: FaultKind, inside: bool) -> None:
    """Every check is reached, the loss is what the traces say, and the phases add up to the recovery time."""
    before = own_processes()
    stages: list[Stage] = []
    result = drill(
        None,
        settings("--save-seconds=0.05"),
        fault=fault(kind, steps=13, inside=inside),
        objectives=Objectives(rpo_steps=20, rto_seconds=60),
        scratch=tmp_path,
        keep=True,
        stage=stages.append,
    )
    assert result.verdict.outcome is Outcome.PASS, [*result.verdict.checks, result.log_tail]
    assert set(outcomes(result)) == set(DRILL_CHECKS)
    assert stages == [Stage.START, Stage.TRAIN, Stage.KILLED, Stage.RECOVERED, Stage.SAVED]
    assert result.attempts == 1
    assert result.scratch is not None
    reader = TraceReader(result.scratch / "root" / "drill")
    last = max(max(reader.steps(1, rank)) for rank in (0, 1))
    saved = max(one.step for rank in (0, 1) for one in reader.records(1, rank) if isinstance(one, Saved))
    assert result.resumed == GenerationId(1, saved)
    assert last - 20 < saved
    assert result.measurements.rpo_loss_steps == last - saved
    assert ("inside the publish of" in detail(result, "fault_fired")) >= inside
    assert result.recovery is not None
    assert sum(one.end_ns - one.begin_ns for one in result.recovery.phases) + result.recovery.unaccounted_ns == (
        result.recovery.end_ns - result.recovery.kill_ns
    )
    assert result.measurements.rto_seconds == pytest.approx(sum(result.measurements.phases.values()))
    assert result.recovery.unaccounted_ratio >= 0
    assert own_processes() == before


@pytest.mark.parametrize(
    ("arguments", "seconds", "failed", "reason", "says"),
    [
        (["--agent=gives up"], 90, "recovered", Reason.DRILL_NOT_RECOVERED, "launcher ended with status 1"),
        (["--agent=hangs"], 6, "recovered", Reason.DRILL_NOT_RECOVERED, "within 6 s"),
        (["--once-dead=refuses"], 90, "recovered", Reason.DRILL_NOT_RECOVERED, "refused: weight does not fit"),
        (
            ["--once-dead=resumes an older one"],
            90,
            "resumed_newest",
            Reason.RECOVERED_FROM_WRONG_GENERATION,
            "last acknowledged before the kill: 00000001-",
        ),
        (
            ["--once-dead=starts afresh"],
            90,
            "resumed_newest",
            Reason.RECOVERED_FROM_WRONG_GENERATION,
            "last acknowledged before the kill: 00000001-",
        ),
        (["--once-dead=crashes"], 90, "save_after_resume", Reason.SAVE_AFTER_RESUME_FAILED, "status 1"),
        (["--once-dead=never saves"], 6, "save_after_resume", Reason.SAVE_AFTER_RESUME_FAILED, "within 6 s"),
        (["--once-dead=spoils its save"], 90, "save_after_resume", Reason.SAVE_AFTER_RESUME_FAILED, "tier 1 fail"),
        (["--agent=leaves survivors"], 90, "no_orphans", Reason.ORPHANS_SURVIVED, "survived it"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_job_that_does_not_come_back_as_it_must_fails(
    tmp_path: Path, arguments: list[str], seconds: float, failed: str, reason: Reason, says: str
) -> None:
    """Each way in which a recovery can be worthless must be seen, under its own name and no other."""
    before = own_processes()
    result = drill(None, settings(*arguments, seconds=seconds), fault=fault(steps=12), scratch=tmp_path)
    assert result.verdict.outcome is Outcome.FAIL, [*result.verdict.checks, result.log_tail]
    assert [name for name, outcome in outcomes(result).items() if outcome is Outcome.FAIL] == [failed]
    assert reasons(result) == {reason}
    assert says in detail(result, failed)
    assert own_processes() == before
    assert list(tmp_path.iterdir()) == []


def test_what_was_passed_to_the_replica_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica may print or report a credential; the record of a drill goes to more people than that."""
    monkeypatch.setenv("FAKE_TOKEN", "correct-horse-battery")
    declared = msgspec.structs.replace(settings("--once-dead=refuses"), pass_environment=("FAKE_TOKEN",))
    result = drill(None, declared, fault=fault(), scratch=tmp_path)
    assert "weight does not fit <FAKE_TOKEN>" in detail(result, "recovered")
    assert "weight does not fit <FAKE_TOKEN>" in result.log_tail
    assert "correct-horse" not in f"{result}"


def test_objectives_decide(tmp_path: Path) -> None:
    """A recovery that loses more or takes longer than the family allows is a failed drill objective."""
    result = drill(
        None,
        settings("--save-every=100"),
        fault=fault(steps=20),
        objectives=Objectives(rpo_steps=1, rto_seconds=0.001),
        scratch=tmp_path,
    )
    assert reasons(result) == {Reason.RPO_EXCEEDED, Reason.RTO_EXCEEDED}
    assert outcomes(result)["rpo"] is outcomes(result)["rto"] is Outcome.FAIL


def test_marks_that_contradict_each_other_prove_nothing(tmp_path: Path) -> None:
    """Phases that overlap would let any recovery time be explained away."""
    result = drill(None, settings("--once-dead=overlaps"), fault=fault(), scratch=tmp_path)
    assert outcomes(result)["phases_accounted"] is Outcome.INCONCLUSIVE
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "overlap" in detail(result, "phases_accounted")


def test_time_without_marks_is_called_unaccounted(tmp_path: Path) -> None:
    """A replica that reports no phases recovers all the same; what nobody can explain is said, not spread."""
    result = drill(None, settings("--rank=reports no phases"), fault=fault(), scratch=tmp_path)
    assert result.verdict.outcome is Outcome.PASS
    assert result.recovery is not None
    assert result.measurements.phases["unaccounted"] == pytest.approx(result.recovery.unaccounted_ns / 1e9)
    assert result.measurements.rto_seconds == pytest.approx(sum(result.measurements.phases.values()))


@pytest.mark.parametrize(
    ("arguments", "seconds", "aimed", "says"),
    [
        (["--steps=5"], 90, fault(), "launcher ended with status 0 before the first save"),
        (["--rank=never saves"], 5, fault(), "no sign of the first save within 5 s"),
        (["--steps=15"], 90, fault(steps=50), "launcher ended with status 0 before step 60"),
        ([], 90, fault(rank=7), "no rank 7 to kill: the job has ranks 0, 1"),
        (["--save-every=0"], 90, fault(), "launcher ended with status 1"),
    ],
    ids=["ends early", "never saves", "ends before the step", "no such rank", "crashes at once"],
)
def test_a_drill_without_a_kill_is_inconclusive(
    tmp_path: Path, arguments: list[str], seconds: float, aimed: Fault, says: str
) -> None:
    """A fault that never fired must not look like a job that survived it."""
    result = drill(None, settings(*arguments, seconds=seconds), fault=aimed, scratch=tmp_path)
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert says in detail(result, "fault_fired")
    assert {outcome for name, outcome in outcomes(result).items() if name != "fault_fired"} == {Outcome.NOT_RUN}
    assert result.measurements.rto_seconds is None


def test_a_trace_that_names_a_foreign_process_kills_nobody(tmp_path: Path) -> None:
    """A trace is written by what it describes: a pid in it may be anybody's."""
    with subprocess.Popen(["sleep", "1000"]) as decoy:
        result = drill(None, settings(f"--wrong-pid={decoy.pid}"), fault=fault(), scratch=tmp_path)
        assert result.verdict.outcome is Outcome.INCONCLUSIVE
        assert "is not a process of this job" in detail(result, "fault_fired")
        assert decoy.poll() is None
        decoy.kill()


def test_jobs_beside_with_the_same_command_line_are_not_touched(tmp_path: Path) -> None:
    """A drill on a shared machine must not take anybody's training with it."""
    declared = settings()
    home = tmp_path / "decoy"
    home.mkdir()
    told = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LASTGOOD_REPLICA": "1",
        "LASTGOOD_FAMILY": str(home / "family"),
    }
    with ReplicaProcess.start(declared.command, told, home, home / "log") as decoy:
        result = drill(None, declared, fault=fault(FaultKind.JOB), scratch=tmp_path)
        living = decoy.descendants()
        assert result.verdict.outcome is Outcome.PASS
        assert len(living) == 3
        lives = TraceReader(home / "family").incarnations()
        assert lives == (1,)
        assert decoy.poll() is None


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    """The machine that runs drills may lose its supervisor at any moment; the replica must not train on for ever."""
    program = f"""
    import sys, time, pathlib
    from lastgood.config import ReplicaSettings
    from lastgood.drill import Fault, FaultKind, drill
    settings = ReplicaSettings(command=(sys.executable, {JOB!r}), drill_timeout_seconds=90)
    fault = Fault(kind=FaultKind.RANK, rank=1, steps_after_save=100000)
    drill(None, settings, fault=fault, scratch=pathlib.Path("."), stage=lambda stage: print(stage, flush=True))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert [supervisor.stdout.readline() for _ in range(2)] == ["start\n", "train\n"]
        mine = keeper.descendants(supervisor.pid)
        assert len(mine) == 4
        supervisor.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30.0
    while any(is_alive(process) for process in mine):
        assert time.monotonic() < deadline, "something outlived its supervisor by 30 s"
        time.sleep(0.01)


@pytest.mark.parametrize("reached", [Stage.START, Stage.TRAIN, Stage.KILLED, Stage.RECOVERED])
def test_a_cancelled_drill_ends_at_once_and_proves_nothing(tmp_path: Path, reached: Stage) -> None:
    """Whoever cancels a drill wants its machines back, and half a drill must not count for or against anything."""
    before = own_processes()
    stages: list[Stage] = []
    result = drill(
        None,
        settings("--save-every=40"),
        fault=fault(steps=1),
        scratch=tmp_path,
        stage=stages.append,
        cancel=lambda: "nobody waits for it" if reached in stages else None,
    )
    assert stages[-1] is reached
    assert outcomes(result) == {"cancelled": Outcome.INCONCLUSIVE}
    assert detail(result, "cancelled") == "cancelled: nobody waits for it"
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert result.measurements.rto_seconds is None
    assert own_processes() == before
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_afterwards_leaves_the_recovery_undecided(tmp_path: Path) -> None:
    """A kill that landed is said even when the traces are nonsense by then; a traceback would say nothing at all."""

    def spoil(stage: Stage) -> None:
        if stage is Stage.SAVED:
            for rank in (0, 1):
                (segment,) = tmp_path.glob(f"**/drill/.lastgood/traces/00000002/rank-{rank:05d}/*")
                with segment.open("ab") as nonsense:
                    nonsense.write(b"{}\n")

    result = drill(None, settings("--once-dead=hangs after its save"), fault=fault(), scratch=tmp_path, stage=spoil)
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert outcomes(result)["fault_fired"] is outcomes(result)["no_orphans"] is Outcome.PASS
    assert "what the job left behind cannot be read" in detail(result, "recovered")
    assert result.measurements.rto_seconds is None


def tree(directory: Path) -> str:
    """A digest of everything below a directory: names, bytes and times of change."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        digest.update(f"{path} {path.stat().st_mtime_ns}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


@pytest.fixture
def production(tmp_path: Path) -> Location:
    """A committed generation, made by a job that was killed once."""
    place = tmp_path / "production"
    place.mkdir()
    result = drill(None, settings(), fault=fault(), scratch=place, keep=True)
    assert result.scratch is not None
    assert result.resumed is not None
    return locate(str(result.scratch / "root" / "drill" / str(result.resumed)))


def test_a_drill_begins_with_a_copy_of_production(tmp_path: Path, production: Location) -> None:
    """What is drilled is the recovery of real state, and production must not change by a byte or a timestamp."""
    before = tree(tmp_path / "production")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = drill(production, settings(), fault=fault(steps=1), scratch=scratch, keep=True)
    assert result.verdict.outcome is Outcome.PASS, [*result.verdict.checks, result.log_tail]
    assert result.verdict.subject == f"drill/{production.generation}"
    assert production.generation is not None
    assert result.resumed is not None
    assert result.resumed > production.generation
    assert outcomes(result)["digests"] is Outcome.PASS
    assert tree(tmp_path / "production") == before


def test_a_launcher_that_re_runs_stale_arguments_is_not_recovered(tmp_path: Path, production: Location) -> None:
    """`--resume` in the arguments is right once; re-run after a newer save it would lose that, so it is refused."""
    declared = settings(f"--resume={{family}}/{production.generation}")
    result = drill(production, declared, fault=fault(steps=1), scratch=tmp_path)
    assert reasons(result) == {Reason.DRILL_NOT_RECOVERED}
    assert f"resume superseded: asked for {production.generation}" in result.log_tail


def test_a_damaged_generation_is_not_even_started(tmp_path: Path, production: Location) -> None:
    """A drill on bytes that tier 1 refuses would blame the launcher for what the checkpoint lacks."""
    assert production.generation is not None
    directory = production.store.local_directory(production.keys.artifacts(production.generation))
    model = directory / "model" / "rank-00001"
    model.write_bytes(bytes(model.stat().st_size))
    stages: list[Stage] = []
    result = drill(production, settings(), fault=fault(), scratch=tmp_path, stage=stages.append)
    assert result.verdict.outcome is Outcome.FAIL
    assert reasons(result) == {Reason.DIGEST_MISMATCH}
    assert stages == [Stage.COPY]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda declared, path: (declared("no-such-torchrun"), path), "program of the replica not found"),
        (lambda declared, path: (declared(sys.executable, "{generation}"), path), "unknown placeholder"),
        (lambda declared, path: (declared("true"), path / "absent"), "scratch directory cannot be made"),
    ],
)
def test_what_is_asked_wrongly_is_named(
    tmp_path: Path, change: Callable[..., tuple[ReplicaSettings, Path]], message: str
) -> None:
    """A missing launcher is the reader's mistake and no verdict on anybody's recovery."""
    declared, scratch = change(lambda *command: ReplicaSettings(command=command), tmp_path)
    with pytest.raises(UsageError, match=message):
        drill(None, declared, fault=fault(), scratch=scratch)
    assert list(tmp_path.iterdir()) == []
