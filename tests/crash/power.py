"""What a power cut may leave behind: every legal loss and reordering of what was not flushed.

The model is weaker than any real file system, so that what holds here holds there: a file's bytes are durable only
after the file was flushed (before: none, half or all of them); a name is durable only after its directory was flushed;
names that were not flushed survive or vanish independently of each other and of their order. A rename is one change.
Flushing a directory does not flush its own name in the directory above.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.filesystems import Operation

MAXIMUM_PENDING = 12


@dataclass
class _File:
    live: bytes
    flushed: bool


@dataclass
class _Change:
    """One change of names: (directory, name, inode or None to remove) pairs that happen together."""

    entries: tuple[tuple[int, str, int | None], ...]
    durable_by: frozenset[int]


@dataclass
class _Disk:
    """Inodes and the changes of names between them, in the order in which they were asked for."""

    files: dict[int, _File] = field(default_factory=dict)
    directories: set[int] = field(default_factory=set)
    live: dict[int, dict[str, int]] = field(default_factory=dict)
    changes: list[tuple[_Change, bool]] = field(default_factory=list)
    next_inode: int = 1

    def new_directory(self) -> int:
        inode = self.next_inode
        self.next_inode += 1
        self.directories.add(inode)
        self.live[inode] = {}
        return inode

    def new_file(self, data: bytes, *, flushed: bool) -> int:
        inode = self.next_inode
        self.next_inode += 1
        self.files[inode] = _File(data, flushed)
        return inode


class PowerModel:
    """Replays a history over a durable starting tree, and yields what every cut may leave.

    Args:
        root: The directory that the history's paths are under.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._disk = _Disk()
        self._root_inode = self._disk.new_directory()
        self._adopt(root, self._root_inode)

    def _adopt(self, directory: Path, inode: int) -> None:
        for path in sorted(directory.iterdir()):
            if path.is_dir():
                child = self._disk.new_directory()
                self._adopt(path, child)
            else:
                child = self._disk.new_file(path.read_bytes(), flushed=True)
            self._disk.live[inode][path.name] = child
            self._disk.changes.append((_Change(((inode, path.name, child),), frozenset({inode})), True))

    def _find(self, path: Path) -> int:
        inode = self._root_inode
        for part in path.relative_to(self._root).parts:
            inode = self._disk.live[inode][part]
        return inode

    def apply(self, operation: Operation) -> None:
        """Take one operation of the history."""
        disk, paths = self._disk, operation.paths
        match operation.name:
            case "sync_file":
                disk.files[self._find(paths[0])].flushed = True
            case "sync_directory":
                self._flush(self._find(paths[0]))
            case "make_directory":
                self._change((paths[0], disk.new_directory()))
            case "write_new":
                self._change((paths[0], disk.new_file(operation.data, flushed=False)))
            case "link":
                self._change((paths[1], self._find(paths[0])))
            case "rename":
                self._change((paths[0], None), (paths[1], self._find(paths[0])))
            case "unlink" | "remove_directory":
                self._change((paths[0], None))

    def _change(self, *entries: tuple[Path, int | None]) -> None:
        resolved = []
        for path, inode in entries:
            parent = self._find(path.parent)
            resolved.append((parent, path.name, inode))
            if inode is None:
                self._disk.live[parent].pop(path.name)
            else:
                self._disk.live[parent][path.name] = inode
        # A rename is durable once the directory that received the name was flushed.
        self._disk.changes.append((_Change(tuple(resolved), frozenset({resolved[-1][0]})), False))

    def _flush(self, directory: int) -> None:
        # Once flushed, whatever was pending in this directory is on the medium.
        self._disk.changes = [
            (change, durable or directory in change.durable_by) for change, durable in self._disk.changes
        ]

    def cuts(self) -> Iterator[dict[str, bytes | None]]:
        """Every tree that a cut at this moment may leave: path → bytes, None for a directory."""
        pending = [index for index, (_, durable) in enumerate(self._disk.changes) if not durable]
        if len(pending) > MAXIMUM_PENDING:
            raise AssertionError(f"{len(pending)} unflushed names: too many to enumerate; does the store still flush?")
        unflushed = any(not file.flushed for file in self._disk.files.values())
        for survivors in _subsets(pending):
            for share in (1.0, 0.5, 0.0) if unflushed else (1.0,):
                yield self._tree(frozenset(survivors), share)

    def _tree(self, survivors: frozenset[int], share: float) -> dict[str, bytes | None]:
        names: dict[int, dict[str, int]] = {inode: {} for inode in self._disk.directories}
        for index, (change, durable) in enumerate(self._disk.changes):
            if durable or index in survivors:
                for directory, name, inode in change.entries:
                    if inode is None:
                        names[directory].pop(name, None)
                    else:
                        names[directory][name] = inode
        tree: dict[str, bytes | None] = {}
        self._spell(self._root_inode, "", names, share, tree)
        return tree

    def _spell(
        self, inode: int, prefix: str, names: dict[int, dict[str, int]], share: float, tree: dict[str, bytes | None]
    ) -> None:
        for name, child in names[inode].items():
            path = f"{prefix}{name}"
            if child in self._disk.directories:
                tree[path] = None
                self._spell(child, f"{path}/", names, share, tree)
            else:
                file = self._disk.files[child]
                kept = len(file.live) if file.flushed else int(len(file.live) * share)
                tree[path] = file.live[:kept]


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(items, count) for count in range(len(items) + 1))


def materialize(tree: dict[str, bytes | None], root: Path) -> None:
    """Write a tree below an empty directory."""
    for path, data in tree.items():
        target = root / path
        if data is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
