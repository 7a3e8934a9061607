"""Cells of the table, drawn at random and measured again with what is installed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.corpus import Corpus
from tests.corpus.host import REPOSITORY

CELLS = 200 if os.environ.get("LASTGOOD_PROOF") else 10


@pytest.mark.slow
def test_cells_drawn_at_random_are_as_the_table_says(
    corpus: Corpus, record_property: Callable[[str, object], None]
) -> None:
    """A release of a framework that begins to notice a fault, or ceases to, must turn this red, not make us wrong."""
    seed = os.environ.get("LASTGOOD_ORACLE_SEED") or str(random.randrange(10**6))
    # In a process of its own: whoever opens a framework's pickles loads the framework, its loggers and its warnings.
    command = [sys.executable, "-m", "tests.oracle", "--draw", str(CELLS), "--seed", seed]
    done = subprocess.run(
        [*command, "--corpus", str(corpus.directory)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, f"LASTGOOD_ORACLE_SEED={seed}"
    record_property("cells of the oracle measured again", f"{CELLS}, LASTGOOD_ORACLE_SEED={seed}")
