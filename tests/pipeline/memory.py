"""An orchestrator in memory, and families on storage that grow while it is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lastgood.config import FamilySettings
from lastgood.family import Family
from lastgood.identity import GenerationId
from lastgood.location import locate
from lastgood.testing.build import BuiltFamily, build_life
from lastgood.verdict import Tier
from lastgood_prefect.requests import GateRun, RunState, Unanswered
from lastgood_prefect.settings import ConfiguredFamily


@dataclass
class MemoryRuns:
    """Keeps runs by key as a server does, and lets a test be the worker that carries them out.

    Args:
        is_silent: Requests are not answered; those that create a run may have created it all the same.
        loses_answers: Requests do their work and are not answered.
    """

    runs: dict[str, GateRun] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    buried: list[str] = field(default_factory=list)
    requests: int = 0
    is_silent: bool = False
    loses_answers: bool = False

    def ask(self, key: str, family: str) -> GateRun:
        self._answer()
        if key not in self.keys:
            self.keys[key] = f"run-{len(self.keys) + 1}"
            self.put(self.keys[key], RunState.SCHEDULED)
        if self.loses_answers:
            raise Unanswered("answer lost")
        return self.runs[self.keys[key]]

    def read(self, run: str) -> GateRun | None:
        self._answer()
        return self.runs.get(run)

    def bury(self, run: str, message: str) -> None:
        self._answer()
        self.buried.append(run)
        self.put(run, RunState.ENDED)

    def put(self, run: str, state: RunState) -> None:
        """Bring a run into a state, as a worker or a user would."""
        self.runs[run] = GateRun(id=run, state=state)

    def in_state(self, state: RunState) -> list[str]:
        """The runs that are in it, oldest first."""
        return [run.id for run in self.runs.values() if run.state is state]

    def _answer(self) -> None:
        self.requests += 1
        if self.is_silent:
            raise Unanswered("no answer")


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds


class GrowingFamily:
    """A family that saves when a test says so, and whose gate is the test.

    Args:
        root: An existing directory.
        name: Of the family.
    """

    def __init__(self, root: Path, name: str = "llm-7b") -> None:
        self.built = BuiltFamily(root=root, family=name, generations=())
        self.step = 0

    @property
    def configured(self) -> ConfiguredFamily:
        settings = FamilySettings(root=str(self.built.root))
        return ConfiguredFamily(
            name=self.built.family, location=locate(settings.uri(self.built.family)), settings=settings
        )

    @property
    def family(self) -> Family:
        return self.configured.family

    def save(self, count: int = 1) -> GenerationId:
        """Publish so many generations in one life of the run; returns the newest."""
        steps = [self.step + 1 + number for number in range(count)]
        self.step = steps[-1]
        self.built = build_life(self.built, steps=steps)
        return self.built.newest

    def due(self) -> frozenset[GenerationId]:
        return frozenset(self.family.unjudged())

    def judge(self, *generations: GenerationId) -> None:
        """Carry out tier 1 as the flow does: of those named, or of whatever is unjudged."""
        family = self.family
        for generation in generations or family.unjudged():
            attempt = family.due_attempt(generation, Tier.MANIFEST)
            if attempt is not None:
                judged = family.judge(generation)
                family.keep(
                    judged.verdict, generation, judged.started_at, judged.measurements, attempt=attempt, origin="run"
                )
