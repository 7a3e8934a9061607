"""What a restore left behind, as values: how the replica ended, what each rank reported, and what the live run did.

Decides how one rank's records are read: its last life, one record a kind, steps by number. Leaves finding and reading
the traces to `supervisor` and judging them to `compare`. Steps count *completed* optimizer steps throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lastgood.manifest import Manifest
from lastgood.replica.trace import Discovered, Loaded, Refused, Saved, Started, Step, Stopped, TraceRecord
from lastgood.verdict import Rung, Verdict

__all__ = ["Control", "Evidence", "RankTrace", "ReplicaEnd", "Request", "read_on", "read_rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked of a restore.

    Args:
        manifest: Of the generation; its step is the last completed one.
        steps: Optimizer steps to make after the load; 0 for `load_only`.
        rung: `full`, or a weaker one that proves less and says so.
        world_size: How many ranks were started.
    """

    manifest: Manifest
    steps: int
    rung: Rung
    world_size: int

    @property
    def ranks(self) -> range:
        return range(self.world_size)

    @property
    def smoke_steps(self) -> range:
        """The completed steps that the replica must reach, the first one being the manifest's next."""
        return range(self.manifest.step + 1, self.manifest.step + self.steps + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEnd:
    """How the replica's command ended.

    Args:
        exit_status: Of the command; minus the signal's number for a killed one; None when it was still running.
        seconds: From its start to its end, or to the deadline.
        deadline_seconds: What it was given.
        log_tail: The last lines it printed.
    """

    exit_status: int | None
    seconds: float
    deadline_seconds: float
    log_tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one rank reported of its life; None or empty where it did not get that far."""

    rank: int
    started: Started | None = None
    discovered: Discovered | None = None
    loaded: Loaded | None = None
    refused: Refused | None = None
    stopped: Stopped | None = None
    steps: Mapping[int, Step] = field(default_factory=dict)
    saved: tuple[Saved, ...] = ()

    @property
    def has_loaded(self) -> bool:
        """Whether this rank holds the checkpoint's state and said what it observed of it."""
        return self.loaded is not None and not self.loaded.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the live run itself did after the generation.

    Args:
        steps: Rank → completed step → its own record, as far as its trace goes.
        settings: What decides determinism, as it stated it at its start.
        trouble: Why its trace could not be read, if it could not.
    """

    steps: Mapping[int, Mapping[int, Step]] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    trouble: str | None = None

    def step(self, rank: int, number: int) -> Step | None:
        """One rank's record of one step, or None."""
        return self.steps.get(rank, {}).get(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that `compare` looks at.

    Args:
        end: How the command ended.
        ranks: Rank → its trace; only ranks that wrote one.
        lives: How many incarnations the replica began; more than one means that something restarted it.
        control: What the live run did in the same steps.
        saved: Tier 1 of the generation that the replica published after its steps, or None.
        has_asked: Whether the replica claimed an incarnation: before that it looks for no checkpoint.
        trouble: Why a trace could not be read, if one could not.
        starved: Why a failure may be ours and not the checkpoint's (the scratch disk is full), or None.
    """

    end: ReplicaEnd
    ranks: Mapping[int, RankTrace]
    lives: int = 1
    control: Control = field(default_factory=Control)
    saved: Verdict | None = None
    has_asked: bool = True
    trouble: str | None = None
    starved: str | None = None


def read_rank(rank: int, records: Iterable[TraceRecord]) -> RankTrace:
    """Sort one rank's records; of several of one kind the last counts, except steps and saves."""
    return read_on(RankTrace(rank=rank), records)


def read_on(trace: RankTrace, records: Iterable[TraceRecord]) -> RankTrace:
    """The trace of a rank with what it reported after that.

    Law: `read_on(read_on(t, a), b) == read_on(t, a + b)`.
    """
    started, discovered, loaded = trace.started, trace.discovered, trace.loaded
    refused, stopped = trace.refused, trace.stopped
    steps, saved = dict(trace.steps), list(trace.saved)
    for record in records:
        match record:
            case Step():
                steps[record.step] = record
            case Saved():
                saved.append(record)
            case Started():
                started = record
            case Discovered():
                discovered = record
            case Loaded():
                loaded = record
            case Refused():
                refused = record
            case Stopped():
                stopped = record
    return RankTrace(
        rank=trace.rank,
        started=started,
        discovered=discovered,
        loaded=loaded,
        refused=refused,
        stopped=stopped,
        steps=steps,
        saved=tuple(saved),
    )
