"""Every single damage of a specimen, in a fixed order, each with the name that it has in the table.

Decides what is damaged: each file of the newest checkpoint and each file beside the checkpoints that their framework
wrote there, in every way that a file can be damaged; each key of each dictionary in it; pointers, counters, ranks.
Leaves out nothing because a loader is believed not to read it: that it does not is an answer too.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lastgood.formats.oracle import Fault
from tests.corpus import Specimen
from tests.oracle import edits

ABSENT_TAG = "global_step99"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One damage; `apply` does it to a copy of the specimen that it was listed for."""

    fault: Fault
    target: str = ""
    entry: str = ""
    apply: Callable[[Specimen], None] = field(compare=False)
    ranks: int | None = None
    """How many ranks resume, if not as many as wrote."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells this damage from all others of its specimen."""
        return self.fault.value, self.target, self.entry


def damages(specimen: Specimen) -> tuple[Damage, ...]:
    """Every damage of the specimen; the first is none at all."""
    listed = [Damage(fault=Fault.NONE, apply=lambda copy: None)]
    for path in targets(specimen):
        name = name_of(specimen, path)
        listed.extend(_of_file(specimen, path, name))
        if specimen.kind.edited is None or name in specimen.kind.edited:
            listed.extend(_of_entries(path, name))
    listed.extend(_of_checkpoint(specimen))
    if specimen.kind.ranks > 1:
        listed.extend(_of_ranks(specimen))
    return tuple(listed)


def targets(specimen: Specimen) -> list[Path]:
    """Files of the newest checkpoint, then files beside the checkpoints, directories (`last.ckpt/`) walked."""
    roots = [specimen.newest, *(specimen.root / name for name in specimen.kind.shared)]
    return [
        path for root in roots for path in ([root] if root.is_file() else sorted(root.rglob("*"))) if path.is_file()
    ]


def name_of(specimen: Specimen, path: Path) -> str:
    """Path below the newest checkpoint, or `../` and the path below the root; a checkpoint that is a file: its name."""
    if specimen.newest.is_dir() and path.is_relative_to(specimen.newest):
        return path.relative_to(specimen.newest).as_posix()
    if path == specimen.newest:
        return path.name
    return f"../{path.relative_to(specimen.root).as_posix()}"


def path_in(specimen: Specimen, name: str) -> Path:
    """The inverse of `name_of`."""
    if name.startswith("../"):
        return specimen.root / name[3:]
    return specimen.newest / name if specimen.newest.is_dir() else specimen.newest


def _of_file(specimen: Specimen, path: Path, name: str) -> Iterator[Damage]:
    def one(fault: Fault, change: Callable[[Path], None]) -> Damage:
        return Damage(fault=fault, target=name, apply=lambda copy: change(path_in(copy, name)))

    yield one(Fault.FILE_DELETED, Path.unlink)
    if path.stat().st_size:
        yield one(Fault.FILE_TRUNCATED, edits.truncate)
        yield one(Fault.FILE_EMPTY, lambda target: target.write_bytes(b""))
        yield one(Fault.BYTE_FLIPPED, edits.flip)
    older = older_path(specimen, name)
    if older is not None and older.read_bytes() != path.read_bytes():
        yield Damage(fault=Fault.OLDER_FILE, target=name, apply=partial(_take_older, name))


def older_path(specimen: Specimen, name: str) -> Path | None:
    """The file of that name in the checkpoint before; for a copy of the newest checkpoint, the checkpoint before."""
    before = specimen.checkpoints[-2]
    if name.startswith("../"):
        parts = Path(name).parts[1:]
        beside = before.joinpath(*parts[1:])
        same_kind = Path(parts[0]).suffix == before.suffix == ".ckpt"
        return beside if same_kind and beside.is_file() else None
    numbered = name.replace(f"step{specimen.steps[-1]}/", f"step{specimen.steps[-2]}/")  # `global_step8/…` in it
    older = before / numbered if before.is_dir() else before
    return older if older.is_file() else None


def _take_older(name: str, copy: Specimen) -> None:
    older = older_path(copy, name)
    assert older is not None
    shutil.copyfile(older, path_in(copy, name))


def _of_entries(path: Path, name: str) -> Iterator[Damage]:
    for entry, may_be_emptied, counter in edits.entries(path):
        changes = {Fault.ENTRY_REMOVED: edits.remove_entry}
        if may_be_emptied:
            changes[Fault.ENTRY_EMPTIED] = edits.empty_entry
        if counter:
            changes[Fault.COUNTER_EDITED] = edits.halve_entry
        for fault, change in changes.items():
            yield Damage(fault=fault, target=name, entry=entry, apply=partial(_edit, change, name, entry))


def _edit(change: Callable[[Path, str], None], name: str, entry: str, copy: Specimen) -> None:
    change(path_in(copy, name), entry)


def _of_checkpoint(specimen: Specimen) -> Iterator[Damage]:
    newest = specimen.newest
    yield Damage(fault=Fault.FILE_DELETED, apply=lambda copy: _remove(copy.newest))
    if newest.is_dir():
        number = int(re.findall(r"\d+", newest.name)[-1])
        newer = re.sub(r"\d+", str(number + max(1, number // 2)), newest.name)
        yield Damage(
            fault=Fault.NEWER_EMPTY_DIRECTORY,
            apply=lambda copy: (copy.newest.parent / newer).mkdir(),
        )
    for path in targets(specimen):
        if path.name == "latest":
            name = name_of(specimen, path)
            yield Damage(fault=Fault.POINTER_DANGLING, target=name, apply=partial(_point_elsewhere, name))
            yield Damage(fault=Fault.NEWER_EMPTY_DIRECTORY, target=name, apply=partial(_point_to_empty, name))


def _point_elsewhere(name: str, copy: Specimen) -> None:
    path_in(copy, name).write_text(ABSENT_TAG)


def _point_to_empty(name: str, copy: Specimen) -> None:
    path_in(copy, name).with_name(ABSENT_TAG).mkdir()
    _point_elsewhere(name, copy)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _of_ranks(specimen: Specimen) -> Iterator[Damage]:
    """Files of ranks beside others: names that are equal but for one number, 0 and 1."""
    for path in targets(specimen):
        for sibling, left_over in _sibling_names(path.name):
            first = path.with_name(sibling)
            if not first.is_file():
                continue
            name = name_of(specimen, path)
            extra = name_of(specimen, path.with_name(left_over))
            yield Damage(fault=Fault.RANK_REPEATED, target=name, apply=partial(_copy, name_of(specimen, first), name))
            yield Damage(fault=Fault.RANK_LEFT_OVER, target=extra, apply=partial(_copy, name, extra))
    yield Damage(fault=Fault.FEWER_RANKS, apply=lambda copy: None, ranks=specimen.kind.ranks - 1)


def _sibling_names(name: str) -> Iterator[tuple[str, str]]:
    """For each number 1 in a name: the name with 0 there, and the name with 2."""
    for match in re.finditer(r"(?<!\d)1(?!\d)", name):
        yield tuple(f"{name[: match.start()]}{number}{name[match.end() :]}" for number in (0, 2))  # type: ignore[misc]


def _copy(source: str, target: str, copy: Specimen) -> None:
    shutil.copyfile(path_in(copy, source), path_in(copy, target))
