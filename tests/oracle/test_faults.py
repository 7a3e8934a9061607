"""Damages do what they are called and nothing else: a cell about a file that was left whole is a false answer."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from lastgood.formats.oracle import Fault
from tests.corpus import Corpus
from tests.oracle.faults import damages, name_of

pytestmark = pytest.mark.slow

# Those whose files hold no classes of a framework, which listing their entries would load into this process.
PLAIN = ("torch_save", "safetensors", "torch_dcp", "accelerate")


def contents(root: Path) -> dict[str, str]:
    """Every path below a directory, with a digest of what is there."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in root.rglob("*")
    }


@pytest.mark.parametrize("name", PLAIN)
def test_every_damage_changes_what_it_names_and_nothing_else(corpus: Corpus, tmp_path: Path, name: str) -> None:
    """One thing at a time, or nobody knows what the loader reacted to."""
    specimen = corpus[name]
    healthy = contents(specimen.root)
    listed = damages(specimen)
    assert len({damage.key for damage in listed}) == len(listed)
    for number, damage in enumerate(listed):
        copy = specimen.copy(tmp_path / str(number))
        damage.apply(copy)
        found = contents(copy.root)
        changed = {path for path in healthy.keys() | found.keys() if healthy.get(path) != found.get(path)}
        if damage.fault in {Fault.NONE, Fault.FEWER_RANKS}:
            assert changed == set(), damage
        elif damage.target:
            assert {name_of(copy, copy.root / path) for path in changed} == {damage.target}, damage
        else:
            assert changed, damage
    assert contents(specimen.root) == healthy


def test_a_flip_keeps_the_length_and_changes_one_byte_of_a_tensor(corpus: Corpus, tmp_path: Path) -> None:
    """A flip in padding would be swallowed by every loader, and say nothing about any."""
    specimen = corpus["torch_save"]
    flip = next(damage for damage in damages(specimen) if damage.fault is Fault.BYTE_FLIPPED)
    copy = specimen.copy(tmp_path / "copy")
    flip.apply(copy)
    before, after = specimen.newest.read_bytes(), copy.newest.read_bytes()
    assert len(before) == len(after)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    with zipfile.ZipFile(copy.newest) as archive:
        assert "/data/" in (archive.testzip() or "")
