"""The corpus holds what it says: real checkpoints, each of two steps, none of it from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus import SPECIMENS, Corpus
from tests.corpus.job import SAVED_STEPS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SPECIMENS)
def test_every_framework_writes_its_specimen(corpus: Corpus, name: str) -> None:
    """A reader judged by a specimen is judged by nothing unless the framework itself wrote both of its checkpoints."""
    specimen = corpus[name]
    assert specimen.steps == SAVED_STEPS
    assert all(path.exists() for path in specimen.checkpoints)
    assert all((specimen.root / shared).exists() for shared in specimen.kind.shared)


def test_a_copy_can_be_damaged_without_the_others_noticing(corpus: Corpus, tmp_path: Path) -> None:
    """Specimens are shared by a whole session: a link into the original would let one test spoil all others."""
    copy = corpus["torch_save"].copy(tmp_path / "copy")
    copy.newest.write_bytes(b"")
    assert corpus["torch_save"].newest.stat().st_size > 0
