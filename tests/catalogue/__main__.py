"""`make catalogue`: try every entry, print the counts, write docs/catalogue.md; exit status 1 with a wrong answer."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.catalogue.cases import Case, cases
from tests.catalogue.judging import Answer, Bench
from tests.catalogue.page import counts_of, page_of
from tests.corpus import Corpus

PAGE = Path(__file__).resolve().parents[2] / "docs" / "catalogue.md"


def main() -> int:
    """Look at everything, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--corpus",
        type=Path,
        default=os.environ.get("LASTGOOD_CORPUS"),
        help="checkpoints that the frameworks wrote already; else they write them now, in minutes",
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is written; docs/catalogue.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lastgood-catalogue-") as scratch:
        workspace, kept = Path(scratch, "workspace"), asked.corpus or Path(scratch, "corpus")
        workspace.mkdir()
        kept.mkdir(parents=True, exist_ok=True)
        answers = answers_to(cases(), Bench(workspace, Corpus(kept)))
    asked.page.write_text(page_of(answers), encoding="utf-8")
    return report(answers)


def answers_to(asked: Iterable[Case], bench: Bench) -> dict[Case, Answer]:
    """What was said of each."""
    return {case: bench.answer(case) for case in asked}


def report(answers: dict[Case, Answer]) -> int:
    """Print the counts and whatever is wrong; 0 if nothing is."""
    wrong = [case for case, answer in answers.items() if not answer.is_right]
    print(counts_of(answers))
    for case in wrong:
        print(f"{answers[case]}: {case}: expected {case.expected or 'nothing'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
