"""Files that each rank writes for itself: which are missing, which are too many, and which hold another rank's state.

Decides what the set of rank files says. Leaves to each reader what the number of ranks was read from. Rule: a torch
archive carries the name under which it was written, so a file that was copied or renamed over another rank's gives
itself away without being compared; where the writer left that name out, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lastgood.formats.readers.draft import Draft
from lastgood.formats.readers.grids import MAXIMUM_NAMED, MAXIMUM_RANKS, absent
from lastgood.formats.readers.wording import shard_missing, unexpected_file
from lastgood.formats.source import Source
from lastgood.text import counted
from lastgood.verdict import Finding, Reason

__all__ = ["MAXIMUM_OPENED", "RankSet", "ranks_in"]

MAXIMUM_OPENED = 256
"""Of rank files: on a bucket each is a request or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSet:
    """The rank files of one kind.

    Args:
        files: Rank → path.
        spell: Rank → the path that it must have.
        pattern: The name, without its ending, that a rank writes; the rank in its first group.
    """

    files: Mapping[int, str]
    spell: Callable[[int], str]
    pattern: re.Pattern[str]

    @property
    def count(self) -> int:
        """One more than the largest rank that lies there."""
        return max(self.files, default=-1) + 1

    def check(self, draft: Draft, world_size: int, why: str) -> None:
        """Find what is missing of a set of that size, and what is too much.

        Args:
            draft: Gets the findings.
            world_size: Ranks that saved.
            why: What says so.
        """
        draft.findings += [
            shard_missing(self.spell(rank), why) for (rank,) in absent((world_size,), {(rank,) for rank in self.files})
        ]
        missing = world_size - sum(rank < world_size for rank in self.files)
        if missing > MAXIMUM_NAMED:
            last = next(rank for rank in reversed(range(world_size)) if rank not in self.files)
            draft.findings.append(shard_missing(self.spell(last), f"{why}; missing: {counted(missing, 'rank')}"))
        for rank, path in self.files.items():
            if rank >= world_size:
                draft.findings.append(unexpected_file(path, f"{why}; is it left over from a larger run?"))

    def check_owners(self, draft: Draft, world_size: int) -> None:
        """Find files that another rank wrote, and say so where the ranks' states cannot be told apart.

        Args:
            draft: Gets the findings, those of files that are no archives too.
            world_size: Ranks that saved; files of further ones do not belong here anyway.
        """
        written: dict[int, int] = {}
        contents: set[tuple[tuple[str, int], ...]] = set()
        mine = [(rank, path) for rank, path in self.files.items() if rank < world_size]
        if len(mine) > MAXIMUM_OPENED:
            draft.unknowable.append(
                f"whose state lies in {len(mine) - MAXIMUM_OPENED} of {len(mine)} rank files: too many"
            )
        for rank, path in mine[:MAXIMUM_OPENED]:
            directory = draft.archive_of(path)
            if directory is None:
                continue
            contents.add(tuple((name, record.crc32) for name, record in directory.records.items()))
            if match := self.pattern.fullmatch(directory.archive):
                written[rank] = int(match[1])
        for rank, other in written.items():
            if other == rank:
                continue
            # Where the other rank's own file still lies in its place, this one is a copy of it.
            reason = Reason.RANK_DUPLICATED if written.get(other) == other else Reason.ARTIFACT_SWAPPED
            path = self.files[rank]
            draft.findings.append(
                Finding(
                    reason=reason,
                    message=f"state of another rank: {path}: expected rank {rank}, found what rank {other} wrote",
                    offender=path,
                    expected=str(rank),
                    found=str(other),
                )
            )
        if len(contents) == 1 and len(mine) > 1:
            draft.unknowable.append(
                f"whether each rank kept its own state: {mine[0][1]} and the others hold the same, "
                "as they do where all ranks are seeded alike"
            )


def ranks_in(source: Source, pattern: re.Pattern[str], spell: Callable[[int], str]) -> RankSet:
    """The files at the top of a checkpoint whose names without their ending match.

    Args:
        source: The checkpoint.
        pattern: See `RankSet`.
        spell: See `RankSet`.
    """
    files = {}
    for path in source.matching():
        match = pattern.fullmatch(path.rpartition(".")[0])
        if match and len(match[1]) <= 7 and int(match[1]) < MAXIMUM_RANKS and spell(int(match[1])) == path:
            files[int(match[1])] = path
    return RankSet(files=files, spell=spell, pattern=pattern)
