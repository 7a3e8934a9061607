"""Whatever becomes of the bytes of a checkpoint, whoever looks at it says something and stops nowhere."""

from __future__ import annotations

import os
import random
import shutil
import zipfile
from pathlib import Path

import pytest

from lastgood.documents import canonical_bytes
from lastgood.formats.classify import classify
from lastgood.formats.integrity import check_integrity
from lastgood.formats.readers import READERS
from lastgood.formats.root import Root
from lastgood.formats.source import open_source
from lastgood.stores import LocalStore
from lastgood.testing.foreign.archives import edit_pickle
from lastgood.verify import Depth
from tests.corpus import SPECIMENS, Corpus
from tests.formats.readers.built import BUILT

ROUNDS_OF_A_SPECIMEN = 200 if os.environ.get("LASTGOOD_PROOF") == "1" else 20


def mangled(data: bytes, choose: random.Random) -> bytes:
    """The bytes after a few accidents."""
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 3, 20))):
        if not changed:
            break
        place, size = choose.randrange(len(changed)), choose.randrange(1, 20)
        match choose.randrange(4):
            case 0:
                changed[place] = choose.randrange(256)
            case 1:
                del changed[place : place + size]
            case 2:
                changed[place:place] = choose.randbytes(size)
            case _:
                changed[place] ^= 1 << choose.randrange(8)
    return bytes(changed)


def mangle(path: Path, choose: random.Random) -> None:
    """One accident to one file; half of them with the checksums that a writer would have left."""
    data = path.read_bytes()
    how = choose.randrange(6)
    if how <= 2 and zipfile.is_zipfile(path):
        edit_pickle(path, lambda pickle: mangled(pickle, choose))
    elif how <= 3:
        path.write_bytes(mangled(data, choose))
    elif how == 4:
        path.write_bytes(data[: choose.randrange(len(data) + 1)])
    else:
        path.unlink()


def look_everywhere(root: Path, name: str) -> None:
    store = LocalStore(root.parent)
    source = open_source(store, f"{root.name}/{name}")
    if source is None:
        return
    for reader in READERS:
        reader.choose(Root(store=store, prefix=root.name, names=store.names(root.name)))
    reader_found = next((reader for reader in READERS if reader.recognises(source)), None)
    description = None if reader_found is None else reader_found.describe(source)
    for depth in Depth:
        found = check_integrity(source, depth=depth, description=description)
        assert found.unread == ()
        canonical_bytes(found)
    if description is not None:
        canonical_bytes(description)
        classify(description, found.findings)


def mangle_and_look(root: Path, name: str, tmp_path: Path, rounds: int) -> None:
    choose = random.Random(f"{root.name}/{name}")
    for number in range(rounds):
        copy = tmp_path / f"round-{number}" / root.name
        shutil.copytree(root, copy, symlinks=True)
        top = copy / name
        files = [path for path in (top.rglob("*") if top.is_dir() else (top,)) if path.is_file()]
        files += [path for path in copy.iterdir() if path.is_file() and path != top]
        for path in choose.sample(files, min(len(files), choose.choice((1, 1, 2, 4)))):
            mangle(path, choose)
        look_everywhere(copy, name)
        shutil.rmtree(copy.parent)


@pytest.mark.parametrize("name", BUILT)
def test_no_accident_stops_whoever_looks(name: str, tmp_path: Path) -> None:
    """A reader that raises on bad content takes the answer for a thousand other checkpoints with it."""
    (tmp_path / name).mkdir()
    newest = BUILT[name](tmp_path / name)[-1]
    mangle_and_look(tmp_path / name, newest, tmp_path, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIMENS)
def test_no_accident_to_a_frameworks_own_stops_whoever_looks(name: str, corpus: Corpus, tmp_path: Path) -> None:
    """As above, on what the frameworks themselves wrote."""
    specimen = corpus[name]
    newest = str(specimen.newest.relative_to(specimen.root))
    mangle_and_look(specimen.root, newest, tmp_path, ROUNDS_OF_A_SPECIMEN)
