"""Runs cells: a copy, one damage, a resume in processes of its own, a judgement.

A reaction that may be the machine's and not the loader's (a deadline, a port that was taken in between) is measured
again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from lastgood.formats.oracle import Cell, Fault, Reaction
from tests.corpus import Host, Specimen
from tests.corpus.job import LAST_STEP
from tests.corpus.observing import log_path, weights_path
from tests.corpus.specimens import job_of
from tests.oracle.faults import Damage
from tests.oracle.judging import Run, effects_of, part_after, reaction_of

DEADLINE_SECONDS = 90.0
"""A healthy resume takes one to five seconds; none of the loaders' own time limits is shorter than ten minutes."""
ATTEMPTS = 2


class Bench:
    """Measures damages of one specimen; a healthy resume and an uninterrupted run are measured first."""

    def __init__(self, specimen: Specimen, host: Host) -> None:
        self.specimen = specimen
        self._host = host
        self._fresh = self._run(None)
        self._healthy = self._run(Damage(fault=Fault.NONE, apply=lambda copy: None))
        for name, run in (("uninterrupted run", self._fresh), ("undamaged resume", self._healthy)):
            if not all(rank is not None and rank.finished for rank in run.ranks):
                ends = [f"{rank.raised}: {rank.message}" if rank else "ended" for rank in run.ranks]
                raise RuntimeError(f"{specimen.kind.name}: {name} did not finish: {ends}: {run.printed[-20:]}")

    def measure(self, damage: Damage) -> Cell:
        """One cell of the table."""
        run, reaction, said = self._healthy, Reaction.SILENT, ""
        expected = self._healthy
        if damage.fault is Fault.NONE:
            expected = part_after(self._fresh, self.specimen.steps[-1])
        else:
            for _ in range(ATTEMPTS):
                run = self._run(damage)
                reaction, said = reaction_of(run, self._healthy)
                if reaction is not Reaction.HANG and "address already in use" not in said.lower():
                    break
        went_on = reaction in {Reaction.SILENT, Reaction.LOGGED}
        return Cell(
            specimen=self.specimen.kind.name,
            framework=self.specimen.kind.framework,
            fault=damage.fault,
            target=damage.target,
            entry=damage.entry,
            reaction=reaction,
            said=said,
            effects=effects_of(run, expected, self._fresh, same_ranks=damage.ranks is None) if went_on else (),
        )

    def _run(self, damage: Damage | None) -> Run:
        """Resume from a damaged copy, or, without damage, train without interruption."""
        with tempfile.TemporaryDirectory(prefix="lastgood-oracle-") as scratch:
            root, report = Path(scratch) / "root", Path(scratch) / "report"
            ranks = self.specimen.kind.ranks
            if damage is None:
                root.mkdir()
            else:
                damage.apply(self.specimen.copy(root))
                ranks = damage.ranks or ranks
            job = job_of(
                self.specimen.kind,
                root,
                report,
                resume=damage is not None,
                until=LAST_STEP,
                ranks=ranks,
                deadline_seconds=DEADLINE_SECONDS,
            )
            observed = self._host.run(job)
            return Run(
                ranks=observed,
                weights=tuple(_weights(report, rank) for rank in range(ranks)),
                printed=tuple(line for rank in range(ranks) for line in _lines(report, rank)),
            )


def _weights(report: Path, rank: int) -> np.ndarray | None:
    path = weights_path(report, rank)
    return np.load(path) if path.exists() else None


def _lines(report: Path, rank: int) -> list[str]:
    path = log_path(report, rank)
    return path.read_text(errors="replace").splitlines() if path.exists() else []
