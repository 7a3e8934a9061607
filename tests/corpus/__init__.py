"""Real checkpoints, written by the frameworks themselves, for the tests of readers and for the oracle.

- `specimens`: what there is, one name for each framework and layout; `Corpus` writes on demand.
- `programs`: one training program a framework. The same program writes a specimen and resumes from a copy of it.
- `job`: what a program is asked to do. `observing`: what it tells of the run.
- `host`: a process that has loaded a framework once and forks every rank of every run from itself.

Everything is made here: tiny models from a configuration, samples from their own number, nothing from a hub.
"""

from __future__ import annotations

from tests.corpus.host import Host
from tests.corpus.job import Job
from tests.corpus.observing import Observation
from tests.corpus.specimens import SPECIMENS, Corpus, Specimen

__all__ = ["SPECIMENS", "Corpus", "Host", "Job", "Observation", "Specimen"]
